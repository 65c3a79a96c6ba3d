"""Plan: the parameters of each bucket, and a check that a wrapped model has these buckets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firkin import _ddp
from firkin._core import InputError, Profile
from firkin._torch import torch


def _described(bucket: tuple[int, Sequence[str]] | None) -> str:
    if bucket is None:
        return "none"
    size, names = bucket
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    shown = f"{size} B" if size < 1024 else f"{size / _ddp.MIB:.4g} MiB"
    return shown + (f" ({listed})" if names else "")


@dataclass(frozen=True)
class Plan:
    """Buckets in the order in which they are reduced, each with the names of its parameters.

    buckets: contiguous in gradient-ready order. bytes: the size of every gradient, by name. Names of a compiled or
    wrapped module ("_orig_mod.", "module.") become those of the module itself.
    """

    buckets: tuple[tuple[str, ...], ...]
    bytes: Mapping[str, int]

    def __post_init__(self) -> None:
        names = iter(_ddp.plain_names([name for bucket in self.buckets for name in bucket]))
        object.__setattr__(self, "buckets", tuple(tuple(itertools.islice(names, len(bucket))) for bucket in self.buckets))
        object.__setattr__(self, "bytes", dict(zip(_ddp.plain_names(self.bytes), self.bytes.values())))
        planned: set[str] = set()
        for k, bucket in enumerate(self.buckets):
            if not bucket:
                raise InputError(f"plan: bucket {k} is empty; expected a parameter")
            for name in bucket:
                if name not in self.bytes:
                    raise InputError(f"plan: bucket {k} has '{name}', whose size is not known; expected it in bytes")
                if name in planned:
                    raise InputError(f"plan: '{name}' is in two buckets; expected it once")
                planned.add(name)

    @classmethod
    def of_counts(cls, profile: Profile, counts: Sequence[int]) -> Plan:
        """The plan with this many tensors per bucket, in the profile's gradient-ready order.

        Raises InputError unless `counts` add up to the profile's tensors.
        """
        if any(count < 1 for count in counts) or sum(counts) != len(profile):
            raise InputError(f"plan: {list(counts)} tensors per bucket; expected positive numbers that add up to {len(profile)}")
        names = iter(profile.names)
        return cls(tuple(tuple(itertools.islice(names, count)) for count in counts), dict(zip(profile.names, profile.bytes)))

    @property
    def bucket_bytes(self) -> list[int]:
        """The size of each bucket."""
        return [sum(self.bytes[name] for name in bucket) for bucket in self.buckets]

    def check(self, model: torch.nn.Module) -> None:
        """Compares the plan with the buckets of `model`, a DistributedDataParallel that has made three steps (four if static).

        Raises an InputError that names the first bucket that differs.
        """
        live = _ddp.live_buckets(model)
        self.order_in_model(_ddp.ddp_in(model).module)
        for k, (our, their) in enumerate(itertools.zip_longest(zip(self.bucket_bytes, self.buckets), live)):
            if our is None or their is None or our[0] != their[0] or (their[1] and set(our[1]) != set(their[1])):
                is_there = "is not there" if their is None else f"has {_described(their)}"
                raise InputError(f"check: bucket {k} {is_there}; expected {_described(our)}")

    def order_in_model(self, model: torch.nn.Module) -> list[str]:
        """The names of the model's parameters in order of registration. Raises InputError for another model."""
        sizes = {name: parameter.nbytes for name, parameter in _ddp.reduced_parameters(model)}
        planned = dict.fromkeys(name for bucket in self.buckets for name in bucket)
        for name, size in sizes.items():
            if name not in self.bytes:
                raise InputError(f"plan: made for another model: parameter '{name}' is not in it")
            if self.bytes[name] != size:
                raise InputError(f"plan: made for another model: '{name}' has {size} bytes, expected {self.bytes[name]}")
            if name not in planned:
                raise InputError(f"plan: parameter '{name}' is in no bucket")
        for name in planned:
            if name not in sizes:
                raise InputError(f"plan: made for another model: no parameter '{name}' that needs a gradient")
        return list(sizes)
