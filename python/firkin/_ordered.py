"""OverlappedOptimizer: the optimiser of the strategy "ordered"."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from firkin._arrivals import weakly
from firkin._native import load_engine
from firkin._optimizers import STATE_HOOKS, EngineOptimizer, EngineStep, check_elementwise
from firkin._torch import torch


class OverlappedOptimizer(EngineOptimizer):
    """The optimiser for the strategy "ordered": steps parameters once their gradients are there, during forward.

        model = firkin.DistributedDataParallel(Net(), strategy="ordered", cap_mib=1)
        optimizer = firkin.OverlappedOptimizer(model, torch.optim.AdamW(model.parameters()))
        ...
        loss(model(x), y).backward()
        optimizer.step()

    Every module waits for its own parameters when its forward is called, so the model needs no change; parameters used
    outside of any module's forward are complete when the step ends. Groups and state are those of `optimizer`:
    schedulers and checkpoints take either object; call step() of this one, and pass this one to GradScaler, with which
    nothing overlaps forward.

    Parameters and gradients are complete when you get them from parameters() or state_dict() of the model, and until
    step() also from param_groups. Call drain() before you read, clip or change any that you got in another way. One
    thread runs the model and its optimiser; another, or a forked process, may after that one's drain(). Under other
    strategies step() is optimizer.step().

    optimizer: SGD, Adam, AdamW, NAdam, RAdam, Adamax, Adagrad, Adadelta, RMSprop, ASGD or Rprop of torch.optim; its
    groups must be complete.

    elementwise: True takes any optimiser, and promises that its step() takes each element by itself: no norm or estimate
    over several, no random numbers, no counter outside of groups and parameters' states. It also promises that the
    optimiser skips parameters without a gradient and changes parameters in step() alone.

    Raises InputError for other optimisers, and for hooks on step().
    """

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer, *, elementwise: bool = False) -> None:
        self._check = functools.partial(check_elementwise, "OverlappedOptimizer", elementwise=elementwise)
        if model.strategy == "ordered":
            self._check(optimizer)
        self.optimizer, self._step = optimizer, EngineStep(optimizer)
        run = torch.compiler.disable(self._step.run)  # type: ignore[no-untyped-call]
        self._native = load_engine().EngineOptimizer(model._arrivals.engine, optimizer, run)
        model._audit_optimizer(weakref.ref(optimizer))
        self._begin(model._arrivals)
        # Never removed: the garbage collector may free this object while PyTorch iterates over these hooks.
        drain = weakly(self.drain)
        optimizer.register_state_dict_pre_hook(lambda *_: drain())
        optimizer.register_load_state_dict_pre_hook(lambda *_: drain())
        for kind in STATE_HOOKS:
            setattr(self, f"register_{kind}_hook", getattr(optimizer, f"register_{kind}_hook"))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps the parameters whose gradients have arrived, and each other one before it is used, with the options that are set now."""
        loss = self._before_step(closure)
        self._native.step()
        self._after_step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Like torch.optim.Optimizer.zero_grad(): sets the gradients to None, or to zero."""
        self._before_gradients_are_read()
        self.optimizer.zero_grad(set_to_none)

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
        """The optimiser's groups. Between backward() and step() this waits for all gradients, since code may read them here."""
        self._before_gradients_are_read()
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The optimiser's state, once the last step is complete."""
        self.drain()
        return self.optimizer.state
