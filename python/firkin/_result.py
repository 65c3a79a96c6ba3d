"""TuneResult: the outcome of firkin.tune, to wrap a model with, inspect, save, and extrapolate to more ranks."""

from __future__ import annotations

import json
import logging
import os
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firkin import _ddp
from firkin._core import AllReduceTable, InputError, Prediction, Profile, Results
from firkin._plan import Plan
from firkin._ranks import Ranks
from firkin._torch import dist, torch
from torch.nn.parallel import DistributedDataParallel as DDP

_FILE = "tuned.json"
_OF_ACCELERATE = ("broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view", "static_graph")

_log = logging.getLogger("firkin")


@dataclass(frozen=True, repr=False)
class TuneResult:
    """The chosen buckets, their gain, and the measurements, the same on every rank. Pickles without the process group."""

    choice: str  #: "cap" or "torch default"
    plan: Plan  #: the buckets of the choice, as DistributedDataParallel made them
    cap_mib: float  #: the best bucket_cap_mb, even if the choice is PyTorch's default
    step_s: float  #: a training step with the choice: the median, on the slowest rank
    predicted_s: float  #: the prediction for step_s
    speedup: float  #: over PyTorch's default: PyTorch's step over this one
    speedup_ci: tuple[float, float]  #: its 95 % interval; (0, inf) after too few blocks
    notes: tuple[str, ...]  #: remarks, such as what could not be measured
    profile: Profile  #: when each gradient was ready
    curve: AllReduceTable  #: the time of an all-reduce by size
    world_size: int
    _results: Results = field()
    _ddp_options: Mapping[str, Any] = field()
    _group: dist.ProcessGroup | None = field(default=None)

    @classmethod
    def of(cls, results: Results, plan: Plan, ddp_options: Mapping[str, Any], group: dist.ProcessGroup | None = None) -> TuneResult:
        """Makes the result from what was found, and what that does not hold."""
        choice, (speedup, *interval) = "torch default" if results.keeps_default else "cap", results.speedup
        return cls(
            choice, plan, _typed(results.cap_mib), results.step_s, results.predicted_s, speedup, (interval[0], interval[1]), tuple(results.notes),
            results.profile, results.curve, results.world_size, results, ddp_options, group,
        )  # fmt: skip

    @property
    def results_json(self) -> str:
        """Everything, as in a results.json (docs/results.md)."""
        return self._results.to_json()

    def ddp_kwargs(self, **others: Any) -> dict[str, Any]:
        """Arguments for DistributedDataParallel(model, **...): the choice, those it was measured with, and `others`."""
        for name in ("bucket_cap_mb", "bucket_cap_mb_list"):
            if name in others:
                raise InputError(f"ddp_kwargs: '{name}' was tuned; expected other arguments")
        kwargs = {**self._ddp_options, **others}
        if self._group is not None and "device_mesh" not in kwargs:
            kwargs.setdefault("process_group", self._group)
        return kwargs if self.choice == "torch default" else {**kwargs, "bucket_cap_mb": self.cap_mib}

    def summary(self) -> str:
        """The gain, how certain it is, and the line to write into the program."""
        return self._results.answer()

    @property
    def decision(self) -> dict[str, Any]:
        """What to set, what the cap and the options give, how sure that is and what limits it: of results.json (docs/results.md)."""
        return dict(json.loads(self.results_json)["decision"])

    def wrap(self, model: torch.nn.Module, **others: Any) -> DDP:
        """DistributedDataParallel(model, **ddp_kwargs(**others)). Raises InputError if `model` was not tuned."""
        self.plan.order_in_model(model)
        if (here := Ranks(others.get("process_group", self._group)).world) != self.world_size:
            _log.warning("tuned with %d ranks, but there are %d here: result.at(%d) predicts for these", self.world_size, here, here)
        return DDP(model, **self.ddp_kwargs(**others))

    def for_(self, framework: str) -> dict[str, Any]:
        """The choice as keyword arguments of a framework.

        These are "transformers" (TrainingArguments), "accelerate" (DistributedDataParallelKwargs), "lightning"
        (DDPStrategy) and "torch" (DistributedDataParallel). For "deepspeed", "megatron-lm" and "horovod" they have the
        names of the framework's settings. Raises InputError for any other name.
        """
        kwargs = self.ddp_kwargs()
        if framework in ("torch", "lightning"):
            return kwargs
        cap = {} if self.choice == "torch default" else {"bucket_cap_mb": self.cap_mib}
        if framework in ("accelerate", "transformers"):
            kept = {name: kwargs[name] for name in _OF_ACCELERATE if name in kwargs} | cap
            if framework == "accelerate":
                return kept
            kept.pop("gradient_as_bucket_view", None)  # TrainingArguments has no such argument
            return {f"ddp_{name}": value for name, value in ({"find_unused_parameters": False} | kept).items()}
        size = round(self.cap_mib * _ddp.MIB)
        elements = max(1, size // getattr(torch, json.loads(self.results_json)["model"]["dtype"]).itemsize)
        of_others = {
            "deepspeed": {"reduce_bucket_size": elements}, "megatron-lm": {"ddp_bucket_size": elements},
            "horovod": {"HOROVOD_FUSION_THRESHOLD": size},
        }  # fmt: skip
        if framework not in of_others:
            known = ("torch", "transformers", "accelerate", "lightning", *of_others)
            raise InputError(f"for_: '{framework}'; expected one of {', '.join(known)}")
        return of_others[framework]

    def check(self, model: torch.nn.Module) -> str:
        """Checks that `model`, a DistributedDataParallel, has the chosen buckets, as Plan.check() does.

        Returns a line with their sizes. Raises InputError if it has others.
        """
        self.plan.check(model)
        sizes = ", ".join(f"{size / _ddp.MIB:.3g}" for size in self.plan.bucket_bytes)
        return f"check: {len(self.plan.buckets)} buckets, as tuned: {sizes} MiB"

    def at(self, world_size: int, curve: AllReduceTable | None = None) -> Prediction:
        """The prediction for another number of ranks. Raises InputError like firkin.predict().

        curve: all-reduce times of that number of ranks, or of several others, instead of an extrapolation from one.
        """
        return self._results.predict(world_size, curve)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes an HTML page with the measurements, the predictions and the answer; viewing it needs no network."""
        self._results.report(os.fspath(path))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the file that load() reads, results.json, report.html, tensors.csv and allreduce.csv; renames existing ones."""
        self._results.write(os.fspath(folder), json.dumps(self.to_dict()))

    def to_dict(self) -> dict[str, Any]:
        """The result in types of JSON, without the process group and arguments that JSON cannot hold."""
        options = {name: value for name, value in self._ddp_options.items() if isinstance(value, (bool, int, float, str, type(None)))}
        plan = {"buckets": [list(bucket) for bucket in self.plan.buckets], "bytes": dict(self.plan.bytes)}
        return {"plan": plan, "ddp_options": options, "results": json.loads(self.results_json)}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> TuneResult:
        """The reverse of to_dict()."""
        plan = Plan(saved["plan"]["buckets"], saved["plan"]["bytes"])
        return cls.of(Results.parse(json.dumps(saved["results"])), plan, saved["ddp_options"])

    def __reduce__(self) -> tuple[Any, ...]:
        return TuneResult.from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        size = f"{self.cap_mib:.6g} MiB" if self.cap_mib >= 1 / 1024 else f"{round(self.cap_mib * _ddp.MIB)} B"
        cap = "" if self.choice == "torch default" else f" of {size}"
        low, high = self.speedup_ci
        return (
            f"TuneResult({self.choice}{cap}: {self.step_s * 1e3:.4g} ms a step, speedup {self.speedup:.3f} ({low:.3f} to {high:.3f}),"
            f" {self.world_size} ranks)"
        )

    def __str__(self) -> str:
        return str(self._results)


def _typed(cap_mib: float) -> float:
    """The cap rounded to six digits, if that is the same number of bytes."""
    short = float(f"{cap_mib:.6g}")
    return short if round(short * _ddp.MIB) == round(cap_mib * _ddp.MIB) else cap_mib


def load(folder: str | os.PathLike[str]) -> TuneResult:
    """Reads what TuneResult.save(folder) wrote. Raises InputError if it is missing."""
    file = pathlib.Path(folder) / _FILE
    try:
        return TuneResult.from_dict(json.loads(file.read_text()))
    except OSError as error:
        raise InputError(f"load: {file}: {error.strerror}; expected the folder of a saved result") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"load: {file} was not written by save() ({type(error).__name__}: {error})") from None
