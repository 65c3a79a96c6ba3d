"""firkin.DataParallel: Firkin's C++ engine around a module, with PyTorch's own process group."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from firkin import _ddp
from firkin._core import InputError
from firkin._native import load_engine
from firkin._plan import Plan
from firkin._ranks import Ranks
from firkin._torch import dist, torch

_MOST_BYTES = 1 << 62  # a cap that nothing reaches

_log = logging.getLogger("firkin")


class DataParallel(torch.nn.Module):
    """Data-parallel training as DistributedDataParallel does it, with any plan of buckets and Firkin's strategies.

        model = firkin.DataParallel(Net(), plan=result.plan)    # or cap_mib=4; collective, after init_process_group("gloo")
        optimizer = torch.optim.AdamW(model.parameters())
        for x, y in my_part_of_the_data:
            optimizer.zero_grad()
            loss(model(x), y).backward()                        # buckets are summed meanwhile; then all ranks have the mean gradient
            optimizer.step()

    The module is `model.module`; state_dict(), named_parameters() and the order of parameters are those of DistributedDataParallel.
    Gradients are views into the buckets. A parameter that gets no gradient is an error that names it, unless find_unused_parameters.
    Hooks of your own on parameters keep working: they see this rank's gradient, before it is averaged.

    When a rank's backward() raises, it raises there what it raised, and on every other rank a StepError that names rank and reason; nobody
    has a gradient then. When a collective fails, a GroupError names the missing ranks.

    cap_mib, first_cap_mib: as DistributedDataParallel's bucket_cap_mb, and of the first bucket; MiB. plan: a Plan (TuneResult.plan), instead
    of caps. buckets: "automatic" starts with cap_mib, measures while it trains (about 3 s and 92 steps), and keeps what is best; a line of
    the logger "firkin" says what and why. plan_file: there rank 0 keeps that, and later runs begin with it where it fits. strategy:
    "bucketed" (with a plan "planned"), "naive", "flat", "overlap", "ordered" (see OverlappedOptimizer), "none".
    compression: "none", "bf16" or "fp16", what float32 gradients travel as. process_group: None is the default group. What the engine itself
    sends goes over gloo, which it connects itself beside a group of nccl alone (not run on a GPU).
    finish_with_backward: False leaves the end of a step to finish_gradient_synchronization(). link: "1gbit" or "200mbit,1ms": collectives
    take the time that they would take over such a link, for trying things out.

    Raises InputError on every rank when ranks have different models or options, for a module without parameters to train or one that is
    wrapped already, parameters on a device that the group does not serve, a plan of another model, a group without gloo, or where the engine is not installed.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        cap_mib: float = 25.0,
        first_cap_mib: float | None = None,
        plan: Plan | None = None,
        buckets: str | None = None,
        plan_file: str | os.PathLike[str] | None = None,
        strategy: str | None = None,
        compression: str = "none",
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        finish_with_backward: bool = True,
        process_group: dist.ProcessGroup | None = None,
        link: str | None = None,
    ) -> None:
        super().__init__()
        ranks = Ranks(process_group)
        self.module = module
        self.strategy = strategy or ("bucketed" if plan is None else "planned")
        self._ranks = ranks

        def prepare() -> Any:
            native = load_engine()
            _check_device(module)
            if self.strategy == "torch":
                raise InputError("DataParallel: strategy 'torch'; expected torch.nn.parallel.DistributedDataParallel, which is that")
            options = native.EngineOptions()
            options.strategy = self.strategy
            options.cap_bytes = _bytes("cap_mib", cap_mib)
            if first_cap_mib is not None:
                options.first_cap_bytes = _bytes("first_cap_mib", first_cap_mib)
            if plan is not None:
                options.counts, options.ready_order = _positions(plan, module, self.strategy)
            if buckets not in (None, "automatic"):
                raise InputError(f"DataParallel: buckets '{buckets}'; expected None or 'automatic'")
            if plan_file is not None and buckets is None:
                raise InputError("DataParallel: plan_file without buckets='automatic'; expected both")
            options.automatic = buckets == "automatic"
            options.plan_file = os.fspath(plan_file) if plan_file is not None else ""
            options.log = _say
            options.compression = compression
            options.find_unused_parameters = find_unused_parameters
            options.broadcast_buffers = broadcast_buffers
            options.finish_with_backward = finish_with_backward
            options.timeout_s = _timeout_s(ranks)
            options.link = link
            return options

        options = ranks.attempt(prepare)
        group = dist.group.WORLD if process_group is None else process_group
        self._engine = load_engine().Engine(_named(module, buffers=False), _named(module, buffers=True), group, options)
        if self.strategy == "ordered":
            _await_in_forward(self, module, self._engine)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self) -> None:
        """Ends the step: with finish_with_backward=False after every backward() that synchronises; otherwise there is nothing to do."""
        self._engine.finish()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients are accumulated on this rank only; the next backward outside of it synchronises the sum."""
        before = self._engine.set_gradient_synchronization(False)
        try:
            yield
        finally:
            self._engine.set_gradient_synchronization(before)

    @contextlib.contextmanager
    def join(self, step: Callable[[], Any] | None = None) -> Iterator[None]:
        """For ranks with different numbers of batches: one that has no more takes part in the others' steps until no rank has any.

            with model.join(optimizer.step):
                for batch in my_batches: ...

        The mean is then over the ranks that have a batch. step: called on the ranks without one after each such step, with the mean gradient,
        so that parameters and the optimiser's state stay the same everywhere; None: parameters and buffers are those of the rank that trained
        longest, afterwards.
        """
        yield
        mine = self._engine.stats().steps * self._ranks.size + self._ranks.rank
        self._engine.join(step or (lambda: None))
        if step is None:
            longest = int(self._ranks.max([float(mine)])[0]) % self._ranks.size
            self._broadcast_state(longest)

    def drain(self) -> None:
        """Strategy "ordered": waits for the gradients that are on their way. state_dict() and parameters() call it; others have nothing."""
        self._engine.drain()

    def abandon_step(self, reason: str = "the step was abandoned") -> None:
        """This rank cannot do the step that the others are in (its forward raised, say): every rank raises a StepError with the reason."""
        self._engine.abandon(reason)

    def stats(self) -> Any:
        """Of the last finished step: buckets (tensors, bytes, bytes_on_wire, launch_s, end_s), exposed_wait_s, steps, forward_wait_s, and
        awaited_bytes, automatic (a phase); seconds and bytes."""
        return self._engine.stats()

    def buckets(self) -> list[list[str]]:
        """The names of the parameters in each bucket, as they are in use: in gradient-ready order once a step has shown it."""
        names: list[list[str]] = self._engine.bucket_names()
        return names

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        if "_engine" in self.__dict__:  # not while it is made
            self._engine.drain()
        return super().named_parameters(*args, **kwargs)

    def _broadcast_state(self, root: int) -> None:
        source = dist.get_global_rank(self._ranks.group, root) if self._ranks.group is not None else root
        for _, tensor in _named(self.module, buffers=False) + _named(self.module, buffers=True):
            dist.broadcast(tensor.detach(), source, group=self._ranks.group)


class OverlappedOptimizer:
    """An optimiser for the strategy "ordered": it steps each parameter when its gradient has arrived, behind the next forward.

        model = firkin.DataParallel(Net(), strategy="ordered", cap_mib=1)
        optimizer = torch.optim.AdamW(model.parameters())
        overlapped = firkin.OverlappedOptimizer(model, optimizer)
        ...
        loss(model(x), y).backward()
        overlapped.step()                 # instead of optimizer.step()

    Every module of the model waits for its own parameters when its forward is called, so there is nothing to write in the model; parameters
    that are used past any module's forward are complete when the step ends. The optimiser stays one, with one state; learning-rate
    schedules work on it as before. Under other strategies step() is optimizer.step().

    optimizer: any that leaves a parameter without a gradient alone; its groups must be complete. Raises InputError for L-BFGS.
    """

    def __init__(self, model: DataParallel, optimizer: torch.optim.Optimizer) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise InputError("OverlappedOptimizer: L-BFGS needs all gradients together; expected another optimiser")
        self.optimizer = optimizer
        self._native = load_engine().EngineOptimizer(model._engine, optimizer)
        self._groups = len(optimizer.param_groups)

    def step(self) -> None:
        """Steps the parameters whose gradients have arrived; the others when they are needed, with the options that they have now."""
        if len(self.optimizer.param_groups) != self._groups:
            raise InputError("OverlappedOptimizer: the optimiser got another group of parameters; expected all of them at construction")
        self._native.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def drain(self) -> None:
        """Waits for all gradients that are on their way, and after step() steps their parameters."""
        self._native.drain()

    def clip_grad_norm_(self, max_norm: float) -> float:
        """torch.nn.utils.clip_grad_norm_ between backward() and step(). It needs all gradients, so nothing is left to hide: it warns once."""
        norm: float = self._native.clip_gradients(max_norm)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's, complete."""
        self.drain()
        return self.optimizer.state_dict()


def _say(line: str) -> None:
    _log.warning("%s", line.removeprefix("firkin: "))  # a warning is shown where logging is not set up


def _named(module: torch.nn.Module, *, buffers: bool) -> list[tuple[str, torch.Tensor]]:
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", []))
    tensors = module.named_buffers(remove_duplicate=False) if buffers else module.named_parameters(remove_duplicate=False)
    return [(name, tensor) for name, tensor in tensors if name not in ignored]


def _check_device(module: torch.nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if parameter.device.type not in ("cpu", "cuda"):
            raise InputError(f"DataParallel: {name} is on {parameter.device}; expected the CPU or a GPU")


def _bytes(name: str, mib: float) -> int:
    if not mib > 0:
        raise InputError(f"DataParallel: {name} {mib}; expected more than 0")
    return max(1, int(min(mib * _ddp.MIB, _MOST_BYTES)))


def _positions(plan: Plan, module: torch.nn.Module, strategy: str) -> tuple[list[int], list[int]]:
    """How many tensors each bucket has, and which, counted in order of registration."""
    if strategy not in ("planned", "ordered"):
        raise InputError(f"DataParallel: strategy {strategy} with a plan; expected planned or ordered")
    order = plan.order_in_model(module)
    index = {name: i for i, name in enumerate(order)}
    return [len(bucket) for bucket in plan.buckets], [index[name] for bucket in plan.buckets for name in bucket]


def _timeout_s(ranks: Ranks) -> float:
    """Of the group's collectives."""
    group: Any = dist.group.WORLD if ranks.group is None else ranks.group
    try:
        return float(group._get_backend(torch.device("cpu")).options._timeout.total_seconds())
    except (AttributeError, RuntimeError):  # the engine says what is wrong with the group
        return 1800.0


def _await_in_forward(owner: DataParallel, module: torch.nn.Module, engine: Any) -> None:
    """While `owner` lives, every module waits for its parameters before its forward, and a checkpoint for all."""
    names: dict[torch.nn.Module, list[str]] = {}
    for name, part in module.named_modules(remove_duplicate=False):
        names.setdefault(part, []).append(name)

    def wait(index: int, _module: torch.nn.Module, _arguments: Any) -> None:
        engine.await_module(index)

    handles = [
        part.register_forward_pre_hook(functools.partial(wait, engine.add_awaiting(paths)))
        for part, paths in names.items()
        if next(part.parameters(), None) is not None
    ]
    handles.append(module.register_state_dict_pre_hook(lambda *_: engine.drain()))  # type: ignore[no-untyped-call]

    def remove() -> None:
        for handle in handles:
            handle.remove()

    weakref.finalize(owner, remove)
