"""firkin.tune: profile, measure the all-reduce, predict, and check with real steps through DistributedDataParallel."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from firkin import _ddp
from firkin._allreduce import measured_table
from firkin._core import AllReduceTable, InputError, Profile, RunFacts, Tuner, allreduce_sizes
from firkin._measure import Samples, Setting, StepBench, Wrapping, check_ddp_options, warmup_steps
from firkin._plan import Plan
from firkin._profile import check_same_model, measured_profile, trainable_parameters
from firkin._progress import Progress
from firkin._ranks import Ranks
from firkin._result import Speedup, TuneResult
from firkin._state import State
from firkin._steps import CountedStep, Step
from firkin._torch import dist, torch
from torch.nn.parallel import DistributedDataParallel as DDP

T = TypeVar("T")

_log = logging.getLogger("firkin")

_PROFILE_STEPS, _PROFILE_WARMUP = 10, 3
_CALIBRATION_SETTINGS, _RACED = 4, 4  # _RACED: caps, at most, but for those that are asked for
_MOST_RACE_BLOCKS, _MOST_BLOCKS = 10, 20
_RACE_SHARE = 0.4  # of the time that is left after the calibration, at most
_SLACK_S = 10.0  # over time_budget_s, of which nothing is said


class _Effort(NamedTuple):
    timed_steps: int  # per visit of a setting
    calibration_blocks: int
    fewest_race_blocks: int
    fewest_blocks: int


_EFFORTS = (_Effort(2, 4, 3, 6), _Effort(1, 2, 3, 6), _Effort(1, 1, 2, 3))  # the first that fits into the time, else the last


@dataclass
class _Job:
    ranks: Ranks
    model: torch.nn.Module
    options: dict[str, Any]
    wrap: Callable[..., torch.nn.Module]
    uniform: bool
    caps_mib: list[float]
    time_budget_s: float
    seed: int
    restore: bool
    progress: Progress
    compiled: bool = False  # the model, or what wraps it

    def check(self) -> None:
        if self.ranks.size < 2:
            raise InputError("one rank has nobody to communicate with; expected at least 2: torchrun --nproc-per-node 2")
        if not self.time_budget_s > 0:
            raise InputError(f"time_budget_s {self.time_budget_s}; expected more than 0")
        check_ddp_options(self.options)
        trainable_parameters(self.model)

    def agreed(self) -> dict[str, Any]:
        """What ranks decide by, each for itself."""
        return {
            "uniform": self.uniform,
            "caps_mib": self.caps_mib,
            "time_budget_s": self.time_budget_s,
            "seed": self.seed,
            "restore": self.restore,
            # Others are each rank's own (device_ids) or of types that cannot be compared.
            "ddp_kwargs": {name: value if isinstance(value, bool) else "..." for name, value in sorted(self.options.items())},
            "torch": torch.__version__,
            "DDP_SET_LAST_BUCKET_CAP=1": _ddp.cuts_from_the_end(),
            "torch.compile": _ddp.is_compiled(self.model),
        }

    def calls(self, fewest: bool, effort: _Effort) -> int:
        """How often step is called, at the fewest or the most."""
        timed = effort.timed_steps
        visit, caps = timed + warmup_steps(self.options), max(_RACED, len(self.caps_mib) + 1)

        def beside_none(blocks: int, settings: int) -> int:
            return blocks * (settings * visit + 1 + timed)

        steps, race = (1, effort.fewest_race_blocks) if fewest else (_PROFILE_STEPS, _MOST_RACE_BLOCKS)
        profile = (1 if fewest else _PROFILE_WARMUP) + (3 if self.compiled else 2) * steps
        gain = beside_none(effort.fewest_blocks if fewest else _MOST_BLOCKS, 2)
        return profile + beside_none(effort.calibration_blocks, _CALIBRATION_SETTINGS) + race * caps * visit + gain

    @property
    def unused_allowed(self) -> bool:
        return bool(self.options.get("find_unused_parameters") or self.options.get("static_graph"))


def tune(
    model: torch.nn.Module,
    step: Step,
    *,
    process_group: dist.ProcessGroup | None = None,
    ddp_kwargs: Mapping[str, Any] | None = None,
    wrap: Callable[..., torch.nn.Module] = DDP,
    uniform: bool = False,
    caps_mib: Sequence[float] = (),
    time_budget_s: float = 150.0,
    seed: int = 0,
    restore: bool = True,
    progress: bool = True,
) -> TuneResult:
    """The best gradient buckets for this model on these ranks. Collective: every rank gets the same result.

    model: the module itself, not wrapped. step(model): one training step, with the model that it is given: forward, backward, optimiser;
    where gradients are accumulated, all but the last backward under `with model.no_sync():`. It is called some hundred times, with a
    module that is called as DistributedDataParallel is, or that.
    process_group: None is the default group, or that of ddp_kwargs' device_mesh. ddp_kwargs: other arguments that DistributedDataParallel
    will be called with. wrap(model, **kwargs): how you wrap the model, where that is more: registering a communication hook, compiling.
    uniform: never passes bucket_cap_mb_list, also not to calibrate. caps_mib: bucket caps to measure besides the best predicted.
    time_budget_s: for all of it, about; where steps are slow it does fewer, and a line of the logger "firkin" says where even these take longer.
    restore: afterwards, also after an error, everything is as it was before: parameters, buffers, gradients, the state of optimisers,
    schedules and gradient scalers, random numbers; it is on the host meanwhile. Loaders, and what else step changes, stay further on.
    False: step trains on, with zero gradients in the steps that are measured without communication. progress: a bar on rank 0.
    Memory: at most one more copy of the gradients, and 256 MiB while the all-reduce is measured.

    Raises InputError, on every rank, without a process group, with one rank, for a model without parameters, different models, parameters
    on several devices, a step that does not do exactly one backward that averages, does not call the model that it is given, or leaves a
    parameter without a gradient, and where the batches end. RuntimeError where something could not be put back, or ranks drifted apart.
    """
    options = dict(ddp_kwargs or {})
    process_group = options.pop("process_group", process_group)
    if process_group is None and "device_mesh" in options:
        process_group = options["device_mesh"].get_group()
    ranks = Ranks(process_group)
    shown = Progress(time_budget_s, ranks.rank == 0 and progress)
    job = _Job(ranks, model, options, wrap, uniform, list(caps_mib), time_budget_s, seed, restore, shown)
    ranks.attempt(job.check)
    counted = ranks.attempt(lambda: CountedStep(step, job.calls(False, _EFFORTS[0])))
    ranks.check_same("tune", job.agreed())
    check_same_model(ranks, model, trainable_parameters(model))
    state, wrapping = State(model), Wrapping(ranks, model, options, wrap)
    if restore:
        state.keep()
    try:
        result, unlike = _tuned(job, counted, state, wrapping)
    finally:
        shown.close()
        wrapping.graphs.reset()
        for parameter in state.parameters:
            parameter.grad = None
        if restore:
            state.put_back()
    if restore:
        state.check_put_back(ranks)
        return result
    for name in sorted(State(model).unlike(ranks) - unlike):
        raise RuntimeError(f"tune: '{name}' is not the same on every rank any more; expected a step that leaves ranks alike")
    return result


def _tuned(job: _Job, step: CountedStep, state: State, wrapping: Wrapping) -> tuple[TuneResult, set[str]]:
    """What was found, and what ranks did not have in common at the start."""
    ranks, started = job.ranks, time.perf_counter()
    parameters = trainable_parameters(job.model)
    wire, profiled = wrapping.alike(parameters[0][1].dtype)
    job.compiled = wrapping.graphs.compiled
    unlike = state.unlike(ranks)
    with wrapping.graphs.of("profile"):
        profile = measured_profile(
            ranks, profiled, step, steps=_PROFILE_STEPS, warmup=_PROFILE_WARMUP, seconds=job.time_budget_s * 0.2,
            find_unused_parameters=job.unused_allowed, zeroed=state.parameters, on_progress=job.progress.at,
        )  # fmt: skip
    lists, notes = _lists_possible(job, profile)
    if wire is None:
        notes.append("a communication hook: the all-reduce was measured, and its time predicted, without it; steps were measured with it")
    effort = _effort(job, step.seconds / step.calls, notes)
    table = measured_table(
        ranks, parameters[0][1].device, allreduce_sizes(sum(profile.bytes)), min(10.0, job.time_budget_s * 0.1), job.seed, job.progress.at,
        (parameters[0][1].dtype, wire or parameters[0][1].dtype),
    )  # fmt: skip
    tuner = _Planner(job, profile, table, lists)
    bench = StepBench(ranks, wrapping, step, parameters, profile, state, job.restore, effort.timed_steps)

    def blocks(
        phase: str, settings: Sequence[Setting | None], fewest: int, most: int, share: float,
        is_enough: Callable[[Samples], bool] = lambda _: False,
    ) -> Samples:  # fmt: skip
        def on_block(done: int) -> None:
            job.progress.at(f"{phase}: block {done}")

        seconds = share * (job.time_budget_s - (time.perf_counter() - started))
        return bench.blocks(settings, fewest=fewest, most=most, seconds=seconds, seed=job.seed, on_block=on_block, is_enough=is_enough)

    calibration = [None, *tuner.calibration_settings()]
    tuner.calibrate(blocks("calibrating", calibration, effort.calibration_blocks, effort.calibration_blocks, 0))
    blocks("racing the best caps", tuner.race_settings(), effort.fewest_race_blocks, _MOST_RACE_BLOCKS, _RACE_SHARE, tuner.race)
    samples = blocks("measuring the gain", [None, *tuner.gain_settings()], effort.fewest_blocks, _MOST_BLOCKS, 1)
    notes.append(f"step was called {step.calls} times: loaders, and what else it counts itself, are that much further on")
    return tuner.result(samples, bench, notes), unlike


def _effort(job: _Job, step_s: float, notes: list[str]) -> _Effort:
    """Less where steps are slow; where even that is too long, a line says so."""
    step_s = job.ranks.max([step_s])[0]
    effort = next((each for each in _EFFORTS if job.calls(True, each) * step_s <= job.time_budget_s), _EFFORTS[-1])
    if effort.fewest_blocks < _EFFORTS[0].fewest_blocks:
        notes.append(f"steps of {step_s:.2g} s: {effort.fewest_blocks} blocks or a few more were to fit into the time: intervals are rough")
    fewest_s = job.calls(True, effort) * step_s
    job.progress.expect(fewest_s)
    if fewest_s > 1.25 * job.time_budget_s + _SLACK_S:
        notes.append(f"a step takes {step_s:.2g} s, and the {job.calls(True, effort)} that are needed more than time_budget_s")
        if job.ranks.rank == 0:
            _log.warning("tune: %s: about %.0f s in all, not %g", notes[-1], fewest_s, job.time_budget_s)
    return effort


def _lists_possible(job: _Job, profile: Profile) -> tuple[bool, list[str]]:
    """Whether any plan can be run through DistributedDataParallel here, and notes on what cannot."""
    notes = []
    if _ddp.cuts_from_the_end():
        notes.append("DDP_SET_LAST_BUCKET_CAP=1: PyTorch fills buckets of a cap from the last gradient; predictions take the first")
    if job.uniform:
        return False, notes
    if job.compiled:
        notes.append(
            "torch.compile cuts the model's graphs by the bucket cap as well: only uniform caps from 1 MiB on were considered, each with"
            " graphs of its own; when gradients are ready was profiled without it"
        )
        return False, notes
    if len({p.dtype for _, p in _ddp.reduced_parameters(job.model)}) > 1:
        notes.append("parameters of several dtypes: a bucket holds one, and a list is for all of them: only uniform caps were considered")
        return False, notes
    if not _ddp.takes_lists():
        notes.append(f"torch {torch.__version__} has no bucket_cap_mb_list: only uniform caps were considered")
        return False, notes
    registered = [name for name, _ in _ddp.reduced_parameters(job.model)]
    if job.unused_allowed and not job.options.get("static_graph") and profile.names != registered[::-1]:
        notes.append("find_unused_parameters: PyTorch cuts in the order of registration, not of the gradients: only uniform caps")
        return False, notes
    return True, notes


class _Planner:
    """The tuner of rank 0: the others get what it decides, so that nobody rounds otherwise."""

    def __init__(self, job: _Job, profile: Profile, table: AllReduceTable, lists: bool) -> None:
        self.profile = profile
        self._job, self._table = job, table
        self._tuner: Tuner | None = None

        def make() -> None:
            if job.ranks.rank == 0:
                smallest = 1.0 if job.compiled else 0.0
                self._tuner = Tuner(profile, table, job.ranks.size, lists=lists, smallest_cap_mib=smallest, caps_mib=job.caps_mib)

        job.ranks.attempt(make)

    def calibration_settings(self) -> list[Setting]:
        return self._of_rank_0(lambda tuner: [Setting.of(s) for s in tuner.calibration_settings])

    def calibrate(self, samples: Samples) -> None:
        self._of_rank_0(lambda tuner: tuner.calibrate(samples))

    def race_settings(self) -> list[Setting]:
        return self._of_rank_0(lambda tuner: [Setting.of(s) for s in tuner.race_settings])

    def race(self, samples: Samples) -> bool:
        return self._of_rank_0(lambda tuner: tuner.race(samples))

    def gain_settings(self) -> list[Setting]:
        return self._of_rank_0(lambda tuner: [Setting.of(s) for s in tuner.gain_settings])

    def result(self, samples: Samples, bench: StepBench, notes: list[str]) -> TuneResult:
        def decide(tuner: Tuner) -> tuple[str, list[str], tuple[Setting, float, float, float, tuple[float, float, float]]]:
            tuner.decide(samples)
            cap_mib = tuner.best_cap.cap_mib or 0.0
            figures = (Setting.of(tuner.choice), cap_mib, tuner.measured_s, tuner.predicted_s, tuner.gain_over_default)
            return tuner.results(self._facts(notes)), tuner.notes, figures

        text, of_tuning, (choice, cap_mib, step_s, predicted_s, over_default) = self._of_rank_0(decide)
        plan = Plan.of_counts(self.profile, choice.counts)
        live = bench.live[choice.name].names
        if live is not None:
            plan = Plan(tuple(tuple(bucket) for bucket in live), plan.bytes)
        parameters = _ddp.reduced_parameters(self._job.model)
        return TuneResult(
            choice="torch default" if choice.cap_mib is None else "cap",
            plan=plan,
            cap_mib=cap_mib,
            step_s=step_s,
            predicted_s=predicted_s,
            speedup=Speedup.of_ratio(*over_default),
            notes=(*notes, *of_tuning),
            profile=self.profile,
            curve=self._table,
            world_size=self._job.ranks.size,
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
