"""The version is that of project() in CMakeLists.txt; nothing else names another.

Usage: version_test.py REPOSITORY
"""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
VERSION = re.search(r"project\(firkin VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text())[1]
OTHERS = {  # file -> what stands before its version
    "CHANGELOG.md": r"(?m)^## ",  # the newest entry
    "CITATION.cff": r"(?m)^version: ",
    "pyproject.toml": r'(?m)^version = "',
}

wrong = []
for name, before in OTHERS.items():
    file = root / name
    if name == "pyproject.toml" and (not file.exists() or re.search(r'(?m)^dynamic = .*"version"', file.read_text())):
        continue  # no package, or one that asks CMakeLists.txt itself
    named = re.search(before + r"([\d.]+)", file.read_text())
    if not named or named[1] != VERSION:
        wrong.append(f"{name}: {named[1] if named else 'no version'}; CMakeLists.txt: {VERSION}")
if wrong:
    sys.exit("\n".join(wrong))
