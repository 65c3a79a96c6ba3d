"""Watching training steps that the user wrote: when backward starts and ends, when each gradient is ready, how long a step takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from firkin._core import InputError
from firkin._torch import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

Step = Callable[[torch.nn.Module], Any]


class Clock:
    """Marks on the CPU's clock or, for gradients on a GPU, events on its current stream (not run yet: no GPU was at hand)."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"

    def mark(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """From one mark to another. On a GPU both must have passed: synchronize() before."""
        return float(start.elapsed_time(end)) * 1e-3 if self._on_gpu else float(end - start)

    def synchronize(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize(self._device)


def check_step(step: Step) -> None:
    if not callable(step):
        raise InputError(f"step is a {type(step).__name__}; expected a function that takes the model and does one training step")


@contextmanager
def watched_backward(clock: Clock) -> Iterator[list[tuple[Any, Any]]]:
    """Marks of the start and the end of every backward pass meanwhile, by loss.backward() or torch.autograd.backward()."""
    passes: list[tuple[Any, Any]] = []
    original = torch.autograd.backward

    def backward(*args: Any, **kwargs: Any) -> None:
        start = clock.mark()
        original(*args, **kwargs)
        passes.append((start, clock.mark()))

    torch.autograd.backward = backward
    try:
        yield passes
    finally:
        torch.autograd.backward = original


class StillRanks:
    """Steps without communication that leave ranks alike: an optimiser that is about to step finds zero gradients.

    Otherwise each rank would step with gradients of its own, and its optimiser's state would be unlike the others' ever after.
    `seconds`: what that took since entering, to be taken off a measured step.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], clock: Clock) -> None:
        self._parameters = parameters
        self._clock = clock
        self.seconds = 0.0

    def __enter__(self) -> StillRanks:
        self._hook = register_optimizer_step_pre_hook(self._zero)
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.remove()

    def _zero(self, *_: Any) -> None:
        self._clock.synchronize()
        started = time.perf_counter()
        with torch.no_grad():
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.zero_()
        self._clock.synchronize()
        self.seconds += time.perf_counter() - started


def timed_step(step: Step, model: torch.nn.Module, clock: Clock) -> float:
    """Seconds of one step on this rank, with all that it put onto the device."""
    clock.synchronize()
    started = time.perf_counter()
    step(model)
    clock.synchronize()
    return time.perf_counter() - started


class ReadyMarks:
    """Marks of when each parameter's gradient was accumulated, for as long as it is entered; hooks of the user's stay."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], clock: Clock) -> None:
        self._parameters = parameters
        self._clock = clock
        self.marks: dict[int, Any] = {}  # parameter -> mark, in the order in which gradients became ready

    def __enter__(self) -> ReadyMarks:
        self._hooks: list[Any] = [
            p.register_post_accumulate_grad_hook(self._hook_of(i))  # type: ignore[no-untyped-call]
            for i, p in enumerate(self._parameters)
        ]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _hook_of(self, index: int) -> Callable[[torch.Tensor], None]:
        def ready(_: torch.Tensor) -> None:
            self.marks.pop(index, None)  # the last time counts
            self.marks[index] = self._clock.mark()

        return ready
