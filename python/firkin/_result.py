"""TuneResult: what firkin.tune found."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firkin import _core
from firkin._core import AllReduceTable, InputError, Profile
from firkin._plan import Plan
from firkin._torch import dist, torch


class Speedup(float):
    """How many times as fast as with PyTorch's default a step is, and its 95 % interval."""

    low: float
    high: float

    def __new__(cls, value: float, low: float, high: float) -> Speedup:
        made = super().__new__(cls, value)
        made.low, made.high = low, high
        return made

    @classmethod
    def of_ratio(cls, ratio: float, low: float, high: float) -> Speedup:
        """Of the step's time over the default's."""
        return cls(1 / ratio, 1 / high, 1 / low)

    def __getnewargs__(self) -> tuple[float, float, float]:
        return float(self), self.low, self.high

    def __repr__(self) -> str:
        return f"{float(self):.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class TuneResult:
    """The choice, how sure it is, and what it was made from. The same on every rank."""

    choice: str  #: "plan", "cap", or "torch default"
    plan: Plan  #: the buckets of the choice, as DistributedDataParallel made them
    cap_mib: float  #: the best uniform bucket_cap_mb, also where the choice is another
    step_s: float  #: a training step with the choice: median, of the slowest rank
    predicted_s: float  #: the same, predicted
    speedup: Speedup  #: over PyTorch's default: PyTorch's step over this one; .low and .high are its 95 % interval
    notes: tuple[str, ...]  #: what else one has to know
    profile: Profile  #: when each gradient was ready
    curve: AllReduceTable  #: the time of an all-reduce by size
    results_json: str = field(repr=False)  #: everything, as in a results.json (docs/results.md)
    _registration: tuple[str, ...] = field(repr=False)
    _element_bytes: int = field(repr=False)
    _ddp_options: Mapping[str, Any] = field(repr=False)
    _group: dist.ProcessGroup | None = field(repr=False)

    def ddp_kwargs(self, **others: Any) -> dict[str, Any]:
        """Arguments for DistributedDataParallel(model, **...): those of the choice, those that it was measured with, and `others`.

        Raises InputError when the choice is a plan that PyTorch cannot make together with `others` (find_unused_parameters).
        """
        for name in ("bucket_cap_mb", "bucket_cap_mb_list"):
            if name in others:
                raise InputError(f"ddp_kwargs: '{name}' is what was tuned; expected other arguments")
        kwargs = {**self._ddp_options, **others}
        if self._group is not None:
            kwargs.setdefault("process_group", self._group)
        if self.choice == "cap":
            kwargs["bucket_cap_mb"] = self.cap_mib
        elif self.choice == "plan":
            unused, static = bool(kwargs.get("find_unused_parameters")), bool(kwargs.get("static_graph"))
            kwargs["bucket_cap_mb_list"] = self.plan.caps_mib(self._registration, find_unused_parameters=unused, static_graph=static)
        return kwargs

    def check(self, model: torch.nn.Module) -> None:
        """Raises InputError that names the first bucket of `model`, a DistributedDataParallel, that is not the choice's.

        From what PyTorch itself logged: after three training steps (static_graph: four).
        """
        self.plan.check(model)

    def settings(self) -> dict[str, str]:
        """The choice as it is written in other tools, by the tool's name: "transformers", "accelerate", "lightning", "deepspeed", ..."""
        caps = self.plan.caps_mib(self._registration) if self.choice == "plan" else []
        return dict(_core.settings_to_paste(self.cap_mib, self._element_bytes, caps))

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes a page that opens without a network: what was measured, what was predicted, and the answer in words."""
        _core.write_report(self.results_json, os.fspath(path))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes results.json, report.html, tensors.csv and allreduce.csv; an earlier result goes to folder/older/."""
        _core.write_run(self.results_json, self.profile, self.curve, os.fspath(folder))

    def __str__(self) -> str:
        return _core.results_in_words(self.results_json)
