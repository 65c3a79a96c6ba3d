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

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
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


def pytest_configure(config):
    chosen = [pathlib.Path(word.partition("::")[0]).resolve() for word in config.args]
    for folder in (HERE / name for name in (*NEEDS, "python")):
        if any(path.is_relative_to(folder) or folder.is_relative_to(path) for path in chosen):
            has_package = "FIRKIN_PACKAGE" in os.environ or importlib.util.find_spec("firkin") is not None
            if not (has_package if folder.name == "python" else pathlib.Path(os.environ[NEEDS[folder.name]]).exists()):
                raise pytest.UsageError(f"nothing built for tests/{folder.name} in {BUILD}: make build, or FIRKIN_BUILD=FOLDER names another build")
