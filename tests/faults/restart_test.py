"""torchrun starts all ranks again after one was killed, twice in a row: they meet in a store that has seen them before, and train to the end."""

import os
import subprocess
import sys
import unittest

import pytest

from ports import reserved_port

STEPS = 5  # of fault_ranks
LIVES = 2  # of the victim
DEADLINE_S = 300


def start_agent(*words, strategy, phase):
    command = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--no-python", *words]
    command += [os.environ["FAULT_RANKS"], "--victim", "1", "--phase", phase, "--lives", str(LIVES), "--strategy", strategy, "--timeout-s", "60"]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Restart(unittest.TestCase):
    lost_in = (("sharded", "gather"),)

    def test_ranks_that_are_started_again_meet_and_train(self):
        for strategy, phase in self.lost_in:
            with self.subTest(strategy=strategy, phase=phase):
                words = ["--nproc-per-node", "2", "--max-restarts", str(LIVES), "--rdzv-endpoint", "127.0.0.1:0"]
                agent = start_agent(*words, strategy=strategy, phase=phase)
                output, _ = agent.communicate(timeout=DEADLINE_S)
                self.assertEqual(agent.returncode, 0, output)
                self.assertEqual(output.count(f"reached {phase}"), LIVES, output)
                self.assertEqual(output.count(f"step {STEPS - 1} of {STEPS}"), 2, output)


@pytest.mark.full
class RestartOfBucketed(Restart):
    lost_in = (("bucketed", "rendezvous"), ("bucketed", "bucket"))

    def test_two_agents_whose_restart_counts_differ_meet_as_well(self):
        with reserved_port() as port:
            # An agent whose own rank failed counts a restart; one that follows it does not.
            words = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "6", "--rdzv-endpoint", f"127.0.0.1:{port}"]
            agents = [start_agent(*words, strategy="bucketed", phase="backward") for _ in range(2)]
            outputs = [agent.communicate(timeout=DEADLINE_S)[0] for agent in agents]
        self.assertEqual([agent.returncode for agent in agents], [0, 0], outputs)
        self.assertGreaterEqual("".join(outputs).count("reached backward"), LIVES, outputs)
        self.assertEqual("".join(outputs).count(f"step {STEPS - 1} of {STEPS}"), 2, outputs)
