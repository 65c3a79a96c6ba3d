"""Finds what training steps change, copies it to the host, restores it, and compares it between ranks."""

from __future__ import annotations

import collections
import ctypes
import functools
import gc
import math
import random
import sys
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from firkin._core import InputError
from firkin._ranks import Ranks
from firkin._torch import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

# The limit for copies of tensors outside of modules; more is a data set, not state.
_LOOSE_BYTES = 256 << 20
_MOST_OBJECTS = 100_000  # that a walk looks into: more is data, not state
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
# Objects of these packages hold no state of the step, apart from containers and functions.
_LIBRARIES = ("builtins", "numpy", "torch", "firkin")
_NOTHING = object()
_Put = Callable[[], Any]


def _alive(*classes: type) -> list[list[Any]]:
    """All objects of each class in this process."""
    gc.collect()
    things = gc.get_objects()
    return [[thing for thing in things if issubclass(type(thing), kind)] for kind in classes]


class State:
    """The training state of this process.

    Every module, every optimiser with its parameters, learning-rate schedules, gradient scalers, the random numbers of
    Python, NumPy, the CPU and the GPUs, and other tensors and generators that a step or a module holds. It does not find
    other things that a step changes (loaders, its own counters).
    """

    def __init__(self, model: torch.nn.Module) -> None:
        optimizers, self._schedules, self._scalers, averages, self._modules = _alive(
            Optimizer, LRScheduler, GradScaler, AveragedModel, torch.nn.Module
        )
        # An object that only wraps an optimiser has no state of its own.
        self._optimizers = [o for o in optimizers if isinstance(vars(o).get("state"), dict)]
        self._tensors: dict[int, tuple[str, torch.Tensor]] = {}
        self._add_modules([("", model), *((f"averaged model {i}: ", average) for i, average in enumerate(averages))])
        for i, optimizer in enumerate(self._optimizers):
            for j, tensor in enumerate(p for group in optimizer.param_groups for p in group["params"]):
                self._add(f"parameter {j} of optimiser {i}", tensor)
        self._trained = list(self._tensors.values())  # ranks must agree on these
        self.parameters = [t for _, t in self._trained if t.requires_grad]
        children = {id(child) for module in self._modules for child in vars(module).get("_modules", {}).values()}
        roots = [module for module in self._modules if id(module) not in children]
        self._add_modules([(f"{type(module).__name__} {i}: ", module) for i, module in enumerate(roots)])
        self._places: list[_Put] = []
        self._watched: list[tuple[str, torch.Tensor, int]] = []  # found but too large to be copied; with their versions
        self._digests: dict[str, int] = {}
        self._all: list[_Put] = []
        self._schedule: list[_Put] = []

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        if _has_memory(tensor):
            self._tensors.setdefault(id(tensor), (name, tensor))

    def _add_modules(self, named: Sequence[tuple[str, torch.nn.Module]]) -> None:
        for prefix, root in named:
            try:
                tensors = [*root.named_parameters(), *root.named_buffers()]
            except (AttributeError, RuntimeError):  # its constructor has not finished, or a scripted part of it is gone
                continue
            for name, tensor in tensors:
                self._add(prefix + name.replace("_orig_mod.", ""), tensor)

    def reach(self, step: Any, also: Sequence[Any] = ()) -> None:
        """Finds the other tensors that `step` and modules hold. Not collective. also: what to keep whatever its size."""
        reached = _Reached()
        for i, thing in enumerate(also):
            reached.walk(f"also[{i}]", thing)
        wanted = len(reached.tensors)
        reached.walk("step", step)
        for module in self._modules:
            reached.walk(type(module).__name__, vars(module))
        self._places = reached.places
        left = _LOOSE_BYTES
        for i, (name, tensor) in enumerate(reached.tensors):
            if id(tensor) in self._tensors:
                continue
            if i < wanted or tensor.nbytes <= left:
                left -= tensor.nbytes if i >= wanted else 0
                self._add(name, tensor)
            elif not tensor.is_inference():  # inference tensors have no version
                self._watched.append((name, tensor, tensor._version))

    def sizes(self) -> tuple[int, int, int]:
        """How many bytes keep() copies to the host: of parameters, buffers and other tensors, of gradients, of optimisers' state."""

        def size(values: Iterable[Any]) -> int:
            return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))

        tensors: list[Any] = [tensor for _, tensor in self._tensors.values()]
        states = [state for o in self._optimizers for state in o.state.values() if isinstance(state, dict)]
        return size(tensors), size(t.grad for t in tensors if t.is_leaf), size(value for state in states for value in state.values())

    def keep(self) -> None:
        """Copies the state to the host. Raises InputError for a tensor that cannot be copied. Not collective."""
        self._schedule = self._put_held([vars(schedule) for schedule in self._schedules] + [o.param_groups for o in self._optimizers])
        self._all = [*self._places, *(_put_tensor(tensor, name) for name, tensor in self._tensors.values())]
        self._all.append(self._put_flags())
        self._all += [_put_gradient(t, name) for name, t in self._tensors.values() if t.requires_grad and t.is_leaf]
        self._all += [*self._schedule, *self._put_held([vars(thing) for thing in (*self._optimizers, *self._scalers)]), *_put_random()]
        self._digests = dict(self._digested())

    def _put_flags(self) -> _Put:
        """A function that restores whether modules are in training, and whether tensors are trained."""
        modes = [(module, vars(module)["training"]) for module in self._modules if "training" in vars(module)]
        trained = [(t, t.requires_grad) for _, t in self._tensors.values() if t.is_leaf]

        def put() -> None:
            for module, mode in modes:
                module.training = mode
            for tensor, is_trained in trained:
                if tensor.requires_grad != is_trained:
                    tensor.requires_grad_(is_trained)

        return put

    def _put_held(self, containers: Sequence[Any]) -> list[_Put]:
        """Functions that restore all that these containers hold."""
        reached = _Reached(whole=True)
        reached.walk("an optimiser, schedule or scaler", containers)
        return [*reached.places, *(_put_tensor(tensor, name) for name, tensor in reached.tensors if id(tensor) not in self._tensors)]

    def put_back(self, *, schedules_only: bool = False) -> None:
        """Restores what keep() has copied, if it was called.

        schedules_only: only learning rates and their schedules, since tuning's steps could run a schedule to its end.
        """
        for put in self._schedule if schedules_only else self._all:
            put()

    def check_watched(self) -> None:
        """Raises InputError if a tensor has changed that was found but not copied. Not collective."""
        for name, tensor, version in self._watched:
            if tensor._version != version:
                raise InputError(
                    f"tune: step changes '{name}' ({tensor.nbytes / (1 << 20):.0f} MiB), which is neither in a module nor small and was not"
                    " copied; expected it in also=[...], or restore=False"
                )

    def unlike(self, ranks: Ranks) -> set[str]:
        """Names of parameters and optimiser states that now differ between ranks. Collective."""
        everyone = ranks.all(dict(self._digested(trained_only=True)))
        return {name for theirs in everyone for name, digest in theirs.items() if everyone[0].get(name) != digest}

    def check_put_back(self, ranks: Ranks) -> None:
        """Raises a RuntimeError on every rank if a tensor differs from its copy, and names it. Collective."""
        now = dict(self._digested())
        wrong = [name for name in {**self._digests, **now} if self._digests.get(name) != now.get(name)]
        wrong += [name for name, tensor, version in self._watched if tensor._version != version]
        for rank, theirs in enumerate(ranks.all(wrong[:1])):
            for name in theirs:
                raise RuntimeError(
                    f"tune: '{name}' on rank {rank} was not restored; expected a step that changes tensors in place, or also=[...] with what"
                    " holds it"
                )

    def _digested(self, *, trained_only: bool = False) -> Iterator[tuple[str, int]]:
        names = {}
        for name, tensor in self._trained if trained_only else self._tensors.values():
            names[id(tensor)] = name
            if tensor.requires_grad or not trained_only:
                yield name, _digest(tensor)
        for i, optimizer in enumerate(self._optimizers):
            for p, state in optimizer.state.items():
                for key, value in state.items() if isinstance(state, dict) else ():
                    digest = _digest(value) if isinstance(value, torch.Tensor) else zlib.crc32(repr(value).encode())
                    yield f"{key} of {names.get(id(p), 'a parameter')} in optimiser {i}", digest


def _has_memory(tensor: torch.Tensor) -> bool:
    return tensor.device.type != "meta" and not torch.nn.parameter.is_lazy(tensor) and type(tensor).__name__ != "FakeTensor"


def _digest(tensor: torch.Tensor) -> int:
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return 0
    flat = tensor.detach().to("cpu").contiguous()
    return zlib.crc32((ctypes.c_char * (flat.nbytes)).from_address(flat.data_ptr()))


def _put_tensor(tensor: torch.Tensor, name: str) -> _Put:
    try:
        kept, memory = tensor.detach().to("cpu", copy=True), tensor.detach()
    except (RuntimeError, NotImplementedError) as error:
        raise InputError(f"tune: '{name}' cannot be copied ({str(error).splitlines()[0]}); expected restore=False") from None

    def put() -> torch.Tensor:
        if tensor.data_ptr() != memory.data_ptr() or tensor.shape != memory.shape:
            tensor.data = memory  # a step may have given the tensor other memory
        with torch.inference_mode(tensor.is_inference()):
            tensor.detach().copy_(kept)
        return tensor

    return put


def _put_gradient(p: torch.Tensor, name: str) -> _Put:
    gradient = p.grad
    content = None if gradient is None else _put_tensor(gradient, f"the gradient of {name}")

    def put() -> None:
        p.grad = gradient
        if content is not None:
            content()

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


def _put_generator(thing: Any) -> _Put | None:
    """A function that restores a generator of random numbers; None for another thing."""
    numpy = sys.modules["numpy"].random if "numpy" in sys.modules else None
    if isinstance(thing, random.Random):
        return functools.partial(thing.setstate, thing.getstate())
    if isinstance(thing, torch.Generator) or (numpy is not None and isinstance(thing, numpy.RandomState)):
        return functools.partial(thing.set_state, thing.get_state())
    if numpy is not None and isinstance(thing, numpy.Generator):
        return functools.partial(setattr, thing.bit_generator, "state", thing.bit_generator.state)
    return None


# ---- What a step or a module can reach, in closures, globals, attributes and containers.


def _holds_tensors(value: Any) -> bool:
    """Whether this is a tensor, or a container with one."""
    if isinstance(value, torch.Tensor):
        return True
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, collections.deque)) else ()
    return any(isinstance(part, torch.Tensor) for part in parts)


def _contents(cell: Any) -> dict[str, Any]:
    """What a variable of a closure holds, by the name of the cell's attribute; empty while the cell is."""
    try:
        return {"cell_contents": cell.cell_contents}
    except ValueError:
        return {}


def _short(key: Any) -> str:
    return repr(key) if isinstance(key, (str, int)) else type(key).__name__


class _Reached:
    """What was found.

    tensors: each with a readable name, the nearest first. places: functions that put the same tensor objects back where
    they were. whole: looks into containers only, but restores all they held.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.places: list[_Put] = []
        self._seen: set[int] = set()
        self._kept: list[Any] = []  # keeps objects alive, so that no other object gets their id

    def walk(self, name: str, thing: Any) -> None:
        """Searches breadth first from `thing`."""
        queue = collections.deque([(name, thing)])
        most = math.inf if self._whole else len(self._seen) + _MOST_OBJECTS
        while queue and len(self._seen) < most:
            here, each = queue.popleft()
            if isinstance(each, _SCALARS) or id(each) in self._seen:
                continue
            self._seen.add(id(each))
            self._kept.append(each)
            if put := _put_generator(each):
                self.places.append(put)
            elif not isinstance(each, torch.Tensor):
                queue.extend(self._held_by(here, each))
            elif _has_memory(each):
                self.tensors.append((here, each))

    def _held_by(self, name: str, thing: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(thing, dict):
            self._add_dict(thing)
            yield from ((f"{name}[{_short(key)}]", value) for key, value in list(thing.items()))
        elif isinstance(thing, (list, collections.deque)):
            self._add_list(thing)
            yield from ((f"{name}[{i}]", value) for i, value in enumerate(list(thing)))
        elif isinstance(thing, (tuple, set, frozenset)):
            yield from ((name, value) for value in gc.get_referents(thing))
        elif self._whole or isinstance(thing, (torch.nn.Module, Optimizer, LRScheduler, GradScaler, type)):
            return  # State restores these
        elif isinstance(thing, types.FunctionType):
            yield from self._held_by_function(thing)
        elif isinstance(thing, (types.MethodType, functools.partial)):
            yield from ((name, value) for value in gc.get_referents(thing))
        elif str(type(thing).__module__).partition(".")[0] not in _LIBRARIES:
            if isinstance(attributes := getattr(thing, "__dict__", None), dict):
                self._add_dict(attributes)
                yield from ((f"{name}.{key}", value) for key, value in list(attributes.items()))
            slots = getattr(type(thing), "__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                yield f"{name}.{slot}", getattr(thing, slot, None)

    def _held_by_function(self, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        """What is in the function's closure, defaults and attributes, and in the globals that its code names."""
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            self._add_place(functools.partial(_contents, cell), functools.partial(setattr, cell), functools.partial(delattr, cell))
            yield from ((name, value) for value in _contents(cell).values())
        for part in (function.__defaults__, function.__kwdefaults__, vars(function)):
            yield function.__name__, part
        codes, names = [function.__code__], set[str]()
        for code in codes:
            names.update(code.co_names)
            codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        used, modules = sorted(names & function.__globals__.keys()), []
        self._add_dict(function.__globals__, used)
        for name in used:
            value = function.__globals__[name]
            modules += [value] if isinstance(value, types.ModuleType) else []
            yield name, value
        for module in modules:  # the program's own, where the step uses, say, state.bank
            if module.__name__.partition(".")[0] not in _LIBRARIES:
                within = sorted(names & vars(module).keys())
                self._add_dict(vars(module), within)
                yield from ((f"{module.__name__}.{name}", vars(module)[name]) for name in within)

    def _add_dict(self, held: dict[Any, Any], names: Sequence[str] | None = None) -> None:
        def now() -> dict[Any, Any]:
            return dict(held) if names is None else {name: held[name] for name in names if name in held}

        self._add_place(now, held.__setitem__, held.__delitem__)

    def _add_list(self, held: Any) -> None:
        def put(_: str, before: list[Any]) -> None:
            held.clear()
            held.extend(before)

        self._add_place(lambda: {"": list(held)}, put)

    def _add_place(
        self, now: Callable[[], dict[Any, Any]], put: Callable[[Any, Any], Any], remove: Callable[[Any], Any] = lambda _: None
    ) -> None:
        """Remembers names that hold tensors now, or will; put_back() leaves others (counters) alone, unless `whole`."""
        before = now()

        def put_back() -> None:
            after = now()
            for name in {**before, **after}:
                old, new = before.get(name, _NOTHING), after.get(name, _NOTHING)
                if old is new or not (self._whole or _holds_tensors(old) or _holds_tensors(new)):
                    continue
                if old is _NOTHING:
                    remove(name)
                else:
                    put(name, old)

        self.places.append(put_back)
