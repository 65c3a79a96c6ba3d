"""TuneResult: the outcome of firkin.tune, to wrap a model with, inspect, save, and extrapolate to more ranks."""

from __future__ import annotations

import json
import logging
import os
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from math import ceil, floor, log2
from typing import Any

from firkin import _core, _ddp
from firkin._core import AllReduceTable, InputError, Prediction, Profile
from firkin._link import world_of
from firkin._plan import Plan
from firkin._torch import dist, torch
from torch.nn.parallel import DistributedDataParallel as DDP

_FILE = "tuned.json"
_FOLDER = "FIRKIN_TUNED"
_OF_ACCELERATE = ("broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view", "static_graph")

_log = logging.getLogger("firkin")


class Speedup(float):
    """How many times as fast as PyTorch's default buckets the chosen ones are; low and high are the 95 % interval."""

    low: float
    high: float

    def __new__(cls, value: float, low: float, high: float) -> Speedup:
        made = super().__new__(cls, value)
        made.low, made.high = low, high
        return made

    @classmethod
    def of_gain(cls, gain: Mapping[str, Any]) -> Speedup:
        """gain: as in a results.json, whose ratio is this step's time over the default's."""
        low, high = gain["ratio_ci"]["low"], gain["ratio_ci"]["high"]  # null if there were too few blocks
        return cls(1 / gain["ratio"], 1 / high if high else 0.0, 1 / low if low else float("inf"))

    def __getnewargs__(self) -> tuple[float, float, float]:  # type: ignore[override]
        return float(self), self.low, self.high

    def __str__(self) -> str:
        interval = f"{self.low:.3f} to {self.high:.3f}" if self.high < float("inf") else "too few blocks for an interval"
        return f"{float(self):.3f} ({interval})"


@dataclass(frozen=True)
class AtScale:
    """The prediction for more ranks than were measured, under each form in which all-reduce time may grow."""

    world_size: int
    cap_mib: float  #: the uniform cap with the least expected regret
    expected_regret: float  #: its expected cost over the best cap, as a share of backward, given what is uncertain
    caps_mib: Mapping[str, float]  #: the best cap under each form of growth; empty if this world was measured
    prediction: Prediction

    def __str__(self) -> str:
        lines = [f"{self.world_size} ranks: a cap of {self.cap_mib:.3g} MiB, expected to cost {self.expected_regret:.1%} over the best"]
        if self.caps_mib:
            forms = ", ".join(f"{name} {cap:.3g}" for name, cap in self.caps_mib.items())
            lines.append(f"not measured; the best cap in MiB if all-reduces grow as: {forms}")
            lines.append(
                f"one minute on {self.world_size} ranks settles it: curve = firkin.measure_all_reduce(time_budget_s=60), then"
                f" result.at({self.world_size}, curve)"
            )
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class TuneResult:
    """The chosen buckets, their gain, and the measurements behind them.

    The same on every rank. Pickles, except for the process group.
    """

    choice: str  #: "cap" or "torch default"
    plan: Plan  #: the buckets of the choice, as DistributedDataParallel made them
    cap_mib: float  #: the best bucket_cap_mb, even if the choice is PyTorch's default
    step_s: float  #: a training step with the choice: the median, on the slowest rank
    predicted_s: float  #: the prediction for step_s
    speedup: Speedup  #: over PyTorch's default: PyTorch's step over this one; .low and .high are its 95 % interval
    notes: tuple[str, ...]  #: remarks, such as what could not be measured
    profile: Profile  #: when each gradient was ready
    curve: AllReduceTable  #: the time of an all-reduce by size
    world_size: int
    results_json: str  #: everything, as in a results.json (docs/results.md)
    _ddp_options: Mapping[str, Any] = field()
    _group: dist.ProcessGroup | None = field(default=None)

    @classmethod
    def of(
        cls, results_json: str, choice: str, plan: Plan, ddp_options: Mapping[str, Any], group: dist.ProcessGroup | None = None
    ) -> TuneResult:
        """Makes the result from the text of a results.json and from what that does not hold."""
        results = json.loads(results_json)
        keeps = choice == "torch default"
        (chosen,) = (row for row in results["strategies"] if row["strategy"] == ("torch default" if keeps else "chosen cap"))
        nothing = {"ratio": 1.0, "ratio_ci": {"low": 1.0, "high": 1.0}}
        profile, curve = _core.profile_and_curve(results_json)
        return cls(
            choice, plan, _typed(results["decision"]["cap_mib"]), chosen["measured_s"], chosen["predicted_s"],
            Speedup.of_gain(nothing if keeps else results["decision"]["over_default"]), tuple(results.get("notes", ())),
            profile, curve, results["environment"]["world_size"], results_json, ddp_options, group,
        )  # fmt: skip

    def ddp_kwargs(self, **others: Any) -> dict[str, Any]:
        """Arguments for DistributedDataParallel(model, **...): the choice, those it was measured with, and `others`."""
        for name in ("bucket_cap_mb", "bucket_cap_mb_list"):
            if name in others:
                raise InputError(f"ddp_kwargs: '{name}' was tuned; expected other arguments")
        kwargs = {**self._ddp_options, **others}
        if self._group is not None and "device_mesh" not in kwargs:
            kwargs.setdefault("process_group", self._group)
        return kwargs if self.choice == "torch default" else {**kwargs, "bucket_cap_mb": self.cap_mib}

    def line(self) -> str:
        """The line to write into a program."""
        words = [f"{name}={value}" for name, value in self.ddp_kwargs().items() if name not in ("device_mesh", "process_group")]
        return f"DistributedDataParallel({', '.join(['model', *words])})"

    def summary(self) -> str:
        """Three lines: the gain, how certain it is, and the line to write into the program."""
        results = json.loads(self.results_json)
        decision, blocks = results["decision"], len(results["samples"]["step_s"][0])
        others = [f"{cap:.6g}" for cap in decision["tied_mib"] if cap != decision["cap_mib"]]
        tied = f"; the measurement cannot tell {', '.join(others)} MiB from {decision['cap_mib']:.6g}" if others else ""
        return f"{self._sentence()}\n{decision['outcome']}, from {blocks} blocks of steps that had no part in the choice{tied}\n{self.line()}"

    def wrap(self, model: torch.nn.Module, **others: Any) -> DDP:
        """DistributedDataParallel(model, **ddp_kwargs(**others)). Raises InputError if `model` was not tuned."""
        self.plan.order_in_model(model)
        if (here := world_of(others.get("process_group", self._group))) != self.world_size:
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

    def check(self, model: torch.nn.Module, strict: bool = False) -> str:
        """Compares the buckets of `model`, a DistributedDataParallel, with the chosen ones.

        Returns a line, which names the first bucket that differs.

        Reads what PyTorch logged, which takes three training steps (with static_graph four). strict: raise an
        InputError if the buckets differ.
        """
        try:
            self.plan.check(model)
        except InputError as error:
            if strict:
                raise
            return str(error)
        sizes = ", ".join(f"{size / _ddp.MIB:.3g}" for size in self.plan.bucket_bytes)
        return f"check: {len(self.plan.buckets)} buckets, as tuned: {sizes} MiB"

    def at(self, world_size: int, curve: AllReduceTable | None = None) -> AtScale:
        """The prediction for another number of ranks. Raises InputError like firkin.predict().

        curve: all-reduce times measured with that number of ranks, or with several others; they replace the
        extrapolation from one.
        """
        fitted = json.loads(self.results_json).get("calibration", {})
        names = ("overhead_s", "compute_slowdown", "comm_slowdown", "latency_factor", "residual")
        options = {name: fitted[name] for name in names if name in fitted}
        prediction = _core.predict(self.profile, curve or self.curve, world_size=world_size, **options)
        said = json.loads(prediction.to_json())
        named = said["best_uniform"]
        forms = said.get("extrapolation", {}).get("forms", [])
        caps = {form["form"]: form["best_uniform"]["cap_mib"] for form in forms}
        return AtScale(world_size, named["cap_mib"], named["expected_regret"], caps, prediction)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes an HTML page with the measurements, the predictions and the answer; viewing it needs no network."""
        _core.write_report(self.results_json, os.fspath(path))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the file that load() reads, and results.json, report.html, tensors.csv and allreduce.csv.

        Files that were there are renamed, to results.1.json and the like.
        """
        _core.write_run(self.results_json, os.fspath(folder), json.dumps(self.to_dict()))

    def to_dict(self) -> dict[str, Any]:
        """The result in types of JSON, without the process group and arguments that JSON cannot hold."""
        options = {name: value for name, value in self._ddp_options.items() if isinstance(value, (bool, int, float, str, type(None)))}
        named = {name: getattr(self, name) for name in ("choice", "cap_mib", "step_s", "predicted_s", "world_size")}
        speedup = [float(self.speedup), self.speedup.low, self.speedup.high]
        plan = {"buckets": [list(bucket) for bucket in self.plan.buckets], "bytes": dict(self.plan.bytes)}
        return {**named, "speedup": speedup, "plan": plan, "ddp_options": options, "results": json.loads(self.results_json)}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> TuneResult:
        """The reverse of to_dict()."""
        plan = Plan(saved["plan"]["buckets"], saved["plan"]["bytes"])
        return cls.of(json.dumps(saved["results"]), saved["choice"], plan, saved["ddp_options"])

    def __reduce__(self) -> tuple[Any, ...]:
        return TuneResult.from_dict, (self.to_dict(),)

    def __deepcopy__(self, _memo: Any) -> TuneResult:
        return self  # it is immutable

    def plot(self) -> Any:
        """A chart of step time by bucket cap, measured and predicted.

        It is Altair's if that is installed, else Vega-Lite that notebooks draw.
        """
        measured, predicted, default = _points(json.loads(self.results_json))
        x = {"field": "cap", "type": "quantitative", "scale": {"type": "log"}, "title": "bucket cap, MiB"}
        y = {"field": "ms", "type": "quantitative", "scale": {"zero": False}, "title": "step, ms"}
        layers = [
            {"data": {"values": predicted}, "mark": "line", "encoding": {"x": x, "y": y}},
            {"data": {"values": measured}, "mark": "rule", "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}}},
            {"data": {"values": measured}, "mark": {"type": "point", "filled": True}, "encoding": {"x": x, "y": y}},
            {"data": {"values": default}, "mark": {"type": "rule", "strokeDash": [4, 4]}, "encoding": {"y": y}},
        ]
        spec = {"$schema": "https://vega.github.io/schema/vega-lite/v5.json", "title": self._sentence(), "layer": layers}
        try:
            import altair  # type: ignore[import-not-found]
        except ImportError:
            return VegaLite(spec)
        return altair.Chart.from_dict(spec)

    def _sentence(self) -> str:
        link = json.loads(self.results_json)["environment"].get("link")
        ms = f"{self.step_s * 1e3:.4g} ms a step" + (f" over a modelled link ({link})" if link else "")
        if self.choice == "torch default":
            return f"keep PyTorch's default: {ms}"
        return f"bucket_cap_mb={self.cap_mib:.6g}: {ms}, {self.speedup} times as fast as PyTorch's default"

    def __repr__(self) -> str:
        return f"TuneResult({self._sentence()}; {len(self.plan.buckets)} buckets, {self.world_size} ranks)"

    def __str__(self) -> str:
        return _core.results_in_words(self.results_json)

    def _repr_html_(self) -> str:
        """What a notebook shows: a sentence, a table and a chart."""
        results = json.loads(self.results_json)
        rows = [(f"{row['cap_mib']:.3g} MiB", row) for row in results["curve"]]
        rows += [(row["strategy"], row) for row in results["strategies"]]

        def ms(seconds: float | None) -> str:
            return "" if seconds is None else f"{seconds * 1e3:.4g}"

        cells = []
        for name, row in rows:
            low, high = row["measured_ci_s"]["low"], row["measured_ci_s"]["high"]
            interval = "too few blocks" if high is None else f"{ms(low)} to {ms(high)}"
            cells.append((name, row.get("buckets", ""), ms(row["measured_s"]), interval, ms(row.get("predicted_s"))))
        head = "".join(f"<th>{name}</th>" for name in ("buckets by", "how many", "step, ms", "95 % interval", "predicted"))
        body = "".join('<tr align="right">' + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in cells)
        return f"<p>{escape(self._sentence())}</p><table><tr align='right'>{head}</tr>{body}</table>{_drawn(results)}"


def _typed(cap_mib: float) -> float:
    """The cap with six digits, as a person would write it, if that is the same number of bytes."""
    short = float(f"{cap_mib:.6g}")
    return short if round(short * _ddp.MIB) == round(cap_mib * _ddp.MIB) else cap_mib


def _points(results: Mapping[str, Any]) -> tuple[list[dict[str, float]], ...]:
    """Milliseconds a step by cap, measured and predicted, and with PyTorch's default.

    Measured points have an interval, which is empty if there were too few blocks.
    """
    measured = []
    for row in results["curve"]:
        ms, interval = row["measured_s"] * 1e3, row["measured_ci_s"]
        low, high = (interval["low"] * 1e3, interval["high"] * 1e3) if interval["high"] is not None else (ms, ms)
        measured.append({"cap": row["cap_mib"], "ms": ms, "low": low, "high": high})
    predicted = [{"cap": row["cap_mib"], "ms": row["predicted_s"] * 1e3} for row in results.get("dense_curve", [])]
    default = [{"ms": row["measured_s"] * 1e3} for row in results["strategies"] if row["strategy"] == "torch default"]
    return measured, predicted, default


def _drawn(results: Mapping[str, Any], width: int = 480, height: int = 200) -> str:
    """The predicted curve, the measured intervals and PyTorch's default, as SVG; caps on a logarithmic axis."""
    measured, predicted, default = _points(results)
    caps = [point["cap"] for point in (*predicted, *measured)]
    times = [value for point in (*predicted, *measured, *default) for name, value in point.items() if name != "cap"]
    (left, right), (low, high) = (log2(min(caps)), log2(max(caps))), (min(times), max(times))

    def at(cap: float, ms: float) -> tuple[float, float]:
        x = 70 + (width - 90) * (log2(cap) - left) / ((right - left) or 1)
        return round(x, 1), round(height - 40 - (height - 60) * (ms - low) / ((high - low) or 1), 1)

    line = " ".join(f"{x},{y}" for x, y in (at(point["cap"], point["ms"]) for point in predicted))
    drawn = f'<polyline fill="none" stroke="#888" points="{line}"/>'
    for point in default:
        (x0, y), (x1, _) = at(min(caps), point["ms"]), at(max(caps), point["ms"])
        drawn += f'<line x1="{x0}" x2="{x1}" y1="{y}" y2="{y}" stroke="#888" stroke-dasharray="4"/>'
    for point in measured:
        (x, y), (_, y0), (_, y1) = (at(point["cap"], point[name]) for name in ("ms", "low", "high"))
        drawn += f'<line x1="{x}" x2="{x}" y1="{y0}" y2="{y1}" stroke="#06c"/><circle cx="{x}" cy="{y}" r="3" fill="#06c"/>'
    words = [(64, at(caps[0], ms)[1] + 4, "end", f"{ms:.4g} ms") for ms in (low, high)]
    words += [(at(2.0**power, low)[0], height - 22, "middle", f"{2.0**power:.3g}") for power in range(ceil(left), floor(right) + 1)]
    words.append((70, height - 5, "start", "cap in MiB; line: predicted, dots: measured, dashes: PyTorch's"))
    drawn += "".join(f'<text x="{x}" y="{y}" text-anchor="{end}" font-size="11">{escape(text)}</text>' for x, y, end, text in words)
    return f'<svg width="{width}" height="{height}" role="img" fill="currentColor">{drawn}</svg>'


class VegaLite(dict[str, Any]):
    """A Vega-Lite chart that notebooks draw."""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {"application/vnd.vegalite.v5+json": dict(self), "text/plain": str(self.get("title", ""))}


def load(folder: str | os.PathLike[str] | None = None) -> TuneResult:
    """Reads what TuneResult.save(folder) wrote. Raises InputError if it is missing.

    folder: None is the folder that the environment variable FIRKIN_TUNED names.
    """
    place = folder if folder is not None else os.environ.get(_FOLDER)
    if place is None:
        raise InputError(f"load: no folder, and {_FOLDER} is not set; expected the folder of a saved result")
    file = pathlib.Path(place) / _FILE
    try:
        return TuneResult.from_dict(json.loads(file.read_text()))
    except OSError as error:
        raise InputError(f"load: {file}: {error.strerror}; expected the folder of a saved result") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"load: {file} was not written by save() ({type(error).__name__}: {error})") from None
