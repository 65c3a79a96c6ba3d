"""firkin.measure_all_reduce: the time of an all-reduce by size, on the user's own process group."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from firkin._core import AllReduceTable, InputError, allreduce_sizes, row_of_samples
from firkin._ddp import MIB
from firkin._profile import Clock
from firkin._ranks import Ranks
from firkin._torch import dist, torch

_FLOAT_BYTES = 4
_MOST_ROUNDS = 10
_FEWEST_ROUNDS = 2
_QUEUE_LENGTH = 4  # calls under way at once for the gap: about as many as a step has
_QUEUE_SHARE = 0.05  # of the time that there is: what a queue takes at most; fewer calls in it, or no queue, where it would take longer
_LARGEST_QUEUE_BYTES = 256 * MIB  # of all queued buffers together
_LONG_CALL_S = 0.05  # needs no warm-up
_SAMPLE_SECONDS = 0.5e-3  # what the calls of one sample take together, about
_MOST_CALLS_PER_SAMPLE = 100
_MOST_SAMPLES_PER_VISIT = 100


@dataclass
class _Size:
    bytes: int
    buffers: list[torch.Tensor]
    calls: int = 1  # per sample
    isolated_s: list[float] = field(default_factory=list)  # per call, of the slowest rank
    queued_s: list[float] = field(default_factory=list)  # of the whole queue
    isolated_cost_s: float = 1e-6  # of a sample
    queued_cost_s: float = 1e-6
    wrong: int = 0


class KnownSums:
    """Values of ranks whose sums are known, and exact in any order of summing: integers, of which `dtype` holds those up to a limit.

    Of very many ranks only each `stride`-th adds something to an element.
    """

    def __init__(self, ranks: int, dtype: torch.dtype) -> None:
        limit = 1 << (24 if dtype.itemsize >= _FLOAT_BYTES else 8)  # float32, and bfloat16
        self._by_rank = ranks * (ranks + 1) // 2 <= limit  # then every rank adds another value
        self.stride = 1 if self._by_rank else math.ceil(ranks / limit)
        self._expected = [sum(self._value(rank) for rank in range(first, ranks, self.stride)) for first in range(self.stride)]

    def _value(self, rank: int) -> int:
        return rank + 1 if self._by_rank else 1

    def fill(self, buffer: torch.Tensor, rank: int) -> None:
        buffer.zero_()
        buffer[rank % self.stride :: self.stride] = self._value(rank)

    def wrong(self, buffer: torch.Tensor) -> int:
        """How many elements are not the sum."""
        parts = buffer.split(MIB // self.stride * self.stride)  # so that no mask of all of it is made
        return sum(int((part[i :: self.stride] != sum_).sum()) for part in parts for i, sum_ in enumerate(self._expected))


class AllReduceBench:
    """As measure_all_reduce(), on `device`. dtypes: of the gradients, whose bytes `sizes` are, and what they travel as."""

    def __init__(
        self, ranks: Ranks, device: torch.device, sizes: Sequence[int], seconds: float, seed: int,
        dtypes: tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float32),
    ) -> None:  # fmt: skip
        self._ranks = ranks
        self._synchronize = Clock(device).synchronize
        self._seconds = seconds
        self._deadline = time.perf_counter() + seconds
        self._random = random.Random(seed)
        most = min(2 * max(sizes), _LARGEST_QUEUE_BYTES)  # no more than gradients and buckets take in training
        queues = {size: max(1, min(_QUEUE_LENGTH, most // size)) for size in sizes}
        gradient, travels = dtypes
        elements = max(size * queue for size, queue in queues.items()) // gradient.itemsize
        memory = torch.zeros(elements, dtype=travels, device=device)  # shared by all sizes
        self._sums = KnownSums(ranks.size, travels)
        self._sizes = []
        for size in sizes:
            count = size // gradient.itemsize
            self._sizes.append(_Size(size, [memory.narrow(0, i * count, count) for i in range(queues[size])]))

    def run(self, on_progress: Callable[[str], None] = lambda _: None) -> AllReduceTable:
        for size in self._sizes:
            self._prepare(size)
        for round_number in range(_MOST_ROUNDS):
            order = list(self._sizes)
            self._random.shuffle(order)  # the same on every rank
            for i, size in enumerate(order):
                self._visit(size, self._seconds_left() / ((_MOST_ROUNDS - round_number) * len(order) - i))
            on_progress(f"measuring all-reduce: round {round_number + 1} of {_MOST_ROUNDS}")
            if round_number + 1 >= _FEWEST_ROUNDS and self._seconds_left() <= 0:
                break
        rows = [row_of_samples(s.bytes, self._ranks.size, s.isolated_s, s.queued_s, len(s.buffers), s.calls, s.wrong) for s in self._sizes]
        return AllReduceTable(rows)

    def _seconds_left(self) -> float:
        return self._ranks.max([self._deadline - time.perf_counter()])[0]

    def _time_isolated(self, size: _Size) -> float:
        """Seconds per call, one after another."""
        started = time.perf_counter()
        for _ in range(size.calls):
            dist.all_reduce(size.buffers[0], group=self._ranks.group)
            self._synchronize()
        return (time.perf_counter() - started) / size.calls

    def _time_queued(self, size: _Size) -> float:
        """Seconds of all of them, under way together."""
        self._ranks.barrier()
        started = time.perf_counter()
        queue = [dist.all_reduce(buffer, group=self._ranks.group, async_op=True) for buffer in size.buffers]
        for work in queue:
            work.wait()
        self._synchronize()
        return time.perf_counter() - started

    def _prepare(self, size: _Size) -> None:
        """Touches connections and pages, finds out how long a call takes, and checks one result."""
        once_s = self._ranks.max([self._time_isolated(size)])[0]
        if size.bytes > MIB:
            del size.buffers[max(int(_QUEUE_SHARE * self._seconds / once_s), 1) :]
        for buffer in size.buffers:
            self._sums.fill(buffer, self._ranks.rank)
        self._time_queued(size)
        size.wrong = sum(self._ranks.all(sum(self._sums.wrong(buffer) for buffer in size.buffers)))
        for buffer in size.buffers:
            buffer.zero_()  # stays finite however often it is summed
        if once_s < _LONG_CALL_S:
            once_s = min(self._ranks.max([self._time_isolated(size)])[0] for _ in range(2))
        size.calls = min(max(math.ceil(_SAMPLE_SECONDS / max(once_s, 1e-9)), 1), _MOST_CALLS_PER_SAMPLE)
        self._measure(size, 1, 1)
        if once_s < _LONG_CALL_S:  # warm-up
            size.isolated_s.clear()
            size.queued_s.clear()

    def _visit(self, size: _Size, seconds: float) -> None:
        queues = len(size.buffers) > 1

        def samples(budget_s: float, cost_s: float) -> int:
            return min(max(int(budget_s / max(cost_s, 1e-6)), 1), _MOST_SAMPLES_PER_VISIT)

        self._measure(size, samples(seconds / 2 if queues else seconds, size.isolated_cost_s), samples(seconds / 2, size.queued_cost_s))

    def _measure(self, size: _Size, isolated: int, queued: int) -> None:
        self._ranks.barrier()
        if len(size.buffers) == 1:
            queued = 0
        started = time.perf_counter()
        ours = [self._time_isolated(size) for _ in range(isolated)]
        isolated_s = time.perf_counter() - started
        ours += [self._time_queued(size) for _ in range(queued)]
        queued_s = time.perf_counter() - started - isolated_s
        slowest = self._ranks.max([*ours, isolated_s / isolated, queued_s / max(queued, 1)])
        size.isolated_s += slowest[:isolated]
        size.queued_s += slowest[isolated:-2]
        size.isolated_cost_s, size.queued_cost_s = slowest[-2:]


def measure_all_reduce(
    process_group: dist.ProcessGroup | None = None,
    *,
    sizes: Sequence[int] | None = None,
    time_budget_s: float = 10.0,
    seed: int = 0,
) -> AllReduceTable:
    """Times all-reduces by size: a(x), one call at a time, and g(x), up to 4 queued back to back. Collective.

    process_group: None is the default group. sizes: bytes, multiples of 4; by default 4 B to 64 MiB by factors of 4. time_budget_s: total,
    exceeded only if two rounds of single calls take longer. Sizes take turns in an order shuffled by `seed`; a sample is the slowest rank's;
    one result per size is checked element by element. Every rank gets the same table. Memory: twice the largest size up to 256 MiB, above
    that the size.
    Raises InputError without a process group, with one rank, and for an invalid size or time_budget_s.
    """
    ranks = Ranks(process_group)
    sizes = allreduce_sizes(64 * MIB) if sizes is None else list(sizes)

    def check() -> None:
        ranks.check_measurable(time_budget_s)
        if not sizes:
            raise InputError("sizes: expected at least one")
        for size in sizes:
            if size < _FLOAT_BYTES or size % _FLOAT_BYTES:
                raise InputError(f"an all-reduce of {size} bytes; expected a positive multiple of 4")

    ranks.attempt(check)
    ranks.check_same("measure_all_reduce", {"sizes": sizes, "time_budget_s": time_budget_s, "seed": seed})
    return AllReduceBench(ranks, ranks.gradient_device(), sizes, time_budget_s, seed).run()
