"""ShardedOptimizer: the optimiser of the strategy "sharded", of whose state each rank holds a part."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, NoReturn

from firkin._core import InputError
from firkin._native import load_engine
from firkin._optimizers import STATE_HOOKS, EngineOptimizer, EngineStep, check_elementwise, options_of
from firkin._torch import dist, torch


class _Divided(torch.Tensor):
    """Stands in for a parameter's gradient from backward to step(), since parts of it are on the ranks that step them.

    Without it, PyTorch's clipping would find no gradient, and clip nothing without a word.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, p: torch.Tensor) -> _Divided:
        return torch.Tensor._make_wrapper_subclass(cls, p.shape, strides=p.stride(), dtype=p.dtype, device=p.device)  # type: ignore[attr-defined, no-any-return]

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise InputError(
            "DataParallel: a parameter's gradient is used, and under the strategy sharded it is divided among the ranks; expected step() before"
            " another backward() (accumulate under no_sync()), clip_grad_norm_() of the ShardedOptimizer, or the gradients of the parts in its"
            " param_groups, whose norm is this rank's alone"
        )


class _Part(NamedTuple):
    parameter: torch.Tensor
    run: torch.Tensor  # this rank's elements, 1-d or in the parameter's shape
    begin: int  # where the run begins in the parameter's memory, in elements
    divided: _Divided

    def within(self, memory: torch.Tensor) -> torch.Tensor:
        """A view of the run's elements in a tensor that has all of the parameter's elements, laid out like them."""
        return memory.as_strided(self.run.shape, self.run.stride(), memory.storage_offset() + self.begin)


class ShardedOptimizer(EngineOptimizer):
    """The optimiser for the strategy "sharded" (ZeRO stage 1): each of P ranks has, and steps with, 1/P of the state.

        model = firkin.DistributedDataParallel(Net(), strategy="sharded")
        optimizer = firkin.ShardedOptimizer(model, torch.optim.AdamW, lr=1e-3)
        ...
        loss(model(x), y).backward()
        optimizer.step()

    Backward sums the gradients of each part on the rank that steps it. The new parameters travel during the next
    forward, in which every module waits for its own. On two ranks parameters equal those of "bucketed" to the last bit.
    Every rank must call step() once after every successful backward; zero_grad() between them leaves everything out.
    Between them a parameter's grad can only be left alone: to clip, call clip_grad_norm_() of this class.

    model: a firkin.DistributedDataParallel before its first backward, which takes one ShardedOptimizer. optimizer_class:
    constructed with **options over views of this rank's parts (see param_groups); one of those that OverlappedOptimizer
    takes. params: what to step, as it takes them; None: all that is trained.

    elementwise: True takes any class, and promises of it what OverlappedOptimizer's promises. whole_parameters: True takes
    any class and gives every parameter to one rank, in its shape: for Muon, LAMB, Adafactor. It promises of parameters
    what elementwise does of elements. Ranks' shares are then as even as whole parameters allow.

    Loss scaling needs PyTorch's torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler, since each rank sees only
    its own gradients, and scaler.unscale_(optimizer) before scaler.step(optimizer).

    Collective. Raises InputError for other classes, for hooks on step(), and for parameters that are not the model's.
    """

    # Tells a scaler to leave the decision to skip a step to step(), since all ranks must decide alike.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        model: Any,
        optimizer_class: Callable[..., torch.optim.Optimizer],
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]] | None = None,
        *,
        elementwise: bool = False,
        whole_parameters: bool = False,
        **options: Any,
    ) -> None:
        self._model = model
        self._make: Callable[[Any], torch.optim.Optimizer] = lambda groups: optimizer_class(groups, **options)
        self._stand_ins: list[_Part] = []  # the parts whose parameter has a _Divided as its gradient
        promises = {"elementwise": elementwise, "whole_parameters": whole_parameters}
        self._check = functools.partial(check_elementwise, "ShardedOptimizer", **promises)  # type: ignore[arg-type]

        def make(runs: list[tuple[str, torch.Tensor]]) -> Any:
            named, ranks = dict(model._parameters_then), model._ranks
            before = ranks.all([run.numel() for _, run in runs])[: ranks.rank]  # a parameter's runs are in the order of ranks
            self._parts = [
                _Part(named[name], run, sum(of_rank[i] for of_rank in before), _Divided(named[name])) for i, (name, run) in enumerate(runs)
            ]
            mine = {part.parameter: part.run for part in self._parts}  # without frozen parameters
            whole = self._make(list(mine) if params is None else params)
            self._check(whole)
            self._groups, known = whole.param_groups, set(named.values())
            for p in (p for p in self.stepped() if p not in known):
                raise InputError(f"ShardedOptimizer: a parameter of shape {list(p.shape)} that the model does not train; expected the model's")
            self.optimizer = self._make([{**group, "params": [mine[p] for p in group["params"] if p in mine]} for group in self._groups])
            self._step = EngineStep(self.optimizer)
            return self.optimizer, torch.compiler.disable(self._step.run)  # type: ignore[no-untyped-call]

        self._native = load_engine().EngineShardedOptimizer(model._arrivals.engine, make, whole_parameters)
        self._begin(model._arrivals)
        inner = self.optimizer
        model._engine.audit_tensors(lambda: _audited(inner.param_groups))

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The optimiser's groups; their parameters are this rank's parts."""
        return self.optimizer.param_groups

    @property
    def state(self) -> NoReturn:  # type: ignore[override]
        raise InputError("ShardedOptimizer: the state is divided among the ranks; expected state_dict() and load_state_dict()")

    def stepped(self) -> Iterator[torch.Tensor]:
        return (p for group in self._groups for p in group["params"])

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps this rank's parts, unless a gradient scaler has found an overflow. Collective."""
        loss = self._before_step(closure)
        if self._overflowed():
            self.zero_grad()
        for part in self._stand_ins:
            if part.parameter.grad is not part.divided:
                raise InputError(
                    f"ShardedOptimizer: a parameter of shape {list(part.parameter.shape)} has another gradient than backward left, or none; expected"
                    " step() right after the backward that synchronises, and changes of gradients in this optimiser's param_groups"
                )
        self._drop_stand_ins()
        self._native.step()
        self._after_step()
        return loss

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scales all gradients so that their global norm is at most max_norm, and returns the norm. Collective.

        To be called between backward() and step().
        """
        return float(self._native.clip_gradients(max_norm))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Like torch.optim.Optimizer.zero_grad(): sets the gradients to None, or to zero."""
        self._before_gradients_are_read()
        self._drop_stand_ins()
        self.optimizer.zero_grad(set_to_none)
        for p in self.stepped():
            if set_to_none:
                p.grad = None
            elif p.grad is not None:  # of a backward under no_sync()
                p.grad.detach_().zero_()

    def state_dict(self) -> dict[str, Any]:
        """The whole state, on every rank as a plain optimizer_class would hold it. Collective."""
        self.drain()
        ranks = self._model._ranks
        mine = [self.optimizer.state.get(part.run, {}) for part in self._parts]
        everyone = ranks.all(ranks.attempt(lambda: [_described(state, part) for state, part in zip(mine, self._parts)]))
        whole = self._whole()
        for i, part in enumerate(self._parts):
            for key, value in next((theirs[i] for theirs in everyone if theirs[i]), {}).items():
                is_divided = isinstance(value, torch.dtype)
                gathered = _gathered(mine[i].get(key), value, part, self._model.process_group) if is_divided else value
                whole.state[part.parameter][key] = gathered
        return whole.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of a ShardedOptimizer (on any number of ranks) or optimizer_class with the same groups.

        Raises InputError for the state of a frozen parameter.
        """
        self.drain()
        whole = self._whole()
        whole.load_state_dict(state_dict)
        parts = {part.parameter: part for part in self._parts}
        for p in whole.state:
            if isinstance(p, torch.Tensor) and p not in parts:
                raise InputError(f"ShardedOptimizer: the state of a frozen parameter of shape {list(p.shape)}; expected it thawed before wrapping")
        for group, loaded in zip(self.optimizer.param_groups, whole.param_groups):
            group.update(options_of(loaded))
        self.optimizer.state.clear()
        for p, part in parts.items():
            state = {key: _cut(key, value, part) for key, value in whole.state.get(p, {}).items()}
            if part.run.numel() > 0 and state:
                self.optimizer.state[part.run] = state

    def end_backward(self) -> None:
        # Of a parameter with an empty part here, this rank does not know whether other ranks have a gradient.
        empty_too = not self._model.find_unused_parameters
        for part in self._parts:
            has_gradient = part.run.grad is not None or (empty_too and part.run.numel() == 0 and part.parameter.requires_grad)
            if has_gradient and part.parameter.grad is None:
                part.parameter.grad = part.divided
                self._stand_ins.append(part)

    def _drop_stand_ins(self) -> None:
        for part in self._stand_ins:
            part.parameter.grad = None
        self._stand_ins.clear()

    def _overflowed(self) -> bool:
        """Whether gradients overflowed on any rank, from what a scaler sets before it calls step(). Collective."""
        found, scale = self.__dict__.get("found_inf"), self.__dict__.get("grad_scale")
        if found is None:
            return False
        most, least = self._model._ranks.max([float(found), -float(found)])
        if scale is None and most == -least:
            return bool(most > 0)
        del self.__dict__["found_inf"], self.__dict__["grad_scale"]
        raise InputError(
            "ShardedOptimizer: the scaler judged by each rank's own gradients; expected torch.distributed.fsdp.sharded_grad_scaler's"
            " ShardedGradScaler, and scaler.unscale_(optimizer) before scaler.step(optimizer)"
        )

    def _whole(self) -> torch.optim.Optimizer:
        """A plain optimizer_class over whole parameters, with the current options and no state: the format of checkpoints."""
        whole = self._make([dict(group) for group in self._groups])
        whole.state.clear()
        for kind in STATE_HOOKS:
            setattr(whole, f"_optimizer_{kind}_hooks", getattr(self, f"_optimizer_{kind}_hooks"))
        for mine, its in zip(self.optimizer.param_groups, whole.param_groups):
            its.update(options_of(mine))
        return whole


def _audited(groups: list[dict[str, Any]]) -> list[tuple[str, torch.Tensor]]:
    """The options of groups, as tensors for the audit: parameters do not show a difference, as ranks step other parts."""
    options = [(f"{key} of group {i}", value) for i, group in enumerate(groups) for key, value in options_of(group).items()]
    known = (torch.Tensor, bool, int, float, str, tuple, type(None))  # equal values of these have the same repr() on every rank
    taken = [(name, value) for name, value in options if isinstance(value, known)]
    return [(name, value if torch.is_tensor(value) else torch.tensor(list(repr(value).encode()))) for name, value in taken]


def _is_run(key: str, value: Any, shape: torch.Size) -> bool:
    """Whether the value has one number per element of `shape`. A counter of steps has not, even if the parameter is a scalar like it."""
    return key != "step" and isinstance(value, torch.Tensor) and value.shape == shape


def _described(state: dict[str, Any], part: _Part) -> dict[str, Any]:
    """The part's state for other ranks, with its dtype in place of each tensor of the part's shape. Empty if the part has no elements."""
    if part.run.numel() == 0:
        return {}
    for key, value in state.items():
        if not isinstance(value, (torch.Tensor, bool, int, float, str, type(None))):
            raise InputError(f"ShardedOptimizer: the state {key} is a {type(value).__name__}; expected tensors and numbers under keys of their own")
    return {key: value.dtype if _is_run(key, value, part.run.shape) else value for key, value in state.items()}


def _gathered(mine: torch.Tensor | None, dtype: torch.dtype, part: _Part, group: Any) -> torch.Tensor:
    """The whole tensor from the ranks' runs; exact, since it adds one rank's bytes to zeros of all others. Collective.

    Note [States of Python's optimisers]: the engine's C++ does the same as this and _cut() for optimisers of LibTorch, each of which has a class of
    state with known fields. Here a state has whatever keys and dtypes its class gave it, and a rank without elements does not know them; the
    engine knows nothing of such states.
    """
    whole = torch.zeros(part.parameter.numel(), dtype=dtype, device=part.parameter.device)
    if mine is not None and mine.numel() > 0:
        part.within(whole).copy_(mine)
    dist.all_reduce(whole.view(torch.uint8), group=group)
    return whole.as_strided(part.parameter.shape, part.parameter.stride())


def _cut(key: str, value: Any, part: _Part) -> Any:
    """This rank's run of a whole parameter's state. A value that has no element for each of the parameter's is copied whole."""
    if not _is_run(key, value, part.parameter.shape):
        return value.clone() if isinstance(value, torch.Tensor) else value  # a step would change the program's own tensor
    laid_out = torch.empty_strided(part.parameter.shape, part.parameter.stride(), dtype=value.dtype, device=value.device).copy_(value)
    return part.within(laid_out).clone()
