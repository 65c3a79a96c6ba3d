"""firkin.measure_all_reduce: the time of an all-reduce by size, on the user's own process group."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

from firkin._core import AllReduceSchedule, AllReduceTable, InputError, allreduce_sizes
from firkin._ddp import MIB
from firkin._profile import Clock
from firkin._ranks import Ranks
from firkin._torch import dist, torch

_LARGEST_QUEUE_BYTES = 256 * MIB  # the limit for all queued buffers together
_BUFFER_ALIGNMENT = 4096  # in bytes; so that no two buffers share a cache line
_PERIOD = 127  # a prime, so that chunks whose size is a power of two all begin with other values


def _known_sums(buffer: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yields pieces of the buffer, each with the indices of its elements and their expected sums over the ranks."""
    piece = _PERIOD << 11  # elements; the indices and sums of a piece stay below 10 MB
    for first in range(0, len(buffer), piece):
        part = buffer[first : first + piece]
        index = torch.arange(first, first + len(part), device=buffer.device)
        yield part, index, (index % _PERIOD + 1).to(buffer.dtype)


def fill_with_known_values(buffer: torch.Tensor, rank: int, ranks: int) -> None:
    """Sets element i to i mod 127 + 1 (exact in every dtype) on rank i mod `ranks`, and to 0 on the others."""
    for part, index, sums in _known_sums(buffer):
        part.copy_(sums * (index % ranks == rank))


def count_wrong(buffer: torch.Tensor) -> int:
    """The number of elements that are not the sum of what fill_with_known_values() wrote on the ranks."""
    return sum(int((part != sums).sum()) for part, _, sums in _known_sums(buffer))


def timed_all_reduces(
    ranks: Ranks, device: torch.device, sizes: Sequence[int], seconds: float, seed: int,
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float32), on_progress: Callable[[str], None] = lambda _: None,
) -> AllReduceTable:  # fmt: skip
    """measure_all_reduce() on `device`. sizes: bytes of gradients. dtypes: of the gradients, and on the wire."""
    begun, synchronize = time.perf_counter(), Clock(device).synchronize
    most_bytes = min(2 * max(sizes), _LARGEST_QUEUE_BYTES)  # training needs as much, for gradients and buckets
    schedule = AllReduceSchedule(list(sizes), seconds, seed, most_bytes)
    gradient, travels = dtypes
    aligned = _BUFFER_ALIGNMENT // travels.itemsize
    counts = [size // gradient.itemsize for size in sizes]
    shapes = [(schedule.queue(i), math.ceil(count / aligned) * aligned) for i, count in enumerate(counts)]
    # All sizes share this memory.
    memory = torch.zeros(max(queue * stride for queue, stride in shapes), dtype=travels, device=device)
    buffers = [memory[: math.prod(shape)].view(shape)[:, :count].unbind() for shape, count in zip(shapes, counts)]

    def time_calls(buffer: torch.Tensor, calls: int) -> float:
        """Seconds per call, with calls one after another."""
        started = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(buffer, group=ranks.group)
            synchronize()
        return (time.perf_counter() - started) / calls

    def time_queue(queue: Sequence[torch.Tensor]) -> float:
        """Seconds for one call per buffer, all in flight together."""
        ranks.barrier()
        started = time.perf_counter()
        for work in [dist.all_reduce(buffer, group=ranks.group, async_op=True) for buffer in queue]:
            work.wait()
        synchronize()
        return time.perf_counter() - started

    def check(queue: Sequence[torch.Tensor]) -> int:
        """The number of wrong elements in a queue's results, over all ranks. Leaves zeros, so that sums stay finite."""
        for buffer in queue:
            fill_with_known_values(buffer, ranks.rank, ranks.size)
        time_queue(queue)
        wrong = sum(count_wrong(buffer) for buffer in queue)
        for buffer in queue:
            buffer.zero_()
        return sum(ranks.all(wrong))

    while (visit := schedule.next()) is not None:
        queue = buffers[visit.size][: visit.queue]
        wrong = check(queue) if visit.checks else 0
        ranks.barrier()
        if visit.warms_up:
            time_calls(queue[0], 1)
        started = time.perf_counter()
        took = [time_calls(queue[0], visit.calls) for _ in range(visit.isolated)]
        isolated_s = time.perf_counter() - started
        took += [time_queue(queue) for _ in range(visit.queued)]
        queued_s = time.perf_counter() - started - isolated_s
        schedule.tell(ranks.max([*took, isolated_s, queued_s, time.perf_counter() - begun]), wrong)
        on_progress(f"measuring all-reduce: round {schedule.rounds} of {schedule.most_rounds}")
    return schedule.table(ranks.world)


def measure_all_reduce(
    process_group: dist.ProcessGroup | None = None,
    *,
    sizes: Sequence[int] | None = None,
    time_budget_s: float = 10.0,
    seed: int = 0,
) -> AllReduceTable:
    """Times all-reduces by size: a(x), one call at a time, and g(x), up to 4 queued back to back. Collective.

    process_group: None is the default group. sizes: in bytes, multiples of 4; by default 4 B to 64 MiB by factors of 4.
    time_budget_s: the time in all, exceeded only if two rounds of single calls take longer.

    Sizes take turns, in an order shuffled by `seed`. A sample is the time of the slowest rank. Results are checked element
    by element. Every rank gets the same table. Memory per rank: twice the largest size but at most 256 MiB, or the
    largest size itself if that is more.

    Raises InputError without a process group, with one rank, and for an invalid size or time_budget_s.
    """
    ranks = Ranks(process_group)
    sizes = allreduce_sizes(64 * MIB) if sizes is None else list(sizes)

    def check() -> None:
        ranks.check_measurable(time_budget_s)
        if not sizes:
            raise InputError("sizes: expected at least one")

    ranks.attempt(check)
    ranks.check_same("measure_all_reduce", {"sizes": sizes, "time_budget_s": time_budget_s, "seed": seed})
    return timed_all_reduces(ranks, ranks.gradient_device(), sizes, time_budget_s, seed)
