"""Every script of examples/launch/ really starts `firkin` on two ranks here: Slurm is played by stubs/, torchrun and mpirun are the real ones.

FIRKIN names the binary. torchrun is the one beside this Python.
"""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from launchers import ALLOCATION, launch
from ports import reserved_port

FIRKIN = os.environ["FIRKIN"]


class TwoRanks(unittest.TestCase):
    def measure(self, script, **variables):
        with tempfile.TemporaryDirectory() as folder, reserved_port() as port:
            words = [FIRKIN, "bench", "allreduce", "-e", "8K", "--time", "0.2", "--out", folder]
            result = launch(script, *words, PORT=str(port), OMP_NUM_THREADS="1", **variables)
            self.assertEqual(result.returncode, 0, f"{result.stdout}\n{result.stderr}")
            results = json.loads((pathlib.Path(folder) / "results.json").read_text())
        self.assertEqual(results["environment"]["world_size"], 2)
        self.assertEqual(results["allreduce"][0]["bytes"], 4)
        self.assertEqual({row["world_size"] for row in results["allreduce"]}, {2})

    def test_slurm_srun(self):
        self.measure("slurm-srun.sh", **ALLOCATION)

    def test_slurm_torchrun(self):
        self.measure("slurm-torchrun.sh", **ALLOCATION)

    def test_torchrun(self):
        self.measure("torchrun.sh")

    def test_mpirun(self):
        mpirun = shutil.which("mpirun")
        version = subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout if mpirun else ""
        if "Open MPI" not in version:
            self.skipTest("no mpirun of Open MPI on this machine")
        self.measure("mpirun.sh", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
