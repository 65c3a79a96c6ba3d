"""--device and --backend of every command that runs ranks, on a machine without a GPU; with one it is skipped, see tests/cuda.

FIRKIN names the program.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

FIRKIN = os.environ["FIRKIN"]
DEADLINE_S = 120
COMMANDS = [["tune"], ["trace"], ["bench", "step"], ["bench", "allreduce"], ["bench", "chunks"], ["bench", "collectives"], ["bench", "layers"]]


def firkin(*words):
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="")  # so that there is none
    return subprocess.run([FIRKIN, *map(str, words)], capture_output=True, text=True, timeout=DEADLINE_S, env=environment)


class Device(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name) / "out"

    def refused(self, *words):
        result = firkin(*words, "--out", self.out)
        self.assertEqual(result.returncode, 2, f"{words}: {result.stderr}")
        self.assertEqual(len(result.stderr.splitlines()), 1, f"{words}: {result.stderr}")
        self.assertFalse(self.out.exists(), words)
        return result.stderr

    def test_cuda_without_a_gpu_is_refused_in_one_line_by_every_command(self):
        for command in COMMANDS:
            line = self.refused(*command, "--device", "cuda")
            self.assertIn("device cuda: ", line)
            self.assertIn("expected cpu", line)

    def test_nccl_without_a_gpu_is_refused_in_one_line_by_every_command(self):
        for command in COMMANDS:
            self.assertIn("backend nccl: ", self.refused(*command, "--backend", "nccl"))

    def test_other_names_are_refused(self):
        self.assertIn("--device", self.refused("tune", "--device", "tpu"))
        self.assertIn("--backend", self.refused("tune", "--backend", "pigeon"))

    def test_the_cpu_over_gloo_is_what_there_is_by_default(self):
        said = []
        for flags in ([], ["--device", "cpu", "--backend", "gloo"]):
            result = firkin("bench", "allreduce", "-b", 8, "-e", 8, "--time", 0.1, *flags, "--out", self.out)
            self.assertEqual(result.returncode, 0, result.stderr)
            environment = json.loads((self.out / "results.json").read_text())["environment"]
            said.append((environment["device"], environment["backend"], environment.get("gpu")))
        self.assertEqual(said, [("cpu", "gloo", None)] * 2)


if __name__ == "__main__":
    unittest.main()
