"""What PyTorch's DistributedDataParallel makes of a module and of its arguments, and what it logs about its buckets."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from firkin._core import InputError
from firkin._torch import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

MIB = 1 << 20
NamedTensors: TypeAlias = "list[tuple[str, torch.Tensor]]"  # as a string, because the documentation imports this without PyTorch

_INSTEAD = {  # what to write instead of an argument of PyTorch's class
    "bucket_cap_mb_list": "plan=, as in plan=result.plan",
    "device_mesh": "process_group=mesh.get_group()",
    "forward_sync_buffers": "broadcast_buffers=",
    "static_graph": "find_unused_parameters=True if parameters get no gradient, else it left out",
}


def refuse_arguments(arguments: Mapping[str, Any]) -> None:
    """Raises an error unless these arguments, which only PyTorch's class has, change nothing."""
    theirs = inspect.signature(DDP.__init__).parameters
    for name, value in arguments.items():
        if name not in theirs:
            raise TypeError(f"DistributedDataParallel.__init__() got an unexpected keyword argument '{name}'")
        if value != theirs[name].default and name != "gradient_as_bucket_view":  # gradients always are views
            raise InputError(f"DataParallel: {name} exists only in PyTorch's class; expected {_INSTEAD.get(name, 'it left out')}")


def refuse_parameters(module: torch.nn.Module) -> None:
    """Raises an error for parameters whose gradients cannot be averaged."""
    for name, tensor in (*named_parameters(module), *named_buffers(module)):
        if torch.nn.parameter.is_lazy(tensor):
            raise InputError(f"DataParallel: {name} of a lazy module has no shape yet; expected a forward pass before")
    for name, p in named_parameters(module):
        if p.requires_grad and getattr(p, "grad_dtype", p.dtype) != p.dtype:  # PyTorch 2.10
            raise InputError(f"DataParallel: {name} is {p.dtype}, and its gradient {p.grad_dtype}; expected one type")
        if getattr(p, "_in_backward_optimizers", None):
            raise InputError(
                f"DataParallel: an optimiser steps {name} in backward, before ranks have averaged its gradient; expected optimizer.step()"
                " after backward(), or the strategy 'ordered' with an OverlappedOptimizer"
            )


def input_device(
    module: torch.nn.Module, ids: Sequence[int | str | torch.device] | None, output: int | str | torch.device | None
) -> torch.device | None:
    """The device to which PyTorch's class moves inputs."""
    wanted = [each for each in (*(ids or []), output) if each is not None]
    given = {torch.device("cuda", each) if isinstance(each, int) else torch.device(each) for each in wanted}
    devices = {p.device for p in module.parameters()}
    if given and (not ids or given != devices or torch.device("cpu") in given):
        where = ", ".join(sorted(map(str, devices)))
        raise InputError(f"DataParallel: device_ids {ids}, output_device {output} for a module on {where}; expected its one GPU, or None")
    return next(iter(given), None)


def takes_lists() -> bool:
    """Whether this PyTorch has bucket_cap_mb_list, as 2.13 does."""
    return "bucket_cap_mb_list" in inspect.signature(DDP.__init__).parameters


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether torch.compile wraps the module or a part of it."""
    parts = [(type(part).__name__, getattr(part, "_compiled_call_impl", None)) for part in module.modules()]
    return any(name == "OptimizedModule" or compiled is not None for name, compiled in parts)


def without_compile(module: torch.nn.Module) -> torch.nn.Module:
    """The module that torch.compile(module) wraps."""
    inner: torch.nn.Module = getattr(module, "_orig_mod", module)
    return inner


def plain_names(names: Iterable[str]) -> list[str]:
    """Parameter names without what torch.compile and DistributedDataParallel put before them."""
    plain = [name.replace("_orig_mod.", "") for name in names]
    if all(name.startswith("module.") for name in plain):
        plain = [name.removeprefix("module.") for name in plain]
    return plain


def ignored(module: torch.nn.Module) -> set[str]:
    """Names of the parameters and buffers that DistributedDataParallel leaves alone."""
    return set(getattr(module, "_ddp_params_and_buffers_to_ignore", []))


# These two call torch.nn.Module's own methods, which a class may override: PyTorch's DistributedDataParallel does not call the overrides.
def named_parameters(module: torch.nn.Module) -> NamedTensors:
    """Parameters, a tied one under each of its names. Leaves out tensors that were computed from others (weight dropping, the old weight norm)."""
    return [each for each in _synchronised(module, torch.nn.Module.named_parameters(module, remove_duplicate=False)) if each[1].is_leaf]


def named_buffers(module: torch.nn.Module) -> NamedTensors:
    """Buffers, a shared one under each of its names."""
    return _synchronised(module, torch.nn.Module.named_buffers(module, remove_duplicate=False))


def owners(module: torch.nn.Module) -> set[tuple[int, str, int]]:
    """Which module holds which of these parameters, and as what: the same for other paths to the same modules."""
    named = named_parameters(module)
    known = {id(p) for _, p in named}
    return {(id(part), name, id(p)) for part in module.modules() for name, p in part._parameters.items() if id(p) in known}


def _synchronised(module: torch.nn.Module, named: Iterable[tuple[str, torch.Tensor]]) -> NamedTensors:
    names = ignored(module)
    tensors = [(name, tensor) for name, tensor in named if name not in names]
    for name, tensor in tensors:
        if is_traceable_wrapper_subclass(tensor):  # the tensor has no memory of its own
            raise InputError(f"DataParallel: {name} is a {type(tensor).__name__}, which holds other tensors; expected plain tensors")
    return tensors


def reduced_parameters(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters that DistributedDataParallel reduces, in order of registration, by their plain names."""
    names = ignored(module)
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad and p.is_leaf and name not in names}
    return list(zip(plain_names(parameters), parameters.values()))


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.replace(",", " ").split()]


def _runs(parameters: list[tuple[str, torch.nn.Parameter]], sizes: list[int]) -> list[list[str]]:
    """Divides the parameters into runs of these sizes and returns their names, the last run first.

    Returns [] if a size ends inside a parameter.
    """
    ends = {0: 0} | {end: i for i, end in enumerate(itertools.accumulate(p.nbytes for _, p in parameters), start=1)}
    cuts = [ends.get(size, -1) for size in itertools.accumulate(sizes, initial=0)]
    if -1 in cuts or cuts[-1] != len(parameters):
        return [[] for _ in sizes]
    return [[name for name, _ in parameters[begin:end]] for begin, end in itertools.pairwise(cuts)][::-1]


def remove_hooks(ddp: DDP) -> None:
    """Removes the hooks by which `ddp` learns of gradients, so that its module can be wrapped again."""
    ddp.reducer._remove_autograd_hooks()
    for hook in ddp._accum_grad_hooks:
        hook.remove()


def ddp_in(model: torch.nn.Module, what: str = "check") -> DDP:
    """The DistributedDataParallel that `model` is or contains. Raises InputError if there is none."""
    for part in model.modules() if isinstance(model, torch.nn.Module) else ():
        if isinstance(part, DDP):
            return part
    raise InputError(f"{what}: {type(model).__name__} neither is nor contains a DistributedDataParallel; expected the wrapped model")


def wire_dtype(ddp: DDP, dtype: torch.dtype) -> torch.dtype | None:
    """The dtype in which gradients of `dtype` travel; None if an unknown communication hook decides that."""
    for hook, _ in getattr(ddp, "_comm_hooks", ()):
        name = getattr(hook, "__name__", "")
        compressed = torch.bfloat16 if "bf16_compress" in name else torch.float16 if "fp16_compress" in name else None
        return dtype if name == "allreduce_hook" else compressed
    return dtype


def live_buckets(model: torch.nn.Module) -> list[tuple[int, list[str]]]:
    """The buckets that `model` has logged, in the order in which they are reduced: bytes, and parameters if these are known.

    Raises InputError if it is no DistributedDataParallel, or has made too few steps.
    """
    ddp = ddp_in(model)
    parameters = reduced_parameters(ddp.module)
    logged: dict[str, Any] = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    if ddp.find_unused_parameters and not ddp.static_graph:  # PyTorch never rebuilds these
        sizes = _numbers(logged["bucket_sizes"])
        return list(zip(sizes, _runs(parameters, sizes[::-1])))
    if not logged.get("has_rebuilt_buckets"):
        steps = 4 if ddp.static_graph else 3
        raise InputError(f"check: no rebuild of the buckets is logged yet; expected at least {steps} training steps first")
    names = [[parameters[i][0] for i in _numbers(part)] for part in logged["rebuilt_per_bucket_param_indices"].split(",")]
    return list(zip(_numbers(logged["rebuilt_bucket_sizes"]), names))
