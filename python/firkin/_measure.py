"""Times training steps under several settings of DistributedDataParallel, in blocks that run every setting once."""

from __future__ import annotations

import contextlib
import gc
import inspect
import statistics
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from firkin import _ddp
from firkin._core import InputError, Profile, StepSchedule
from firkin._plan import Plan
from firkin._profile import Clock, Step, Watch
from firkin._ranks import Ranks
from firkin._state import State
from firkin._torch import torch
from firkin._tuner import Setting
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel as DDP

Samples = list[list[float]]  # seconds per step, [setting][block]


def warmup_steps(options: dict[str, Any]) -> int:
    """The number of steps after which PyTorch has rebuilt the buckets.

    It rebuilds them in the second step, with a static graph in the third.
    """
    return 3 if options.get("static_graph") else 2


class Wrapping:
    """Wraps the model as the user does: wrap(model, **kwargs), with the arguments for DistributedDataParallel."""

    def __init__(self, ranks: Ranks, model: torch.nn.Module, options: dict[str, Any], wrap: Callable[..., torch.nn.Module]) -> None:
        self.model, self.options, self._wrap = model, options, wrap
        self.graphs = Graphs()
        self._group = {} if "device_mesh" in options else {"process_group": ranks.group}
        self._hooks: list[tuple[dict[int, Any], set[int]]] = []  # hooks that wrapping has added to the model

    def alike(self, dtype: torch.dtype) -> tuple[torch.dtype | None, torch.nn.Module]:
        """Gives every rank the parameters and buffers of rank 0, as DistributedDataParallel does.

        Returns the dtype in which gradients travel (None if a communication hook decides that), and the module,
        compiled if the wrapped one is.
        """
        wrapped = self._wrapped(self.options)
        ddp = _ddp.ddp_in(wrapped, "wrap")
        self.unhook(ddp)
        self.graphs.compiled = _ddp.is_compiled(wrapped)
        compiled = getattr(wrapped, "dynamo_ctx", None)
        return _ddp.wire_dtype(ddp, dtype), self.model if compiled is None else type(wrapped)(self.model, compiled)

    def __call__(self, **kwargs: Any) -> torch.nn.Module:
        return self._wrapped({**_ddp.without_init_sync(), **self.options, **kwargs})

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

    PyTorch cuts graphs by the bucket cap, but its guards do not check the cap: the graphs of one setting would be used
    for the next, and for training afterwards.
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


class Habits(NamedTuple):
    keeps_gradients: bool  # whether the program holds gradients, or their memory, after a step
    accumulates: bool  # whether it uses no_sync()


class StepBench:
    """Measures with one DistributedDataParallel at a time, so that at most two copies of gradients are in memory.

    All methods are collective. timed_steps: the number of timed steps in a visit to a setting.
    """

    def __init__(
        self, ranks: Ranks, wrapping: Wrapping, step: Step, profile: Profile, state: State, timed_steps: int = 2
    ) -> None:
        self._ranks, self._wrapping, self._step, self._profile = ranks, wrapping, step, profile
        self._state, self.timed_steps = state, timed_steps
        self._clock = Clock(state.parameters[0].device)
        self.live: dict[str, _ddp.LiveBuckets] = {}  # by the setting's name: the buckets that PyTorch made
        self.options: dict[str, dict[str, bool]] = {}  # by the setting's name: further arguments

    def kwargs(self, setting: Setting) -> dict[str, Any]:
        """The arguments of a setting."""
        return self._bucket_kwargs(setting) | self.options.get(setting.name, {})

    def _bucket_kwargs(self, setting: Setting) -> dict[str, Any]:
        if setting.as_list:
            flags = {name: bool(self._wrapping.options.get(name, False)) for name in ("find_unused_parameters", "static_graph")}
            plan = Plan.of_counts(self._profile, setting.counts)
            return {"bucket_cap_mb_list": plan.ddp_kwargs(self._wrapping.model, **flags)["bucket_cap_mb_list"]}
        return {} if setting.cap_mib is None else {"bucket_cap_mb": setting.cap_mib}

    def steps(self, setting: Setting | None) -> tuple[int, int]:
        """The number of warm-up steps and of timed steps in a visit."""
        if setting is None:
            return 1, self.timed_steps
        return warmup_steps(self._wrapping.options | self.options.get(setting.name, {})), self.timed_steps

    def visit(self, setting: Setting | None, warmup: int, timed: int) -> float:
        """Seconds of a step on the slowest rank. setting: None is a step without communication."""
        self._state.put_back(schedules_only=True)
        # A static graph's first step would communicate.
        model = self._wrapping(**({"static_graph": False} if setting is None else self.kwargs(setting)))
        ddp = _ddp.ddp_in(model, "wrap")
        alive = weakref.ref(ddp)
        try:
            with self._wrapping.graphs.of("none" if setting is None else f"{setting.name} {setting.counts}"):
                step = self._without_communication if setting is None else self._timed
                for _ in range(warmup):
                    step(model)
                seconds = []
                for _ in range(timed):
                    self._ranks.barrier()
                    seconds += self._ranks.max([step(model)])
            if setting is not None and setting.name not in self.live:
                self.live[setting.name] = _ddp.live_buckets(model)
            return statistics.median(seconds)
        finally:
            self._wrapping.unhook(ddp)
            del model, ddp
            if alive() is not None:
                gc.collect()

    def habits(self, setting: Setting) -> Habits:
        """Finds out the program's habits by running one step. Collective."""
        model = self._wrapping(**self.kwargs(setting))
        ddp, memory = _ddp.ddp_in(model), []
        unsynced, no_sync, alive = [], ddp.no_sync, weakref.ref(ddp)
        ddp.no_sync = lambda: unsynced.append(True) or no_sync()  # type: ignore[func-returns-value, method-assign]
        try:
            with self._wrapping.graphs.of(f"{setting.name} {setting.counts}"):
                self._step(model)
            for parameter in self._state.parameters:
                if (gradient := parameter.grad) is not None and gradient.layout == torch.strided:
                    memory.append(StorageWeakRef(gradient.untyped_storage()))
                parameter.grad = gradient = None
        finally:
            self._wrapping.unhook(ddp)
            del model, ddp, no_sync
            if alive() is not None:  # it refers to itself by the method that it was given here
                gc.collect()
        kept = any(not each.expired() for each in memory)
        keeps, accumulates = self._ranks.max([float(kept), float(bool(unsynced))])
        return Habits(keeps > 0, accumulates > 0)

    def refusal(self, setting: Setting) -> str | None:
        """The error of the program's step with this setting, the same on every rank; None if it works. Collective."""
        try:
            self._ranks.attempt(lambda: self.visit(setting, *self.steps(setting)))
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return None

    def _timed(self, model: torch.nn.Module) -> float:
        """Seconds of one step on this rank, including what it has queued on the device."""
        self._clock.synchronize()
        started = time.perf_counter()
        self._step(model)
        self._clock.synchronize()
        return time.perf_counter() - started

    def _without_communication(self, model: torch.nn.Module) -> float:
        with Watch(self._clock, self._state.parameters) as watch, _ddp.ddp_in(model).no_sync():
            return self._timed(model) - watch.still_s

    def blocks(
        self, settings: Sequence[Setting | None], *, fewest: int, most: int, seconds: float, seed: int,
        on_block: Callable[[int], None], is_enough: Callable[[Samples], bool] = lambda _: False,
    ) -> Samples:  # fmt: skip
        """Runs blocks by a StepSchedule until they are enough. The smallest `seconds` of all ranks counts.

        settings: None is a step without communication.
        """
        samples: Samples = [[] for _ in settings]
        least_s = -self._ranks.max([-seconds])[0]
        schedule = StepSchedule([self.steps(setting) for setting in settings], fewest, most, least_s, seed)
        started = time.perf_counter()
        while (visit := schedule.next()) is not None:
            samples[visit.setting].append(self.visit(settings[visit.setting], visit.warmup_steps, visit.timed_steps))
            if not visit.ends_block:
                schedule.tell()
                continue
            on_block(visit.block + 1)
            elapsed_s = self._ranks.max([time.perf_counter() - started])[0]  # the ranks' clocks differ a little
            schedule.tell(elapsed_s, is_enough(samples))
        return samples


def check_ddp_options(options: dict[str, Any]) -> None:
    """Raises InputError for arguments that the tuner sets itself, and for those that PyTorch does not know."""
    known = inspect.signature(DDP.__init__).parameters
    for name in options:
        if name in ("bucket_cap_mb", "bucket_cap_mb_list", "module", "init_sync"):
            raise InputError(f"ddp_kwargs: '{name}'; expected arguments that the tuner does not set itself")
        if name not in known:
            raise InputError(f"ddp_kwargs: '{name}' is not an argument of torch {torch.__version__}'s DistributedDataParallel")
