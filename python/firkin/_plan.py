"""Plan: which gradients travel together, as arguments of DistributedDataParallel and as a check of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firkin import _ddp
from firkin._core import InputError, Profile, caps_of_counts
from firkin._torch import torch


def _listed(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _mib(size: int) -> str:
    return f"{size / _ddp.MIB:.4g} MiB"


@dataclass(frozen=True)
class Plan:
    """Buckets in the order in which they are reduced, each with the names of its parameters.

    buckets: contiguous in gradient-ready order. bytes: of every gradient, by name.
    """

    buckets: tuple[tuple[str, ...], ...]
    bytes: Mapping[str, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "buckets", tuple(tuple(bucket) for bucket in self.buckets))
        seen: set[str] = set()
        for k, bucket in enumerate(self.buckets):
            if not bucket:
                raise InputError(f"plan: bucket {k} is empty; expected a parameter")
            for name in bucket:
                if name not in self.bytes:
                    raise InputError(f"plan: bucket {k} has '{name}', whose size is not known; expected it in bytes")
                if name in seen:
                    raise InputError(f"plan: '{name}' is in two buckets; expected it once")
                seen.add(name)

    @classmethod
    def of_counts(cls, profile: Profile, counts: Sequence[int]) -> Plan:
        """The plan with that many tensors in its buckets, in the profile's gradient-ready order. Raises InputError unless they add up."""
        if any(count < 1 for count in counts) or sum(counts) != len(profile):
            raise InputError(f"plan: {list(counts)} tensors per bucket; expected positive numbers that add up to {len(profile)}")
        buckets, first = [], 0
        names = profile.names
        for count in counts:
            buckets.append(tuple(names[first : first + count]))
            first += count
        return cls(tuple(buckets), dict(zip(names, profile.bytes)))

    @property
    def bucket_bytes(self) -> list[int]:
        """Of each bucket."""
        return [sum(self.bytes[name] for name in bucket) for bucket in self.buckets]

    def ddp_kwargs(self, model: torch.nn.Module, *, find_unused_parameters: bool = False, static_graph: bool = False) -> dict[str, Any]:
        """bucket_cap_mb_list, and the arguments given here, for DistributedDataParallel(model, **...).

        PyTorch fills the buckets of a list in gradient-ready order once they are rebuilt (from the second step on; static_graph: from the
        third), from the last ready gradient where DDP_SET_LAST_BUCKET_CAP=1, and with find_unused_parameters (without static_graph) always
        in order of registration, reversed: the list is made for what applies. Raises InputError where PyTorch has no such list, the plan is
        of another model, or no list makes these buckets: parameters of several dtypes or devices (one list is for all of them), or buckets
        that are not runs in the order of registration under find_unused_parameters.
        """
        order = self.order_in_model(model)
        self._check_one_kind(model)
        kwargs: dict[str, Any] = {
            "bucket_cap_mb_list": self.caps_mib(order, find_unused_parameters=find_unused_parameters, static_graph=static_graph)
        }
        if find_unused_parameters:
            kwargs["find_unused_parameters"] = True
        if static_graph:
            kwargs["static_graph"] = True
        return kwargs

    def caps_mib(
        self, registration: Sequence[str], *, find_unused_parameters: bool = False, static_graph: bool = False
    ) -> list[float]:
        """The bucket_cap_mb_list alone. registration: the parameters' names in order of registration. Raises InputError as ddp_kwargs()."""
        if not _ddp.takes_lists():
            raise InputError(f"torch {torch.__version__} has no bucket_cap_mb_list; expected 2.13 or later")
        buckets = self.buckets
        if find_unused_parameters and not static_graph:
            buckets = self._buckets_by_registration(registration)
        elif _ddp.cuts_from_the_end():
            buckets = tuple(tuple(reversed(bucket)) for bucket in reversed(buckets))
        caps = caps_of_counts([len(bucket) for bucket in buckets], [self.bytes[name] for bucket in buckets for name in bucket])
        if caps is None:
            raise InputError("plan: no bucket_cap_mb_list makes it; expected no bucket that ends with an empty parameter")
        return caps

    def check(self, model: torch.nn.Module) -> None:
        """Raises InputError that names the first bucket of `model`, a DistributedDataParallel after some steps, that is another one.

        From what PyTorch itself logged: needs three training steps (static_graph: four).
        """
        live = _ddp.live_buckets(model)
        self.order_in_model(_ddp.ddp_in(model).module)
        sizes = self.bucket_bytes
        for k in range(max(len(sizes), len(live.bytes))):
            ours = f"{_mib(sizes[k])} ({_listed(self.buckets[k])})" if k < len(sizes) else "none"
            if k >= len(live.bytes):
                raise InputError(f"check: bucket {k} is not there; expected {ours}")
            names = _listed(live.names[k]) if live.names else ""
            theirs = f"{_mib(live.bytes[k])} ({names})" if names else _mib(live.bytes[k])
            same_names = live.names is None or k >= len(sizes) or set(live.names[k]) == set(self.buckets[k])
            if k >= len(sizes) or live.bytes[k] != sizes[k] or not same_names:
                raise InputError(f"check: bucket {k} has {theirs}; expected {ours}")

    def order_in_model(self, model: torch.nn.Module) -> list[str]:
        """The parameters in order of registration. Raises InputError when the plan is of another model."""
        parameters = _ddp.reduced_parameters(model)
        for name, parameter in parameters:
            if name not in self.bytes:
                raise InputError(f"plan: made for another model: parameter '{name}' is not in it")
            if self.bytes[name] != _ddp.gradient_bytes(parameter):
                size = _ddp.gradient_bytes(parameter)
                raise InputError(f"plan: made for another model: '{name}' has {size} bytes, expected {self.bytes[name]}")
        names = {name for name, _ in parameters}
        for bucket in self.buckets:
            for name in bucket:
                if name not in names:
                    raise InputError(f"plan: made for another model: no parameter '{name}' that needs a gradient")
        planned = {name for bucket in self.buckets for name in bucket}
        for name, _ in parameters:
            if name not in planned:
                raise InputError(f"plan: parameter '{name}' is in no bucket")
        return [name for name, _ in parameters]

    def _check_one_kind(self, model: torch.nn.Module) -> None:
        parameters = _ddp.reduced_parameters(model)
        for name, parameter in parameters:
            first_name, first = parameters[0]
            if (parameter.dtype, parameter.device) != (first.dtype, first.device):
                raise InputError(
                    f"plan: '{first_name}' is {first.dtype} on {first.device}, '{name}' {parameter.dtype} on {parameter.device}; expected"
                    " one dtype and device, since PyTorch has one list for all"
                )

    def _buckets_by_registration(self, order: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        first, cut = 0, []
        for k in range(len(self.buckets) - 1, -1, -1):
            run = tuple(order[first : first + len(self.buckets[k])])
            if set(run) != set(self.buckets[k]):
                raise InputError(
                    f"plan: with find_unused_parameters PyTorch cuts in the order of registration, of which bucket {k}"
                    f" ({_listed(self.buckets[k])}) is no run; expected static_graph as well, or another plan"
                )
            cut.append(run)
            first += len(run)
        return tuple(cut)
