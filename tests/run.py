"""Runs test files of Python's, in one process.

    python3 tests/run.py NAME_test.py...             every class
    python3 tests/run.py NAME_test.py... --first     without the classes of the second tier, whose names end in Full
    python3 tests/run.py NAME_test.py... --full      those alone
    python3 tests/run.py NAME_test.py... Class.test  those whose names hold this

Exit code 77 when every test was skipped, which ctest shows. tests/main.cpp does the same for C++.
"""

import pathlib
import sys
import time
import unittest

SKIPPED = 77


def tests_of(suite, full, names):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test, full, names)
        elif full in (None, type(test).__name__.endswith("Full")) and (not names or any(name in test.id() for name in names)):
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


def main(words):
    (tier,) = [word for word in words if word.startswith("--")] or [None]
    full = {None: None, "--first": False, "--full": True}[tier]
    suite = unittest.TestSuite()
    names = [word for word in words if word != tier and not word.endswith(".py")]
    for file in (pathlib.Path(word).resolve() for word in words if word.endswith(".py")):
        if str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))
        suite.addTests(tests_of(unittest.defaultTestLoader.loadTestsFromName(file.stem), full, names))
    if suite.countTestCases() == 0:
        sys.exit(f"no test in {' '.join(words)}")
    result = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(suite)
    if not result.wasSuccessful():
        sys.exit(1)
    if result.skipped and result.passed == 0:
        sys.exit(SKIPPED)


if __name__ == "__main__":
    main(sys.argv[1:])
