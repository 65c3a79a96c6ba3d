"""The command lines that the scripts of examples/launch/ build. Needs neither a cluster nor LibTorch."""

import shlex
import subprocess
import unittest

from launchers import ALLOCATION, LAUNCH, SCRIPTS, launch

TWO_NODES = ALLOCATION | {"SLURM_JOB_NODELIST": "n7,n8", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "4"}


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
