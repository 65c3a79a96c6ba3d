"""Makes whatever reads parameters wait for those in flight, under the strategies "ordered" and "sharded"."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from firkin import _ddp
from firkin._core import InputError
from firkin._torch import torch

T = TypeVar("T")
running: weakref.WeakSet[Arrivals] = weakref.WeakSet()  # of every engine


class _Awaited(dict[str, Any]):
    """The dictionary of one module's parameters, which waits for those in flight before PyTorch reads any.

    A look-up waits for this module's parameters; outside of forward, items() waits for those of all modules. During the
    module's own forward, which has already waited, a plain dictionary replaces it for torch.compile.
    """

    __slots__ = ("_arrivals", "_calls", "_index")

    def __init__(self, held: dict[str, Any], arrivals: Arrivals, index: int) -> None:
        super().__init__(held)
        self._arrivals, self._index = arrivals, index
        self._calls = 0  # how many calls of the module's forward are running, one inside another

    def begin_forward(self, part: torch.nn.Module, *_: Any) -> None:
        self._arrivals.record_forward_place()
        self._arrivals.engine.await_module(self._index)
        if self._calls == 0:
            part.__dict__["_parameters"] = dict(dict.items(self))
        self._calls += 1

    def end_forward(self, part: torch.nn.Module, *_: Any) -> None:
        self._calls -= 1
        if self._calls == 0:
            now = part.__dict__["_parameters"]
            self.clear()
            self.update(now)
            part.__dict__["_parameters"] = self

    def _wait_for_these(self) -> None:
        self._arrivals.check_place()
        self._arrivals.engine.receive_module(self._index)

    def _wait_for_all(self) -> None:
        self._wait_for_these() if self._arrivals.in_forward else self._arrivals.drain()

    def __getitem__(self, name: str) -> Any:
        self._wait_for_these()
        return super().__getitem__(name)

    def items(self) -> Any:
        self._wait_for_all()
        return super().items()

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise InputError(
            "DataParallel: strategies ordered and sharded copy or pickle no module; expected a copy made before wrapping, and its"
            " load_state_dict(model.module.state_dict())"
        )


def weakly(method: Callable[..., T]) -> Callable[..., T | None]:
    """A function that calls the method without keeping its object alive: once the object is gone it does nothing."""
    held = weakref.WeakMethod(method)
    return lambda *args: None if (now := held()) is None else now(*args)


def _refuse_scripting() -> NoReturn:
    raise InputError(
        "DataParallel: torch.jit.script takes no module of strategies ordered and sharded; expected a module made anew, with"
        " load_state_dict(model.module.state_dict())"
    )


def refuse_unawaited(module: torch.nn.Module, strategy: str) -> None:
    """Raises InputError for a module whose parameters cannot all arrive after the step."""
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):  # takes no hooks
            raise InputError(
                f"DataParallel: torch.jit.script has compiled {name or 'the module'}; expected a module that is not, or strategy bucketed"
            )
    ignored = _ddp.ignored(module) if strategy == "sharded" else ()
    for name, p in module.named_parameters():
        if p.requires_grad and name in ignored:
            raise InputError(f"DataParallel: {name} is not to be synchronised, and sharded steps only what is; expected strategy bucketed or ordered")


class Arrivals:
    """Makes whatever reads parameters wait for the engine: forwards, checkpoints, optimisers, loops.

    When backward() returns, gradients are still in flight only if OverlappedOptimizers hold every parameter.
    """

    def __init__(self, engine: Any, parameters: list[torch.Tensor]) -> None:
        self.engine = engine
        self.ids = {id(p) for p in parameters}
        # During forward a module that reads its parameters (for their dtype, say) does not wait for other modules'.
        self.in_forward = False
        self.is_installed = False
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()  # OverlappedOptimizers, or a ShardedOptimizer
        self.backwards = 0  # how many that synchronise have ended
        self.is_second = False  # whether the last backward came before anybody had used the gradients of the one before it
        self._is_unused = False  # whether nobody has used the gradients of the last backward
        self._parameters = parameters
        self._forward_place: tuple[int, int] | None = None  # process and thread of the last forward with gradients
        self._place: tuple[int, int] | None = None  # the same, or None while nothing can be in flight
        running.add(self)

    def install(self, module: torch.nn.Module) -> Callable[[], None]:
        """Makes every module, and everyone who reads its parameters, wait for them. Returns a function that undoes this."""
        names: dict[torch.nn.Module, list[str]] = {}
        for name, part in module.named_modules(remove_duplicate=False):
            names.setdefault(part, []).append(name)
        parts = [part for part in names if next(part.parameters(), None) is not None]
        handles: list[Any] = []
        # The optimiser's steps run in these hooks. If Dynamo compiled them on some ranks only, these ranks would round differently.
        reason = "firkin: a module waits here for its parameters (strategies ordered, sharded); expected another strategy for fullgraph=True"
        for part in parts:
            awaited = part.__dict__["_parameters"] = _Awaited(part._parameters, self, self.engine.add_awaiting(names[part]))
            begin, end = (torch.compiler.disable(each, reason=reason) for each in (awaited.begin_forward, awaited.end_forward))  # type: ignore[no-untyped-call]
            handles += [part.register_forward_pre_hook(begin), part.register_forward_hook(end, always_call=True)]
            part.__dict__["__prepare_scriptable__"] = _refuse_scripting  # which torch.jit.script calls
        self.engine.observe_steps(weakly(self.end_backward))
        self.is_installed = True

        def remove() -> None:
            self.is_installed = False
            for handle in handles:
                handle.remove()
            for part in parts:
                del part.__dict__["__prepare_scriptable__"]
                part.__dict__["_parameters"] = dict(dict.items(part._parameters))
            self.engine.forget_module()

        return remove

    def record_forward_place(self) -> None:
        self.check_place()
        if torch.is_grad_enabled():
            self._forward_place = _here()

    def check_place(self) -> None:
        """Raises InputError in another thread, or process, than the one that trains, while anything may be in flight.

        Note [One thread trains]: reading a parameter can step it, so another thread would run the optimiser beside the thread that trains. A
        forked process has no thread that could complete what is in flight. drain() in the thread that trains makes both possible.
        """
        # A checkpoint runs forwards in autograd's threads, within the backward of the thread that trains.
        if self._place not in (None, _here()) and torch._C._current_graph_task_id() == -1:
            raise InputError(
                "DataParallel: a thread, or a forked process, runs the module or reads its parameters, while a step of another thread may be in"
                " flight; expected model.drain() in that one before, or strategy bucketed"
            )

    def drain(self) -> None:
        self.check_place()
        self.engine.drain()
        self._place, self._is_unused = None, False

    def end_backward(self) -> None:
        """Called when the gradients of a backward that synchronises are there, or in flight."""
        self.backwards += 1
        self._place = self._forward_place
        for each in self.optimizers:
            each.end_backward()
        held = self._held()
        is_all_held = all(not p.requires_grad or id(p) in held for p in self._parameters)
        self.is_second, self._is_unused = self._is_unused, is_all_held
        if not is_all_held:
            self.engine.drain()

    def record_step(self) -> None:
        """To be called after step() of an OverlappedOptimizer or a ShardedOptimizer."""
        self._place, self._is_unused = _here() if self.is_installed else None, False

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """To be called before the step of any other optimiser, which would miss what is in flight."""
        held = self._held() if self.is_installed else ()
        if any(id(p) in held for group in optimizer.param_groups for p in group["params"]):
            name, ours = type(optimizer).__name__, " and ".join(sorted({type(each).__name__ for each in self.optimizers}))
            raise InputError(f"{ours}: {name}.step() steps parameters that are stepped here; expected {ours}.step() alone, or it deleted before")
        self.engine.drain()

    def _held(self) -> set[int]:
        """The ids of the parameters that the engine's optimisers step."""
        return {id(p) for each in self.optimizers for p in each.stepped()}


def _here() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()
