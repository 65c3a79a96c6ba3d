"""docs/images/modules.svg is what tools/module_picture.py makes of the sources.

Usage: module_picture_test.py REPOSITORY
"""

import pathlib
import subprocess
import sys

root = pathlib.Path(sys.argv[1])
made = subprocess.run([sys.executable, "tools/module_picture.py", "."], cwd=root, check=True, text=True, capture_output=True).stdout
if made != (root / "docs/images/modules.svg").read_text():
    sys.exit("docs/images/modules.svg is older than the sources: tools/module_picture.py . > docs/images/modules.svg")
