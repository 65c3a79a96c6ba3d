"""Training steps under several settings of DistributedDataParallel, in blocks: each runs every setting once, in an order shuffled anew."""

from __future__ import annotations

import gc
import inspect
import random
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from firkin import _ddp
from firkin._core import DdpSetting, InputError, Profile
from firkin._plan import Plan
from firkin._profile import Parameters
from firkin._ranks import Ranks
from firkin._steps import Clock, Step, StillRanks, timed_step
from firkin._torch import torch
from torch.nn.parallel import DistributedDataParallel as DDP

_TIMED_STEPS = 2  # per visit of a setting

Samples = list[list[float]]  # seconds a step, [setting][block]; without communication first


@dataclass(frozen=True)
class Setting:
    """One way to call DistributedDataParallel: by a cap, by the list of caps that makes a plan, or with neither. Can travel."""

    name: str
    cap_mib: float | None
    as_list: bool
    counts: list[int]  # tensors per bucket, in gradient-ready order: what the setting should give

    @classmethod
    def of(cls, setting: DdpSetting) -> Setting:
        return cls(setting.name, setting.cap_mib, setting.as_list, setting.counts)


class StepBench:
    """One DistributedDataParallel at a time, so that gradients are in memory twice at most. Everything is collective.

    ddp_options: what the user will call it with besides its bucket arguments.
    """

    def __init__(
        self, ranks: Ranks, model: torch.nn.Module, step: Step, parameters: Parameters, profile: Profile, ddp_options: dict[str, Any]
    ) -> None:
        self._ranks, self._model, self._step, self._profile = ranks, model, step, profile
        self._tensors = [p for _, p in parameters]
        self._clock = Clock(self._tensors[0].device)
        self._options = ddp_options
        # Buckets are rebuilt in the second step, of a static graph in the third; after that they are what is measured.
        self._warmup = 3 if ddp_options.get("static_graph") else 2
        self._sync = {"init_sync": False} if "init_sync" in inspect.signature(DDP.__init__).parameters else {}  # ranks are alike already
        self.live: dict[str, _ddp.LiveBuckets] = {}  # by the setting's name: what PyTorch made of it

    def kwargs(self, setting: Setting) -> dict[str, Any]:
        """The bucket arguments of a setting."""
        if setting.as_list:
            flags = {name: bool(self._options.get(name, False)) for name in ("find_unused_parameters", "static_graph")}
            plan = Plan.of_counts(self._profile, setting.counts)
            return {"bucket_cap_mb_list": plan.ddp_kwargs(self._model, **flags)["bucket_cap_mb_list"]}
        return {} if setting.cap_mib is None else {"bucket_cap_mb": setting.cap_mib}

    def visit(self, setting: Setting | None) -> float:
        """Seconds of a step, of the slowest rank; None: without communication."""
        # A static graph's first step would communicate.
        ddp = self._wrapped({"static_graph": False} if setting is None else self.kwargs(setting))
        try:
            if setting is None:
                return self._without_communication(ddp)
            for _ in range(self._warmup):
                self._step(ddp)
            seconds = [self._slowest(lambda: timed_step(self._step, ddp, self._clock)) for _ in range(_TIMED_STEPS)]
            if setting.name not in self.live:
                self.live[setting.name] = _ddp.live_buckets(ddp)
            return sum(seconds) / len(seconds)
        finally:
            self._unwrap(ddp)
            alive = weakref.ref(ddp)
            del ddp
            if alive() is not None:
                gc.collect()

    def blocks(
        self, settings: Sequence[Setting], *, fewest: int, most: int, seconds: float, seed: int, on_block: Callable[[int], None]
    ) -> Samples:
        """At least `fewest` blocks, then as many as end within `seconds`, at most `most`."""
        order: list[Setting | None] = [None, *settings]
        samples: Samples = [[] for _ in order]
        started = time.perf_counter()
        for block in range(most):
            indices = list(range(len(order)))
            random.Random(f"{seed} {block}").shuffle(indices)  # the same on every rank
            for i in indices:
                samples[i].append(self.visit(order[i]))
            on_block(block + 1)
            over_s = (time.perf_counter() - started) * (block + 2) / (block + 1) - seconds
            if self._ranks.max([over_s])[0] > 0 and block + 1 >= fewest:  # the ranks' clocks and `seconds` differ a little
                break
        return samples

    def _slowest(self, timed: Callable[[], float]) -> float:
        self._ranks.barrier()
        return self._ranks.max([timed()])[0]

    def _without_communication(self, ddp: DDP) -> float:
        def once() -> float:
            with StillRanks(self._tensors, self._clock) as still, ddp.no_sync():
                return timed_step(self._step, ddp, self._clock) - still.seconds

        once()
        seconds = [self._slowest(once) for _ in range(_TIMED_STEPS)]
        return sum(seconds) / len(seconds)

    def _wrapped(self, kwargs: dict[str, Any]) -> DDP:
        return DDP(self._model, **{"process_group": self._ranks.group, **self._sync, **self._options, **kwargs})

    def _unwrap(self, ddp: DDP) -> None:
        remove = getattr(ddp.reducer, "_remove_autograd_hooks", None)
        if remove is not None:
            remove()
        for tensor in self._tensors:
            tensor.grad = None  # it may be a view of a bucket


def make_ranks_alike(ranks: Ranks, model: torch.nn.Module) -> None:
    """Rank 0's parameters and buffers on every rank, as DistributedDataParallel's constructor does it."""
    DDP(model, process_group=ranks.group)
    gc.collect()


def check_ddp_options(options: dict[str, Any]) -> None:
    """Raises InputError for what the tuner sets itself, and for what DistributedDataParallel does not know."""
    known = inspect.signature(DDP.__init__).parameters
    for name in options:
        if name in ("bucket_cap_mb", "bucket_cap_mb_list", "process_group", "module", "init_sync"):
            raise InputError(f"ddp_kwargs: '{name}'; expected arguments that the tuner does not set itself")
        if name not in known:
            raise InputError(f"ddp_kwargs: '{name}' is no argument of torch {torch.__version__}'s DistributedDataParallel")
