"""The trial of an optimiser before it is wrapped: does it step parts of the parameters as it would step all of them at once?

OverlappedOptimizer steps the parameters of each bucket when their gradients are there, and ShardedOptimizer only a rank's part.
An optimiser that looks at other parameters, or counts its steps by itself, would train to something else without an error.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from firkin._native import load_engine
from firkin._torch import torch

_Divide = Callable[[list[torch.Tensor]], list[list[torch.Tensor]]]


def steps_parts_alike(
    optimizer_class: Callable[..., torch.optim.Optimizer], defaults: dict[str, Any], groups: Iterable[dict[str, Any]], *divides: _Divide
) -> list[bool]:
    """Whether optimisers that have parts of parameters step these, one after another, as one that has all steps these at once.

    True where that one cannot be tried. groups: their options besides the defaults. Those that differ only in floats count as
    one. divides: each divides two tensors into the lists of parts that its optimisers have.
    """
    numbers = torch.Generator().manual_seed(0)
    kind: dict[str, Any] = {"generator": numbers, "dtype": torch.float32, "device": "cpu"}
    given = [torch.randn(shape, **kind) for shape in ((33, 32), (2, 5))]  # some optimisers take small matrices for vectors
    noise = [[torch.randn(p.shape, **kind) * 4.0 ** (i * k) for i, p in enumerate(given)] for k in range(3)]

    def stepped(options: dict[str, Any], divide: _Divide, in_turn: bool = True) -> list[torch.Tensor]:
        parameters = [p.clone() for p in given]
        optimizers = [
            optimizer_class([{**copy.deepcopy(options), "lr": 0.01, "params": parts}], **copy.deepcopy(defaults)) for parts in divide(parameters)
        ]
        for of_step in noise:
            # At right angles to the parameters, which some optimisers look at.
            gradients = [g - p * (g * p).sum() / p.square().sum() for g, p in zip(of_step, parameters)]
            for optimizer, of_parts in zip(optimizers, divide(gradients)):
                _step(optimizer, of_parts, in_turn)
        return parameters

    alike = [True] * len(divides)
    with torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"):  # compiling would take longer than the trial
        for options in {repr([(k, v) for k, v in group.items() if not isinstance(v, float)]): group for group in groups}.values():
            try:
                whole = stepped(options, undivided, in_turn=False)
            except Exception:  # noqa: BLE001, S112: it needs a closure, say, or a GPU
                continue
            for i, divide in enumerate(divides):
                try:
                    alike[i] &= all(torch.allclose(*pair, rtol=1e-4, atol=1e-6) for pair in zip(whole, stepped(options, divide)))
                except Exception:  # noqa: BLE001: it needs matrices
                    alike[i] = False
    return alike


def _step(optimizer: torch.optim.Optimizer, gradients: list[torch.Tensor], in_turn: bool) -> None:
    """in_turn: one parameter after another, each with the group's options from before the first, as the engine steps buckets."""
    [group] = optimizer.param_groups
    pairs, before = list(zip(group["params"], gradients)), _copied(group)
    for part in [[pair] for pair in reversed(pairs)] if in_turn else [pairs]:
        group.clear()
        group.update(_copied(before), params=[p for p, _ in pairs])
        for p, gradient in part:
            p.grad = gradient
        step_without_global_hooks(optimizer)
        for p, _ in part:
            p.grad = None


def _copied(group: dict[str, Any]) -> Any:
    """What the engine keeps of a group from one bucket to the next: all but its parameters, with tensors and lists of its own."""
    return load_engine().copy_of_options(group)


def undivided(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """For steps_parts_alike(): one optimiser has all."""
    return [tensors]


def one_by_one(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """For steps_parts_alike(): each parameter has an optimiser of its own."""
    return [[tensor] for tensor in tensors]


def halves(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """For steps_parts_alike(): each of two optimisers has a half of every parameter, 1-d."""
    return [list(parts) for parts in zip(*(tensor.flatten().tensor_split(2) for tensor in tensors))]


def steps_each_by_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimiser like this one steps parameters one after another as it does all at once; True where none can be tried."""
    known = _keywords(type(optimizer))
    defaults = {name: value for name, value in optimizer.defaults.items() if name in known}
    return all(steps_parts_alike(type(optimizer), defaults, map(_copied, optimizer.param_groups), undivided))


def _keywords(optimizer_class: type) -> set[str]:
    """What its constructor takes; not all of its defaults, for AdamW."""
    names: set[str] = set()
    for each in optimizer_class.__mro__:
        parameters = inspect.signature(each.__init__).parameters.values()  # type: ignore[misc]
        names.update(p.name for p in parameters)
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return names


def warn_of_unknown(wrapper: str, optimizer: torch.optim.Optimizer) -> None:
    """Warns what an optimiser that is not PyTorch's must keep to."""
    if not type(optimizer).__module__.startswith("torch."):
        warnings.warn(
            f"{wrapper}: steps of {type(optimizer).__name__} must take each parameter by itself: no norm or estimate over all gradients,"
            " no random numbers. Otherwise parameters are wrong, and may differ between ranks",
            stacklevel=3,
        )


def step_without_global_hooks(optimizer: torch.optim.Optimizer) -> None:
    """PyTorch calls hooks for all optimisers around the class's step(). The wrapper calls them; otherwise each part would, too."""
    step: Any = type(optimizer).step
    is_plain = "step" not in vars(optimizer) and not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    if is_plain and getattr(step, "hooked", False):
        step.__wrapped__(optimizer)
    else:  # a schedule may count its steps
        optimizer.step()
