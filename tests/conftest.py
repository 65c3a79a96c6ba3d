"""What the test files of Python's find in their environment, however they are started: where the build is, and the folders that they import from.

    pytest tests/python -k sharded                after make build
    FIRKIN_BUILD=build-dev pytest tests/cli       of another build folder
"""

import importlib.util
import os
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("FIRKIN_BUILD", ROOT / "build")).resolve()
BUILT = {"FIRKIN": "firkin", "TRAIN": "tests/example_train", "FAULT_RANKS": "tests/fault_ranks", "EXPORT_MODEL": "tests/export_model"}
# What the tests of a folder need of the build; those of other folders say so themselves.
NEEDS = {"cli": "FIRKIN", "report": "FIRKIN", "launch": "FIRKIN", "examples": "TRAIN", "faults": "FAULT_RANKS", "workload": "EXPORT_MODEL"}

os.environ |= {"FIRKIN_BUILD": str(BUILD), "FIRKIN_BINARY_DIR": str(BUILD), "FIRKIN_SOURCE_DIR": str(ROOT)}
os.environ |= {name: str(BUILD / path) for name, path in BUILT.items()}
os.environ.setdefault("FIRKIN_PYTHON", sys.executable)
if any((BUILD / "python" / "firkin").glob("_core.*.so")):
    os.environ["FIRKIN_PACKAGE"] = str(BUILD / "python")
os.environ.setdefault("CMAKE_COMMAND", "cmake")
if (BUILD / "CMakeCache.txt").exists():  # the commands that tests/install builds with
    os.environ |= dict(re.findall(r"^(CMAKE_COMMAND|CMAKE_CXX_COMPILER|CMAKE_CXX_FLAGS):\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.MULTILINE))


def pytest_collect_file(file_path):
    folder = file_path.parent.name
    missing = folder in NEEDS and not pathlib.Path(os.environ[NEEDS[folder]]).exists()
    if missing or folder == "python" and importlib.util.find_spec("firkin") is None:
        pytest.exit(f"nothing built for tests/{folder} in {BUILD}: make build, or FIRKIN_BUILD=FOLDER for another build folder", returncode=2)
