"""The strategy "sharded" in Python: each rank holds a part of the optimiser's state."""

from __future__ import annotations

import collections
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from firkin import _ddp
from firkin._core import InputError
from firkin._native import load_engine
from firkin._optimizer_trial import halves, one_by_one, steps_parts_alike, undivided, warn_of_unknown
from firkin._ordered import STATE_HOOKS, engine_step, refuse_hooks, weakly
from firkin._torch import dist, torch
from torch.utils._pytree import tree_leaves

# The one state tensor that may have a parameter's shape without having a value per element.
_COUNTED = "step"
_MASTER = "master"  # the key of master weights in a whole state


class _Divided(torch.Tensor):
    """Stands in for a parameter's gradient from backward to step(), since parts of it are on the ranks that step them.

    It shows step() whether the program takes it away, and keeps anyone from reading it by mistake.
    """

    _parameter: weakref.ref[torch.Tensor]
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, p: torch.Tensor) -> _Divided:
        made: _Divided = torch.Tensor._make_wrapper_subclass(cls, p.shape, strides=p.stride(), dtype=p.dtype, device=p.device)  # type: ignore[attr-defined]
        made._parameter = weakref.ref(p)
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, _types: Any, args: Any = (), _kwargs: Any = None) -> Any:
        p = args[0]._parameter() if function is torch.ops.aten.add_.Tensor and isinstance(args[0], cls) else None
        if p is not None and torch._C._current_graph_task_id() != -1:  # another backward: the engine says what is wrong with it
            p.grad = args[1].clone()
            return args[0]
        raise InputError(
            "DataParallel: a parameter's gradient is used, and under the strategy sharded it is divided among the ranks; expected"
            " clip_grad_norm_() of the ShardedOptimizer, or the gradients of the parts in its param_groups, whose norm is this rank's alone"
        )

    def __repr__(self) -> str:  # type: ignore[override]
        return f"a gradient of shape {list(self.shape)}, divided among the ranks"


def _of_a_part(method: Callable[..., Any]) -> Any:
    """A dictionary's method that refuses a parameter as the key, since a program that found nothing under it would go on without."""

    def call(states: Any, key: Any, *values: Any) -> Any:
        if isinstance(key, torch.nn.Parameter):
            raise InputError(
                "ShardedOptimizer: the state of a parameter is divided among the ranks; expected a part in param_groups as the key, or"
                " state_dict()"
            )
        return method(states, key, *values)

    return call


class _States(collections.defaultdict[torch.Tensor, Any]):
    """The states of parts."""

    __missing__ = _of_a_part(collections.defaultdict.__missing__)
    __setitem__ = _of_a_part(dict.__setitem__)
    __contains__ = _of_a_part(dict.__contains__)
    get = _of_a_part(dict.get)
    setdefault = _of_a_part(dict.setdefault)
    pop = _of_a_part(dict.pop)

    def update(self, *states: Any) -> None:
        for key, state in dict(*states).items():
            self[key] = state

    def __ior__(self, states: Any) -> Any:
        self.update(states)
        return self


class _Part(NamedTuple):
    parameter: torch.Tensor
    # This rank's elements, 1-d or in the parameter's shape. With master weights they are a float32 copy.
    run: torch.Tensor
    begin: int  # where the run begins in the parameter's memory, in elements
    # What stands for the parameter in an optimiser without ranks: itself, or with master weights a float32 tensor of
    # its shape that takes no memory.
    whole: torch.Tensor
    divided: _Divided

    @property
    def has_master(self) -> bool:
        return self.run.dtype != self.parameter.dtype

    def within(self, memory: torch.Tensor) -> torch.Tensor:
        """A view of the run's elements in a tensor that has all of the parameter's elements, laid out like them."""
        return memory.as_strided(self.run.shape, self.run.stride(), memory.storage_offset() + self.begin)

    def elements(self) -> torch.Tensor:
        return self.within(self.parameter.detach())


class ShardedOptimizer(torch.optim.Optimizer):
    """The optimiser for the strategy "sharded" (ZeRO stage 1): each of P ranks has, and steps with, 1/P of the state.

        model = firkin.DistributedDataParallel(Net(), strategy="sharded")
        optimizer = firkin.ShardedOptimizer(model, torch.optim.AdamW, lr=1e-3)
        ...
        loss(model(x), y).backward()
        optimizer.step()

    Backward sums the gradients of each part on the rank that steps it. The new parameters travel during the next
    forward, in which every module waits for its own. On two ranks parameters equal those of "bucketed" to the last bit.
    Every rank must call step() after every successful backward. A parameter's grad is then only there to be set to None
    on every rank, which leaves the parameter out of the step. To read it, or to clip by torch.nn.utils.clip_grad_norm_,
    raises InputError: use clip_grad_norm_() of this class.

    model: a firkin.DistributedDataParallel before its first backward. A model takes one ShardedOptimizer.

    optimizer_class: constructed with **options over views of this rank's parts (see param_groups). It must be able to
    step these alone: LBFGS, which looks at all parameters at once, cannot.

    whole_parameters: False divides every bucket evenly, and the optimiser gets 1-d views, which suits optimisers that
    work element by element: SGD, Adam(W), RMSprop, Adagrad. True gives every parameter to one rank, in its shape, which
    suits all others, such as LAMB. Ranks' shares are then as even as whole parameters allow, and large buckets travel
    in one piece. None: whichever suits, by a trial on small parameters.

    params: the parameters or groups to step, as optimizer_class takes them. Frozen ones are stepped once they are
    thawed. None: all trained parameters; parameters that are trained later join the first group, behind the others.

    master_weights: steps parameters of low precision (bf16) on float32 copies of this rank's part, with float32 state.
    The copies take 4 bytes per parameter, divided by the number of ranks; state_dict() has them as "master". Without
    them, updates smaller than half the distance to a parameter's next value are lost.

    Collective. After parameters were thawed, frozen, added or replaced, call the model's parameters_changed(): states
    follow their elements to other ranks, states of frozen parameters are kept, and parameters that have left the module
    leave the groups. Without that call the next step fails on every rank.

    Each rank sees only its own gradients, so loss scaling needs PyTorch's
    torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler, and scaler.unscale_(optimizer) before
    scaler.step(optimizer).

    Raises InputError for parameters that are not the model's.
    """

    # Tells a scaler to leave the decision to skip a step to step(), since all ranks must decide alike.
    _step_supports_amp_scaling = True
    optimizer: torch.optim.Optimizer  # over this rank's parts
    _parts: list[_Part]
    _groups: list[dict[str, Any]]

    def __init__(
        self,
        model: Any,
        optimizer_class: Callable[..., torch.optim.Optimizer],
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]] | None = None,
        *,
        master_weights: bool = False,
        whole_parameters: bool | None = None,
        **options: Any,
    ) -> None:
        self._model = model
        self._engine = model._arrivals.engine
        self._takes_new = params is None
        self._stand_ins: list[_Part] = []  # parts whose parameters have one
        self._left_out = 0  # a hash of the parameters that each step has left out
        self._has_new = False  # gradients, of a step that has ended well
        self._stepped_at = -1  # what Arrivals.forwards was when the last ones were used
        self._make = lambda groups: optimizer_class(groups, **options)
        params = None if params is None else list(params)
        tried = [_options(group) for group in params or () if isinstance(group, dict)] or [{}]
        takes_halves, *takes_each = steps_parts_alike(optimizer_class, options, tried, halves, one_by_one, undivided)
        takes_whole = not takes_halves if whole_parameters is None else whole_parameters

        def make(runs: list[tuple[str, torch.Tensor]]) -> Any:
            named = dict(model._parameters_then)
            self._parts = self._parts_of([(named[name], run) for name, run in runs])
            self._groups = self._as_groups([part.parameter for part in self._parts] if params is None else params)
            self.optimizer = self._make(self._over_runs(self._groups))
            _check_fits(self.optimizer, all(takes_each), takes_halves or takes_whole)
            return self.optimizer, engine_step(self.optimizer), weakly(self._divide)

        self._native = load_engine().EngineShardedOptimizer(self._engine, make, master_weights, takes_whole)
        inner = self.optimizer
        inner.state = _States(dict, inner.state)
        self.defaults = inner.defaults
        super().__setstate__({})  # makes what every Optimizer has besides its groups and states
        left_out = weakly(self._audited_left_out)
        self._engine.audit_tensors(lambda: _audited(inner.param_groups) + (left_out() or []))
        self._engine.observe_steps(weakly(self._stand_in))

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The optimiser's groups; their parameters are this rank's parts."""
        if sys._getframe(1).f_globals.get("__name__") == "torch.distributed.checkpoint.state_dict":
            raise InputError(
                "ShardedOptimizer: torch.distributed.checkpoint looks for the model's parameters in the groups, which have parts of them; expected"
                " this optimiser's own state_dict() and load_state_dict()"
            )
        self._leave_out()
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of this rank's parts, by the tensors in param_groups."""
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.__setstate__({"state": state})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps this rank's parts and returns the result of closure(). Collective.

        Does nothing after a failed step, and skips a step in which the gradient scaler has found an overflow. Raises
        InputError if the scaler has not unscaled the gradients, or has not looked at those of all ranks; and if the gradients
        of the last backward were used by a step() before.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        refuse_hooks("ShardedOptimizer", self.optimizer)
        arrivals = self._model._arrivals
        if not self._has_new:
            arrivals.check_gradients_are_new("ShardedOptimizer", self._stepped_at)
        if self._overflowed():
            self.optimizer.zero_grad()
        self._leave_out()
        if not self._model.find_unused_parameters:
            left = [i for i, part in enumerate(self._stand_ins) if part.parameter.grad is None]
            self._left_out = hash((self._left_out, *left)) if left else self._left_out
        for part in self._stand_ins:
            part.parameter.grad = None
        self._stand_ins.clear()
        self._native.step()
        if self._has_new:
            self._has_new, self._stepped_at = False, arrivals.forwards
        return loss

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scales all gradients so that their global norm is at most max_norm, and returns the norm. Collective.

        To be called between backward() and step().
        """
        self._leave_out()
        return float(self._native.clip_gradients(max_norm))

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)
        self._model._arrivals.note_zero_grad(set_to_none)
        for p in (p for group in self._groups for p in group["params"]):
            if set_to_none:
                p.grad = None
            elif p.grad is not None and not isinstance(p.grad, _Divided):  # of a backward under no_sync()
                p.grad.detach_().zero_()

    def drain(self) -> None:
        """Waits for parameters in flight."""
        self._engine.drain()

    def state_dict(self, to: int | None = None) -> dict[str, Any]:
        """The whole state, as a plain optimizer_class would hold it, on every rank or only on rank `to`. Collective.

        With `to`, the other ranks hold one tensor of the state at a time, and return a state_dict without state.
        """
        self.drain()
        is_kept = to in (None, self._model._ranks.rank)
        whole = self._whole()
        for part, key, value in self._whole_states([self._state_of(part) for part in self._parts]):
            if is_kept:
                whole.state[part.whole][key] = value
        return whole.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of a ShardedOptimizer (on any number of ranks) or optimizer_class with the same groups.

        Raises InputError for the state of a parameter that was frozen from the start.
        """
        self.drain()
        whole = self._whole()
        whole.load_state_dict(state_dict)
        wholes = {id(part.whole) for part in self._parts}
        for p in whole.state:
            if isinstance(p, torch.Tensor) and id(p) not in wholes:
                raise InputError(f"ShardedOptimizer: the state of a frozen parameter of shape {list(p.shape)}; expected it thawed first")
        for mine, loaded in zip(self.optimizer.param_groups, whole.param_groups):
            mine.update(_options(loaded))
        self.optimizer.state.clear()
        for part in self._parts:
            state = {key: _cut(key, value, part) for key, value in whole.state.get(part.whole, {}).items()}
            if part.has_master:
                part.run.copy_(state.pop(_MASTER, part.elements()))
            if part.run.numel() > 0 and state:
                self.optimizer.state[part.run] = state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters of the model, frozen or not, that are in no group yet. Call it on every rank.

        Raises InputError for other parameters.
        """
        known = {id(p) for group in self._groups for p in group["params"]}
        [group] = self._as_groups([param_group])
        if any(id(p) in known for p in group["params"]):
            raise InputError("ShardedOptimizer: a parameter is in another group already; expected it in one")
        [of_runs] = self._over_runs([group])
        self.optimizer.add_param_group(of_runs)
        self._groups.append(group)

    def _as_groups(self, params: Any) -> list[dict[str, Any]]:
        trained = {id(p) for _, p in _ddp.named_parameters(self._model.module)}
        wanted = list(params)
        groups = [dict(group) for group in wanted] if wanted and isinstance(wanted[0], dict) else [{"params": wanted}]
        for group in groups:
            group["params"] = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
            if any(isinstance(p, tuple) for p in group["params"]):  # named_parameters()
                group["param_names"], group["params"] = map(list, zip(*group["params"]))
            for p in group["params"]:
                if id(p) not in trained:
                    shape = list(p.shape)
                    raise InputError(f"ShardedOptimizer: a parameter of shape {shape} that the model does not train; expected the model's")
        return groups

    def _over_runs(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The groups with this rank's runs in place of parameters, without frozen ones, which have none."""
        runs = {id(part.parameter): part.run for part in self._parts}
        return [{**group, "params": [runs[id(p)] for p in group["params"] if id(p) in runs]} for group in groups]

    def _parts_of(self, runs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[_Part]:
        """Makes a _Part of each (parameter, this rank's run). Collective."""
        ranks = self._model._ranks
        before = ranks.all([run.numel() for _, run in runs])[: ranks.rank]  # a parameter's runs are in the order of ranks
        return [_part(parameter, run, sum(of_rank[i] for of_rank in before)) for i, (parameter, run) in enumerate(runs)]

    def _whole_states(self, mine: list[dict[str, Any]]) -> Iterator[tuple[_Part, str, Any]]:
        """Yields (part, key, value for the whole parameter) where any rank has a state. Collective.

        mine: this rank's state of each part.
        """
        ranks = self._model._ranks
        everyone = ranks.all(ranks.attempt(lambda: [_described(state, part) for state, part in zip(mine, self._parts)]))
        for i, part in enumerate(self._parts):
            state = next((theirs[i] for theirs in everyone if theirs[i]), {})
            for key, value in state.items():
                is_divided = isinstance(value, torch.dtype)
                yield part, key, _gathered(mine[i].get(key), value, part, self._model.process_group) if is_divided else value

    @torch.no_grad()
    def _divide(self, divided: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> None:
        """Moves states to the ranks that will have their elements. Collective.

        The engine calls this before it changes the elements of runs. divided: each parameter, its run, and a tensor
        with the shape and layout that the run will have.
        """
        state = self.optimizer.state
        before = {id(part.parameter): part for part in self._parts}
        now = {id(part.parameter): part for part in self._parts_of([(parameter, then) for parameter, _, then in divided])}
        moved: dict[torch.Tensor, dict[str, Any]] = {}
        for part, key, value in self._whole_states([dict(state.get(part.run, {})) for part in self._parts]):
            to = now.get(id(part.parameter))
            if to is not None and to.run.numel() > 0:
                moved.setdefault(part.run, {})[key] = _cut(key, value, to)
        self._parts = [now[id(parameter)]._replace(run=run) for parameter, run, _ in divided]
        new = [part.parameter for part in self._parts if id(part.parameter) not in before]
        for group in self._groups:
            group["params"] = [p for p in group["params"] if id(p) in now or id(p) not in before]
        if self._takes_new:
            known = {id(p) for group in self._groups for p in group["params"]}
            self._groups[0]["params"] += [p for p in new if id(p) not in known]
        joined = {id(p) for p in new}
        of_joined = [{**group, "params": [p for p in group["params"] if id(p) in joined]} for group in self._groups]
        if any(group["params"] for group in of_joined):  # some optimisers make their state when they are constructed
            moved.update(self._make(self._over_runs([group for group in of_joined if group["params"]])).state)
        for part in before.values():
            state.pop(part.run, None)
        state.update(moved)
        for mine, its in zip(self.optimizer.param_groups, self._over_runs(self._groups)):
            mine["params"] = its["params"]

    def _stand_in(self) -> None:
        """Gives parameters a stand-in for their gradients. Called at the end of each step."""
        self._has_new = True
        self._model._arrivals.zeroed_at = -1
        if all(part.run.grad is None for part in self._parts):
            return
        # For an empty part this rank does not know whether there is a gradient.
        empty_too = not self._model.find_unused_parameters
        for part in self._parts:
            has_gradient = part.run.grad is not None or (empty_too and part.run.numel() == 0 and part.parameter.requires_grad)
            if has_gradient and part.parameter.grad is None:
                part.parameter.grad = part.divided
                self._stand_ins.append(part)

    def _leave_out(self) -> None:
        """Drops the gradients of parameters whose stand-in the program has taken away."""
        for part in self._stand_ins:
            held = part.parameter.grad
            if held is None:
                part.run.grad = None
            elif held is not part.divided:
                raise InputError(
                    f"ShardedOptimizer: a parameter of shape {list(held.shape)} has another gradient than backward left; expected step() right after"
                    " the backward that synchronises, and changes of gradients in this optimiser's param_groups"
                )

    def _audited_left_out(self) -> list[tuple[str, torch.Tensor]]:
        return [("what steps have left out (gradients set to None)", torch.tensor(self._left_out))]

    def _overflowed(self) -> bool:
        """Whether gradients overflowed on any rank, from what a scaler sets before it calls step(). Collective."""
        found, scale = self.__dict__.get("found_inf"), self.__dict__.get("grad_scale")
        if found is None:
            return False
        most, least = self._model._ranks.max([float(found), -float(found)])
        if scale is None and most == -least:
            return bool(most > 0)
        del self.found_inf, self.grad_scale
        raise InputError(
            "ShardedOptimizer: the scaler judged by each rank's own gradients; expected torch.distributed.fsdp.sharded_grad_scaler's"
            " ShardedGradScaler, and scaler.unscale_(optimizer) before scaler.step(optimizer)"
        )

    def __getstate__(self) -> dict[str, Any]:
        raise InputError("ShardedOptimizer: cannot be copied or pickled; expected its state_dict()")

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise InputError("ShardedOptimizer: its state cannot be set; expected load_state_dict(), or state.clear()")

    def _whole(self) -> torch.optim.Optimizer:
        """A plain optimizer_class over whole parameters, with the current options and no state: the format of checkpoints."""
        wholes = {id(part.parameter): part.whole for part in self._parts}
        whole = self._make([{**group, "params": [wholes.get(id(p), p) for p in group["params"]]} for group in self._groups])
        whole.state.clear()
        for kind in STATE_HOOKS:
            setattr(whole, f"_optimizer_{kind}_hooks", getattr(self, f"_optimizer_{kind}_hooks"))
        for mine, its in zip(self.optimizer.param_groups, whole.param_groups):
            its.update(_options(mine))
        return whole

    def _state_of(self, part: _Part) -> dict[str, Any]:
        """This rank's state of the part, with the master weights if they hold more than the rounded parameter."""
        state = dict(self.optimizer.state.get(part.run, {}))
        if part.has_master and (state or not torch.equal(part.run, part.elements().to(part.run.dtype))):
            state[_MASTER] = part.run
        return state


def _part(parameter: torch.Tensor, run: torch.Tensor, begin: int) -> _Part:
    whole = parameter if run.dtype == parameter.dtype else torch.zeros((), dtype=run.dtype, device=run.device).expand(parameter.shape)
    return _Part(parameter, run, begin, whole, _Divided(parameter))


def _check_fits(optimizer: torch.optim.Optimizer, takes_one: bool, takes_its_part: bool) -> None:
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS) or not takes_one:
        raise InputError(
            f"ShardedOptimizer: {name} looks at all parameters at once, or counts its steps by itself; expected an optimiser that looks at one parameter"
            " at most, with counters in its groups or states of parameters"
        )
    if not takes_its_part:
        raise InputError(f"ShardedOptimizer: {name} looks at whole parameters; expected whole_parameters=True")
    warn_of_unknown("ShardedOptimizer", optimizer)


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _audited(groups: list[dict[str, Any]]) -> list[tuple[str, torch.Tensor]]:
    """The options of groups, as tensors for the audit: parameters do not show a difference, as ranks step other parts."""
    options = [(f"{key} of group {i}", value) for i, group in enumerate(groups) for key, value in _options(group).items()]
    known = (bool, int, float, str, tuple, list, type(None))  # equal values of these have the same repr() on every rank
    tensors = [(name, value) for name, value in options if isinstance(value, torch.Tensor)]
    return tensors + [(name, torch.tensor(list(repr(value).encode()))) for name, value in options if isinstance(value, known)]


def _is_run(key: str, value: Any, shape: torch.Size) -> bool:
    return key != _COUNTED and isinstance(value, torch.Tensor) and value.shape == shape


def _described(state: dict[str, Any], part: _Part) -> dict[str, Any]:
    """The part's state for other ranks, per-element tensors as their dtype; empty on a rank without elements."""
    if part.run.numel() == 0:
        return {}
    for key, value in state.items():
        if not isinstance(value, torch.Tensor) and any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value)):
            raise InputError(f"ShardedOptimizer: the state {key} holds tensors in a {type(value).__name__}; expected each under a key of its own")
    return {key: value.dtype if _is_run(key, value, part.run.shape) else value for key, value in state.items()}


def _gathered(mine: torch.Tensor | None, dtype: torch.dtype, part: _Part, group: Any) -> torch.Tensor:
    """The whole tensor from the ranks' runs; exact, since it adds one rank's bytes to zeros of all others. Collective."""
    whole = torch.zeros(part.parameter.numel(), dtype=dtype, device=part.parameter.device)
    if mine is not None and mine.numel() > 0:
        part.within(whole).copy_(mine)
    dist.all_reduce(whole.view(torch.uint8), group=group)
    return whole.as_strided(part.parameter.shape, part.parameter.stride())


def _cut(key: str, value: Any, part: _Part) -> Any:
    if not _is_run(key, value, part.parameter.shape):
        return value.clone() if isinstance(value, torch.Tensor) else value  # steps would change what the program has loaded
    laid_out = torch.empty_strided(part.parameter.shape, part.parameter.stride(), dtype=value.dtype, device=value.device).copy_(value)
    return part.within(laid_out).clone()
