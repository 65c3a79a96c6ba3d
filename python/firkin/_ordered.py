"""Waiting for gradients and parameters in flight under the strategies "ordered" and "sharded"; the optimiser of "ordered"."""

from __future__ import annotations

import collections
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from firkin._core import InputError
from firkin._native import load_engine
from firkin._torch import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

_engine_steps = threading.local()  # whether an optimiser steps on this thread because the engine says so


class _Awaited(dict[str, Any]):
    """The parameters of one part of a module: whoever looks one up waits for it, and whoever goes through them outside forward for all.

    In the part's own forward, which has waited, a plain dictionary is in its place: torch.compile looks into no other.
    """

    __slots__ = ("_calls", "_wait_for_all", "_wait_for_these")

    def __init__(self, held: dict[str, Any], wait_for_these: Callable[[], None], wait_for_all: Callable[[], None]) -> None:
        super().__init__(held)
        self._wait_for_these, self._wait_for_all = wait_for_these, wait_for_all
        self._calls = 0  # of the part's forward, one in another

    def make_way(self, part: torch.nn.Module) -> None:
        if self._calls == 0:
            part.__dict__["_parameters"] = _plain(self)
        self._calls += 1

    def come_back(self, part: torch.nn.Module) -> None:
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

    def __iter__(self) -> Iterator[str]:  # so that dict(this) looks up
        return super().__iter__()

    def __reduce_ex__(self, _protocol: Any) -> Any:
        self._wait_for_all()
        return dict, (_plain(self),)


def _plain(held: dict[str, Any]) -> dict[str, Any]:
    """Without waiting."""
    return dict(dict.items(held))


def _ending(awaited: _Awaited) -> Callable[..., None]:
    def end(part: torch.nn.Module, _arguments: Any, _result: Any) -> None:
        awaited.come_back(part)

    return torch.compiler.disable(end)  # type: ignore[no-any-return, no-untyped-call]


def is_scripted(part: torch.nn.Module) -> bool:
    """It keeps what it has in C++, and takes no hooks."""
    return isinstance(part, torch.jit.ScriptModule)


class Arrivals:
    """A running engine, and everything that waits for it: forwards, copies, checkpoints, other optimisers, loops over parameters.

    Gradients stay in flight when backward() returns only if OverlappedOptimizers hold every parameter.
    """

    def __init__(self, engine: Any, parameters: list[torch.Tensor]) -> None:
        self.engine = engine
        self.is_stepped = True  # since the last backward
        self.in_forward = False  # where modules that look at their parameters (for a dtype, say) are not to wait for all of them
        self.optimizers: weakref.WeakSet[OverlappedOptimizer] = weakref.WeakSet()
        self._parameters = [p for p in parameters if p.requires_grad]
        self._backward = -1  # the last one, as autograd numbers them
        self._hooks: set[int] = set()
        self.await_root: Callable[..., None] = lambda *_: None  # before the module's forward, if it takes no hook

    def install(self, module: torch.nn.Module) -> Callable[[], None]:
        """Makes every module wait for its parameters before its forward, and whoever reads them. Returns a function that undoes this.

        A part that torch.jit.script has compiled is waited for by the one around it.
        """
        names: dict[torch.nn.Module, list[str]] = {}
        for name, part in module.named_modules(remove_duplicate=False):
            names.setdefault(part, []).append(name)
        parts = [part for part in names if not is_scripted(part) and next(part.parameters(), None) is not None]
        if is_scripted(module):
            self.await_root = self._waiter(self.engine.add_awaiting(names[module]))
        handles: list[Any] = [register_optimizer_step_pre_hook(self._before_step)]
        for p in self._parameters:
            handles.append(p.register_post_accumulate_grad_hook(self._gradient))  # type: ignore[no-untyped-call]
        for part in parts:
            with_scripted = names[part] + [name for child in part.children() if is_scripted(child) for name in names[child]]
            index = self.engine.add_awaiting(with_scripted)
            awaited = part.__dict__["_parameters"] = self._awaited(part, index)
            handles.append(part.register_forward_pre_hook(self._waiter(index, awaited)))
            handles.append(part.register_forward_hook(_ending(awaited), always_call=True))
            handles.append(part.register_state_dict_pre_hook(self._drain))  # type: ignore[no-untyped-call]
            handles.append(part.register_load_state_dict_pre_hook(self._drain))  # type: ignore[no-untyped-call]
            part.__dict__["__reduce_ex__"] = types.MethodType(self._reduce_ex, part)
        self._hooks = {handle.id for handle in handles}

        def remove() -> None:
            for handle in handles:
                handle.remove()
            for part in parts:
                part.__dict__.pop("__reduce_ex__", None)
                part.__dict__["_parameters"] = _plain(part._parameters)
            self.engine.unwatch()

        return remove

    def drain_outside_forward(self) -> None:
        if not self.in_forward:
            self.engine.drain()

    def drain_unless_overlapped(self) -> None:
        """At the end of a backward."""
        late = {id(p) for each in self.optimizers for group in each.optimizer.param_groups for p in group["params"]}
        if any(p.requires_grad and id(p) not in late for p in self._parameters):
            self.engine.drain()

    def _drain(self, *_: Any) -> None:
        self.engine.drain()

    def _awaited(self, part: torch.nn.Module, index: int) -> _Awaited:
        engine = self.engine

        def wait_for_these() -> None:
            engine.receive_module(index)

        def wait_for_all() -> None:
            if self.in_forward:
                engine.receive_module(index)
            else:
                engine.drain()

        return _Awaited(part._parameters, wait_for_these, wait_for_all)

    def _waiter(self, index: int, awaited: _Awaited | None = None) -> Callable[..., None]:
        def wait(*of_call: Any) -> None:
            self.engine.await_module(index)
            if awaited is not None:
                awaited.make_way(of_call[0])

        # Dynamo would look into the optimiser, which steps in here, and round otherwise on the rank where it does.
        reason = "firkin: a module waits here for its parameters (strategies ordered, sharded); expected another strategy for fullgraph=True"
        return torch.compiler.disable(wait, reason=reason)  # type: ignore[no-any-return, no-untyped-call]

    def _reduce_ex(self, part: torch.nn.Module, protocol: Any) -> Any:
        """For copy.deepcopy() and pickle, in the place of its class's: all of the module but what is here."""
        self.engine.drain()
        reduced: Any = type(part).__reduce_ex__(part, protocol)
        if not isinstance(reduced, tuple) or len(reduced) < 3 or not isinstance(reduced[2], dict):
            return reduced
        state = {name: value for name, value in reduced[2].items() if name != "__reduce_ex__"}
        if isinstance(state.get("_parameters"), _Awaited):
            state["_parameters"] = _plain(state["_parameters"])
        for name, hooks in state.items():
            if "_hooks" in name and isinstance(hooks, dict):
                state[name] = type(hooks)((k, hook) for k, hook in hooks.items() if k not in self._hooks)
        return (*reduced[:2], state, *reduced[3:])

    def _gradient(self, _parameter: Any) -> None:
        task = torch._C._current_graph_task_id()
        if task == self._backward:
            return
        self._backward, self.is_stepped = task, False
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(lambda: queue(self.drain_unless_overlapped))  # the second time, it is behind what the engine has queued

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if getattr(_engine_steps, "now", False) or isinstance(optimizer, OverlappedOptimizer):
            return
        if any(optimizer is each.optimizer for each in self.optimizers):
            raise InputError("OverlappedOptimizer: step() called on the inner optimiser; expected OverlappedOptimizer.step()")
        mine = {id(p) for p in self._parameters}
        if any(id(p) in mine for group in optimizer.param_groups for p in group["params"]):
            self.engine.drain()


class _LiveGroup(collections.UserDict[str, Any]):
    """The optimiser's group as it is now, because load_state_dict() replaces groups."""

    def __init__(self, optimizer: torch.optim.Optimizer, index: int) -> None:
        self._optimizer, self._index = optimizer, index

    @property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        return self._optimizer.param_groups[self._index]


def as_the_engine_sees_it(optimizer: torch.optim.Optimizer) -> types.SimpleNamespace:
    def step() -> None:
        _engine_steps.now = True
        try:
            optimizer.step()
        finally:
            _engine_steps.now = False

    step = torch.compiler.disable(step)  # type: ignore[no-untyped-call]
    groups = [_LiveGroup(optimizer, i) for i in range(len(optimizer.param_groups))]
    return types.SimpleNamespace(defaults=optimizer.defaults, param_groups=groups, step=step)


class OverlappedOptimizer(torch.optim.Optimizer):
    """The optimiser for the strategy "ordered": steps each parameter when its gradient has arrived, behind the next forward.

        model = firkin.DistributedDataParallel(Net(), strategy="ordered", cap_mib=1)
        optimizer = firkin.OverlappedOptimizer(model, torch.optim.AdamW(model.parameters()))
        ...
        loss(model(x), y).backward()
        optimizer.step()

    Every module waits for its own parameters when its forward is called, so the model needs no change; parameters used outside any
    module's forward are complete when the step ends. Groups and state are those of `optimizer`: schedulers and checkpoints take either
    object, step() and GradScaler take this one. Parameters and gradients obtained from parameters(), state_dict() or a copy of the model are
    complete, and until step() those of param_groups; call drain() before you read, clip or change others. Under other strategies step() is
    optimizer.step().

    optimizer: any that skips parameters without a gradient; its groups must be complete. Raises InputError for L-BFGS.
    """

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise InputError("OverlappedOptimizer: L-BFGS needs all gradients at once; expected another optimiser")
        self.optimizer = optimizer
        self._arrivals: Arrivals = model._arrivals
        self._native = load_engine().EngineOptimizer(self._arrivals.engine, as_the_engine_sees_it(optimizer))
        self._groups = len(optimizer.param_groups)
        super().__setstate__({})  # what an Optimizer has beside parameters
        self._arrivals.optimizers.add(self)
        for register in (optimizer.register_state_dict_pre_hook, optimizer.register_load_state_dict_pre_hook):
            weakref.finalize(self, register(self._arrivals._drain).remove)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps the parameters whose gradients have arrived; the others when they are needed, with the options of this moment."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if len(self.optimizer.param_groups) != self._groups:
            raise InputError("OverlappedOptimizer: a parameter group was added later; expected all groups at construction")
        self._native.step()
        self._arrivals.is_stepped = True
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._before_gradients_are_seen()
        self.optimizer.zero_grad(set_to_none)

    def drain(self) -> None:
        """Waits for all gradients in flight and, after step(), steps their parameters."""
        self._native.drain()

    def clip_grad_norm_(self, max_norm: float) -> float:
        """torch.nn.utils.clip_grad_norm_ between backward() and step(). Waits for all gradients, so nothing overlaps; warns once."""
        norm: float = self._native.clip_gradients(max_norm)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state_dict(), complete."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads into the optimiser once the last step is complete."""
        self.optimizer.load_state_dict(state_dict)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The optimiser's groups. Between backward() and step() this waits for all gradients, since code may read them there."""
        self._before_gradients_are_seen()
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The optimiser's state, complete."""
        self.drain()
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.optimizer.defaults

    def __getstate__(self) -> dict[str, Any]:
        raise InputError("OverlappedOptimizer: cannot be copied or pickled; expected its state_dict(), or a copy of the inner optimiser")

    def _before_gradients_are_seen(self) -> None:
        if not self._arrivals.is_stepped:
            self.drain()
