"""What the tests of `firkin train` share: a training that steps in milliseconds, and what it leaves behind. FIRKIN names the binary."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

FIRKIN = os.environ["FIRKIN"]
DEADLINE_S = 120
TINY = ["--d-model", 32, "--d-ff", 64, "--num-layers", 2, "--num-heads", 2, "--sequence", 32, "--global-batch", 8, "--learning-rate-warmup", 2]


def taken_flag(name, default):
    """Takes `--name N` out of the command line."""
    if name not in sys.argv:
        return default
    at = sys.argv.index(name)
    value = float(sys.argv[at + 1])
    del sys.argv[at : at + 2]
    return value


def words_of(*words):
    return [FIRKIN, *map(str, words)]


def firkin(*words, **more):
    return subprocess.run(words_of(*words), capture_output=True, text=True, timeout=DEADLINE_S, **more)


def lines_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def losses_of(out):
    return [line["loss"] for line in lines_of(out)]


def checkpoints_in(out):
    return sorted(path.name for path in (out / "checkpoints").glob("*.ckpt"))


class Training(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / "out"

    def train(self, *words, out=None, ranks=2):
        result = firkin("train", *TINY, "--ranks", ranks, "--out", out or self.out, *words)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def refused(self, *words, expected, environment=None):
        result = firkin("train", *TINY, "--out", self.out, *words, env=os.environ | (environment or {}))
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn(expected, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
