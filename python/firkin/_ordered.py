"""Waits for tensors in flight under the strategies "ordered" and "sharded"; has the optimiser of "ordered"."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from firkin._core import InputError
from firkin._native import load_engine
from firkin._optimizer_trial import step_without_global_hooks, steps_each_by_itself, warn_of_unknown
from firkin._torch import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

T = TypeVar("T")
STATE_HOOKS = ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post")  # an optimiser's
_engine_steps = threading.local()  # `now`: whether the engine is running an optimiser's step on this thread
_running: weakref.WeakSet[Arrivals] = weakref.WeakSet()
# Optimisers that have stepped, by objects rather than addresses, which a later optimiser may reuse.
_numbers: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
_new_numbers = itertools.count()


class _Awaited(dict[str, Any]):
    """The dictionary of one module's parameters, which waits for those in flight before it returns any.

    A look-up waits for this module's parameters; outside of forward, an iteration waits for those of all modules. During
    the module's own forward, which has already waited, a plain dictionary replaces it for torch.compile.
    """

    __slots__ = ("_arrivals", "_calls", "_index")

    def __init__(self, held: dict[str, Any], arrivals: Arrivals, index: int) -> None:
        super().__init__(held)
        self._arrivals, self._index = arrivals, index
        self._calls = 0  # how many calls of the module's forward are running, one inside another

    def _wait_for_these(self) -> None:
        self._arrivals.engine.receive_module(self._index)

    def _wait_for_all(self) -> None:
        if self._arrivals.in_forward:
            self._wait_for_these()
        else:
            self._arrivals.engine.drain()

    def begin_forward(self, part: torch.nn.Module, *_: Any) -> None:
        self._arrivals.engine.await_module(self._index)
        self._arrivals.forwards += 1
        if self._calls == 0:
            part.__dict__["_parameters"] = _plain(self)
        self._calls += 1

    def end_forward(self, part: torch.nn.Module, *_: Any) -> None:
        self._calls -= 1
        if self._calls == 0:
            now = part.__dict__["_parameters"]
            self.clear()
            self.update(now)
            part.__dict__["_parameters"] = self

    def __getitem__(self, name: str) -> Any:
        self._wait_for_these()
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._wait_for_these()
        return super().get(name, default)

    def pop(self, *args: Any) -> Any:
        self._wait_for_these()
        return super().pop(*args)

    def items(self) -> Any:
        self._wait_for_all()
        return super().items()

    def values(self) -> Any:
        self._wait_for_all()
        return super().values()

    def __iter__(self) -> Iterator[str]:  # with an __iter__ of the class's own, dict(self) goes through __getitem__()
        return super().__iter__()

    def __reduce_ex__(self, _protocol: Any) -> Any:
        self._wait_for_all()
        return dict, (_plain(self),)


def weakly(method: Callable[..., T]) -> Callable[..., T | None]:
    """Calls the method while its object lives, which whoever keeps this does not prolong."""
    held = weakref.WeakMethod(method)
    return lambda *args: None if (now := held()) is None else now(*args)


def _plain(held: dict[str, Any]) -> dict[str, Any]:
    """A plain copy, made without waiting."""
    return dict(dict.items(held))


def is_scripted(part: torch.nn.Module) -> bool:
    """Whether torch.jit.script has compiled the module, which then has its parameters in C++."""
    return isinstance(part, torch.jit.ScriptModule)


class Arrivals:
    """Makes all that read parameters wait for the engine: forwards, copies, checkpoints, optimisers, loops.

    When backward() returns, gradients are still in flight only if OverlappedOptimizers hold every parameter.
    """

    def __init__(self, engine: Any, parameters: list[torch.Tensor]) -> None:
        self.engine = engine
        # During forward a module that looks at its parameters (for their dtype, say) does not wait for other modules'.
        self.in_forward = False
        self.forwards = 0  # how often any module's forward has run
        self.zeroed_at = -1  # what `forwards` was when all gradients were last set to None
        self.has_ended_a_step = False
        self.optimizers: weakref.WeakSet[OverlappedOptimizer] = weakref.WeakSet()
        self.is_installed = False
        self._parameters = parameters
        self._ids = {id(p) for p in parameters}
        self._hooks: set[int] = set()
        _running.add(self)

    def install(self, module: torch.nn.Module) -> Callable[[], None]:
        """Makes every module, and everyone who reads its parameters, wait for them. Returns a function that undoes this.

        A module compiled by torch.jit.script takes no hooks. The module around it waits for its parameters, too; without
        one they arrive with the step.
        """
        names: dict[torch.nn.Module, list[str]] = {}
        for name, part in module.named_modules(remove_duplicate=False):
            names.setdefault(part, []).append(name)
        parts = [part for part in names if not is_scripted(part) and next(part.parameters(), None) is not None]
        handles: list[Any] = []
        # The optimiser steps in these. If Dynamo compiled that on some ranks only, these would round differently.
        reason = "firkin: a module waits here for its parameters (strategies ordered, sharded); expected another strategy for fullgraph=True"
        for part in parts:
            awaited = part.__dict__["_parameters"] = _Awaited(part._parameters, self, self.engine.add_awaiting(names[part]))
            begin, end = (torch.compiler.disable(each, reason=reason) for each in (awaited.begin_forward, awaited.end_forward))  # type: ignore[no-untyped-call]
            handles += [part.register_forward_pre_hook(begin), part.register_forward_hook(end, always_call=True)]
            part.__dict__["__reduce_ex__"] = types.MethodType(self._reduce_ex, part)
        if not is_scripted(module):
            module.__dict__["zero_grad"] = types.MethodType(self._zero_grad, module)
        self._hooks = {handle.id for handle in handles}
        _wait_before_steps()
        self.is_installed = True

        def remove() -> None:
            self.is_installed = False
            for handle in handles:
                handle.remove()
            for part in parts:
                part.__dict__.pop("__reduce_ex__", None)
                part.__dict__.pop("zero_grad", None)
                part.__dict__["_parameters"] = _plain(part._parameters)
            self.engine.unwatch()

        return remove

    def drain_outside_forward(self) -> None:
        if not self.in_forward:
            self.engine.drain()

    def end_step(self) -> None:
        """Waits for all gradients, unless OverlappedOptimizers hold every parameter."""
        for each in self.optimizers:
            each.is_stepped = False
        self.zeroed_at = -1
        self.has_ended_a_step = True
        late = {id(p) for each in self.optimizers for group in each.optimizer.param_groups for p in group["params"]}
        if any(p.requires_grad and id(p) not in late for p in self._parameters):
            self.engine.drain()

    def _reduce_ex(self, part: torch.nn.Module, protocol: Any) -> Any:
        """Replaces the module's __reduce_ex__(), so that copies and pickles lack what install() has added."""
        reduced: Any = type(part).__reduce_ex__(part, protocol)
        if not isinstance(reduced, tuple) or len(reduced) < 3 or not isinstance(reduced[2], dict):
            return reduced
        state = {name: value for name, value in reduced[2].items() if name not in ("__reduce_ex__", "zero_grad")}
        for name, hooks in state.items():
            if "_hooks" in name and isinstance(hooks, dict):
                state[name] = type(hooks)((k, hook) for k, hook in hooks.items() if k not in self._hooks)
        return (*reduced[:2], state, *reduced[3:])

    def _zero_grad(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        """Replaces the wrapped module's zero_grad()."""
        type(module).zero_grad(module, *args, **kwargs)
        self.note_zero_grad(*args, **kwargs)

    def note_zero_grad(self, set_to_none: bool = True) -> None:
        """After zero_grad() of an optimiser or a module: another step() may find no gradients."""
        if set_to_none:
            self.zeroed_at = self.forwards

    def check_gradients_are_new(self, wrapper: str, stepped_at: int) -> None:
        """Before a step. stepped_at: what `forwards` was at the last one."""
        if stepped_at == self.forwards != self.zeroed_at:
            raise InputError(
                f"{wrapper}: step() again after the same backward(), when gradients are gone; expected zero_grad() or a backward() between"
            )

    def before_step(self, optimizer: Any) -> None:
        """Waits before a step that is not the engine's own."""
        if any(optimizer is each.optimizer for each in self.optimizers):
            raise InputError("OverlappedOptimizer: step() called on the inner optimiser; expected OverlappedOptimizer.step()")
        if not self.are_stepped_by(optimizer):
            return
        just_now = [each.optimizer for each in self.optimizers if each.is_stepped and each.stepped_at == self.forwards]
        stepped = {id(p) for each in just_now for group in each.param_groups for p in group["params"]}
        if any(id(p) in stepped for group in optimizer.param_groups for p in group["params"]):
            name = type(optimizer).__name__
            raise InputError(
                f"OverlappedOptimizer: {name} steps the same parameters after it, and misses late gradients; expected {name}.step() first"
            )
        self.engine.drain()

    def are_stepped_by(self, optimizer: Any) -> bool:
        return any(id(p) in self._ids for group in optimizer.param_groups for p in group["params"])


def _is_stepped_by_engine(optimizer: Any) -> bool:
    """Whether an engine makes the step that PyTorch's hooks now report, and so knows of it."""
    return bool(getattr(_engine_steps, "now", False)) or isinstance(optimizer, OverlappedOptimizer)


def _before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if _is_stepped_by_engine(optimizer):
        return
    for arrivals in list(_running):
        if arrivals.is_installed:
            arrivals.before_step(optimizer)


def _after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    """Tells engines of a step that is not their own: they compare how often ranks step."""
    if torch.compiler.is_compiling() or _is_stepped_by_engine(optimizer):
        return
    # A set, because an engine may have had other arrivals that are still held.
    engines = {arrivals.engine for arrivals in list(_running) if arrivals.are_stepped_by(optimizer)}
    for engine in engines:
        engine.note_optimizer_step(_numbers.setdefault(optimizer, next(_new_numbers)))


# Once for all engines: PyTorch's hooks must not change while an optimiser steps, when an engine may well be collected.
# The other one is for install(), since torch.compile does not look into it.
register_optimizer_step_post_hook(_after_step)


@functools.cache
def _wait_before_steps() -> None:
    register_optimizer_step_pre_hook(_before_step)
    os.register_at_fork(before=_before_fork)


def _before_fork() -> None:
    """Drains first: a forked child has no thread to complete what is in flight."""
    for arrivals in list(_running):
        with contextlib.suppress(RuntimeError):  # a lost group's; whoever uses the engine next gets it as well
            arrivals.drain_outside_forward()


def engine_step(optimizer: torch.optim.Optimizer, held: Iterable[tuple[dict[str, Any], list[torch.Tensor]]] = ()) -> Callable[[], None]:
    """The optimiser's step(), for the engine to call. held: groups with the parameters that they have in it, whatever they have now."""

    def step() -> None:
        outer = getattr(_engine_steps, "now", False)
        _engine_steps.now = True
        now = [(group, group["params"]) for group, _ in held]
        for group, parameters in held:
            group["params"] = parameters
        try:
            step_without_global_hooks(optimizer)
        finally:
            _engine_steps.now = outer
            for group, parameters in now:
                group["params"] = parameters

    return torch.compiler.disable(step)  # type: ignore[no-any-return, no-untyped-call]


def refuse_hooks(wrapper: str, inner: torch.optim.Optimizer) -> None:
    if inner._optimizer_step_pre_hooks or inner._optimizer_step_post_hooks:
        raise InputError(f"{wrapper}: the inner optimiser has hooks, which each part would call; expected them on this one")


def _after(first: Callable[[], Any], then: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        first()
        return then(*args, **kwargs)

    return call


class OverlappedOptimizer(torch.optim.Optimizer):
    """The optimiser for the strategy "ordered": steps parameters once their gradients are there, during forward.

        model = firkin.DistributedDataParallel(Net(), strategy="ordered", cap_mib=1)
        optimizer = firkin.OverlappedOptimizer(model, torch.optim.AdamW(model.parameters()))
        ...
        loss(model(x), y).backward()
        optimizer.step()

    Every module waits for its own parameters when its forward is called, so the model needs no change; parameters used
    outside of any module's forward are complete when the step ends. Groups and state are those of `optimizer`:
    schedulers and checkpoints take either object; call step() of this one, and pass this one to GradScaler.

    Parameters and gradients are complete when you get them from parameters(), from state_dict() or from a copy of the
    model, and until step() also from param_groups. Call drain() before you read, clip or change any that you got in
    another way. Under other strategies step() is optimizer.step().

    optimizer: one that skips parameters without a gradient, since it steps each part that arrives by itself; its groups
    must be complete. Raises InputError for L-BFGS, and under "ordered" for an optimiser around another one (Lookahead).
    """

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise InputError("OverlappedOptimizer: L-BFGS needs all gradients at once; expected another optimiser")
        if model.strategy == "ordered":
            inner = next((each for each in vars(optimizer).values() if isinstance(each, torch.optim.Optimizer)), None)
            if inner is not None:
                names = f"{type(optimizer).__name__} around {type(inner).__name__}"
                raise InputError(f"OverlappedOptimizer: {names} cannot step each part that arrives by itself; expected the inner one or another strategy")
            if not steps_each_by_itself(optimizer):
                raise InputError(
                    f"OverlappedOptimizer: {type(optimizer).__name__} looks at all parameters at once, or counts its steps by itself; expected one that"
                    " takes each parameter by itself, with counters in its groups or states of parameters, or another strategy"
                )
            warn_of_unknown("OverlappedOptimizer", optimizer)
        self.optimizer = optimizer
        self._arrivals: Arrivals = model._arrivals
        self._held: list[tuple[dict[str, Any], list[torch.Tensor]]] = []  # what step() has found in the groups
        self._native = load_engine().EngineOptimizer(self._arrivals.engine, optimizer, engine_step(optimizer, self._held))
        model._audit_optimizer(weakref.ref(optimizer))
        self._groups = len(optimizer.param_groups)
        self._steps_by_parts = model.strategy == "ordered"
        self.defaults = optimizer.defaults
        super().__setstate__({})  # makes what every Optimizer has besides its parameters
        self.is_stepped = False  # since the engine's last step
        self.stepped_at = -1
        self._arrivals.optimizers.add(self)
        # Never removed: PyTorch's hooks must not change while it calls them, when this object may well be collected.
        drain = weakly(self.drain)
        optimizer.register_state_dict_pre_hook(lambda *_: drain())
        optimizer.register_load_state_dict_pre_hook(lambda *_: drain())
        for kind in STATE_HOOKS:
            setattr(self, f"register_{kind}_hook", getattr(optimizer, f"register_{kind}_hook"))
        for name in ("train", "eval"):  # of schedule-free optimisers: they move parameters, and are there to be called on either object
            if callable(moves := getattr(optimizer, name, None)):
                for each in (optimizer, self):
                    setattr(each, name, _after(drain, moves))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps the parameters whose gradients have arrived; the others when needed, with the options of now."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._steps_by_parts:
            refuse_hooks("OverlappedOptimizer", self.optimizer)
        if len(self.optimizer.param_groups) != self._groups:
            raise InputError("OverlappedOptimizer: a parameter group was added or removed; expected the groups of construction")
        if self._steps_by_parts and self.is_stepped:
            self._arrivals.check_gradients_are_new("OverlappedOptimizer", self.stepped_at)
            self.drain()
        self._held[:] = [(group, list(group["params"])) for group in self.optimizer.param_groups]
        self._native.step()
        self.is_stepped = self._arrivals.has_ended_a_step  # before, programs step to move a schedule to where they go on
        self.stepped_at = self._arrivals.forwards
        if self._optimizer_step_post_hooks or len(_global_optimizer_post_hooks) > 1:  # which may use parameters
            self.drain()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._before_gradients_are_seen()
        self.optimizer.zero_grad(set_to_none)
        self._arrivals.note_zero_grad(set_to_none)

    def drain(self) -> None:
        """Waits for all gradients in flight and, after step(), steps their parameters."""
        self._native.drain()

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Like torch.nn.utils.clip_grad_norm_, between backward() and step(). Returns the norm.

        Waits for all gradients, so that nothing overlaps any more; warns of that once.
        """
        return float(self._native.clip_gradients(max_norm))

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state_dict(), once the last step is complete."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads into the optimiser once the last step is complete."""
        self.optimizer.load_state_dict(state_dict)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The optimiser's groups. Between backward() and step() waits for all gradients, which code may read here."""
        self._before_gradients_are_seen()
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The optimiser's state, once the last step is complete."""
        self.drain()
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.__setstate__({"state": state})

    def __getstate__(self) -> dict[str, Any]:
        raise InputError("OverlappedOptimizer: cannot be copied or pickled; expected its state_dict(), or a copy of the inner optimiser")

    def __setstate__(self, state: dict[str, Any]) -> None:  # by which programs reset `state`
        self.drain()
        self.optimizer.__setstate__(state)

    def _before_gradients_are_seen(self) -> None:
        if not self.is_stepped:
            self.drain()
