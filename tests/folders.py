"""A folder for each test, each class or each module, which goes with it."""

import pathlib
import tempfile
import unittest


def folder_until(add_cleanup):
    """add_cleanup: a test's, a class's or a module's."""
    folder = tempfile.TemporaryDirectory(prefix="firkin-test-", ignore_cleanup_errors=True)
    add_cleanup(folder.cleanup)
    return pathlib.Path(folder.name).resolve()


class InAFolder(unittest.TestCase):
    """In it `out`, which is not there yet."""

    def setUp(self):
        self.folder = folder_until(self.addCleanup)
        self.out = self.folder / "out"
