"""docs/images/house.svg is what tools/house_picture.py makes of the sources.

Usage: house_picture_test.py REPOSITORY
"""

import pathlib
import subprocess
import sys

root = pathlib.Path(sys.argv[1])
made = subprocess.run([sys.executable, "tools/house_picture.py", "."], cwd=root, check=True, text=True, capture_output=True).stdout
if made != (root / "docs/images/house.svg").read_text():
    sys.exit("docs/images/house.svg is older than the sources: tools/house_picture.py . > docs/images/house.svg")
