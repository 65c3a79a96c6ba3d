"""examples/python as a reader starts it, under torchrun on two ranks: plain.py, its functions as targets of the command, and automatic.py."""

import importlib.util
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"
DEADLINE_S = 600  # a hang; a busy machine takes minutes for what takes seconds


def torchrun(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)


class Plain(unittest.TestCase):
    def test_a_transformer_learns_with_the_buckets_that_were_tuned(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "report.html"
            done = torchrun(str(EXAMPLES / "plain.py"), "--seconds", "1", "--steps", "40", "--report", str(page))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("DistributedDataParallel", page.read_text())
        loss = float(re.search(r"trained 40 steps: loss ([\d.]+)", done.stdout)[1])
        self.assertLess(loss, math.log(256) / 1.5)  # tuning trained it as well; before that no byte was likelier than another
        sizes = re.search(r"DistributedDataParallel has these buckets, in MiB: (.*)", done.stdout)[1]
        self.assertAlmostEqual(sum(map(float, sizes.split(", "))), 1.78, delta=0.05)

    def test_its_residual_network_is_a_target_of_the_command_and_gets_one_cap_where_asked(self):
        with tempfile.TemporaryDirectory() as folder:
            done = torchrun("-m", "firkin.tune", f"{EXAMPLES / 'plain.py'}:resnet", "--time-budget-s", "1", "--out", folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            written = {path.name for path in pathlib.Path(folder).iterdir()}
            self.assertLessEqual({"results.json", "report.html", "tensors.csv", "allreduce.csv"}, written)
            tensors = (pathlib.Path(folder) / "tensors.csv").read_text()
        self.assertIn("DistributedDataParallel(model", done.stdout)
        self.assertNotIn("bucket_cap_mb_list", done.stdout)
        self.assertEqual(len(tensors.splitlines()), 1 + 41)


@unittest.skipUnless(importlib.util.find_spec("firkin._engine"), "the engine is not built")
class Automatic(unittest.TestCase):
    def test_finds_buckets_while_it_trains(self):
        done = torchrun(str(EXAMPLES / "automatic.py"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"trained 200 steps: loss [\d.]+; buckets: \d+, settled")
        self.assertEqual(len(re.findall("^firkin: .*; measured in", done.stdout, re.MULTILINE)), 1, done.stdout)  # what was chosen, or why nothing
