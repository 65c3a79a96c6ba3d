"""The package as it was built, and one thread for each rank; set before anything imports torch."""

import os
import sys

if "FIRKIN_PACKAGE" in os.environ:
    sys.path.insert(0, os.environ["FIRKIN_PACKAGE"])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ["FIRKIN_PACKAGE"], os.environ.get("PYTHONPATH"))))
os.environ.setdefault("OMP_NUM_THREADS", "1")
