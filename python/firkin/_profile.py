"""firkin.profile: when each gradient becomes ready in backward."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from typing import Any

from firkin import _ddp
from firkin._core import InputError, Profile, profile_of_samples
from firkin._ranks import Ranks
from firkin._steps import Clock, ReadyMarks, Step, StillRanks, check_step, watched_backward
from firkin._torch import dist, torch
from torch.nn.parallel import DistributedDataParallel as DDP

_FEWEST_STEPS = 3

Parameters = list[tuple[str, torch.nn.Parameter]]


def trainable_parameters(model: torch.nn.Module) -> Parameters:
    """In order of registration. Raises InputError unless there are some, all of one dtype and device, in a module not wrapped yet."""
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    if isinstance(_ddp.without_compile(model), DDP):
        raise InputError("model is wrapped in DistributedDataParallel already; expected the module itself")
    parameters = _ddp.reduced_parameters(model)
    if not parameters:
        raise InputError(f"model: {type(model).__name__} has no parameter that needs a gradient; expected at least one")
    first_name, first = parameters[0]
    for name, parameter in parameters:
        if (parameter.dtype, parameter.device) != (first.dtype, first.device):
            raise InputError(
                f"model: '{first_name}' is {first.dtype} on {first.device}, '{name}' {parameter.dtype} on {parameter.device}; expected"
                " one dtype and device, since a bucket holds one"
            )
    return parameters


def check_same_model(ranks: Ranks, model: torch.nn.Module, parameters: Parameters) -> None:
    """Raises InputError on every rank unless all have the same parameters."""
    lines = [f"{name} {tuple(p.shape)} {p.dtype}" for name, p in parameters]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    described = f"{type(model).__name__}, {len(parameters)} parameter tensors, {sum(p.numel() for _, p in parameters)} elements"
    everyone = ranks.all((digest, described))
    for rank, (other, theirs) in enumerate(everyone):
        if other != everyone[0][0]:
            raise InputError(f"model: rank {rank} has another one ({theirs}) than rank 0 ({everyone[0][1]}); expected the same everywhere")


class BackwardProfiler:
    """Steps without communication, with and without hooks."""

    def __init__(self, ranks: Ranks | None, model: torch.nn.Module, step: Step, parameters: Parameters, *, allow_unused: bool) -> None:
        self._ranks = ranks
        self._model, self._step, self._parameters = model, step, parameters
        self._allow_unused = allow_unused
        self._tensors = [p for _, p in parameters]
        self._clock = Clock(self._tensors[0].device)

    def run(self, steps: int, warmup: int, seconds: float, on_progress: Callable[[str], None]) -> Profile:
        bare: list[float] = []
        rows: list[list[float]] = []
        order: list[int] = []
        started = time.perf_counter()
        for _ in range(warmup):
            self._everywhere(self._bare_step)
        for i in range(steps):
            if i >= _FEWEST_STEPS and self._slowest([time.perf_counter() - started])[0] > seconds:
                break
            bare.append(self._slowest([self._everywhere(self._bare_step)])[0])
            hooked_s, order = self._everywhere(self._hooked_step)
            rows.append(self._slowest(hooked_s))
            on_progress(f"profiling backward: step {i + 1} of {steps}")
        if self._ranks is not None:
            order = self._ranks.all(order)[0]
        in_order = [[row[0]] + [row[1 + i] for i in order] for row in rows]
        names = [self._parameters[i][0] for i in order]
        sizes = [_ddp.gradient_bytes(self._parameters[i][1]) for i in order]
        return profile_of_samples(names, sizes, in_order, bare)

    def _everywhere(self, work: Callable[[], Any]) -> Any:
        if self._ranks is None:
            return work()
        self._ranks.barrier()
        return self._ranks.attempt(work)

    def _slowest(self, seconds: list[float]) -> list[float]:
        return seconds if self._ranks is None else self._ranks.max(seconds)

    def _watched_step(self) -> tuple[Any, Any]:
        with StillRanks(self._tensors, self._clock), watched_backward(self._clock) as passes:
            self._step(self._model)
        self._clock.synchronize()
        if len(passes) != 1:
            raise InputError(f"step did {len(passes) or 'no'} backward passes; expected one, and no gradient accumulation")
        return passes[0]

    def _bare_step(self) -> float:
        start, end = self._watched_step()
        return self._clock.seconds(start, end)

    def _hooked_step(self) -> tuple[list[float], list[int]]:
        """Seconds: the end of backward, then when each parameter was ready; and the order in which they were."""
        with ReadyMarks(self._tensors, self._clock) as ready:
            start, end = self._watched_step()
        # With find_unused_parameters a parameter without a gradient is ready at the start.
        unused = [i for i in range(len(self._tensors)) if i not in ready.marks]
        if unused and not self._allow_unused:
            names = [self._parameters[i][0] for i in unused]
            raise InputError(
                f"step: parameter '{names[0]}' got no gradient ({len(names)} in all); expected every parameter to get one,"
                " requires_grad_(False), or find_unused_parameters"
            )
        seconds = [self._clock.seconds(start, end)]
        seconds += [self._clock.seconds(start, ready.marks[i]) if i in ready.marks else 0.0 for i in range(len(self._tensors))]
        return seconds, unused + list(ready.marks)


def profile(
    model: torch.nn.Module,
    step: Step,
    *,
    group: dist.ProcessGroup | None = None,
    steps: int = 10,
    warmup: int = 3,
    allow_unused: bool = False,
) -> Profile:
    """When each gradient becomes ready in the backward pass: medians over `steps` steps, seconds from the start of backward.

    model: the module itself, not wrapped. step(model): forward, one backward, optimiser. Its steps are real but for one thing: the
    optimiser finds zero gradients, so that ranks stay alike. Three kinds of steps run: `warmup`, then in turns without and with hooks.
    Collective where a process group is there: every rank gets rank 0's order and the slowest rank's times. Raises InputError, on every
    rank, for a model without parameters, different models, a step that does not do exactly one backward, and, unless allow_unused
    (find_unused_parameters), a parameter that gets no gradient.
    """
    if steps < 1 or warmup < 0:
        raise InputError(f"profile: {steps} steps, {warmup} of warm-up; expected at least 1 and 0")
    ranks = Ranks(group) if dist.is_initialized() else None
    if ranks is None and group is not None:
        raise InputError("no process group; expected torch.distributed.init_process_group() first, under torchrun")
    return measured_profile(ranks, model, step, steps=steps, warmup=warmup, allow_unused=allow_unused)


def measured_profile(
    ranks: Ranks | None,
    model: torch.nn.Module,
    step: Step,
    *,
    steps: int,
    warmup: int,
    allow_unused: bool,
    seconds: float = math.inf,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Profile:
    """As profile(); ranks: None, and nothing is communicated. seconds: fewer steps, at least three, where all would take longer."""

    def checked() -> Parameters:
        check_step(step)
        return trainable_parameters(model)

    if ranks is None:
        parameters = checked()
    else:
        parameters = ranks.attempt(checked)
        ranks.check_same("profile", {"steps": steps, "warmup": warmup, "seconds": seconds, "allow_unused": allow_unused})
        check_same_model(ranks, model, parameters)
    profiler = BackwardProfiler(ranks, model, step, parameters, allow_unused=allow_unused)
    return profiler.run(steps, warmup, seconds, on_progress)
