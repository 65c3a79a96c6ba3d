"""Finds tensors, other than parameters and buffers, that a step or a module can reach.

They may be in closures, globals, attributes and containers.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from firkin._torch import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

_MOST_OBJECTS = 100_000  # how many objects a walk looks into: what has more is data, not state
_OF_MODULES = frozenset(vars(torch.nn.Module()))
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
# Objects of these packages hold no state of the step's, apart from containers and functions.
_LIBRARIES = ("builtins", "numpy", "torch", "firkin")
_NOTHING = object()

Put = Callable[[], Any]


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


class Reached:
    """What was found.

    tensors: each with a name that people understand, the nearest first. places: functions that put the same tensor
    objects back where they were.
    """

    def __init__(self) -> None:
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.places: list[Put] = []
        self._seen: set[int] = set()
        self._kept: list[Any] = []  # keeps objects alive, so that no other object gets their id

    def walk(self, name: str, thing: Any) -> None:
        """Searches breadth first from `thing`."""
        queue = collections.deque([(name, thing)])
        most = len(self._seen) + _MOST_OBJECTS
        while queue and len(self._seen) < most:
            here, each = queue.popleft()
            if isinstance(each, _SCALARS) or id(each) in self._seen:
                continue
            self._seen.add(id(each))
            self._kept.append(each)
            if isinstance(each, torch.Tensor):
                self.tensors.append((here, each))
            else:
                queue.extend(self._held_by(here, each))

    def walk_module(self, module: torch.nn.Module) -> None:
        """Searches what the module itself holds; modules in it are not searched."""
        held = vars(module)
        for name in ("_parameters", "_buffers"):
            if isinstance(held.get(name), dict):
                self._add_dict(held[name])
        self._add_dict(held)
        for name, value in list(held.items()):
            if name not in _OF_MODULES or (name.endswith("_hooks") and value):
                self.walk(f"{name} of a {type(module).__name__}", value)

    def _held_by(self, name: str, thing: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(thing, (torch.nn.Module, Optimizer, LRScheduler, GradScaler, type)):
            return  # State restores these
        if isinstance(thing, dict):
            self._add_dict(thing)
            yield from ((f"{name}[{_short(key)}]", value) for key, value in list(thing.items()))
        elif isinstance(thing, (list, collections.deque)):
            self._add_list(thing)
            yield from ((f"{name}[{i}]", value) for i, value in enumerate(list(thing)))
        elif isinstance(thing, (tuple, set, frozenset)):
            yield from ((name, value) for value in thing)
        elif isinstance(thing, types.FunctionType):
            yield from self._held_by_function(thing)
        elif isinstance(thing, types.MethodType):
            yield from ((name, thing.__self__), (name, thing.__func__))
        elif isinstance(thing, functools.partial):
            yield from ((name, thing.func), (name, thing.args), (name, thing.keywords))
        elif str(type(thing).__module__).partition(".")[0] not in _LIBRARIES:
            if isinstance(attributes := getattr(thing, "__dict__", None), dict):
                self._add_dict(attributes)
                yield from ((f"{name}.{key}", value) for key, value in list(attributes.items()))
            slots = getattr(type(thing), "__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                yield f"{name}.{slot}", getattr(thing, slot, None)

    def _held_by_function(self, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        """What is in the function's closure, defaults and attributes, and in those globals that its code names."""
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
        """Remembers names that hold tensors now, or will: put_back() leaves others, such as counters, alone."""
        before = now()

        def put_back() -> None:
            after = now()
            for name in {**before, **after}:
                old, new = before.get(name, _NOTHING), after.get(name, _NOTHING)
                if old is new or not (_holds_tensors(old) or _holds_tensors(new)):
                    continue
                if old is _NOTHING:
                    remove(name)
                else:
                    put(name, old)

        self.places.append(put_back)
