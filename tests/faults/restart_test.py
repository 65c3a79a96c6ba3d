"""torchrun starts the ranks again after one was killed: they meet under a prefix of their own in its store, and train to the end."""

import os
import subprocess
import sys
import unittest

STEPS = 5  # of fault_ranks
DEADLINE_S = 300


class Restart(unittest.TestCase):
    lost_in = (("sharded", "gather"),)

    def test_ranks_that_are_started_again_meet_and_train(self):
        for strategy, phase in self.lost_in:
            with self.subTest(strategy=strategy, phase=phase):
                command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "--no-python"]
                command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
                command += [os.environ["FAULT_RANKS"], "--victim", "1", "--phase", phase, "--strategy", strategy, "--timeout-s", "60"]
                ended = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=DEADLINE_S)
                self.assertEqual(ended.returncode, 0, ended.stderr)
                self.assertEqual(ended.stdout.count(f"reached {phase}"), 1, ended.stdout)
                self.assertEqual(ended.stdout.count(f"step {STEPS - 1} of {STEPS}"), 2, ended.stdout + ended.stderr)


class RestartFull(Restart):
    lost_in = (("bucketed", "rendezvous"), ("bucketed", "bucket"))
