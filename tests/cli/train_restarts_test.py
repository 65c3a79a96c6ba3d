"""firkin train under torchrun: ranks and machines that are lost, machines that join.

FIRKIN names the binary. `train_restarts_test.py --minutes 30 --kill-every 120` is a long run that loses a rank every two minutes.
"""

import contextlib
import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import unittest

import training
from training import DEADLINE_S, TINY, Training, checkpoints_in, lines_of, losses_of, taken_flag, words_of

MINUTES, KILL_EVERY_S = 0.08, 2.0
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--rdzv-backend", "c10d", "--local-addr", "127.0.0.1"]



def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Torchrun:
    """One torchrun, an agent with its ranks, and what they print."""

    def __init__(self, *words, command, environment=None):
        command = [*TORCHRUN, *map(str, words), *command]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | (environment or {}))
        self.printed, self.news = [], threading.Condition()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.news:
                self.printed.append(line.rstrip())
                self.news.notify_all()
        with self.news:
            self.printed.append(None)
            self.news.notify_all()

    def wait_for(self, wanted, after=0):
        """The number of the first line from `after` on that `wanted` is true of; none when it ends before."""
        until = time.monotonic() + DEADLINE_S
        with self.news:
            while True:
                after = min(after, len(self.printed) - 1 if self.printed[-1:] == [None] else after)
                for number, line in enumerate(self.printed[after:], after):
                    if line is None:
                        return None
                    if wanted(line):
                        return number
                after = len(self.printed)
                if time.monotonic() > until or not self.news.wait(until - time.monotonic()):
                    raise AssertionError("nothing more in time after:\n" + self.text())

    def wait_for_step(self, step, after=0):
        return self.wait_for(lambda line: line.split()[:1] and line.split()[0].isdigit() and int(line.split()[0]) >= step, after)

    def ranks(self):
        try:
            return [int(pid) for pid in pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()]
        except FileNotFoundError:
            return []

    def kill_all(self):
        """As when the machine goes: the agent first."""
        ranks = self.ranks()
        for pid in [self.process.pid, *ranks]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.end()

    def end(self, deadline_s=None):
        try:
            self.process.wait(deadline_s or DEADLINE_S)
        finally:
            self.process.kill()
            self.reader.join()
            self.process.stdout.close()
        return self.process.returncode

    def text(self):
        """Less its steps."""
        return "\n".join(line for line in self.printed if line and not line.split()[0].isdigit() and line.split()[0] != "step")


class Restarts(Training):
    def torchrun(self, *words, steps, nodes=1, port=0, checkpoint_every=5, more=(), environment=None):
        """words: of torchrun."""
        command = words_of("train", *TINY, "--out", self.out, "--steps", steps, "--checkpoint-every", checkpoint_every, "--print-every", 1, *more)
        torchrun = Torchrun("--nnodes", nodes, "--rdzv-endpoint", f"127.0.0.1:{port}", *words, command=command, environment=environment)
        self.addCleanup(torchrun.kill_all)
        return torchrun

    def test_torchrun_starts_killed_ranks_again_and_they_go_on(self):
        for strategy in ("bucketed", "sharded"):
            with self.subTest(strategy=strategy):
                self.out, whole = self.folder / strategy, self.folder / f"{strategy}-whole"
                self.train("--steps", 300, "--strategy", strategy, out=whole)
                torchrun = self.torchrun("--nproc-per-node", 2, "--max-restarts", 2, steps=300, more=["--strategy", strategy])
                torchrun.wait_for_step(20)
                os.kill(torchrun.ranks()[-1], signal.SIGKILL)
                self.assertEqual(torchrun.end(), 0, torchrun.text())
                self.assertIn("continuing from", torchrun.text())
                self.assertEqual(losses_of(self.out), losses_of(whole))

    def test_a_restart_does_not_go_on_from_another_run(self):
        """Killed before it has a checkpoint of its own, in a folder that another run has used."""
        self.train("--steps", 10)
        torchrun = self.torchrun("--nproc-per-node", 1, "--max-restarts", 1, steps=500, checkpoint_every=0)
        torchrun.wait_for_step(0)
        os.kill(torchrun.ranks()[-1], signal.SIGKILL)
        self.assertEqual(torchrun.end(), 0, torchrun.text())
        self.assertNotIn("continuing from", torchrun.text())
        self.assertEqual(len(losses_of(self.out)), 500)
        self.assertTrue((self.out / "checkpoints.1" / "step-00000010.ckpt").exists())

    def test_a_run_goes_on_when_a_machine_joins_and_when_it_is_lost(self):
        for strategy in ("bucketed", "sharded"):
            with self.subTest(strategy=strategy):
                self.out = self.folder / strategy
                self.joins_and_is_lost(strategy)

    def joins_and_is_lost(self, strategy):
        """Two torchruns stand for two machines."""
        port = free_port()

        def node(is_host):
            times = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=8"
            words = ["--nproc-per-node", 1, "--max-restarts", 3, "--rdzv-id", "night", "--rdzv-conf", f"is_host={is_host},{times}"]
            own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
            return self.torchrun(*words, steps=1000000, nodes="1:2", port=port, more=["--schedule", "constant", "--strategy", strategy], environment=own_store)

        first = node(is_host=True)
        self.wait_for_checkpoint(first)
        second = node(is_host=False)
        joined = self.wait_for_restart(first)
        self.assertIn(b"WORLD_SIZE=2", pathlib.Path(f"/proc/{first.ranks()[0]}/environ").read_bytes().split(b"\0"))
        self.wait_for_checkpoint(first, second)
        second.kill_all()
        self.wait_for_restart(first, joined + 1)
        self.wait_for_checkpoint(first)
        first.process.send_signal(signal.SIGTERM)
        first.end()
        done = len(losses_of(self.out))
        self.assertFalse((self.out / "metrics.1.jsonl").exists())
        self.train("--steps", done, "--schedule", "constant", "--evaluate-every", 0, out=self.folder / f"{strategy}-whole")
        for ours, theirs in zip(losses_of(self.out), losses_of(self.folder / f"{strategy}-whole"), strict=True):
            self.assertAlmostEqual(ours, theirs, delta=1e-4)

    def wait_for_restart(self, torchrun, after=0):
        """The number of the line that says where it goes on."""
        number = torchrun.wait_for(lambda line: "continuing from" in line, after)
        self.assertIsNotNone(number, torchrun.text())
        self.assertIsNotNone(torchrun.wait_for_step(0, number), torchrun.text())
        return number

    def wait_for_checkpoint(self, *torchruns):
        """One that is not there yet."""
        before = checkpoints_in(self.out)[-1:]
        until = time.monotonic() + DEADLINE_S
        while checkpoints_in(self.out)[-1:] in ([], before):
            self.assertLess(time.monotonic(), until, "\n".join(each.text() for each in torchruns))
            time.sleep(0.05)


class Overnight(Training):
    """A rank is killed every so often, under torchrun; in the end all losses are those of a run that was left alone."""

    def test_killed_ranks_cost_time_and_nothing_else(self):
        self.train("--steps", 60, out=self.folder / "pace")
        step_s = statistics.median(line["step_s"] for line in lines_of(self.folder / "pace"))
        steps = max(60, int(60 * MINUTES / step_s))
        words = ["--steps", steps, "--checkpoint-every", max(1, int(1 / step_s)), "--evaluate-every", 0]
        self.train(*words, out=self.folder / "whole")
        command = words_of("train", *TINY, "--out", self.out, *words, "--print-every", 1)
        torchrun = Torchrun("--nproc-per-node", 2, "--max-restarts", 10000, "--rdzv-endpoint", "127.0.0.1:0", command=command)
        self.addCleanup(torchrun.kill_all)
        kills = self.kill_until_it_ends(torchrun)
        self.assertEqual(torchrun.end(), 0, torchrun.text())
        self.assertGreater(kills, 0)
        self.assertEqual(losses_of(self.out), losses_of(self.folder / "whole"))
        if MINUTES > 1:
            print(f"{steps} steps, {kills} kills; last loss {losses_of(self.out)[-1]!r}, left alone {losses_of(self.folder / 'whole')[-1]!r}")

    @staticmethod
    def kill_until_it_ends(torchrun):
        draw = random.Random(5)
        kills, seen = 0, 0
        while (began := torchrun.wait_for_step(0, seen)) is not None:
            time.sleep(KILL_EVERY_S)
            seen = max(began, len(torchrun.printed))
            ranks = torchrun.ranks()
            if not ranks or torchrun.printed[-1] is None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.kill(draw.choice(ranks), signal.SIGKILL)
                kills += 1
        return kills


if __name__ == "__main__":
    if "--minutes" in sys.argv:
        MINUTES, KILL_EVERY_S = taken_flag("--minutes", MINUTES), taken_flag("--kill-every", 120)
        training.DEADLINE_S = DEADLINE_S = DEADLINE_S + int(240 * MINUTES)
        sys.argv.append("Overnight.test_killed_ranks_cost_time_and_nothing_else")
    unittest.main(verbosity=2)
