"""Times steps under several settings of DistributedDataParallel in blocks, and tells which options a program can be run with."""

from __future__ import annotations

import contextlib
import gc
import inspect
import statistics
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from firkin import _ddp
from firkin._core import InputError, StepSchedule
from firkin._profile import BackwardRecord, Clock, Step
from firkin._ranks import Ranks
from firkin._state import State
from firkin._torch import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel as DDP

Samples = list[list[float]]  # seconds per step, [setting][block]
T = TypeVar("T")

_OPTIONS = ("gradient_as_bucket_view", "batched_grad_copy", "static_graph")  # batched_grad_copy: from torch 2.12 on


class Setting(NamedTuple):
    """One way to call DistributedDataParallel, as firkin._core.tune_steps() asks for it."""

    counts: list[int]  # the tensors per bucket that are expected, in gradient-ready order; empty without communication
    kwargs: dict[str, Any]


def warmup_steps(options: dict[str, Any]) -> int:
    """The number of steps after which PyTorch has rebuilt the buckets: two, or three with a static graph."""
    return 3 if options.get("static_graph") else 2


class Wrapping:
    """Wraps the model as the user does: wrap(model, **kwargs), with the arguments for DistributedDataParallel."""

    def __init__(self, ranks: Ranks, model: torch.nn.Module, options: dict[str, Any], wrap: Callable[..., torch.nn.Module]) -> None:
        self.model, self.options, self._wrap = model, options, wrap
        self.graphs = Graphs()
        self._group = {} if "device_mesh" in options else {"process_group": ranks.group}
        self._hooks: list[tuple[dict[int, Any], set[int]]] = []  # hooks that wrapping has added to the model

    def alike(self, dtype: torch.dtype) -> tuple[torch.dtype | None, torch.nn.Module]:
        """Gives every rank rank 0's parameters and buffers, as DistributedDataParallel does.

        Returns the dtype in which gradients travel (None if a communication hook decides), and the module, compiled if the
        wrapped one is.
        """
        wrapped = self._wrapped(self.options)
        ddp = _ddp.ddp_in(wrapped, "wrap")
        self.unhook(ddp)
        self.graphs.compiled = _ddp.is_compiled(wrapped)
        compiled = getattr(wrapped, "dynamo_ctx", None)
        return _ddp.wire_dtype(ddp, dtype), self.model if compiled is None else type(wrapped)(self.model, compiled)

    def __call__(self, **kwargs: Any) -> torch.nn.Module:
        return self._wrapped({"init_sync": False, **self.options, **kwargs})

    def _wrapped(self, kwargs: dict[str, Any]) -> torch.nn.Module:
        before = [(hooks, set(hooks)) for hooks in (self.model._forward_pre_hooks, self.model._forward_hooks)]
        wrapped = self._wrap(self.model, **self._group, **kwargs)
        self._hooks = [(hooks, hooks.keys() - keys) for hooks, keys in before]
        return wrapped

    def unhook(self, ddp: DDP) -> None:
        _ddp.remove_hooks(ddp)
        for hooks, added in self._hooks:  # PyTorch adds some for a submesh of a device mesh
            for key in added:
                hooks.pop(key, None)
        for parameter in self.model.parameters():
            parameter.grad = None  # it may be a view into a bucket


@dataclass(frozen=True)
class _Compiler:
    """Stands in for a backend of torch.compile while a setting is measured."""

    setting: str
    backend: type

    def __call__(self, *_: Any) -> Any:
        raise NotImplementedError


class Graphs:
    """Keeps the graphs of torch.compile apart by setting.

    PyTorch cuts graphs by the bucket cap, but its guards do not check it: one setting would run another's graphs.
    """

    def __init__(self) -> None:
        self.compiled = False

    @contextlib.contextmanager
    def of(self, setting: str) -> Iterator[None]:
        if not self.compiled:
            yield
            return
        from torch._dynamo import config, eval_frame

        backends: list[Any] = [backend for backend in eval_frame.cached_backends.values() if callable(backend)]
        if not hasattr(eval_frame, "innermost_backend"):  # an unknown version of PyTorch: slower, but correct
            self.reset()
            backends = []
        for backend in backends:
            backend._torchdynamo_orig_backend = _Compiler(setting, type(backend))  # Dynamo's key for graphs that it has
        try:
            limits = {"recompile_limit": 1000, "accumulated_recompile_limit": 10000}
            with config.patch({name: value for name, value in limits.items() if hasattr(config, name)}):
                yield
        finally:
            for backend in backends:
                del backend._torchdynamo_orig_backend

    def reset(self) -> None:
        """Forgets all graphs."""
        if not self.compiled:
            return
        from torch._dynamo import eval_frame, reset

        backends = dict(eval_frame.cached_backends)
        reset()
        eval_frame.cached_backends.update(backends)


class StepBench:
    """Measures with one DistributedDataParallel at a time, so that at most two copies of gradients are in memory.

    All methods are collective. timed_steps: the number of timed steps in a visit to a setting. settings: those that blocks()
    ran last, and live: for each of them the buckets that PyTorch made.
    """

    def __init__(
        self, ranks: Ranks, wrapping: Wrapping, step: Step, state: State, timed_steps: int = 2, seed: int = 0,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._ranks, self._wrapping, self._step, self._state = ranks, wrapping, step, state
        self._timed_steps, self._seed, self._on_progress = timed_steps, seed, on_progress
        self._clock = Clock(state.parameters[0].device)
        self.settings: list[Setting] = []
        self.live: list[list[tuple[int, list[str]]]] = []
        self._buckets: list[tuple[int, list[str]]] = []  # of the last visit

    def _wrapped(self, setting: Setting, work: Callable[[torch.nn.Module], T]) -> T:
        """The result of work(model), with the model wrapped as in the setting."""
        model = self._wrapping(**setting.kwargs)
        ddp = _ddp.ddp_in(model, "wrap")
        alive = weakref.ref(ddp)
        try:
            with self._wrapping.graphs.of(f"{setting.counts} {setting.kwargs.get('bucket_cap_mb')}"):
                return work(model)
        finally:
            self._wrapping.unhook(ddp)
            del model, ddp
            if alive() is not None:
                gc.collect()

    def steps(self, setting: Setting) -> tuple[int, int]:
        """The number of warm-up steps and of timed steps in a visit."""
        return warmup_steps(self._wrapping.options | setting.kwargs) if setting.counts else 1, self._timed_steps

    def visit(self, setting: Setting, warmup: int, timed: int) -> float:
        """Seconds of a step on the slowest rank."""
        self._state.put_back(schedules_only=True)
        step = self._timed if setting.counts else self._without_communication

        def run(model: torch.nn.Module) -> float:
            for _ in range(warmup):
                step(model)
            seconds = []
            for _ in range(timed):
                self._ranks.barrier()
                seconds += self._ranks.max([step(model)])
            self._buckets = _ddp.live_buckets(model) if setting.counts else []
            return statistics.median(seconds)

        return self._wrapped(setting, run)

    def attempt(self, setting: Setting) -> None:
        """Visits the setting. Raises a RuntimeError on every rank if the program's step fails with it."""
        self._ranks.attempt(lambda: self.visit(setting, *self.steps(setting)))

    def habits(self, setting: Setting) -> tuple[bool, bool]:
        """Whether the program holds gradients, or their memory, after a step, and whether it uses no_sync()."""
        memory, unsynced = [], []

        def probe(model: torch.nn.Module) -> None:
            ddp = _ddp.ddp_in(model)
            no_sync = ddp.no_sync
            ddp.no_sync = lambda: unsynced.append(True) or no_sync()  # type: ignore[func-returns-value, method-assign]
            self._step(model)
            for parameter in self._state.parameters:
                if (gradient := parameter.grad) is not None and gradient.layout == torch.strided:
                    memory.append(StorageWeakRef(gradient.untyped_storage()))
                parameter.grad = gradient = None

        self._wrapped(setting, probe)
        kept = any(not each.expired() for each in memory)
        keeps, accumulates = self._ranks.max([float(kept), float(bool(unsynced))])
        return keeps > 0, accumulates > 0

    def _timed(self, model: torch.nn.Module) -> float:
        """Seconds of one step on this rank, including what it has queued on the device."""
        self._clock.synchronize()
        started = time.perf_counter()
        self._step(model)
        self._clock.synchronize()
        return time.perf_counter() - started

    def _without_communication(self, model: torch.nn.Module) -> float:
        with BackwardRecord(self._clock, self._state.parameters) as record, _ddp.ddp_in(model).no_sync():
            return self._timed(model) - record.still_s

    def blocks(
        self, what: str, settings: Sequence[tuple[list[int], dict[str, Any]]], fewest: int, most: int, seconds: float,
        is_enough: Callable[[Samples], bool] = lambda _: False,
    ) -> Samples:  # fmt: skip
        """Runs blocks by a StepSchedule until they suffice. what: for the progress. The smallest `seconds` of all ranks counts."""
        self.settings, self.live = [Setting(*each) for each in settings], [[] for _ in settings]
        samples: Samples = [[] for _ in settings]
        least_s = -self._ranks.max([-seconds])[0]
        schedule = StepSchedule([self.steps(setting) for setting in self.settings], fewest, most, least_s, self._seed)
        started = time.perf_counter()
        while (visit := schedule.next()) is not None:
            samples[visit.setting].append(self.visit(self.settings[visit.setting], visit.warmup_steps, visit.timed_steps))
            self.live[visit.setting] = self._buckets
            if not visit.ends_block:
                schedule.tell()
                continue
            self._on_progress(f"{what}: block {visit.block + 1}")
            elapsed_s = self._ranks.max([time.perf_counter() - started])[0]  # the ranks' clocks differ a little
            schedule.tell(elapsed_s, is_enough(samples))
        return samples


def options_to_race(given: Mapping[str, object], *, compiled: bool) -> list[str]:
    """The options that this PyTorch has and that the program has not set itself."""
    known = [name for name in _OPTIONS if name in inspect.signature(DDP.__init__).parameters and name not in given]
    is_other_graph = compiled or given.get("find_unused_parameters")
    return [name for name in known if not (name == "static_graph" and is_other_graph)]


def possible_options(bench: StepBench, setting: Setting, options: Sequence[str], notes: list[str]) -> list[str]:
    """Those of `options` that the program can be run with, besides the setting. Collective.

    Adds a sentence to `notes` for each that it cannot.
    """
    keeps_gradients, accumulates = bench.habits(setting)
    reasons = {
        "gradient_as_bucket_view": keeps_gradients and "the program keeps gradients, which the next step would overwrite",
        "static_graph": accumulates and "PyTorch's first step with it may not be under no_sync()",
    }
    possible = []
    for name in options:
        reason = reasons.get(name)
        if not reason:
            try:
                bench.attempt(setting._replace(kwargs=setting.kwargs | {name: True}))
            except RuntimeError as error:
                reason = f"the step fails with it ({str(error).splitlines()[0]})"
        if reason:
            notes.append(f"{name}=True was not tried: {reason}")
        else:
            possible.append(name)
    return possible


def check_ddp_options(options: dict[str, Any]) -> None:
    """Raises InputError for arguments that the tuner sets itself, and for those that PyTorch does not know."""
    known = inspect.signature(DDP.__init__).parameters
    for name in options:
        if name in ("bucket_cap_mb", "bucket_cap_mb_list", "module", "init_sync"):
            raise InputError(f"ddp_kwargs: '{name}'; expected arguments that the tuner does not set itself")
        if name not in known:
            raise InputError(f"ddp_kwargs: '{name}' is not an argument of torch {torch.__version__}'s DistributedDataParallel")
