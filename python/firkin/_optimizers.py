"""What OverlappedOptimizer and ShardedOptimizer share, and the hooks by which engines learn of the steps of other optimisers."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from firkin import _ddp
from firkin._arrivals import Arrivals, running
from firkin._core import InputError
from firkin._torch import torch
from torch.optim.optimizer import (
    _global_optimizer_post_hooks, _global_optimizer_pre_hooks, register_optimizer_step_post_hook, register_optimizer_step_pre_hook,
)  # fmt: skip

# A step of these changes every element of a parameter as if the parameter had no other elements.
_ELEMENTWISE = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "ASGD", "Rprop")
STATE_HOOKS = ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post")  # the kinds of hooks that an optimiser has on its state

_engine_steps = threading.local()  # `now`: whether an engine is running an optimiser's step on this thread
# A number for every optimiser that has stepped. Its address would not do: a later optimiser may get the same one.
_numbers: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
_new_numbers = itertools.count()


class EngineOptimizer(torch.optim.Optimizer):
    """The optimiser of "ordered" or "sharded": wraps another one, which the engine steps in parts, as gradients arrive."""

    optimizer: torch.optim.Optimizer
    _arrivals: Arrivals
    _check: Callable[[torch.optim.Optimizer], None]  # raises InputError for an optimiser that cannot be stepped in parts
    _step: EngineStep
    _stepped_after = 0  # how many backwards had ended at the last step()

    def _begin(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self.defaults = self.optimizer.defaults
        super().__setstate__({})  # makes what every Optimizer has besides its groups and states
        arrivals.optimizers.add(self)

    def stepped(self) -> Iterator[torch.Tensor]:
        """The model's parameters that this optimiser steps."""
        return (p for group in self.optimizer.param_groups for p in group["params"])

    def end_backward(self) -> None:
        """Called when the engine has new gradients."""

    def _before_step(self, closure: Callable[[], Any] | None) -> Any:
        """Runs the closure. Raises InputError for hooks on step(), and unless one backward came since the last step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        name = type(self).__name__
        if self._arrivals.is_installed:
            self._check(self.optimizer)
            _refuse_step_hooks(name, self, self.optimizer)
        # Before the first backward step() is allowed: programs that resume step their schedules to where training stopped.
        if self._arrivals.is_second or 0 < self._arrivals.backwards == self._stepped_after:
            raise InputError(
                f"{name}: step() without exactly one synchronising backward() before it; expected one for each step() (accumulate under no_sync())"
            )
        self._step.begin()
        return loss

    def _after_step(self) -> None:
        self._arrivals.record_step()
        self._stepped_after = self._arrivals.backwards

    def _before_gradients_are_read(self) -> None:
        if self._stepped_after != self._arrivals.backwards:
            self.drain()

    def drain(self) -> None:
        """Waits for all that is in flight. Under "ordered", after step(), steps the parameters whose gradients arrive."""
        self._arrivals.drain()

    def __getstate__(self) -> NoReturn:
        raise InputError(f"{type(self).__name__}: cannot be copied or pickled; expected its state_dict()")

    def __setstate__(self, state: dict[str, Any]) -> NoReturn:
        raise InputError(f"{type(self).__name__}: its state cannot be set; expected load_state_dict()")


def options_of(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def check_elementwise(wrapper: str, optimizer: torch.optim.Optimizer, **promises: bool) -> None:
    """Raises InputError for an optimiser that may not step parts of the parameters alone. promises: by the names of arguments."""
    name = type(optimizer).__name__
    if callable(getattr(optimizer, "eval", None)):
        raise InputError(
            f"{wrapper}: {name} moves parameters in train() and eval(), where elementwise=True would promise that only step() does; expected"
            " strategy bucketed"
        )
    if not any(promises.values()) and not _is_listed(optimizer):
        arguments = " or ".join(f"{each}=True" for each in promises)
        if "step" in vars(optimizer):
            name += " with a step() of its own"
        raise InputError(
            f"{wrapper}: {name} is not known to step each element by itself; expected {', '.join(_ELEMENTWISE)} of torch.optim, {arguments} where"
            " what that promises holds, or strategy bucketed"
        )


def _is_listed(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is of a class in the list, with that class's own step(), which a schedule may have wrapped."""
    kind, step = type(optimizer), vars(optimizer).get("step")
    is_own = kind.step.__module__.startswith("torch.optim.") and (step is None or getattr(step, "_wrapped_by_lr_sched", False))
    return is_own and kind in [getattr(torch.optim, each) for each in _ELEMENTWISE]


class EngineStep:
    """One step of an optimiser, which the engine makes in parts: each run() steps the parameters that have a gradient then.

    Note [Options of a step]: after the program's step() a schedule may change the groups' options, such as the learning
    rate, while some parts are still to be stepped. So run() sets the options that begin() has saved, and afterwards
    those that it found. What the optimiser itself changes in its options, such as a counter of steps, then changes once
    in a step, with the first part that makes the change.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._sizes = self._sizes_now()
        self.begin()

    def begin(self) -> None:
        self._before = self._options()
        self._unchanged = set(range(len(self._before)))  # the groups whose options the optimiser has not changed in this step yet

    def run(self) -> None:
        found = self._options()
        self._set(self._before)
        _engine_steps.now = True
        try:
            self._optimizer.step()
        finally:
            _engine_steps.now = False
        after = self._options()
        for i in list(self._unchanged):
            before, made = self._before[i], after[i]
            if changes := {key: value for key, value in made.items() if key not in before or before[key] is not value and before[key] != value}:
                found[i].update(changes)
                self._unchanged.discard(i)
        self._set(found)

    def _sizes_now(self) -> list[int]:
        return [len(group["params"]) for group in self._optimizer.param_groups]

    def _options(self) -> list[dict[str, Any]]:
        """The options of each group. Tensors are copied, since programs change them in place."""
        if self._sizes_now() != self._sizes:
            raise InputError("DataParallel: parameters were added to the optimiser's groups, or removed; expected the groups of construction")
        options = [options_of(group) for group in self._optimizer.param_groups]
        for of_group in options:
            for key, value in of_group.items():
                if isinstance(value, torch.Tensor):
                    of_group[key] = value.detach().clone()
                elif isinstance(value, (list, dict, set)):
                    raise InputError(f"DataParallel: the optimiser's option {key} is a {type(value).__name__}; expected a tuple, number or tensor")
        return options

    @torch.no_grad()
    def _set(self, options: list[dict[str, Any]]) -> None:
        for group, wanted in zip(self._optimizer.param_groups, options):
            for key in options_of(group).keys() - wanted.keys():
                del group[key]
            for key, value in wanted.items():
                if isinstance(value, torch.Tensor) and isinstance(group.get(key), torch.Tensor):
                    group[key].copy_(value)  # in place, since the program may hold the tensor
                else:
                    group[key] = value


def audited_tensors(optimizer: torch.optim.Optimizer, module: torch.nn.Module, trained: _ddp.NamedTensors, engine: Any) -> _ddp.NamedTensors:
    """The optimiser's state, and what it steps outside of the module, by names that are the same on every rank."""
    found: _ddp.NamedTensors = []
    names = {p: name for name, p in reversed(trained)}
    names_ignored = _ddp.ignored(module)
    ignored = {p for name, p in module.named_parameters() if name in names_ignored} if names_ignored else set()
    for i, group in enumerate(optimizer.param_groups):
        for j, p in enumerate(group["params"]):
            if p in ignored:
                continue
            name = names.get(p, f"tensor {j} of the optimiser's group {i}")
            if p not in names and not engine.is_hooked(p):
                found.append((name, p))
            found += [(f"{key} of {name}", value) for key, value in optimizer.state.get(p, {}).items() if torch.is_tensor(value)]
    return found


def _refuse_step_hooks(wrapper: str, *optimizers: torch.optim.Optimizer) -> None:
    places: list[Any] = [_global_optimizer_pre_hooks, _global_optimizer_post_hooks]
    places += [hooks for each in optimizers for hooks in (each._optimizer_step_pre_hooks, each._optimizer_step_post_hooks)]
    for hook in (hook for hooks in places for hook in hooks.values()):
        if hook not in (_before_step, _after_step):
            name = getattr(hook, "__qualname__", type(hook).__qualname__)
            raise InputError(
                f"{wrapper}: {name} is a hook on step(), which is made in parts, as gradients arrive; expected it called after step(), or strategy"
                " bucketed"
            )


def _engines_beside(optimizer: Any) -> list[Arrivals]:
    """The engines whose parameters this optimiser steps by itself, rather than through an EngineOptimizer."""
    if getattr(_engine_steps, "now", False) or isinstance(optimizer, EngineOptimizer):
        return []
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [each for each in list(running) if not stepped.isdisjoint(each.ids)]


def _before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        for arrivals in _engines_beside(optimizer):
            arrivals.before_step(optimizer)


def _after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    """Counts the step in the engines of its parameters, which compare between ranks how often each optimiser has stepped."""
    if not torch.compiler.is_compiling():
        for engine in {arrivals.engine for arrivals in _engines_beside(optimizer)}:  # a set: one engine may have several Arrivals
            engine.count_optimizer_step(_numbers.setdefault(optimizer, next(_new_numbers)))


@functools.cache
def notice_steps() -> None:
    """Installs the hooks on all optimisers, once and for good.

    An engine does not remove them when it goes, because the garbage collector may free it while PyTorch iterates over them.
    """
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
