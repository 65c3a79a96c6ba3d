"""A folder for each test, which goes with it."""

import pathlib
import tempfile
import unittest


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="firkin-test-", ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
