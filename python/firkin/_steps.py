"""Watching training steps that the user wrote: when backward starts and ends, when each gradient is ready, how long a step takes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from firkin._core import InputError
from firkin._torch import torch

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


class CountedStep:
    """The user's step, which says how often it was called, and what a loader that ends lacks."""

    def __init__(self, step: Step, most: int | None = None) -> None:
        if not callable(step):
            raise InputError(f"step is a {type(step).__name__}; expected a function that takes the model and does one training step")
        self._step, self._most = step, most
        self.calls, self.seconds = 0, 0.0  # of all calls

    def __call__(self, model: torch.nn.Module) -> None:
        started = time.perf_counter()
        try:
            self._step(model)
        except StopIteration:
            most = "" if self._most is None else f" (up to {self._most}, fewer with a smaller time_budget_s)"
            raise InputError(
                f"step: its batches ended in call {self.calls + 1}; expected one per call{most}, or a loader that starts over"
            ) from None
        self.calls += 1
        self.seconds += time.perf_counter() - started


class Unsynced(torch.nn.Module):
    """What a step gets where nothing is to be communicated: the module, to be called as DistributedDataParallel is."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        self.called = False
        self.require_backward_grad_sync = True
        self.to_reduce = False  # whether the next backward is one that DistributedDataParallel would reduce

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.called = True
        self.to_reduce |= self.require_backward_grad_sync and torch.is_grad_enabled()
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before


class Watch:
    """Backward passes of a step without communication, the outermost ones, and when gradients were accumulated in the last that counts.

    Ranks stay alike: gradients are zero when a backward ends, since each rank has its own, and gradient scalers and closures look at them
    before an optimiser steps. `still_s`: what that took, to be taken off a measured step.
    model: says which passes count; None: all. zeroed: parameters. ready: those whose marks are wanted; hooks of the user's stay.
    """

    def __init__(
        self, clock: Clock, zeroed: Sequence[torch.Tensor], model: Unsynced | None = None, ready: Sequence[torch.Tensor] = ()
    ) -> None:
        self._clock, self._zeroed, self._model, self._ready = clock, zeroed, model, ready
        self.passes: list[tuple[Any, Any]] = []  # marks of the start and the end
        self.uncounted = 0
        self.marks: dict[int, Any] = {}  # index in `ready` -> mark, in the order in which gradients became ready
        self.still_s = 0.0
        self._marking = False
        self._depth = 0  # of passes in passes: reentrant checkpointing, also on autograd's own thread

    def __enter__(self) -> Watch:
        self._original = torch.autograd.backward
        torch.autograd.backward = self._backward
        self._hooks: list[Any] = [
            p.register_post_accumulate_grad_hook(self._marker(i))  # type: ignore[no-untyped-call]
            for i, p in enumerate(self._ready)
        ]
        return self

    def __exit__(self, *error: object) -> None:
        torch.autograd.backward = self._original
        for hook in self._hooks:
            hook.remove()

    def _backward(self, *args: Any, **kwargs: Any) -> None:
        if self._depth > 0:
            return self._original(*args, **kwargs)
        counts = self._model is None or self._model.to_reduce
        if counts:
            self.marks.clear()
        self._marking = counts
        self._depth += 1
        start = self._clock.mark()
        try:
            self._original(*args, **kwargs)
        finally:
            self._depth -= 1
        if counts:
            self.passes.append((start, self._clock.mark()))
        else:
            self.uncounted += 1
        if self._model is not None:
            self._model.to_reduce = False
        self._zero()

    def _zero(self) -> None:
        self._clock.synchronize()
        started = time.perf_counter()
        with torch.no_grad():
            for parameter in self._zeroed:
                if parameter.grad is not None:
                    parameter.grad.zero_()
        self._clock.synchronize()
        self.still_s += time.perf_counter() - started

    def _marker(self, index: int) -> Callable[[torch.Tensor], None]:
        def ready(_: torch.Tensor) -> None:
            if self._marking:
                self.marks.pop(index, None)  # the last time counts
                self.marks[index] = self._clock.mark()

        return ready


def timed_step(step: Step, model: torch.nn.Module, clock: Clock) -> float:
    """Seconds of one step on this rank, with all that it put onto the device."""
    clock.synchronize()
    started = time.perf_counter()
    step(model)
    clock.synchronize()
    return time.perf_counter() - started
