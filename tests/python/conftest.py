"""The package as it was built, for scripts that tests start too, and one thread for each rank; set before anything imports torch."""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ADDED = [*filter(None, [os.environ.get("FIRKIN_PACKAGE")]), str(HERE), str(HERE.parent)]
sys.path[:0] = ADDED
os.environ["PYTHONPATH"] = os.pathsep.join([*ADDED, *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ.setdefault("OMP_NUM_THREADS", "1")
