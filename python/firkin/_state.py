"""State: the training state of this process, which firkin.tune copies to the host, restores, and compares between ranks."""

from __future__ import annotations

import collections
import ctypes
import functools
import gc
import random
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from firkin._core import InputError
from firkin._ranks import Ranks
from firkin._torch import torch
from torch.amp.grad_scaler import GradScaler
from torch.jit._script import OrderedDictWrapper
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque, OrderedDictWrapper)
_Put = Callable[[], Any]  # restores one thing


class State:
    """The training state of this process.

    Modules (parameters, buffers, gradients, modes), averaged models among them, optimisers, learning-rate schedules and
    gradient scalers, found by class among all objects; the random numbers of Python, NumPy, the CPU and the GPUs; and
    what the user names. Optimisers, schedules, scalers and named objects are restored attribute by attribute, and the
    containers among these entry by entry; other objects that they hold are left alone.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        gc.collect()
        objects, kinds = gc.get_objects(), (torch.nn.Module, Optimizer, LRScheduler, GradScaler)
        self._modules, optimizers, self._schedules, self._scalers = ([o for o in objects if issubclass(type(o), kind)] for kind in kinds)
        # An object that only wraps an optimiser has no state of its own.
        self._optimizers = [o for o in optimizers if isinstance(vars(o).get("state"), dict)]
        self._model = model
        self._tensors: dict[int, tuple[str, torch.Tensor]] = {}
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            self._add(name.replace("_orig_mod.", ""), tensor)
        for i, optimizer in enumerate(self._optimizers):
            for j, tensor in enumerate(p for group in optimizer.param_groups for p in group["params"]):
                self._add(f"parameter {j} of optimiser {i}", tensor)
        self._trained = [(name, t) for name, t in self._tensors.values() if t.requires_grad]  # ranks must agree on these
        self.parameters = [t for _, t in self._trained]
        self._followed: dict[int, Any] = {}  # containers, kept alive so that no other object gets their id
        self._schedule, self._all = list[_Put](), list[_Put]()  # what restores schedules and learning rates; what restores everything

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        if tensor.device.type != "meta" and not torch.nn.parameter.is_lazy(tensor) and type(tensor).__name__ != "FakeTensor":
            self._tensors.setdefault(id(tensor), (name, tensor))

    def find(self, also: Sequence[Any] = ()) -> None:
        """Finds what keep() copies. also: what the user names. Raises InputError for what cannot be found. Not collective."""
        if not any(module is self._model for module in self._modules):
            raise InputError("tune: gc.freeze() hides the model; expected gc.unfreeze() before, or restore=False")
        for module in self._modules:
            try:
                self._all += self._follow(type(module).__name__, module._parameters, module._buffers, module._modules)
                self._all.append(functools.partial(setattr, module, "training", module.training))
            except (AttributeError, RuntimeError):  # its constructor has not finished, or a scripted part of it is gone
                continue
        known = len(self._tensors)
        for thing in (*self._schedules, *self._optimizers):
            self._schedule += self._follow(type(thing).__name__, thing.param_groups if isinstance(thing, Optimizer) else vars(thing))
        self._schedule += [_put_tensor(rate, name) for name, rate in list(self._tensors.values())[known:]]
        generators: list[Any] = [random.getstate.__self__, torch.default_generator, *torch.cuda.default_generators]  # type: ignore[attr-defined]
        if numpy := sys.modules.get("numpy"):
            generators.append(numpy.random.get_state.__self__)
        self._all += [*self._schedule, *self._follow("random numbers", generators)]
        for thing in (*self._optimizers, *self._scalers):
            self._all += self._follow(type(thing).__name__, vars(thing))
        for i, thing in enumerate(also):
            is_known = isinstance(thing, (torch.Tensor, *_CONTAINERS)) or _put_generator(thing) is not None
            if not is_known and not isinstance(getattr(thing, "__dict__", None), dict):
                raise InputError(f"tune: also[{i}] is a {type(thing).__name__}; expected a tensor, a container or an object with attributes")
            self._all += self._follow(f"also[{i}]", thing if is_known else vars(thing))
        for name, gradient in [(name, t.grad) for name, t in self._tensors.values() if t.is_leaf and t.grad is not None]:
            self._add(f"the gradient of {name}", gradient)

    def _follow(self, of: str, *things: Any) -> list[_Put]:
        """Adds the tensors in these containers. Returns functions that restore the containers, and generators in them."""
        puts, queue = [], [(of, thing) for thing in things]
        for name, thing in queue:
            if isinstance(thing, torch.Tensor):
                self._add(name, thing)
            elif put := _put_generator(thing):
                puts.append(put)
            elif isinstance(thing, _CONTAINERS) and id(thing) not in self._followed:
                self._followed[id(thing)] = thing
                named = thing.items() if isinstance(thing, (dict, OrderedDictWrapper)) else ((None, part) for part in thing)
                queue += [(f"{name}.{key}" if isinstance(key, str) else name, part) for key, part in named]
                puts.append(_put_container(thing))
        return puts

    def bytes(self) -> int:
        """What keep() copies to the host."""
        return sum(tensor.nbytes for _, tensor in self._tensors.values())

    def keep(self) -> None:
        """Copies what was found to the host. Raises InputError for a tensor that cannot be copied. Not collective."""
        self._all += [_put_tensor(tensor, name) for name, tensor in self._tensors.values()]
        self._digests = self._digested(self._tensors.values())

    def put_back(self, *, schedules_only: bool = False) -> None:
        """Restores what was copied. schedules_only: and learning rates, since tuning's steps could run a schedule to its end."""
        for put in self._schedule if schedules_only else self._all:
            put()

    def unlike(self, ranks: Ranks) -> set[str]:
        """Names of parameters and optimiser states that now differ between ranks. Collective."""
        everyone = ranks.all(dict(self._digested(self._trained).values()))
        return {name for theirs in everyone for name, digest in theirs.items() if everyone[0].get(name) != digest}

    def check_put_back(self, ranks: Ranks) -> None:
        """Raises a RuntimeError on every rank if something differs from its copy, and names it. Collective."""
        now = self._digested(self._tensors.values())
        wrong = [named[0] for i, named in self._digests.items() if now.get(i) != named]
        for rank, theirs in enumerate(ranks.all(wrong[:1])):
            for name in theirs:
                raise RuntimeError(f"tune: '{name}' on rank {rank} was not restored; expected tensors, numbers or containers, or restore=False")

    def _digested(self, tensors: Iterable[tuple[str, Any]]) -> dict[int, tuple[str, int]]:
        """Name and digest of these tensors and of the optimisers' states, by the object's id."""
        named = {id(tensor): (name, tensor) for name, tensor in tensors}
        for i, optimizer in enumerate(self._optimizers):
            for p, state in optimizer.state.items():
                of = f"{named[id(p)][0] if id(p) in named else 'a parameter'} in optimiser {i}"
                named |= {id(value): (f"{key} of {of}", value) for key, value in (state.items() if isinstance(state, dict) else ())}
        return {i: (name, _digest(value)) for i, (name, value) in named.items()}


def _digest(value: Any) -> int:
    if not isinstance(value, torch.Tensor):
        return zlib.crc32(repr(value).encode())
    if value.layout != torch.strided or value.numel() == 0:
        return 0
    flat = value.detach().to("cpu").contiguous()
    return zlib.crc32((ctypes.c_char * (flat.nbytes)).from_address(flat.data_ptr()))


def _put_tensor(tensor: torch.Tensor, name: str) -> _Put:
    """A function that restores the tensor: its memory, values, requires_grad and gradient. Raises InputError if it cannot be copied."""
    try:
        kept, memory = tensor.detach().to("cpu", copy=True), tensor.detach()
    except (RuntimeError, NotImplementedError) as error:
        raise InputError(f"tune: '{name}' cannot be copied ({str(error).splitlines()[0]}); expected restore=False") from None
    is_trained, gradient = tensor.requires_grad, tensor.grad if tensor.is_leaf else None

    def put() -> None:
        if tensor.data_ptr() != memory.data_ptr() or tensor.shape != memory.shape:
            tensor.data = memory  # a step may have given the tensor other memory
        with torch.inference_mode(tensor.is_inference()):
            tensor.detach().copy_(kept)
        if tensor.is_leaf:
            tensor.requires_grad_(is_trained).grad = gradient

    return put


def _put_container(held: Any) -> _Put:
    """A function that restores which entries the container has, but not what these contain."""
    before = dict(held.items()) if isinstance(held, (dict, OrderedDictWrapper)) else list(held)

    def put() -> None:
        if isinstance(before, dict):
            for key in list(held.keys()):  # an OrderedDictWrapper iterates no other way
                if key not in before:
                    del held[key]
            for key, value in before.items():
                held[key] = value
        elif not isinstance(held, (tuple, frozenset)):
            held.clear()
            (held.update if isinstance(held, set) else held.extend)(before)

    return put


def _put_generator(thing: Any) -> _Put | None:
    """A function that restores a generator of random numbers; None for anything else."""
    numpy = getattr(sys.modules.get("numpy"), "random", None)
    with_state: Any = (torch.Generator, getattr(numpy, "RandomState", torch.Generator))
    with_bits: Any = getattr(numpy, "Generator", ())
    if isinstance(thing, random.Random):
        return functools.partial(thing.setstate, thing.getstate())
    if isinstance(thing, with_state):
        return functools.partial(thing.set_state, thing.get_state())
    if isinstance(thing, with_bits):
        return functools.partial(setattr, thing.bit_generator, "state", thing.bit_generator.state)
    return None
