"""firkin.profile: when each gradient becomes ready in backward."""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from firkin import _ddp
from firkin._core import InputError, Profile, profile_of_samples
from firkin._ranks import Ranks
from firkin._steps import Clock, CountedStep, Step, Unsynced, Watch
from firkin._torch import dist, torch
from torch.nn.parallel import DistributedDataParallel as DDP

_WARMUP_SHARE = 0.2

Parameters = list[tuple[str, torch.nn.Parameter]]


def trainable_parameters(model: torch.nn.Module) -> Parameters:
    """In order of registration. Raises InputError unless there are some, all on one device, in a module not wrapped yet."""
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    if isinstance(_ddp.without_compile(model), DDP):
        raise InputError("model is wrapped in DistributedDataParallel already; expected the module itself, and wrap= for how you wrap it")
    parameters = _ddp.reduced_parameters(model)
    if not parameters:
        raise InputError(f"model: {type(model).__name__} has no parameter that needs a gradient; expected at least one")
    first_name, first = parameters[0]
    for name, parameter in parameters:
        if parameter.device != first.device:
            raise InputError(f"model: '{first_name}' is on {first.device}, '{name}' on {parameter.device}; expected one device")
    return parameters


def check_same_model(ranks: Ranks, model: torch.nn.Module, parameters: Parameters) -> None:
    """Raises InputError on every rank unless all have the same parameters."""
    lines = [f"{name} {tuple(p.shape)} {p.dtype}" for name, p in parameters]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    described = f"{type(model).__name__}, {len(parameters)} parameter tensors, {sum(p.numel() for _, p in parameters)} elements"
    everyone = ranks.all((digest, described))
    for rank, (other, theirs) in enumerate(everyone):
        if other != everyone[0][0]:
            raise InputError(f"model: rank {rank} has {theirs}, rank 0 has {everyone[0][1]}; expected the same model on every rank")


class BackwardProfiler:
    """Steps without communication, with and without hooks. zeroed: whose gradients are zero after every backward."""

    def __init__(
        self,
        ranks: Ranks | None,
        model: torch.nn.Module,
        step: Step,
        parameters: Parameters,
        *,
        find_unused_parameters: bool,
        zeroed: Sequence[torch.Tensor] = (),
    ) -> None:
        self._ranks, self._model, self._step, self._parameters = ranks, Unsynced(model), step, parameters
        self._find_unused_parameters = find_unused_parameters
        self._tensors = [p for _, p in parameters]
        self._zeroed = zeroed or self._tensors
        self._clock = Clock(self._tensors[0].device)
        self._compiled = _ddp.is_compiled(model)  # then gradients would all be ready at the end of a graph

    def run(self, steps: int, warmup: int, seconds: float, on_progress: Callable[[str], None]) -> Profile:
        bare: list[float] = []
        rows: list[list[float]] = []
        order: list[int] = []
        started = time.perf_counter()

        def one_more_fits(done: int, share: float = 1.0) -> bool:
            took_s = self._slowest([time.perf_counter() - started])[0]
            return done == 0 or took_s * (done + 1) / done <= share * seconds

        for i in range(warmup):
            if one_more_fits(i, _WARMUP_SHARE):
                self._everywhere(self._bare_step)
        for i in range(steps):
            if not one_more_fits(i):
                break
            bare_s, scale = self._everywhere(self._bare_step), 1.0
            with torch.compiler.set_stance("force_eager") if self._compiled else contextlib.nullcontext():
                if self._compiled:
                    scale = bare_s / self._everywhere(self._bare_step)
                hooked_s, order = self._everywhere(self._hooked_step)
            bare.append(self._slowest([bare_s])[0])
            rows.append(self._slowest([seconds * scale for seconds in hooked_s]))
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

    def _watched_step(self, ready: Sequence[torch.Tensor] = ()) -> Watch:
        with Watch(self._clock, self._zeroed, self._model, ready) as watch:
            self._step(self._model)
        self._clock.synchronize()
        if watch.uncounted and not self._model.called:
            raise InputError(
                "step did not call the model it was given; expected step(model) to use its argument"
            )
        if watch.uncounted and not watch.passes:
            raise InputError("step did no backward pass that averages gradients; expected the last one outside of no_sync()")
        if len(watch.passes) != 1:
            raise InputError(
                f"step did {len(watch.passes) or 'no'} backward passes; expected one, and where gradients are accumulated the others under"
                " `with model.no_sync():`"
            )
        return watch

    def _bare_step(self) -> float:
        return self._clock.seconds(*self._watched_step().passes[0])

    def _hooked_step(self) -> tuple[list[float], list[int]]:
        """Seconds: the end of backward, then when each parameter was ready; and the order in which they were."""
        watch = self._watched_step(self._tensors)
        start, end = watch.passes[0]
        # A parameter without a gradient is ready at the start.
        unused = [i for i in range(len(self._tensors)) if i not in watch.marks]
        if unused and not self._find_unused_parameters:
            names = [self._parameters[i][0] for i in unused]
            raise InputError(
                f"step: parameter '{names[0]}' got no gradient ({len(names)} in all); expected every parameter to get one,"
                " requires_grad_(False), or find_unused_parameters"
            )
        seconds = [self._clock.seconds(start, end)]
        seconds += [self._clock.seconds(start, watch.marks[i]) if i in watch.marks else 0.0 for i in range(len(self._tensors))]
        return seconds, unused + list(watch.marks)


def profile(
    model: torch.nn.Module,
    step: Step,
    *,
    process_group: dist.ProcessGroup | None = None,
    steps: int = 10,
    warmup: int = 3,
    find_unused_parameters: bool = False,
) -> Profile:
    """When each gradient becomes ready in the backward pass: medians over `steps` steps, seconds from the start of backward.

    model: the module itself, not wrapped. step(model): forward, one backward (others under `with model.no_sync():`), optimiser. Its steps
    are real but for one thing: gradients are zero when backward ends, so that ranks stay alike. Three kinds of steps run: `warmup`, then in
    turns without and with hooks. Collective where a process group is there: every rank gets rank 0's order and the slowest rank's times.
    Raises InputError, on every rank, for a model without parameters, different models, a step that does not do exactly one backward, and,
    unless find_unused_parameters, a parameter that gets no gradient.
    """
    if steps < 1 or warmup < 0:
        raise InputError(f"profile: {steps} steps, {warmup} of warm-up; expected at least 1 and 0")
    ranks = Ranks(process_group) if dist.is_initialized() else None
    if ranks is None and process_group is not None:
        raise InputError("no process group; expected torch.distributed.init_process_group() first, under torchrun")
    return measured_profile(ranks, model, step, steps=steps, warmup=warmup, find_unused_parameters=find_unused_parameters)


def measured_profile(
    ranks: Ranks | None,
    model: torch.nn.Module,
    step: Step,
    *,
    steps: int,
    warmup: int,
    find_unused_parameters: bool,
    seconds: float = math.inf,
    zeroed: Sequence[torch.Tensor] = (),
    on_progress: Callable[[str], None] = lambda _: None,
) -> Profile:
    """As profile(); ranks: None, and nothing is communicated. seconds: fewer steps, at least one, where all would take longer."""

    def checked() -> Parameters:
        CountedStep(step)
        return trainable_parameters(model)

    if ranks is None:
        parameters = checked()
    else:
        parameters = ranks.attempt(checked)
        ranks.check_same(
            "profile", {"steps": steps, "warmup": warmup, "seconds": seconds, "find_unused_parameters": find_unused_parameters}
        )
        check_same_model(ranks, model, parameters)
    profiler = BackwardProfiler(ranks, model, step, parameters, find_unused_parameters=find_unused_parameters, zeroed=zeroed)
    return profiler.run(steps, warmup, seconds, on_progress)
