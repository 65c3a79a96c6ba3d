"""The program as a user starts it: what the tests of this folder share. FIRKIN names the binary."""

import os
import pathlib
import subprocess
import tempfile
import unittest

FIRKIN = os.environ["FIRKIN"]
DEADLINE_S = 300  # a hang; a busy machine takes minutes for what takes seconds
# A model that steps in a few milliseconds.
TINY = ["--d-model", "32", "--d-ff", "64", "--num-layers", "2"]
TINY_MODEL = [*TINY, "--batch", "1", "--sequence", "16"]


def firkin(*words, **options):
    return subprocess.run([FIRKIN, *map(str, words)], capture_output=True, text=True, timeout=DEADLINE_S, **options)


class InFolder(unittest.TestCase):
    """With a folder for each test, and in it `out`, which is not there yet."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / "out"

    def assert_refused(self, *words, mentions, **options):
        """Exit code 2, one line that says why, and nothing else."""
        result = firkin(*words, **options)
        with self.subTest(words=words):
            self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.assertTrue(result.stderr.startswith("firkin: "), result.stderr)
            self.assertIn(mentions, result.stderr)
