"""Trainings over real processes that lose a rank: which there are, and how the ranks that are left end."""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
import re
import select
import signal
import subprocess
import tempfile
import time

from ports import reserved_port
from processes import environment_without

PROGRAM = os.environ["FAULT_RANKS"]
# As fault_ranks knows them.
PHASES = ("rendezvous", "construction", "forward", "backward", "bucket", "agreement", "optimizer", "destructor")
SHARDED_PHASES = ("forward", "backward", "optimizer", "gather", "destructor")
PHASES_OF = {"bucketed": PHASES, "sharded": SHARDED_PHASES}
STRATEGIES = ("bucketed", "ordered", "sharded")  # that lose a rank at a random moment
MOMENTS = 4  # of each
LATEST_MOMENT_S = 0.2  # some fifty steps, or more
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
WORLDS = (2, 3, 4)
CASES_AT_ONCE = 6  # of two to four processes, which mostly wait
TIMEOUT_S = 3  # of the rendezvous and of every collective
GRACE_S = 30  # after the timeout: to find out who is missing, to say so and to end, which takes two seconds where the machine is not busy
START_DEADLINE_S = 60  # loading LibTorch; no part of what is measured
SIGNAL_DEADLINE_S = 60  # from the start of all ranks until the victim has its signal
POLL_S = 0.01

# How src/comm says that ranks are missing: "rank 1 (gpu07) did not reach bucket 0 of step 2", "ranks 1, 3 have not arrived".
MISSING = re.compile(r"\branks? (?P<ranks>\d+(?:, \d+)*) (?:did not reach|ha(?:s|ve) not arrived|arrived but did not connect)")


@dataclasses.dataclass(frozen=True)
class Case:
    world: int
    phase: str | None  # None: nobody is lost
    signal: signal.Signals
    victim: int
    rank_0_hosts: bool  # the store; otherwise a process of its own does, as under torchrun
    strategy: str = "bucketed"
    moment_s: float | None = None  # of the phase moment: after the constructor
    timeout_s: float = TIMEOUT_S
    children: bool = False  # every rank leaves some behind

    def __str__(self):
        host = "rank 0" if self.rank_0_hosts else "a launcher"
        where = self.phase if self.moment_s is None else f"{self.phase} {self.moment_s:.4f} s"
        lost = f"rank {self.victim} gets {self.signal.name} in {where}" if self.phase else "nobody is lost"
        return f"{self.strategy} on {self.world} ranks, {lost}, {host} hosts the store"

    @property
    def loses_store(self):
        return self.rank_0_hosts and self.phase is not None and self.victim == 0


@dataclasses.dataclass(frozen=True)
class Ending:
    rank: int
    code: int | None  # None: it had to be killed
    seconds: float  # from the signal to its end
    output: str
    errors: str

    @property
    def message(self):
        """The last that fault_ranks said. c10d's threads log whenever they notice, before it and after it, with backtraces of many lines."""
        return (re.findall(r"fault_ranks: .*", self.errors) or ["nothing"])[-1]


@dataclasses.dataclass(frozen=True)
class Outcome:
    case: Case
    port: int
    victims_end: str | None  # the signal's name, "exit 1", or None when nothing befell it
    victims_output: str
    survivors: list[Ending]


def one_case_a_phase():
    """Each phase once; signals, worlds, victims and hosts of the store alternate."""
    phases = [(strategy, phase) for strategy, of_it in PHASES_OF.items() for phase in of_it]
    chosen = {(strategy, phase, SIGNALS[i % len(SIGNALS)], WORLDS[i % len(WORLDS)]) for i, (strategy, phase) in enumerate(phases)}
    return [case for case in every_phase_signal_and_world() if (case.strategy, case.phase, case.signal, case.world) in chosen]


def every_phase_signal_and_world():
    """The victim and the host of the store rotate so that each meets each."""
    result = []
    for strategy, phases in PHASES_OF.items():
        for (w, world), (p, phase), (s, number) in itertools.product(enumerate(WORLDS), enumerate(phases), enumerate(SIGNALS)):
            result.append(Case(world, phase, number, (p + s + p // 4) % world, rank_0_hosts=(p + w) % 2 == 0, strategy=strategy))
    return result


def random_moments(source):
    """Wherever a rank happens to be; other moments in each run. A failure names its own."""
    return [Case(source.choice(WORLDS[:-1]), "moment", SIGNALS[moment % len(SIGNALS)], source.randrange(WORLDS[0]), bool(moment // 2 % 2), strategy,
                 source.uniform(0, LATEST_MOMENT_S)) for strategy in STRATEGIES for moment in range(MOMENTS)]


class Process:
    """A fault_ranks that is gone when the `with` ends, stopped or not, and what it has left behind too. Its standard error goes to a file: a full
    pipe would block it."""

    def __init__(self, words, **variables):
        environment = environment_without() | {name: str(value) for name, value in variables.items()} | {"OMP_NUM_THREADS": "1"}
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        # restore_signals: SIGPIPE kills, as under a shell; this Python ignores it, and its children would too.
        self._process = subprocess.Popen([PROGRAM, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                                         env=environment, text=True, restore_signals=True, start_new_session=True)
        self.ended_s = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._errors.close()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def first_line(self):
        """What it prints when it is ready."""
        readable, _, _ = select.select([self._process.stdout], [], [], START_DEADLINE_S)
        line = self._process.stdout.readline().strip() if readable else ""
        if not line:
            raise RuntimeError(f"fault_ranks did not start within {START_DEADLINE_S} s: {self.end()[1]}")
        return line

    def go(self):
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def change(self):
        """The name of the signal that killed or stopped it, "exit CODE", or None while it runs. Leaves it for poll() to collect."""
        info = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        return f"exit {info.si_status}" if info.si_code == os.CLD_EXITED else signal.Signals(info.si_status).name

    def has_ended(self):
        if self.ended_s is None and self._process.poll() is not None:
            self.ended_s = time.monotonic()
        return self.ended_s is not None

    def end(self):
        """Kills it if it has not ended. Its output and errors."""
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        return self._process.stdout.read(), self._errors.read()

    @property
    def code(self):
        return self._process.returncode


def wait_until(condition, deadline_s):
    """The first true value of condition(), or its last."""
    end_s = time.monotonic() + deadline_s
    while not (value := condition()) and time.monotonic() < end_s:
        time.sleep(POLL_S)
    return value


def start(stack, case):
    """The port of the store, and the ranks, which wait for go()."""
    port = stack.enter_context(reserved_port()) if case.rank_0_hosts else int(stack.enter_context(Process(["--serve-store", 0])).first_line())
    fault = ["--victim", case.victim, "--phase", case.phase, "--signal", case.signal.name.removeprefix("SIG")] if case.phase else []
    fault += ["--moment-s", case.moment_s] if case.moment_s is not None else []
    words = ["--timeout-s", case.timeout_s, "--strategy", case.strategy, *fault, *(["--children"] if case.children else [])]
    variables = {"WORLD_SIZE": case.world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    if not case.rank_0_hosts:
        variables["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    ranks = [stack.enter_context(Process(words, RANK=rank, **variables)) for rank in range(case.world)]
    for process in ranks:
        process.first_line()
    return port, ranks


def run(case):
    """Starts the ranks, waits for the signal, and for the ends of the others; time runs from the signal."""
    with contextlib.ExitStack() as stack:
        port, ranks = start(stack, case)
        for process in ranks:
            process.go()
        victim = ranks[case.victim]
        victims_end = wait_until(victim.change, SIGNAL_DEADLINE_S)
        signal_s = time.monotonic()
        survivors = [rank for rank in range(case.world) if rank != case.victim]
        # A list: each is asked, so that each one's end is seen when it comes.
        wait_until(lambda: all([ranks[rank].has_ended() for rank in survivors]), case.timeout_s + GRACE_S)  # noqa: C419
        now_s = time.monotonic()
        endings = []
        for rank in survivors:
            ended_s = ranks[rank].ended_s
            output, errors = ranks[rank].end()
            code = ranks[rank].code if ended_s else None
            endings.append(Ending(rank, code, (ended_s or now_s) - signal_s, output, errors))
        return Outcome(case, port, victims_end, victim.end()[0], endings)


def run_all(chosen):
    """Some at a time: ranks mostly wait."""
    with concurrent.futures.ThreadPoolExecutor(CASES_AT_ONCE) as pool:
        return list(pool.map(run, chosen))


def names_lost_rank(outcome, ending):
    """Whether its message names the victim as missing, and nobody else. Where the store went with it, rank 0 or the store will do, and so it does for
    a rank so slow that rank 0 has ended with the store before it could ask."""
    _, _, text = ending.message.partition(f"fault_ranks: rank {ending.rank}: ")
    rank_0_was_first = any(other.rank == 0 and other.seconds < ending.seconds for other in outcome.survivors)
    if outcome.case.loses_store or (outcome.case.rank_0_hosts and rank_0_was_first and "or has ended because of another rank" in text):
        return re.search(rf"\brank 0\b|\S:{outcome.port}\b", text) is not None
    said = MISSING.search(re.sub(r" \([^)]*\)", "", text))  # without the hosts' names
    return said is not None and [int(rank) for rank in re.findall(r"\d+", said["ranks"])] == [outcome.case.victim]
