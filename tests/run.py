"""Runs a test file of Python's as ctest does; by hand `python3 NAME_test.py` runs the same tests.

    python3 tests/run.py NAME_test.py           every class
    python3 tests/run.py NAME_test.py --first   without the classes of the second tier, whose names end in Full
    python3 tests/run.py NAME_test.py --full    those alone

Exit code 77 when every test was skipped, which ctest shows. tests/main.cpp does the same for C++.
"""

import importlib
import pathlib
import sys
import time
import unittest

SKIPPED = 77


def tests_of(suite, full):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test, full)
        elif full is None or full == type(test).__name__.endswith("Full"):
            yield test


class Result(unittest.TextTestResult):
    """Says how long each test took, as GoogleTest does."""

    passed = 0

    def startTest(self, test):  # noqa: N802: unittest's name, as those below
        super().startTest(test)
        self.started_s = time.monotonic()

    def stopTest(self, test):  # noqa: N802
        super().stopTest(test)
        self.stream.writeln(f"    {time.monotonic() - self.started_s:.1f} s")

    def addSuccess(self, test):  # noqa: N802
        super().addSuccess(test)
        self.passed += 1


def main(file, tier=None):
    path = pathlib.Path(file).resolve()
    sys.path.insert(0, str(path.parent))
    full = {None: None, "--first": False, "--full": True}[tier]
    module = importlib.import_module(path.stem)
    suite = unittest.TestSuite(tests_of(unittest.defaultTestLoader.loadTestsFromModule(module), full))
    if suite.countTestCases() == 0:
        sys.exit(f"{path}: no test {tier or ''}".rstrip())
    result = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(suite)
    if not result.wasSuccessful():
        sys.exit(1)
    if result.skipped and result.passed == 0:
        sys.exit(SKIPPED)


if __name__ == "__main__":
    main(*sys.argv[1:])
