"""firkin.profile: when each gradient becomes ready in backward, by watching training steps that the user wrote."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from firkin import _ddp
from firkin._core import InputError, Profile, profile_of_steps
from firkin._ranks import Ranks
from firkin._torch import dist, torch
from torch.distributed.utils import _to_kwargs
from torch.nn.parallel import DistributedDataParallel as DDP

_WARMUP_SHARE = 0.2  # the largest share of the time that goes to warm-up

Step = Callable[[torch.nn.Module], Any]
Parameters = list[tuple[str, torch.nn.Parameter]]


class Clock:
    """Takes times: from the CPU's clock or, on a GPU, by events on its stream."""

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
        """The time from one mark to another. On a GPU both must have passed: call synchronize() first."""
        return float(start.elapsed_time(end)) * 1e-3 if self._on_gpu else float(end - start)

    def synchronize(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize(self._device)


class CountedStep:
    """The user's step, counted. If its loader ends, the error says so."""

    def __init__(self, step: Step) -> None:
        if not callable(step):
            raise InputError(f"step is a {type(step).__name__}; expected a function that takes the model and does one training step")
        self._step = step
        self.seconds: list[float] = []  # of each call

    @property
    def calls(self) -> int:
        return len(self.seconds)

    def __call__(self, model: torch.nn.Module) -> None:
        started = time.perf_counter()
        try:
            self._step(model)
        except StopIteration:
            raise InputError(
                f"step: its batches ended in call {self.calls + 1}; expected a loader that starts over, or a smaller time_budget_s"
            ) from None
        self.seconds.append(time.perf_counter() - started)


class Unsynced(DDP):
    """A DistributedDataParallel that reduces nothing, to measure steps without communication.

    options: the arguments of the program's DistributedDataParallel; only those that change how it is called matter.
    """

    def __init__(self, module: torch.nn.Module, ranks: Ranks, options: Mapping[str, Any]) -> None:
        group = _group_of_one() if ranks.size == 1 and not dist.is_initialized() else ranks.group
        as_called = {name: options[name] for name in ("device_ids", "output_device", "dim") if name in options}
        super().__init__(module, process_group=group, init_sync=False, **as_called)
        _ddp.remove_hooks(self)
        self.called = False
        self.to_reduce = False  # whether the next backward is one that DistributedDataParallel would reduce

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.called = True
        self.to_reduce |= self.require_backward_grad_sync and torch.is_grad_enabled()
        if self.device_ids:
            device = torch.device(self.device_type, self.device_ids[0])
            (args, *_), (kwargs, *_) = _to_kwargs(args, kwargs, device, self.use_side_stream_for_tensor_copies)
        return self.module(*args, **kwargs)


def _group_of_one() -> dist.ProcessGroup:
    """A process group of this rank alone, which needs no init_process_group()."""
    group = dist.ProcessGroup(dist.HashStore(), 0, 1)
    backend = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)  # type: ignore[call-arg]
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    return group


class BackwardRecord:
    """Records the backward passes of a step without communication, and when gradients became ready.

    If several passes count, ready times are those of the last. Without communication every rank has gradients of its own,
    so they are set to zero when a backward ends, before gradient scalers and closures read them: ranks stay alike.
    Subtract `still_s`, the time this took, from a measured step. A pass inside of one that counts belongs to it
    (re-entrant checkpointing); one inside of another pass, which a hook runs, may count itself.

    model: says which passes count; None counts all outermost ones. zeroed: the parameters whose gradients are set to
    zero. ready: the parameters whose gradients are to be timed. Hooks of the user stay in place.
    """

    def __init__(
        self, clock: Clock, zeroed: Sequence[torch.Tensor], model: Unsynced | None = None, ready: Sequence[torch.Tensor] = ()
    ) -> None:
        self._clock, self._zeroed, self._model, self._ready = clock, zeroed, model, ready
        self.passes: list[tuple[Any, Any]] = []  # marks of the start and the end
        self.uncounted = 0
        self.marks: dict[int, Any] = {}  # index in `ready` -> mark, in the order in which gradients became ready
        self.still_s = 0.0
        # Not thread-local: a pass inside of another one may run on a thread of autograd's.
        self._depth, self._counting = 0, False

    def __enter__(self) -> BackwardRecord:
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
        counts = not self._counting and (self._model.to_reduce if self._model is not None else self._depth == 0)
        if self._depth > 0 and not counts:
            return self._original(*args, **kwargs)
        if counts:
            self.marks.clear()
            self._counting = True
        self._depth += 1
        start = self._clock.mark()
        try:
            self._original(*args, **kwargs)
        finally:
            self._depth -= 1
            self._counting = self._counting and not counts
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
            if self._counting:
                self.marks.pop(index, None)  # a gradient is ready when it was accumulated for the last time
                self.marks[index] = self._clock.mark()

        return ready


def trainable_parameters(model: torch.nn.Module) -> Parameters:
    """The parameters that need a gradient, in order of registration.

    Raises InputError if there are none, they are on several devices, or the module is wrapped already.
    """
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


def described(model: torch.nn.Module) -> str:
    """A text that two ranks share only if their models have the same parameters."""
    parameters = _ddp.reduced_parameters(model)
    lines = [f"{name} {tuple(p.shape)} {p.dtype}" for name, p in parameters]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]
    return f"{type(model).__name__}, {len(parameters)} parameter tensors, {sum(p.numel() for _, p in parameters)} elements, {digest}"


def profile(
    model: torch.nn.Module,
    step: Step,
    *,
    process_group: dist.ProcessGroup | None = None,
    steps: int = 10,
    warmup: int = 3,
    find_unused_parameters: bool = False,
) -> Profile:
    """Records when each gradient becomes ready, in seconds from the start of backward: medians over `steps` steps.

    model: the module itself, not wrapped. step(model): one training step: forward, one backward (others under
    `with model.no_sync():`), optimiser. Steps are real, except that gradients are set to zero when backward ends, which
    keeps ranks equal. After `warmup` steps, steps without and with hooks alternate.

    Collective if there is a process group: every rank gets rank 0's order and the slowest rank's times.

    Raises InputError, on every rank, for a model without parameters, for models that differ between ranks, for a step
    that does not run exactly one backward, and, unless find_unused_parameters is set, for a parameter that gets no
    gradient.
    """
    if steps < 1 or warmup < 0:
        raise InputError(f"profile: {steps} steps, {warmup} of warm-up; expected at least 1 and 0")
    ranks = Ranks(process_group, may_be_alone=True)
    return measured_profile(ranks, model, step, steps=steps, warmup=warmup, find_unused_parameters=find_unused_parameters)


def _record_step(
    step: Step, wrapped: Unsynced, clock: Clock, zeroed: Sequence[torch.Tensor], ready: Sequence[torch.Tensor] = ()
) -> BackwardRecord:
    """Runs one step and records it. Raises InputError unless it has run exactly one synchronising backward of the model."""
    with BackwardRecord(clock, zeroed, wrapped, ready) as record:
        step(wrapped)
    clock.synchronize()
    if record.uncounted and not wrapped.called:
        raise InputError("step did not call the model it was given; expected step(model) to use its argument")
    if record.uncounted and not record.passes:
        raise InputError("step did no synchronising backward pass; expected the last one outside no_sync()")
    if len(record.passes) != 1:
        raise InputError(
            f"step did {len(record.passes) or 'no'} backward passes; expected one, and with gradient accumulation the others under"
            " `with model.no_sync():`"
        )
    return record


def measured_profile(
    ranks: Ranks, model: torch.nn.Module, step: Step, *, steps: int, warmup: int, find_unused_parameters: bool, seconds: float = math.inf,
    options: Mapping[str, Any] = MappingProxyType({}), zeroed: Sequence[torch.Tensor] = (),
    before_step: Callable[[], None] = lambda: None, on_progress: Callable[[str], None] = lambda _: None,
) -> Profile:  # fmt: skip
    """profile() with more arguments, for firkin.tune.

    seconds: limits the time: then fewer steps are run, but at least one. options: the arguments of the program's
    DistributedDataParallel. zeroed: parameters whose gradients are set to zero after every backward. before_step: work
    to do before every step; it may not communicate.
    """

    def checked() -> Parameters:
        CountedStep(step)
        return trainable_parameters(model)

    parameters = ranks.attempt(checked)
    agreed = {"model": described(model), "steps": steps, "warmup": warmup, "find_unused_parameters": find_unused_parameters}
    ranks.check_same("profile", agreed)
    wrapped, tensors = Unsynced(model, ranks, options), [p for _, p in parameters]
    clock = Clock(tensors[0].device)
    # A compiled graph returns all of its gradients at its end, so ready times are taken in eager mode and scaled.
    compiled = _ddp.is_compiled(model)
    bare: list[float] = []
    rows: list[list[float]] = []
    order: list[int] = []
    started = time.perf_counter()
    recorded = functools.partial(_record_step, step, wrapped, clock, zeroed or tensors)

    def without_hooks() -> float:
        """The seconds of a step's backward."""
        return clock.seconds(*recorded().passes[0])

    def hooked() -> tuple[list[float], list[int]]:
        """Seconds from backward's start to its end, then to each gradient's readiness; and the order of readiness."""
        record = recorded(tensors)
        start, end = record.passes[0]
        unused = [i for i in range(len(tensors)) if i not in record.marks]  # these count as ready at the start
        if unused and not find_unused_parameters:
            raise InputError(
                f"step: parameter '{parameters[unused[0]][0]}' got no gradient ({len(unused)} in all); expected every parameter to get one,"
                " requires_grad_(False), or find_unused_parameters"
            )
        marks = [record.marks.get(i, start) for i in range(len(tensors))]
        return [clock.seconds(start, mark) for mark in (end, *marks)], unused + list(record.marks)

    def one_more_fits(done: int, share: float = 1.0) -> bool:
        took_s = ranks.max([time.perf_counter() - started])[0]
        return done == 0 or took_s * (done + 1) / done <= share * seconds

    def everywhere(work: Callable[[], Any]) -> Any:
        before_step()
        ranks.barrier()
        return ranks.attempt(work)

    for i in range(warmup):
        if one_more_fits(i, _WARMUP_SHARE):
            everywhere(without_hooks)
    for i in range(steps):
        if not one_more_fits(i):
            break
        bare_s, scale = everywhere(without_hooks), 1.0
        with torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext():
            if compiled:
                scale = bare_s / everywhere(without_hooks)
            hooked_s, order = everywhere(hooked)
        bare += ranks.max([bare_s])
        rows.append(ranks.max([scale * each for each in hooked_s]))
        on_progress(f"profiling backward: step {i + 1} of {steps}")
    order = ranks.all(order)[0]
    return profile_of_steps([name for name, _ in parameters], [p.nbytes for p in tensors], order, rows, bare)
