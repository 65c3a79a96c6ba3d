"""firkin.DistributedDataParallel: Firkin's C++ engine for a module, over a process group of PyTorch's."""

from __future__ import annotations

import collections
import contextlib
import logging
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from firkin import _ddp
from firkin._arrivals import Arrivals, refuse_unawaited, weakly
from firkin._core import InputError
from firkin._native import StepError, load_engine
from firkin._optimizers import audited_tensors, notice_steps
from firkin._plan import Plan
from firkin._ranks import Ranks
from firkin._torch import dist, torch
from torch.distributed.utils import _sync_module_states, _to_kwargs

_AWAITED = ("ordered", "sharded")  # strategies under which modules wait for their parameters
_log = logging.getLogger("firkin")


class DistributedDataParallel(torch.nn.Module):
    """A drop-in for PyTorch's DistributedDataParallel that takes any bucket plan and Firkin's strategies.

        # Collective, after init_process_group("gloo"). Instead of a plan: cap_mib=4.
        model = firkin.DistributedDataParallel(Net(), plan=result.plan)
        optimizer = torch.optim.AdamW(model.parameters())
        for x, y in my_part_of_the_data:
            optimizer.zero_grad()
            loss(model(x), y).backward()    # all-reduces overlap backward; on return gradients are averaged
            optimizer.step()

    Parameters have PyTorch's names and order. Gradients are views into the buckets, unless the program holds some that
    backward adds to; your own gradient hooks see the gradient of this rank. If a parameter gets no gradient, an error
    names it, unless find_unused_parameters is set. If backward() raises on one rank, every other rank raises a
    StepError with that rank and its reason, and no rank has a gradient. If a collective fails, a GroupError names the
    missing ranks. A copy (copy.deepcopy, torch.save) connects at its first forward with gradients, which is collective.

    device_ids: the module's one GPU, to which inputs are moved, or None. cap_mib or bucket_cap_mb: the bucket cap in
    MiB, 25 by default; first_cap_mib: that of the first bucket. plan: a Plan (TuneResult.plan) instead of caps.
    buckets: "automatic" starts with cap_mib, measures during training (about a hundred steps, and 3 s for all-reduces)
    and keeps the fastest buckets; the logger "firkin" says which and why. strategy: "bucketed" (with a plan,
    "planned"), "ordered" (see OverlappedOptimizer) or "sharded" (see ShardedOptimizer). compression: the type of
    float32 gradients on the wire, "none", "bf16" or "fp16". process_group: None is the default group; if it has only
    NCCL, the engine connects Gloo for its own messages (not run on a GPU). finish_with_backward: False leaves the end
    of a step to finish_gradient_synchronization(). audit_every: the number of steps between audits, which compare the
    parameters of all ranks and raise an AuditError; 0 turns them off. link: models that link, such as "200mbit,1ms".

    Raises InputError, on every rank, for unsupported arguments, modules or groups, and if these differ between ranks.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Sequence[int | str | torch.device] | None = None,
        output_device: int | str | torch.device | None = None,
        *,
        cap_mib: float | None = None,
        bucket_cap_mb: float | None = None,
        first_cap_mib: float | None = None,
        plan: Plan | None = None,
        buckets: str | None = None,
        strategy: str | None = None,
        compression: str = "none",
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        finish_with_backward: bool = True,
        audit_every: int = 100,
        process_group: dist.ProcessGroup | None = None,
        link: str | None = None,
        **of_pytorch: Any,
    ) -> None:
        super().__init__()
        self.module = module
        self.strategy = strategy or ("bucketed" if plan is None else "planned")
        self._group = process_group
        self.find_unused_parameters, self.broadcast_buffers = find_unused_parameters, broadcast_buffers
        self._running: Arrivals | None = None
        self._device: torch.device | None = None

        def settings() -> dict[str, Any]:
            load_engine()
            _ddp.refuse_arguments(of_pytorch)
            _ddp.refuse_parameters(module)
            self._device = _ddp.input_device(module, device_ids, output_device)
            if cap_mib is not None and bucket_cap_mb is not None:
                raise InputError("DataParallel: both cap_mib and bucket_cap_mb; expected one, since they mean the same")
            if buckets not in (None, "automatic"):
                raise InputError(f"DataParallel: buckets '{buckets}'; expected None or 'automatic'")
            if self.strategy in _AWAITED:
                refuse_unawaited(module, self.strategy)
            if plan is not None and self.strategy not in ("planned", "ordered"):
                raise InputError(f"DataParallel: strategy {self.strategy} with a plan; expected planned or ordered")
            index = {} if plan is None else {name: i for i, name in enumerate(plan.order_in_model(module))}
            planned = () if plan is None else plan.buckets
            return {
                "strategy": self.strategy,
                "cap_mib": next((cap for cap in (cap_mib, bucket_cap_mb) if cap is not None), 25.0),
                "first_cap_mib": first_cap_mib,
                "counts": None if plan is None else [len(bucket) for bucket in planned],
                "ready_order": [index[name] for bucket in planned for name in bucket],
                "automatic": buckets == "automatic",
                "log": _say,
                "compression": compression,
                "comm_hook": None,
                "find_unused_parameters": find_unused_parameters,
                "broadcast_buffers": broadcast_buffers,
                "finish_with_backward": finish_with_backward,
                "audit_every": audit_every,
                "link": link,
            }

        self._settings = Ranks(process_group).attempt(settings)
        self.device = next((p.device for p in module.parameters()), None)
        self.device_ids = None if self._device is None else [self._device.index]
        self.output_device = None if self._device is None else self._device.index
        self._start()

    def _start(self) -> None:
        """Makes the engine. Collective."""
        self._audits_optimizers = False
        self._ranks, group, native = Ranks(self._group), self.process_group, load_engine()
        parameters, buffers = self._hookable_parameters(), _ddp.named_buffers(self.module)
        settings = dict(self._settings)
        link = settings.pop("link")
        if self._ranks.link:
            link = self._ranks.link.text
        options = self._ranks.attempt(lambda: native.Options(**settings))
        engine = native.Engine(parameters, buffers, group, options, timeout_s=_timeout_s(group), link=link, world=self._ranks.world)
        self._listen(engine, parameters)

    def _listen(self, engine: Any, parameters: _ddp.NamedTensors) -> None:
        """Lets the engine learn of optimisers' steps, of reads of parameters, and of changes of the module."""
        notice_steps()
        self._running = Arrivals(engine, [p for _, p in parameters])
        if self.strategy in _AWAITED:
            self._leave = weakref.finalize(self, self._running.install(self.module))
        self._parameters_then, self._owners_then = parameters, _ddp.owners(self.module)
        self._was_changed = False  # whether the last forward found other parameters in the module
        self._record_module(engine)

    def _hookable_parameters(self) -> _ddp.NamedTensors:
        """The module's parameters, ready for the engine's hooks.

        Note [Hooks that PyTorch frees]: the first register_hook() on a tensor in Python sets its _backward_hooks, which frees all hooks that C++
        has added to it. So this sets them before the engine adds any.
        """
        parameters = _ddp.named_parameters(self.module)
        for _, p in parameters:
            if p._backward_hooks is None and not p.is_inference():
                p._backward_hooks = collections.OrderedDict()
        return parameters

    def _record_module(self, engine: Any) -> None:
        """Has the engine check the module before it ends a step, and call _follow_change() if that has changed."""
        parts = list(self.module.modules())
        structure = [self._modules, *(held for part in parts for held in (part._parameters, part._modules) if isinstance(held, dict))]
        buffers = [part._buffers for part in parts if isinstance(part._buffers, dict)]
        engine.record_module(weakly(self._follow_change), structure, buffers, any(isinstance(part, torch.jit.ScriptModule) for part in parts))

    def _follow_change(self, is_more_than_values: bool) -> None:
        """Follows a change of the module. is_more_than_values: modules, parameters or names have changed, not only buffers."""
        if is_more_than_values:
            if _ddp.owners(self.module) == self._owners_then:
                self._record_module(self._engine)
            else:
                self._follow_module(self._hookable_parameters())
        self._engine.hold_buffers(_ddp.named_buffers(self.module))

    @property
    def _arrivals(self) -> Arrivals:
        """The running engine; a copy starts its own at first use."""
        if self._running is None:
            self._start()
        assert self._running is not None
        return self._running

    @property
    def _engine(self) -> Any:
        return self._arrivals.engine

    def __getstate__(self) -> dict[str, Any]:
        if self._group not in (None, dist.group.WORLD):
            raise InputError("DataParallel: cannot copy with another process group; expected the default one, as in PyTorch, or a copy of .module")
        self.drain()
        not_copied = ("_group", "_leave", "_owners_then", "_parameters_then", "_ranks", "_running", "_was_changed")
        kept = {name: value for name, value in self.__dict__.items() if name not in not_copied}
        return kept | {"_settings": self._settings | {"comm_hook": None}}  # PyTorch's copies have no hook either

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._group = self._running = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._device is not None:
            (args, *_), (kwargs, *_) = _to_kwargs(args, kwargs, self._device, False)
        running = self._arrivals if torch.is_grad_enabled() else self._running
        if running is None:
            return self.module(*args, **kwargs)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            is_changed = running.engine.is_changed()
            if is_changed or self._was_changed:
                running.engine.add_hooks_to_others(self._hookable_parameters())
            self._was_changed = is_changed
        running.in_forward = True
        try:
            return self.module(*args, **kwargs)
        finally:
            running.in_forward = False

    def _follow_module(self, parameters: _ddp.NamedTensors) -> None:
        if self.strategy in _AWAITED:
            differing = {(name, id(p)) for name, p in parameters} ^ {(name, id(p)) for name, p in self._parameters_then}
            raise InputError(
                f"DataParallel: the module holds other parameters than before{f' ({min(differing)[0]})' if differing else ''}, which strategy"
                f" {self.strategy} does not follow in Python; expected a new DistributedDataParallel and optimiser after such a change"
            )
        engine = self._engine
        engine.follow(parameters)
        self._listen(engine, parameters)

    def parameters_changed(self) -> None:
        """Follows a change of parameters: new ones get rank 0's values. Collective.

        Call it alike on every rank after parameters were thawed, frozen, added or replaced. Otherwise the next step notices
        the change; if values differ between ranks, that step raises a StepError on every rank, and the step after it works.
        Raises InputError under "sharded", and under "ordered" unless the same parameters were only thawed or frozen.
        """
        if self.strategy == "sharded":
            raise InputError("DataParallel: parameters changed under strategy sharded; expected a new DistributedDataParallel and ShardedOptimizer")
        self._engine.parameters_changed()

    def audit(self) -> None:
        """Compares ranks between steps, and raises an AuditError on every rank if they differ. Collective.

        Parameters are compared, the states of audited optimisers, and the options of a ShardedOptimizer.
        """
        self._engine.audit()

    def audit_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Adds an optimiser to audits: its state, and tensors outside of the module that it steps.

        Call it on every rank, but not for a ShardedOptimizer, whose state differs by design.
        """
        self._audit_optimizer(lambda: optimizer)
        self._audits_optimizers = True

    def _audit_optimizer(self, audited: Callable[[], torch.optim.Optimizer | None]) -> None:
        model = weakref.ref(self)

        def tensors() -> _ddp.NamedTensors:
            held, optimizer = model(), audited()
            return [] if held is None or optimizer is None else audited_tensors(optimizer, held.module, held._parameters_then, held._engine)

        self._engine.audit_tensors(tensors)

    def register_comm_hook(self, state: Any, hook: Callable[..., Any]) -> None:
        """Reduces every bucket by hook(state, bucket), as PyTorch's DistributedDataParallel does. Collective.

        The bucket has the methods of PyTorch's, and the gradients of this rank, not divided. The tensor in the Future that
        the hook returns becomes the gradients. An exception in the hook, or in what it chains to its Future, fails the step:
        this rank raises it, the others a StepError. If it comes on some ranks only, before the hook has sent what the others
        wait for, the next step raises a GroupError.

        Raises InputError under other strategies than "bucketed" and "planned" (which take compression=), with
        buckets="automatic", after the first step, and once an OverlappedOptimizer exists.
        """
        if not callable(hook):
            raise InputError(f"register_comm_hook: the hook is a {type(hook).__name__}; expected a function hook(state, bucket) -> Future")
        if self._engine.stats().steps or self._arrivals.optimizers or self._audits_optimizers:
            raise InputError("register_comm_hook: too late; expected before the first step, audit_optimizer() and an OverlappedOptimizer")
        name = getattr(hook, "__qualname__", type(hook).__qualname__)
        if self.strategy in _AWAITED:
            self._leave()
        before, self._running = self._settings, None  # frees the engine
        self._settings = before | {"compression": "none", "comm_hook": (state, _checked(hook, name), name)}
        try:
            self._start()
        except InputError:
            self._settings = before  # with which the next step starts an engine
            raise

    def finish_gradient_synchronization(self) -> None:
        """Ends the step after a synchronising backward(), with finish_with_backward=False; otherwise does nothing."""
        self._engine.finish_gradient_synchronization()

    # What programs read from PyTorch's class, besides device, device_ids and output_device.
    dim, gradient_as_bucket_view, static_graph = 0, True, False

    @property
    def process_group(self) -> dist.ProcessGroup:
        group: dist.ProcessGroup = dist.group.WORLD if self._group is None else self._group  # type: ignore[assignment]
        return group

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulates gradients on this rank only; the next backward outside the context synchronises the sum."""
        before = self._engine.set_gradient_synchronization(False)
        try:
            yield
        finally:
            self._engine.set_gradient_synchronization(before)

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether backward() synchronises gradients; False works like no_sync(). Programs assign to PyTorch's attribute."""
        now: bool = self._engine.set_gradient_synchronization(True)
        self._engine.set_gradient_synchronization(now)
        return now

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, wanted: bool) -> None:
        self._engine.set_gradient_synchronization(wanted)

    @contextlib.contextmanager
    def join(self, step: Callable[[], Any] | None = None) -> Iterator[None]:
        """Lets ranks have different numbers of batches: one that has run out takes part in the others' steps.

            with model.join(optimizer.step):
                for batch in my_batches: ...

        Gradients are averaged over the ranks that have a batch. step: called on the other ranks after each such step,
        with the averaged gradients, so that parameters and optimiser state stay equal everywhere. None: in the end, all
        ranks get the parameters and buffers of the rank that trained longest.
        """
        yield
        mine = self._engine.stats().steps * self._ranks.size + self._ranks.rank
        self._engine.join(step or (lambda: None))
        if step is None:
            longest = int(self._ranks.max([float(mine)])[0]) % self._ranks.size
            _sync_module_states(self.module, self.process_group, 250 * _ddp.MIB, longest, _ddp.ignored(self.module))

    def drain(self) -> None:
        """Waits for everything in flight, as state_dict(), parameters() and copies do ("ordered" and "sharded")."""
        if self._running is not None:
            self._running.drain()

    def abandon_step(self, reason: str = "the step was abandoned") -> None:
        """Fails the step on every rank, with a StepError, because this rank cannot do it, say because its forward raised.

        Call it inside `except`, for every exception that a step raises: it does nothing if the step has failed already, and
        tells two bad batches in a row apart.
        """
        error = sys.exc_info()[1]
        is_another = error is not None and not isinstance(error, StepError) and getattr(error, "_firkin_abandoned_by", None) != id(self)
        with contextlib.suppress(AttributeError):  # some exceptions take no attributes, nor does None
            error._firkin_abandoned_by = id(self)  # type: ignore[union-attr]
        self._engine.abandon_step(reason, is_another)

    def stats(self) -> Any:
        """Of the last finished step, times in seconds: buckets (tensors, bytes, bytes_on_wire, launch_s, end_s), exposed_wait_s,
        steps, forward_wait_s, awaited_bytes, and automatic (a phase)."""
        return self._engine.stats()

    def buckets(self) -> list[list[str]]:
        """The names of the parameters in each bucket in use, in gradient-ready order once a step has observed that."""
        return list(self._engine.bucket_names())


DataParallel = DistributedDataParallel  # a shorter name, like that of nn.DataParallel


def _checked(hook: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Checks a hook's result before PyTorch's C++ code gets it, where None would end the process."""

    def checked(state: Any, bucket: Any) -> Any:
        future = hook(state, bucket)
        if not isinstance(future, torch._C.Future):
            raise InputError(f"register_comm_hook: {name} returned a {type(future).__name__}; expected a torch.futures.Future")
        return future

    return checked


def _say(line: str) -> None:
    _log.warning("%s", line.removeprefix("firkin: "))  # warnings are shown even if the program has not set up logging


def _timeout_s(group: Any) -> float:
    """The timeout of the group's collectives."""
    try:
        return float(group._get_backend(torch.device("cpu")).options._timeout.total_seconds())
    except (AttributeError, RuntimeError):  # the engine will say what is wrong with the group
        return 1800.0
