"""What training steps change, found, kept on the host, put back, and compared between ranks."""

from __future__ import annotations

import ctypes
import functools
import gc
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from firkin._ranks import Ranks
from firkin._torch import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

_Put = Callable[[], Any]


def _alive(*classes: type) -> list[list[Any]]:
    """Objects of each class in this process."""
    gc.collect()
    things = gc.get_objects()
    return [[thing for thing in things if issubclass(type(thing), kind)] for kind in classes]


class State:
    """Of this process: the model, every optimiser with its parameters, learning-rate schedules, gradient scalers, averaged models, the
    buffers of all modules, and the random numbers of Python, NumPy, the CPU and the GPUs.

    Other things that a step changes (loaders, its own counters) are not found.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        optimizers, self._schedules, self._scalers, averages, modules = _alive(
            Optimizer, LRScheduler, GradScaler, AveragedModel, torch.nn.Module
        )
        self._optimizers = [o for o in optimizers if isinstance(vars(o).get("state"), dict)]  # not what only wraps one
        self._tensors: dict[int, tuple[str, torch.Tensor]] = {}
        roots = [("", model), *((f"averaged model {i}: ", average) for i, average in enumerate(averages))]
        for prefix, root in roots:
            for name, tensor in (*root.named_parameters(), *root.named_buffers()):
                self._tensors.setdefault(id(tensor), (prefix + name.replace("_orig_mod.", ""), tensor))
        for i, optimizer in enumerate(self._optimizers):
            for j, tensor in enumerate(p for group in optimizer.param_groups for p in group["params"]):
                self._tensors.setdefault(id(tensor), (f"parameter {j} of optimiser {i}", tensor))
        self.parameters = [t for _, t in self._tensors.values() if t.requires_grad]
        self._buffers: list[dict[str, Any]] = []
        for module in modules:
            self._buffers.append(vars(module).get("_buffers", {}))
            for name, tensor in self._buffers[-1].items():
                if tensor is not None and tensor.device.type != "meta":
                    self._tensors.setdefault(id(tensor), (f"{name} of a {type(module).__name__}", tensor))
        self._digests: dict[str, int] = {}
        self._all: list[_Put] = []
        self._schedule: list[_Put] = []

    def keep(self) -> None:
        """Copies all of it to the host."""
        known: dict[int, _Put] = {key: (lambda t=t: t) for key, (_, t) in self._tensors.items()}  # type: ignore[misc]
        self._all = [_put_tensor(tensor) for _, tensor in self._tensors.values()]
        self._all += [_put_gradient(p) for p in self.parameters]
        self._all += [functools.partial(buffers.update, dict(buffers)) for buffers in self._buffers]  # a forward may put other tensors there
        self._schedule = [_put(vars(thing), known) for thing in self._schedules]
        self._schedule += [_put(optimizer.param_groups, known) for optimizer in self._optimizers]
        self._all += [*self._schedule, *(_put(vars(thing), known) for thing in (*self._optimizers, *self._scalers))]
        self._all += _put_random()
        self._digests = dict(self._digested())

    def put_back(self, *, schedules_only: bool = False) -> None:
        """All that was kept, if anything, or learning rates and what moves them: tuning is not to run through a schedule that has an end."""
        for put in self._schedule if schedules_only else self._all:
            put()

    def unlike(self, ranks: Ranks) -> set[str]:
        """Names of parameters and of optimisers' states that ranks do not have in common now. Collective."""
        everyone = ranks.all(dict(self._digested(parameters_only=True)))
        return {name for theirs in everyone for name, digest in theirs.items() if everyone[0].get(name) != digest}

    def check_put_back(self, ranks: Ranks) -> None:
        """Raises RuntimeError, on every rank, that names a tensor which is not as it was kept. Collective."""
        now = dict(self._digested())
        wrong = [name for name in {**self._digests, **now} if self._digests.get(name) != now.get(name)]
        for rank, theirs in enumerate(ranks.all(wrong[:1])):
            for name in theirs:
                raise RuntimeError(f"tune: '{name}' on rank {rank} was not restored; expected a step that changes tensors in place")

    def _digested(self, *, parameters_only: bool = False) -> Iterator[tuple[str, int]]:
        names = {}
        for name, tensor in self._tensors.values():
            names[id(tensor)] = name
            if tensor.requires_grad or not parameters_only:
                yield name, _digest(tensor)
        for i, optimizer in enumerate(self._optimizers):
            for p, state in optimizer.state.items():
                for key, value in state.items() if isinstance(state, dict) else ():
                    digest = _digest(value) if isinstance(value, torch.Tensor) else zlib.crc32(repr(value).encode())
                    yield f"{key} of {names.get(id(p), 'a parameter')} in optimiser {i}", digest


def _digest(tensor: torch.Tensor) -> int:
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return 0
    flat = tensor.detach().to("cpu").contiguous()
    return zlib.crc32((ctypes.c_char * (flat.nbytes)).from_address(flat.data_ptr()))


def _put_tensor(tensor: torch.Tensor) -> _Put:
    kept = tensor.detach().to("cpu", copy=True)

    def put() -> torch.Tensor:
        tensor.detach().copy_(kept)
        return tensor

    return put


def _put_gradient(p: torch.Tensor) -> _Put:
    gradient = p.grad
    content = None if gradient is None else _put_tensor(gradient)

    def put() -> None:
        p.grad = gradient
        if content is not None:
            content()

    return put


def _put(value: Any, known: dict[int, _Put]) -> _Put:
    """What puts everything in dicts, lists and tuples back in place, tensors with their contents; other objects are left as they are."""
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, torch.Tensor):
        put = _put_tensor(value)
    elif isinstance(value, dict):
        items = [(key, _put(part, known)) for key, part in value.items()]

        def put() -> Any:
            now = {key: part() for key, part in items}
            value.clear()
            value.update(now)
            return value
    elif isinstance(value, (list, tuple)):
        parts = [_put(part, known) for part in value]

        def put() -> Any:
            now = [part() for part in parts]
            if isinstance(value, list):
                value[:] = now
            return value
    else:
        return lambda: value
    known[id(value)] = put
    return put


def _put_random() -> list[_Put]:
    python, cpu = random.getstate(), torch.get_rng_state()
    puts: list[_Put] = [lambda: random.setstate(python), lambda: torch.set_rng_state(cpu)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gpus = torch.cuda.get_rng_state_all()
        puts.append(lambda: torch.cuda.set_rng_state_all(gpus))
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"].random
        state = numpy.get_state()
        puts.append(lambda: numpy.set_state(state))
    return puts
