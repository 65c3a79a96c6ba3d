"""The strategy "sharded" in Python: each rank holds its part of the optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from firkin._core import InputError
from firkin._native import load_engine
from firkin._ordered import as_the_engine_sees_it
from firkin._torch import dist, torch

_COUNTED = "step"  # the one tensor in an optimiser's state that may have a parameter's shape and is none of its elements
_BY_PARAMETER = tuple(getattr(torch.optim, name) for name in ("Adafactor", "Muon") if hasattr(torch.optim, name))
_MASTER = "master"  # in a whole state: what the parameter is the rounding of


class _Part(NamedTuple):
    parameter: torch.Tensor
    run: torch.Tensor  # this rank's elements: of one dimension, or in the parameter's shape; with a master a copy of them in float32
    begin: int  # of the run in the parameter's memory, in elements
    whole: torch.Tensor  # what an optimiser without ranks has in its place: the parameter, or a tensor of its shape without memory

    @property
    def has_master(self) -> bool:
        return self.run.dtype != self.parameter.dtype

    def within(self, memory: torch.Tensor) -> torch.Tensor:
        """The run's elements in a tensor that has all of the parameter's, laid out like it; a view."""
        return memory.as_strided(self.run.shape, self.run.stride(), memory.storage_offset() + self.begin)

    def elements(self) -> torch.Tensor:
        return self.within(self.parameter.detach())


class ShardedOptimizer(torch.optim.Optimizer):
    """The optimiser for the strategy "sharded": each of P ranks steps its part of every bucket and holds 1/P of the state (ZeRO, stage 1).

        model = firkin.DistributedDataParallel(Net(), strategy="sharded")
        optimizer = firkin.ShardedOptimizer(model, torch.optim.AdamW, lr=1e-3)
        ...
        loss(model(x), y).backward()
        optimizer.step()

    Backward sums each part on the rank that steps it; the new parameters travel behind the next forward, in which every module waits for its
    own. On two ranks parameters equal those of "bucketed" to the last bit. Every rank must call step() after every successful backward.
    Parameters have no grad afterwards, so torch.nn.utils.clip_grad_norm_ finds nothing to clip: use clip_grad_norm_() of this class.

    model: a firkin.DistributedDataParallel before its first backward; one ShardedOptimizer per model. optimizer_class: constructed with
    **options over views of this rank's parts (see param_groups), for which it must be written: not LBFGS, which looks at all of them at once.
    whole_parameters: False divides every bucket evenly, and an optimiser gets 1-d views of elements: for those that work element by element,
    as SGD, Adam(W), RMSprop and Adagrad do. True gives every parameter to one rank, in its shape: for all others, such as LAMB. Ranks' shares
    are then as even as whole parameters allow, and large buckets travel in one piece. None: True for PyTorch's Adafactor and Muon only.
    params: the parameters or groups to step, as optimizer_class takes them; None: all trained parameters.
    master_weights: steps parameters in low precision (bf16) on float32 copies of this rank's part, with float32 state: 4 bytes a parameter
    for the copies, divided by the number of ranks. state_dict() has them as "master". Without them, updates below half the distance to a
    parameter's next value are lost.

    Collective.

    Each rank sees only its own gradients, so loss scaling needs PyTorch's torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler, and
    scaler.unscale_(optimizer) before scaler.step(optimizer).

    Raises InputError for parameters the model does not train.
    """

    _step_supports_amp_scaling = True  # so a scaler leaves the decision to step(), which must know of it on every rank
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
        if whole_parameters is None:
            whole_parameters = isinstance(optimizer_class, type) and issubclass(optimizer_class, _BY_PARAMETER)
        self._model = model
        self._engine = model._arrivals.engine
        named = dict(model.module.named_parameters(remove_duplicate=False))
        self._make = lambda groups: optimizer_class(groups, **options)

        def make(runs: list[tuple[str, torch.Tensor]]) -> Any:
            counts: list[list[int]] = [[]] * dist.get_world_size(model._group)
            dist.all_gather_object(counts, [run.numel() for _, run in runs], group=model._group)
            before = counts[: dist.get_rank(model._group)]  # parts are in the order of ranks
            self._parts = [_part(named[name], run, sum(of_rank[i] for of_rank in before)) for i, (name, run) in enumerate(runs)]
            self._groups = _as_groups(params, self._parts)
            self.optimizer = self._make(_over(self._groups, {id(part.parameter): part.run for part in self._parts}))
            _check_fits(self.optimizer, whole_parameters)
            return as_the_engine_sees_it(self.optimizer)

        self._native = load_engine().EngineShardedOptimizer(self._engine, make, master_weights, whole_parameters)
        super().__setstate__({})  # what an Optimizer has beside parameters

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Collective. Returns the result of closure(). Does nothing after a failed step; skips one that overflowed, by the scaler's count.

        Raises InputError if a scaler has not unscaled the gradients, or not with those of all ranks.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._overflowed():
            self.optimizer.zero_grad()
        self._native.step()
        return loss

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Between backward() and step(): scales all gradients so that their global norm is at most max_norm. Collective. Returns the norm."""
        norm: float = self._native.clip_gradients(max_norm)
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def drain(self) -> None:
        """Waits for parameters in flight."""
        self._engine.drain()

    def state_dict(self, to: int | None = None) -> dict[str, Any]:
        """The whole state, as a plain optimizer_class would hold it: on every rank, or on rank `to` alone. Collective.

        The other ranks then hold one tensor of it at a time, and return a state_dict without state.
        """
        self.drain()
        group = self._model._group
        is_kept = to is None or to == dist.get_rank(group)
        whole = self._whole()
        copies: list[Any] = [None] * dist.get_world_size(group)
        mine = [self._state_of(part) for part in self._parts]
        dist.all_gather_object(copies, [_described(state, part) for state, part in zip(mine, self._parts)], group=group)
        for i, part in enumerate(self._parts):
            states = [copy[i] for copy in copies if copy[i]]
            if not states:
                continue  # no rank has stepped it
            for key, value in states[0].items():
                if isinstance(value, torch.dtype):
                    value = _gathered(mine[i].get(key), value, part, group)
                if is_kept:
                    whole.state[part.whole][key] = value
        return whole.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of a ShardedOptimizer (of any number of ranks) or of a plain optimizer_class with the same parameter groups."""
        self.drain()
        whole = self._whole()
        whole.load_state_dict(state_dict)
        for mine, loaded in zip(self.optimizer.param_groups, whole.param_groups):
            mine.update(_options(loaded))
        self.optimizer.state.clear()
        for part in self._parts:
            state = {key: _cut(key, value, part) for key, value in whole.state.get(part.whole, {}).items()}
            if part.has_master:
                part.run.copy_(state.pop(_MASTER, part.elements()))
            if part.run.numel() > 0 and state:
                self.optimizer.state[part.run] = state

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of this rank's parts."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of this rank's parts."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.optimizer.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters that the model has trained from the start and `params` left out. Raises InputError for others. On every rank."""
        known = {id(p) for group in self._groups for p in group["params"]}
        [group] = _as_groups([param_group], self._parts)
        if any(id(p) in known for p in group["params"]):
            raise InputError("ShardedOptimizer: a parameter is in another group already; expected it in one")
        [of_runs] = _over([group], {id(part.parameter): part.run for part in self._parts})
        self.optimizer.add_param_group(of_runs)
        self._groups.append(group)

    def _overflowed(self) -> bool:
        """By what a scaler sets before step()."""
        found, scale = self.__dict__.get("found_inf"), self.__dict__.get("grad_scale")
        if found is None:
            return False
        extremes = torch.as_tensor([float(found), -float(found)])
        dist.all_reduce(extremes, dist.ReduceOp.MAX, group=self._model._group)
        if scale is None and extremes[0] == -extremes[1]:
            return bool(extremes[0] > 0)
        del self.found_inf, self.grad_scale
        raise InputError(
            "ShardedOptimizer: the scaler judged by each rank's own gradients; expected torch.distributed.fsdp.sharded_grad_scaler's"
            " ShardedGradScaler, and scaler.unscale_(optimizer) before scaler.step(optimizer)"
        )

    def __getstate__(self) -> dict[str, Any]:
        raise InputError("ShardedOptimizer: cannot be copied or pickled; expected its state_dict()")

    def _whole(self) -> torch.optim.Optimizer:
        """A plain optimizer_class, in whose format checkpoints are: no state, current options."""
        whole = self._make(_over(self._groups, {id(part.parameter): part.whole for part in self._parts}))
        whole.state.clear()
        for mine, its in zip(self.optimizer.param_groups, whole.param_groups):
            its.update(_options(mine))
        return whole

    def _state_of(self, part: _Part) -> dict[str, Any]:
        """Of this rank, with the master where it is more than its parameter says."""
        state = dict(self.optimizer.state.get(part.run, {}))
        if part.has_master and (state or not torch.equal(part.run, part.elements().to(part.run.dtype))):
            state[_MASTER] = part.run
        return state


def _part(parameter: torch.Tensor, run: torch.Tensor, begin: int) -> _Part:
    whole = parameter if run.dtype == parameter.dtype else torch.zeros((), dtype=run.dtype, device=run.device).expand(parameter.shape)
    return _Part(parameter, run, begin, whole)


def _check_fits(optimizer: torch.optim.Optimizer, whole_parameters: bool) -> None:
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InputError(f"ShardedOptimizer: {name} looks at all parameters at once; expected an optimiser that looks at one at most")
    if isinstance(optimizer, _BY_PARAMETER) and not whole_parameters:
        raise InputError(f"ShardedOptimizer: {name} looks at whole parameters; expected whole_parameters=True")


def _as_groups(params: Any, parts: list[_Part]) -> list[dict[str, Any]]:
    trained = {id(part.parameter) for part in parts}
    wanted = [part.parameter for part in parts] if params is None else list(params)
    groups = [dict(group) for group in wanted] if wanted and isinstance(wanted[0], dict) else [{"params": wanted}]
    for group in groups:
        group["params"] = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
        for p in group["params"]:
            if id(p) not in trained:
                raise InputError(f"ShardedOptimizer: a parameter of shape {list(p.shape)} that the model does not train; expected the model's")
    return groups


def _over(groups: list[dict[str, Any]], tensors: dict[int, torch.Tensor]) -> list[dict[str, Any]]:
    """The groups with other tensors, by the id of each parameter."""
    return [{**group, "params": [tensors[id(p)] for p in group["params"]]} for group in groups]


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _is_run(key: str, value: Any, shape: torch.Size) -> bool:
    return key != _COUNTED and isinstance(value, torch.Tensor) and value.shape == shape


def _described(state: dict[str, Any], part: _Part) -> dict[str, Any]:
    """With a dtype in the place of what each rank has its elements of. A rank that steps none of them knows nothing."""
    if part.run.numel() == 0:
        return {}
    return {key: value.dtype if _is_run(key, value, part.run.shape) else value for key, value in state.items()}


def _gathered(mine: torch.Tensor | None, dtype: torch.dtype, part: _Part, group: Any) -> torch.Tensor:
    """Exact: the bytes of one rank are added to zeros of the others."""
    whole = torch.zeros(part.parameter.numel(), dtype=dtype, device=part.parameter.device)
    if mine is not None and mine.numel() > 0:
        part.within(whole).copy_(mine)
    dist.all_reduce(whole.view(torch.uint8), group=group)
    return whole.as_strided(part.parameter.shape, part.parameter.stride())


def _cut(key: str, value: Any, part: _Part) -> Any:
    if not _is_run(key, value, part.parameter.shape):
        return value
    laid_out = torch.empty_strided(part.parameter.shape, part.parameter.stride(), dtype=value.dtype, device=value.device).copy_(value)
    return part.within(laid_out).clone()
