"""Agreement between ranks: an error on one rank is raised on all of them."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from firkin._core import InputError
from firkin._link import BACKEND, Link, link_of
from firkin._torch import dist, torch

T = TypeVar("T")


class Ranks:
    """The ranks of a process group. Methods are collective unless they say otherwise."""

    def __init__(self, group: dist.ProcessGroup | None, *, may_be_alone: bool = False) -> None:
        """group: None is the default group. Raises InputError if there is none, unless this rank may be alone."""
        self.link: Link | None = None
        if may_be_alone and group is None and not dist.is_initialized():
            self.rank, self.size, self.world = 0, 1, 1
            return
        if not dist.is_initialized():
            raise InputError("no process group; expected torch.distributed.init_process_group() first, under torchrun")
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.link = link_of(group)
        self.world = self.link.world if self.link else self.size  # the ranks that collectives are timed for
        if self.rank < 0:
            raise InputError("this rank is not in the process group; expected only its members to call")
        self.backend = dist.get_backend(group)
        self._backends = str(dist.get_backend_config(group))  # "cpu:gloo,cuda:nccl", also where there is no GPU
        # The device of the tensors by which ranks exchange values.
        self.device = torch.device("cpu") if "cpu:" in self._backends else self._gpu()

    @staticmethod
    def _gpu() -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    def gradient_device(self) -> torch.device:
        """Where gradients are reduced, as far as the group tells. Not collective."""
        is_gpus = "cuda:nccl" in self._backends or f"cuda:{BACKEND}" in self._backends
        return self._gpu() if is_gpus and torch.cuda.is_available() else self.device

    def all(self, value: T) -> list[T]:
        """Every rank's value, by rank."""
        if self.size == 1:
            # No collective: in PyTorch 2.6 a program that drops its group right after one can hang, since PyTorch's
            # threads wait for the GIL.
            return [value]
        mine = pickle.dumps(value)  # all_gather_object() would need NumPy
        longest = int(self.max([len(mine)])[0])
        padded = torch.frombuffer(bytearray(mine.ljust(longest, b"\0")), dtype=torch.uint8).to(self.device)
        everyone = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(everyone, padded, group=self.group)
        on_cpu = [theirs.cpu() for theirs in everyone]
        return [pickle.loads(ctypes.string_at(theirs.data_ptr(), longest)) for theirs in on_cpu]

    def max(self, values: Sequence[float]) -> list[float]:
        """The maximum over ranks, entry by entry. No rank returns before all have called."""
        if self.size == 1:
            return [float(value) for value in values]
        tensor = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
        return [float(value) for value in tensor.tolist()]

    def barrier(self) -> None:
        self.max([0.0])

    def attempt(self, work: Callable[[], T]) -> T:
        """Does local work, and raises on every rank if it fails on one. `work` may not communicate.

        The failed rank raises its own error, the others one that names the rank; an InputError is the same on every rank.
        """
        value, error = None, None
        try:
            value = work()
        except Exception as raised:  # it is raised again below, when every rank knows
            error = raised
        failure = None if error is None else (isinstance(error, InputError), f"{type(error).__name__}: {error}", str(error))
        failures = [(rank, theirs) for rank, theirs in enumerate(self.all(failure)) if theirs is not None]
        if not failures:
            return value  # type: ignore[return-value]
        rank, (is_input, described, message) = failures[0]
        if error is not None and not isinstance(error, InputError):
            raise error
        if is_input:
            where = "" if len(failures) == self.size else f"rank {rank}: "
            raise InputError(where + message) from None
        raise RuntimeError(f"rank {rank} failed: {described.splitlines()[0]}")

    def check_measurable(self, time_budget_s: float) -> None:
        """Raises InputError if there is only one rank, or no time. Not collective."""
        if self.world < 2:
            raise InputError("only one rank; expected at least 2: torchrun --nproc-per-node 2, or firkin.init_modelled_link()")
        if not time_budget_s > 0:
            raise InputError(f"time_budget_s {time_budget_s}; expected more than 0")

    def check_same(self, what: str, arguments: Mapping[str, Any]) -> None:
        """Raises InputError on every rank unless all have the same arguments, since ranks could wait for ever."""
        mine = {name: repr(value) for name, value in arguments.items()}
        for rank, theirs in enumerate(everyone := self.all(mine)):
            for name, value in theirs.items():
                first = everyone[0][name]
                if value != first:
                    raise InputError(f"{what}: {name} is {value} on rank {rank}, {first} on rank 0; expected the same everywhere")

    def on_rank_0(self, work: Callable[[], T]) -> T:
        """The result of rank 0's work, on every rank: the others get a copy, so that no rank rounds differently."""
        return self.all(self.attempt(lambda: work() if self.rank == 0 else None))[0]  # type: ignore[return-value]
