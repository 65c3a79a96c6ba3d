"""examples/train: the same losses under every strategy, and after any kill those of a run that was left alone. TRAIN names the program.

Losses are compared as they are printed, nine digits behind the point: to the last bit of a float32.
"""

import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from folders import InAFolder
from ports import reserved_port
from processes import DEADLINE_S, children_of

TRAIN = os.environ["TRAIN"]
TEXT = pathlib.Path(__file__).resolve().parents[2] / "data" / "text" / "cooperage.txt"
TINY = ["--data", TEXT, "--width", 32, "--layers", 2, "--sequence", 32, "--batch", 12, "--cap", "16KiB"]
ENDLESS = 1_000_000  # steps
SEED = os.environ.get("FIRKIN_TEST_SEED", "0")  # tools/test sets it to the commit
STEP = re.compile(r"^step (\d+): loss (\S+),")


def command(*words):
    return [str(word) for word in [TRAIN, *TINY, *words]]


class Running:
    """A training, or a torchrun of one, in a session of its own, and the lines that it prints."""

    def __init__(self, words, environment=None):
        more = {"OMP_NUM_THREADS": "1"} | (environment or {})
        self.process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        env=os.environ | more, start_new_session=True)  # fmt: skip
        self.lines, self.news, self.ended = [], threading.Condition(), False
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.news:
                self.lines.append(line.rstrip())
                self.news.notify_all()
        with self.news:
            self.ended = True
            self.news.notify_all()

    def wait_for(self, wanted, after=0):
        """The number of lines up to the first one from `after` on that `wanted` is true of."""
        until = time.monotonic() + DEADLINE_S
        with self.news:
            while True:
                for number, line in enumerate(self.lines[after:], after + 1):
                    if wanted(line):
                        return number
                after = len(self.lines)
                if self.ended or not self.news.wait(max(0, until - time.monotonic())):
                    raise AssertionError("the line did not come:\n" + "\n".join(self.lines[-40:]))

    def wait_for_step(self, least, after=0):
        return self.wait_for(lambda line: (found := STEP.match(line)) and int(found[1]) >= least, after)

    def wait_for_continuation(self, after=0):
        """The number of lines so far, and the steps that were done before."""
        number = self.wait_for(lambda line: "continuing from" in line, after)
        return number, int(re.search(r"(\d+) steps done", self.lines[number - 1])[1])

    def ranks(self):
        """The process ids of this launcher's ranks, in their order."""
        return children_of(self.process.pid)

    def end(self):
        """Waits; returns the exit code."""
        try:
            return self.process.wait(DEADLINE_S)
        finally:
            self.kill()
            self.reader.join()

    def kill(self):
        """As when its machine goes: the launcher first."""
        if self.process.poll() is None:
            for pid in [self.process.pid, *self.ranks()]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def losses(self):
        """[(step, loss)], as printed."""
        return [(int(found[1]), found[2]) for found in map(STEP.match, self.lines) if found]


class Training(InAFolder):
    def start(self, *words, environment=None):
        running = Running(words, environment)
        self.addCleanup(running.process.stdout.close)
        self.addCleanup(running.reader.join)
        self.addCleanup(running.kill)
        return running

    def train(self, *words, ranks=2, out=None):
        """The printed losses of a training that ends by itself."""
        running = self.start(*command("--ranks", ranks, "--out", out or self.out, *words))
        self.assertEqual(running.end(), 0, "\n".join(running.lines))
        return running.losses()

    def killed(self, victim, *words, ranks=2):
        """The losses of a training whose rank `victim`, or launcher (-1), was killed at a random step."""
        draw = random.Random(f"{SEED} {victim} {words}")
        running = self.start(*command("--ranks", ranks, "--out", self.out, "--steps", ENDLESS, "--checkpoint-every", 1 + draw.randrange(9), *words))
        running.wait_for_step(10 + draw.randrange(20))
        time.sleep(draw.uniform(0, 0.02))
        os.kill(running.process.pid if victim < 0 else running.ranks()[victim], signal.SIGKILL)
        self.assertNotEqual(running.end(), 0)
        return running.losses()

    def assert_close(self, losses, expected, delta=1e-3):
        self.assertEqual([step for step, _ in losses], [step for step, _ in expected])
        for (step, ours), (_, theirs) in zip(losses, expected, strict=True):
            self.assertAlmostEqual(float(ours), float(theirs), delta=delta, msg=f"step {step}")  # rounding grows with every step


class Train(Training):
    def test_a_killed_rank_costs_the_steps_since_the_checkpoint_and_nothing_else(self):
        """Killed under sharded, continued under ordered, then on three ranks; compared with bucketed."""
        with self.subTest(FIRKIN_TEST_SEED=SEED):
            killed = self.killed(1, "--strategy", "sharded")
            steps = killed[-1][0] + 20
            later = self.train("--strategy", "ordered", "--steps", steps, "--resume")
            last = self.train("--strategy", "sharded", "--steps", steps + 3, "--resume", ranks=3)
            whole = self.train("--strategy", "bucketed", "--steps", steps + 3, out=self.folder / "whole")
            self.assertEqual(killed, whole[: len(killed)])
            self.assertLess(0, later[0][0])
            self.assertEqual(later, whole[later[0][0] : steps])
            self.assert_close(last, whole[steps:])
            self.assertLess(float(whole[-1][1]), 0.8 * float(whole[0][1]))

    def test_bad_input_is_one_line(self):
        self.train("--steps", 1, ranks=1)
        before = (self.out / "checkpoint.pt").read_bytes()
        for words, expected in (
            (["--resume", "--seed", 2], "checkpoint.pt: of another training (batch 12, sequence 32, width 32, layers 2, seed 1, "),
            (["--strategy", "best"], "strategy best: expected one of"),
            (["--steps", "many"], "--steps many: expected a whole number"),
            (["--width", 33], "--width: expected a multiple of 32"),
            (["more"], "'more': expected --data FILE"),
        ):
            with self.subTest(words=words):
                running = self.start(*command("--out", self.out, *words))
                self.assertEqual(running.end(), 2)
                self.assertEqual(len(running.lines), 1, running.lines)
                self.assertIn(expected, running.lines[0])
        self.assertEqual((self.out / "checkpoint.pt").read_bytes(), before)

    def test_a_checkpoint_replaces_the_one_before_as_a_whole_file(self):
        self.train("--steps", 1, ranks=1)
        before = self.out / "before.pt"
        before.hardlink_to(self.out / "checkpoint.pt")
        content = before.read_bytes()
        self.train("--steps", 2, "--resume", ranks=1)
        self.assertEqual(before.read_bytes(), content)  # nothing has been written into it


@pytest.mark.full
class EveryVictim(Training):
    def test_continues_after_a_kill_of_any_rank_to_the_last_bit(self):
        """On three ranks, whose sums depend on the order of gradients in a bucket; every rank and the launcher (-1) are victims."""
        for strategy, victims in (("bucketed", (2, -1)), ("ordered", (1, -1)), ("sharded", (0, -1))):
            runs = []
            for victim in victims:
                with self.subTest(strategy=strategy, victim=victim, FIRKIN_TEST_SEED=SEED):
                    self.out = self.folder / f"{strategy}{victim}"
                    killed = self.killed(victim, "--strategy", strategy, ranks=3)
                    steps = killed[-1][0] + 10
                    later = self.train("--strategy", strategy, "--steps", steps, "--resume", ranks=3)
                    runs.append((victim, killed, later))
            longest = max(later[-1][0] + 1 for *_, later in runs)
            whole = self.train("--strategy", strategy, "--steps", longest, ranks=3, out=self.folder / f"{strategy}-whole")
            for victim, killed, later in runs:
                with self.subTest(strategy=strategy, victim=victim, FIRKIN_TEST_SEED=SEED):
                    self.assertEqual(killed, whole[: len(killed)])
                    self.assertEqual(later, whole[later[0][0] : later[-1][0] + 1])


@pytest.mark.full
class Torchrun(Training):
    def torchrun(self, *words, steps, strategy, environment=None):
        agent = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--rdzv-backend", "c10d", "--local-addr", "127.0.0.1"]
        training = command("--out", self.out, "--steps", steps, "--strategy", strategy, "--checkpoint-every", 5, "--resume")
        return self.start(*agent, *words, *training, environment=environment)

    STEPS = 200  # kills come in the tens

    def test_ranks_that_are_killed_are_started_again_and_continue(self):
        whole = dict(self.train("--steps", self.STEPS, out=self.folder / "whole"))
        for strategy in ("bucketed", "sharded"):
            with self.subTest(strategy=strategy):
                self.out = self.folder / strategy
                words = ["--nproc-per-node", 2, "--max-restarts", 3, "--rdzv-endpoint", "127.0.0.1:0"]
                torchrun, position = self.torchrun(*words, steps=self.STEPS, strategy=strategy), 0
                for victim in (-1, 0):
                    position = torchrun.wait_for_step(10, position)
                    os.kill(torchrun.ranks()[victim], signal.SIGKILL)
                    position, _ = torchrun.wait_for_continuation(position)
                self.assertEqual(torchrun.end(), 0, "\n".join(torchrun.lines))
                self.assertEqual(dict(torchrun.losses()), whole)
                self.assertLessEqual(set(torchrun.losses()), set(whole.items()))  # repeated steps have the losses that they had

    def test_a_run_continues_when_a_machine_joins_and_when_it_is_lost(self):
        """Two torchruns stand for two machines."""
        port = self.enterContext(reserved_port())

        def machine(is_host):
            times = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=8"
            words = ["--nnodes", "1:2", "--nproc-per-node", 1, "--max-restarts", 3, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "night",
                     "--rdzv-conf", f"is_host={is_host},{times}"]  # fmt: skip
            own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
            return self.torchrun(*words, steps=ENDLESS, strategy="sharded", environment=own_store)

        first = machine(is_host=True)
        position = first.wait_for_step(10)
        second = machine(is_host=False)
        position, done = first.wait_for_continuation(position)
        self.assertIn(b"WORLD_SIZE=2", pathlib.Path(f"/proc/{first.ranks()[0]}/environ").read_bytes().split(b"\0"))
        position = first.wait_for_step(done + 10, position)
        second.kill()
        position, done = first.wait_for_continuation(position)
        first.wait_for_step(done + 10, position)
        first.kill()
        first.reader.join()
        losses = dict(first.losses())
        whole = self.train("--steps", len(losses), out=self.folder / "whole")
        self.assert_close(sorted(losses.items()), whole, delta=0.05)  # after some thousand steps; other samples would differ by more
