"""The command lines that the scripts of examples/launch/ build, which needs neither a cluster nor LibTorch; and that each really starts
`firkin` on two ranks here: Slurm is played by stubs/, torchrun and mpirun are the real ones.

FIRKIN names the binary with LibTorch, where there is one. torchrun is the one beside this Python.
"""

import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

import pytest
from ports import reserved_port
from processes import DEADLINE_S, environment_without, mpirun

HERE = pathlib.Path(__file__).resolve().parent
LAUNCH = HERE.parents[1] / "examples" / "launch"
SCRIPTS = sorted(LAUNCH.glob("*.sh"))
ALLOCATION = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS_PER_NODE": "2"}
TWO_NODES = ALLOCATION | {"SLURM_JOB_NODELIST": "n7,n8", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "4"}


def launch(script, *words, **variables):
    """Runs a script with a fake Slurm and this Python's torchrun in front of PATH, and no launcher's variables but those given."""
    environment = environment_without()
    environment["PATH"] = f"{HERE / 'stubs'}:{pathlib.Path(sys.executable).parent}:{environment['PATH']}"
    command = ["bash", str(LAUNCH / script), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment | variables)


class Scripts(unittest.TestCase):
    def dry_run(self, script, *words, **variables):
        """The words of the command line that the script would run."""
        result = launch(script, *words, DRY_RUN="1", **variables)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(len(result.stdout.splitlines()), 1, result.stdout)
        return shlex.split(result.stdout)

    def test_there_are_four_and_bash_can_read_them(self):
        self.assertEqual([s.name for s in SCRIPTS], ["mpirun.sh", "slurm-srun.sh", "slurm-torchrun.sh", "torchrun.sh"])
        for script in SCRIPTS:
            with self.subTest(script=script.name):
                subprocess.run(["bash", "-n", script], check=True)
                self.assertIn("set -euo pipefail", script.read_text())
                self.assertTrue(script.stat().st_mode & 0o100, "executable")

    def test_the_arguments_are_the_command_and_tune_is_the_default(self):
        for script in SCRIPTS:
            with self.subTest(script=script.name):
                self.assertEqual(self.dry_run(script.name, **ALLOCATION)[-2:], ["firkin", "tune"])
                words = ["firkin", "tune", "--out", "a folder; with 'quotes'"]
                self.assertEqual(self.dry_run(script.name, *words, **ALLOCATION)[-4:], words)

    def test_srun_starts_a_task_per_rank_and_names_the_first_node(self):
        words = self.dry_run("slurm-srun.sh", SLURM_CPUS_PER_TASK="12", **TWO_NODES)
        expected = "env MASTER_ADDR=n7 MASTER_PORT=24711 srun --nodes=2 --ntasks-per-node=4 --kill-on-bad-exit=1 --cpus-per-task=12 firkin tune"
        self.assertEqual(words, expected.split())

    def test_slurm_starts_a_torchrun_per_node(self):
        words = self.dry_run("slurm-torchrun.sh", RANKS_PER_NODE="8", **TWO_NODES)
        expected = (
            "srun --nodes=2 --ntasks-per-node=1 --kill-on-bad-exit=1 torchrun --nnodes=2 --nproc-per-node=8 --max-restarts=0"
            " --rdzv-id=4711 --rdzv-backend=c10d --rdzv-endpoint=n7:24711 --no-python firkin tune"
        )
        self.assertEqual(words, expected.split())

    def test_torchrun_meets_at_the_head(self):
        words = self.dry_run("torchrun.sh", NODES="3", HEAD="n7", PORT="5000")
        self.assertIn("--nnodes=3", words)
        self.assertIn("--rdzv-endpoint=n7:5000", words)
        result = launch("torchrun.sh", NODES="3")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("NODES=3 without HEAD", result.stderr)

    def test_mpirun_gives_every_host_its_slots(self):
        words = self.dry_run("mpirun.sh", HOSTS="n7,n8", RANKS_PER_NODE="4", PORT="5000")
        expected = "mpirun --host n7:4,n8:4 -np 8 --bind-to none -x MASTER_ADDR=n7 -x MASTER_PORT=5000 firkin tune"
        self.assertEqual(words, expected.split())

    def test_outside_an_allocation_the_slurm_scripts_say_so(self):
        for script in ["slurm-srun.sh", "slurm-torchrun.sh"]:
            result = launch(script)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertEqual(result.stderr, f"{LAUNCH / script}: no Slurm allocation; expected to be started by sbatch or inside salloc\n")

    def test_every_task_of_srun_gets_its_rank(self):
        result = launch("slurm-srun.sh", "bash", "-c", "echo rank $SLURM_PROCID of $SLURM_STEP_NUM_TASKS at $MASTER_ADDR", **ALLOCATION)
        self.assertEqual(result.returncode, 0, result.stderr)
        printed, *ranks = result.stdout.splitlines()
        self.assertIn("srun --nodes=1 --ntasks-per-node=2", printed)
        self.assertEqual(sorted(ranks), ["rank 0 of 2 at localhost", "rank 1 of 2 at localhost"])

    def test_the_exit_code_is_the_commands(self):
        self.assertEqual(launch("slurm-srun.sh", "bash", "-c", "exit 3", **ALLOCATION).returncode, 3)


@unittest.skipUnless(pathlib.Path(os.environ["FIRKIN"]).with_name("firkin-measure").exists(), "needs the program with LibTorch")
@pytest.mark.full
class TwoRanks(unittest.TestCase):
    def measure(self, script, **variables):
        with tempfile.TemporaryDirectory() as folder, reserved_port() as port:
            words = [os.environ["FIRKIN"], "bench", "allreduce", "-e", "8K", "--time", "0.2s", "--out", folder]
            result = launch(script, *words, PORT=str(port), OMP_NUM_THREADS="1", **variables)
            self.assertEqual(result.returncode, 0, f"{result.stdout}\n{result.stderr}")
            results = json.loads((pathlib.Path(folder) / "results.json").read_text())
        self.assertEqual(results["environment"]["world_size"], 2)
        self.assertEqual(results["allreduce"][0]["bytes"], 4)
        self.assertEqual({row["world_size"] for row in results["allreduce"]}, {2})

    def test_slurm_and_torchrun(self):
        for script, variables in (("slurm-srun.sh", ALLOCATION), ("slurm-torchrun.sh", ALLOCATION), ("torchrun.sh", {})):
            with self.subTest(script=script):
                self.measure(script, **variables)

    def test_mpirun(self):
        mpirun()
        self.measure("mpirun.sh", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
