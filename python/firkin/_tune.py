"""firkin.tune: profile, measure the all-reduce, predict, and check with real steps through DistributedDataParallel."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from firkin import _ddp
from firkin._allreduce import measured_table, sizes_up_to
from firkin._core import AllReduceTable, InputError, Profile, RunFacts, Tuner
from firkin._measure import Samples, Setting, StepBench, check_ddp_options, make_ranks_alike
from firkin._plan import Plan
from firkin._profile import check_same_model, measured_profile, trainable_parameters
from firkin._ranks import Ranks
from firkin._result import TuneResult
from firkin._steps import Step
from firkin._torch import dist, torch

T = TypeVar("T")

_log = logging.getLogger("firkin")

_CALIBRATION_BLOCKS = 4
_FEWEST_BLOCKS = 6  # with fewer, intervals say nothing
_MOST_BLOCKS = 20


@dataclass
class _Job:
    ranks: Ranks
    model: torch.nn.Module
    step: Step
    options: dict[str, Any]
    uniform: bool
    caps_mib: list[float]
    seconds: float
    seed: int
    on_progress: Callable[[str], None]

    def check(self) -> None:
        if self.ranks.size < 2:
            raise InputError("one rank has nobody to communicate with; expected at least 2: torchrun --nproc-per-node 2")
        if not self.seconds > 0:
            raise InputError(f"seconds {self.seconds}; expected more than 0")
        if not callable(self.step):
            raise InputError(f"step is a {type(self.step).__name__}; expected a function that takes the model")
        check_ddp_options(self.options)
        trainable_parameters(self.model)

    def agreed(self) -> dict[str, Any]:
        """What ranks decide by, each for itself."""
        return {
            "uniform": self.uniform,
            "caps_mib": self.caps_mib,
            "seconds": self.seconds,
            "seed": self.seed,
            # Others are each rank's own (device_ids) or of types that cannot be compared.
            "ddp_kwargs": {name: value if isinstance(value, bool) else "..." for name, value in sorted(self.options.items())},
            "torch": torch.__version__,
            "DDP_SET_LAST_BUCKET_CAP=1": _ddp.cuts_from_the_end(),
            "torch.compile": _ddp.is_compiled(self.model),
        }

    @property
    def unused_allowed(self) -> bool:
        return bool(self.options.get("find_unused_parameters"))


def tune(
    model: torch.nn.Module,
    step: Step,
    *,
    group: dist.ProcessGroup | None = None,
    ddp_kwargs: Mapping[str, Any] | None = None,
    uniform: bool = False,
    caps_mib: Sequence[float] = (),
    seconds: float = 150.0,
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> TuneResult:
    """The best gradient buckets for this model on these ranks. Collective: every rank gets the same result.

    model: the module itself, not wrapped. step(model): forward, one backward, optimiser; it is called with the module and with
    DistributedDataParallel around it, about a hundred times, and really trains: afterwards ranks are alike, and further on than before.
    (Steps that are measured without communication find zero gradients in the optimiser.)
    group: None is the default group. ddp_kwargs: other arguments that DistributedDataParallel will be called with. uniform: one cap for all
    buckets, for who cannot pass on bucket_cap_mb_list (the Trainer of Transformers, Accelerate). caps_mib: bucket caps to measure besides
    the best one, by default half and twice that. seconds: for all of it, about; more where six blocks of steps take more.
    on_progress: called on rank 0 with a line now and then; by default they go to the logger "firkin".
    Memory: at most one more copy of the gradients, and 256 MiB while the all-reduce is measured.

    Raises InputError, on every rank, without a process group, with one rank, for a model without parameters, different models, parameters
    of several dtypes or devices, and a step that does not do exactly one backward or leaves a parameter without a gradient.
    """
    ranks = Ranks(group)
    say = on_progress or _log.info
    job = _Job(
        ranks, model, step, dict(ddp_kwargs or {}), uniform, list(caps_mib), seconds, seed, say if ranks.rank == 0 else lambda _: None
    )
    ranks.attempt(job.check)
    ranks.check_same("tune", job.agreed())
    check_same_model(ranks, model, trainable_parameters(model))
    make_ranks_alike(ranks, model)
    started = time.perf_counter()
    profile = measured_profile(
        ranks, model, step, steps=10, warmup=3, seconds=seconds * 0.2, allow_unused=job.unused_allowed, on_progress=job.on_progress
    )
    device = trainable_parameters(model)[0][1].device
    table = measured_table(ranks, device, sizes_up_to(sum(profile.bytes)), min(10.0, seconds * 0.1), seed, job.on_progress)
    lists, notes = _lists_possible(job, profile)
    tuner = _Planner(job, profile, table, lists)
    bench = StepBench(ranks, model, step, trainable_parameters(model), profile, job.options)

    def left_s() -> float:
        return seconds - (time.perf_counter() - started)

    settings = tuner.calibration_settings()
    tuner.calibrate(_blocks(job, bench, "calibrating", settings, _CALIBRATION_BLOCKS, _CALIBRATION_BLOCKS, 0))
    settings = tuner.settings()
    settings = _drop_what_cannot_be_made(tuner, bench, settings, notes)
    samples = _blocks(job, bench, "measuring steps", settings, _FEWEST_BLOCKS, _MOST_BLOCKS, left_s())
    return tuner.result(samples, bench, notes)


def _blocks(job: _Job, bench: StepBench, phase: str, settings: Sequence[Setting], fewest: int, most: int, seconds: float) -> Samples:
    def on_block(done: int) -> None:
        job.on_progress(f"{phase}: block {done}")

    return bench.blocks(settings, fewest=fewest, most=most, seconds=seconds, seed=job.seed, on_block=on_block)


def _lists_possible(job: _Job, profile: Profile) -> tuple[bool, list[str]]:
    """Whether any plan can be run through DistributedDataParallel here, and notes on what cannot."""
    notes = []
    if _ddp.cuts_from_the_end():
        notes.append("DDP_SET_LAST_BUCKET_CAP=1: PyTorch fills buckets of a cap from the last gradient; predictions take the first")
    if job.uniform:
        return False, notes
    if _ddp.is_compiled(job.model):
        notes.append("torch.compile cuts the model's graphs by the bucket cap as well: only uniform caps from 1 MiB on were considered")
        return False, notes
    if not _ddp.takes_lists():
        notes.append(f"torch {torch.__version__} has no bucket_cap_mb_list: only uniform caps were considered")
        return False, notes
    registered = [name for name, _ in _ddp.reduced_parameters(job.model)]
    if job.unused_allowed and not job.options.get("static_graph") and profile.names != registered[::-1]:
        notes.append("find_unused_parameters: PyTorch cuts in the order of registration, not of the gradients: only uniform caps")
        return False, notes
    return True, notes


def _drop_what_cannot_be_made(tuner: _Planner, bench: StepBench, settings: list[Setting], notes: list[str]) -> list[Setting]:
    """Runs the plan once, and leaves it out unless PyTorch made its buckets."""
    planned = [setting for setting in settings if setting.as_list]
    for setting in planned:
        bench.visit(setting)
        live = bench.live[setting.name].bytes
        if live == Plan.of_counts(tuner.profile, setting.counts).bucket_bytes:
            continue
        notes.append(f"the best plan has {len(setting.counts)} buckets, PyTorch made {len(live)} others of its list: left out")
        settings = [other for other in settings if other is not setting]
        tuner.drop_plan()
    return settings


class _Planner:
    """The tuner of rank 0: the others get what it decides, so that nobody rounds otherwise."""

    def __init__(self, job: _Job, profile: Profile, table: AllReduceTable, lists: bool) -> None:
        self.profile = profile
        self._job, self._table = job, table
        self._tuner: Tuner | None = None

        def make() -> None:
            if job.ranks.rank == 0:
                smallest = 1.0 if _ddp.is_compiled(job.model) else 0.0
                self._tuner = Tuner(profile, table, job.ranks.size, lists=lists, smallest_cap_mib=smallest, caps_mib=job.caps_mib)

        job.ranks.attempt(make)

    def calibration_settings(self) -> list[Setting]:
        return self._of_rank_0(lambda tuner: [Setting.of(s) for s in tuner.calibration_settings])

    def calibrate(self, samples: Samples) -> None:
        self._of_rank_0(lambda tuner: tuner.calibrate(samples))

    def settings(self) -> list[Setting]:
        return self._of_rank_0(lambda tuner: [Setting.of(s) for s in tuner.settings])

    def drop_plan(self) -> None:
        self._of_rank_0(lambda tuner: tuner.drop_plan())

    def result(self, samples: Samples, bench: StepBench, notes: list[str]) -> TuneResult:
        def decide(tuner: Tuner) -> tuple[str, tuple[Setting, float, float, float, tuple[float, float, float]]]:
            tuner.decide(samples)
            i = [setting.name for setting in tuner.settings].index(tuner.choice.name)
            cap_mib, measured_s, predicted_s = tuner.best_cap.cap_mib or 0.0, tuner.measured_s(i), tuner.predicted_s(i)
            figures = (Setting.of(tuner.choice), cap_mib, measured_s, predicted_s, tuner.gain_over_default)
            return tuner.results(self._facts(notes), self.profile, self._job.ranks.size), figures

        text, (choice, cap_mib, step_s, predicted_s, over_default) = self._of_rank_0(decide)
        plan = Plan.of_counts(self.profile, choice.counts)
        live = bench.live[choice.name].names
        if live is not None:
            plan = Plan(tuple(tuple(bucket) for bucket in live), plan.bytes)
        parameters = _ddp.reduced_parameters(self._job.model)
        return TuneResult(
            choice="plan" if choice.as_list else "torch default" if choice.cap_mib is None else "cap",
            plan=plan,
            cap_mib=cap_mib,
            step_s=step_s,
            predicted_s=predicted_s,
            over_default=over_default,
            notes=tuple(notes),
            profile=self.profile,
            curve=self._table,
            results_json=text,
            _registration=tuple(name for name, _ in parameters),
            _element_bytes=parameters[0][1].element_size(),
            _ddp_options=self._job.options,
            _group=self._job.ranks.group,
        )

    def _of_rank_0(self, work: Callable[[Tuner], T]) -> T:
        def on_its_tuner() -> T:
            assert self._tuner is not None
            return work(self._tuner)

        return self._job.ranks.on_rank_0(on_its_tuner)

    def _facts(self, notes: list[str]) -> RunFacts:
        parameters = _ddp.reduced_parameters(self._job.model)
        facts = RunFacts()
        facts.model = type(_ddp.without_compile(self._job.model)).__name__
        facts.dtype = str(parameters[0][1].dtype).removeprefix("torch.")
        facts.torch = torch.__version__
        facts.backend = str(self._job.ranks.backend)
        facts.device = parameters[0][1].device.type
        facts.parameters = sum(p.numel() for _, p in parameters)
        facts.command_line = list(sys.argv)
        facts.notes = list(notes)
        return facts
