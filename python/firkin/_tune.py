"""firkin.tune: profile, measure the all-reduce, predict, and check with real steps through DistributedDataParallel."""

from __future__ import annotations

import functools
import gc
import logging
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from firkin import _ddp
from firkin._allreduce import timed_all_reduces
from firkin._core import FEWEST_SAMPLES, MOST_RACED, WORTH_TUNING, InputError, Profile, Results, allreduce_sizes, available_memory_bytes, tune_steps
from firkin._measure import Setting, StepBench, Wrapping, check_ddp_options, options_to_race, possible_options, warmup_steps
from firkin._plan import Plan
from firkin._profile import CountedStep, Step, described, measured_profile, trainable_parameters
from firkin._ranks import Ranks
from firkin._result import TuneResult
from firkin._state import State
from firkin._torch import dist, torch
from firkin._watch import Watch
from torch.nn.parallel import DistributedDataParallel as DDP

_log = logging.getLogger("firkin")

_PROFILE_STEPS, _PROFILE_WARMUP = 10, 3
_PROFILE_SHARE = 0.2  # of time_budget_s, at most; firkin._core divides the rest among the other phases
_FEWEST_GAIN_BLOCKS = 2
_SLACK_S = 10.0  # how far tuning may exceed time_budget_s without a warning
_LINES_EVERY_S = 10.0
_GIB = 1 << 30


class _Effort(NamedTuple):
    """How much is measured until a cap is chosen. Blocks: the fewest and the most."""

    timed_steps: int  # per visit of a setting
    calibrations: int  # how many settings
    calibration_blocks: tuple[int, int]
    raced: int  # the most caps that race; with a single one the prediction chooses
    race_blocks: tuple[int, int]


_THOROUGH = _Effort(2, 4, (2, 4), MOST_RACED, (3, 40))
_QUICK = _Effort(1, 2, (1, 1), 1, (1, 1))  # for slow steps


class Progress:
    """Shows the progress of a tuning: a line every ten seconds."""

    def __init__(self, expected_s: float, shown: bool) -> None:
        self._started = time.perf_counter()
        self.expected_s, self._shown = expected_s, shown
        self._last_line_s = -_LINES_EVERY_S

    def at(self, what: str) -> None:
        """Shows how far tuning is. what: what it does now."""
        done_s = time.perf_counter() - self._started
        if self._shown and done_s - self._last_line_s >= _LINES_EVERY_S:
            self._last_line_s, remaining_s = done_s, self.expected_s - done_s
            remaining = f"{remaining_s:.0f} s left" if remaining_s > 0 else "about to end"
            print(f"firkin.tune {min(done_s / self.expected_s, 0.99):4.0%} {what}, {remaining}", file=sys.stderr, flush=True)

    def say(self, lines: str) -> None:
        if self._shown:
            print("firkin.tune: " + lines.replace("\n", "\n  "), file=sys.stderr, flush=True)


@dataclass
class _Job:
    ranks: Ranks
    model: torch.nn.Module
    options: dict[str, Any]
    caps_mib: list[float]
    time_budget_s: float
    seed: int
    restore: bool
    progress: Progress
    compiled: bool = False  # whether torch.compile is used, for the model or for what wraps it

    def check(self) -> None:
        self.ranks.check_measurable(self.time_budget_s)
        check_ddp_options(self.options)
        trainable_parameters(self.model)

    def agreed(self) -> dict[str, Any]:
        """The arguments and settings that must be the same on every rank, since each rank acts on its own."""
        return {
            "model": described(self.model),
            "caps_mib": self.caps_mib,
            "time_budget_s": self.time_budget_s,
            "seed": self.seed,
            "restore": self.restore,
            # Values other than bool may differ between ranks (device_ids) or be impossible to compare.
            "ddp_kwargs": {name: value if isinstance(value, bool) else "..." for name, value in sorted(self.options.items())},
            "torch": torch.__version__,
            "torch.compile": _ddp.is_compiled(self.model),
        }

    def fewest_calls(self, effort: _Effort, gain_blocks: int) -> int:
        """How often the fewest blocks call step."""
        visit, without = effort.timed_steps + warmup_steps(self.options), effort.timed_steps + 1
        calibration = effort.calibration_blocks[0] * (effort.calibrations * visit + without)
        race = effort.race_blocks[0] * max(effort.raced, len(self.caps_mib) + 1) * visit
        return calibration + race + gain_blocks * (2 * visit + without)

    def profile_calls(self) -> int:
        return _PROFILE_WARMUP + (3 if self.compiled else 2) * _PROFILE_STEPS

    def effort(self, step_s: float, remaining_s: float, notes: list[str]) -> _Effort:
        """How much to measure with steps of this time. Appends a note if that is not all; warns if even the least takes too long."""
        if self.fewest_calls(_THOROUGH, FEWEST_SAMPLES) * step_s <= remaining_s:
            return _THOROUGH
        notes.append(
            f"steps of {step_s:.2g} s: too slow to race the best predicted caps, so the prediction chose, calibrated on only"
            f" {_QUICK.calibrations} settings"
        )
        needed_s = self.time_budget_s - remaining_s + self.fewest_calls(_QUICK, _FEWEST_GAIN_BLOCKS) * step_s
        self.progress.expected_s = max(self.time_budget_s, needed_s)
        if needed_s > 1.25 * self.time_budget_s + _SLACK_S and self.ranks.rank == 0:
            _log.warning("tune: with steps of %.2g s tuning takes about %.0f s, not %g", step_s, needed_s, self.time_budget_s)
        return _QUICK


def tune(
    model: torch.nn.Module,
    step: Step,
    *,
    process_group: dist.ProcessGroup | None = None,
    ddp_kwargs: Mapping[str, Any] | None = None,
    wrap: Callable[..., torch.nn.Module] = DDP,
    caps_mib: Sequence[float] = (),
    time_budget_s: float = 150.0,
    seed: int = 0,
    restore: bool = True,
    also: Sequence[Any] = (),
    watched: Watch | None = None,
    progress: bool = True,
) -> TuneResult:
    """Chooses gradient buckets for this model on these ranks. Collective: every rank gets the same result.

    model: the module itself, not wrapped.

    step(model): one training step with the model that it is given: forward, backward, optimiser. With gradient
    accumulation, all but the last backward run under `with model.no_sync():`. It is called some hundred times, with a
    DistributedDataParallel or with a module that is called in the same way.

    process_group: None is the default group, or that of ddp_kwargs' device_mesh. ddp_kwargs: the other arguments of
    your DistributedDataParallel. wrap(model, **kwargs): how you wrap the model if you do more, such as registering a
    communication hook or compiling. caps_mib: bucket caps to measure besides those with the best predictions.

    time_budget_s: the approximate time in all. Slow steps are run fewer times. Then result.notes says what that cannot
    show, and the logger "firkin" warns if even the fewest steps take longer.

    restore: afterwards, even after an error, this is as it was, and nothing else: every module in this process, averaged
    models among them (parameters, buffers, gradients, modes); every optimiser, learning-rate schedule and gradient
    scaler; the random numbers of Python, NumPy, the CPU and the GPUs; and what `also` names. The copy on the host is the
    only memory that tuning needs beyond that of training; from 1 GiB on, a line says its size before the first step.
    False: nothing is copied, and training continues from where tuning's steps have left it; in those without
    communication gradients were zero.

    also: what else step changes: tensors that it changes in place, generators of random numbers, lists, dicts and other
    containers, and objects, with their attributes. A memory bank that only the step's closure holds is named:
    tune(model, step, also=[bank]).

    watched: what firkin.watch() returned for this model on these ranks. If it knows when gradients are ready, backward
    is not profiled again: up to 23 steps fewer, 33 where the model is compiled. Caps do not race if it saw less than 2
    % of a step to gain and caps_mib is empty. progress: rank 0 prints how far it is, and the answer in three lines.

    Raises InputError, on every rank, if the model, step, arguments or group cannot be tuned, if a node has no memory
    for the copy, or if the batches run out; RuntimeError if something could not be restored, or ranks have drifted
    apart.
    """
    options = dict(ddp_kwargs or {})
    process_group = options.pop("process_group", process_group)
    if process_group is None and "device_mesh" in options:
        process_group = options["device_mesh"].get_group()
    ranks = Ranks(process_group)
    shown = Progress(time_budget_s, ranks.rank == 0 and progress)
    job = _Job(ranks, model, options, list(caps_mib), time_budget_s, seed, restore, shown)
    ranks.attempt(job.check)
    counted = ranks.attempt(lambda: CountedStep(step))
    ranks.check_same("tune", job.agreed())
    state, wrapping = State(model), Wrapping(ranks, model, options, wrap)
    if restore:
        ranks.attempt(lambda: state.find(also))
        _say_copy(job, state)
        ranks.attempt(state.keep)
    try:
        result, unlike = _tuned(job, counted, state, wrapping, watched)
    finally:
        wrapping.graphs.reset()
        for parameter in state.parameters:
            parameter.grad = None
        if restore:
            state.put_back()
    if restore:
        state.check_put_back(ranks)
    else:
        for name in sorted(State(model).unlike(ranks) - unlike):
            raise RuntimeError(f"tune: '{name}' now differs between ranks; expected a step that changes it alike on every rank")
    shown.say(result.summary().rstrip())
    return result


def _say_copy(job: _Job, state: State) -> None:
    """Says how much memory the copy for restoring takes, before it is made. Collective.

    Raises InputError, on every rank, if a node has less memory free.
    """
    everyone = job.ranks.all((socket.gethostname(), state.bytes(), available_memory_bytes()))
    for host in sorted({host for host, _, _ in everyone}):
        copies = [size for name, size, _ in everyone if name == host]
        free = min(free for name, _, free in everyone if name == host)
        if sum(copies) > free:
            raise InputError(
                f"tune: a copy of {max(copies) / _GIB:.3g} GiB for each of {len(copies)} ranks on {host}, where {free / _GIB:.3g} GiB are free;"
                " expected restore=False, and a checkpoint to go on from"
            )
    if (size := everyone[0][1]) >= _GIB:
        of_node = [size for host, size, _ in everyone if host == everyone[0][0]]
        job.progress.say(
            f"copies {size / _GIB:.3g} GiB of training state to the host on each rank, to restore it afterwards; {sum(of_node) / _GIB:.3g} GiB"
            f" for the {len(of_node)} ranks of a node. restore=False copies nothing"
        )


class _Watched(NamedTuple):
    """What a watch has measured."""

    tensors: tuple[list[str], list[int], list[float]]  # the arguments of their Profile
    step_s: float
    gain_at_most: float  # what other buckets could gain, as a share of a step


def _read_watch(watched: Watch | None, job: _Job) -> _Watched | None:
    """What rank 0's watch has measured, if that was this model on this number of ranks. Collective."""

    def read() -> _Watched | None:
        profile = watched.profile() if watched is not None else None
        if profile is None or watched is None or (summary := watched.summary()).get("ranks") != job.ranks.size:
            return None
        if dict(zip(profile.names, profile.bytes)) != {name: p.nbytes for name, p in trainable_parameters(job.model)}:
            return None
        return _Watched((profile.names, profile.bytes, profile.ready_s), summary["step_s"], summary["gain_at_most_s"] / summary["step_s"])

    return job.ranks.on_rank_0(read)


def _profiled(job: _Job, module: torch.nn.Module, step: CountedStep, state: State, wrapping: Wrapping, known: _Watched | None) -> Profile:
    """When gradients are ready: as a watch has measured it, or in steps without communication. Collective."""
    with wrapping.graphs.of("profile"):
        profile = Profile(*known.tensors) if known else measured_profile(
            job.ranks, module, step, steps=_PROFILE_STEPS, warmup=_PROFILE_WARMUP, seconds=job.time_budget_s * _PROFILE_SHARE,
            find_unused_parameters=bool(job.options.get("find_unused_parameters") or job.options.get("static_graph")),
            options=job.options, zeroed=state.parameters, on_progress=job.progress.at,
            before_step=functools.partial(state.put_back, schedules_only=True),
        )  # fmt: skip
    for parameter in state.parameters:
        parameter.grad = None
    gc.collect()  # the all-reduce is measured in the memory of gradients and buckets
    return profile


def _notes_on_inputs(job: _Job, known: _Watched | None, wire: torch.dtype | None) -> list[str]:
    notes = []
    if known:
        notes.append(f"when gradients are ready was seen by firkin.watch, with communication beside it: {job.profile_calls()} steps fewer")
    if job.compiled:
        notes.append(
            "torch.compile also cuts the model's graphs by the bucket cap: only caps from 1 MiB on were considered, each with its own"
            " graphs; ready times were profiled without it"
        )
    if wire is None:
        notes.append("with a communication hook: all-reduces were measured and predicted without it, steps measured with it")
    return notes


def _tuned(job: _Job, step: CountedStep, state: State, wrapping: Wrapping, watched: Watch | None) -> tuple[TuneResult, set[str]]:
    """The result, and the names of tensors that differed between ranks at the start."""
    ranks, started = job.ranks, time.perf_counter()
    first = trainable_parameters(job.model)[0][1]
    wire, module = wrapping.alike(first.dtype)
    job.compiled = wrapping.graphs.compiled
    unlike = state.unlike(ranks)
    known = _read_watch(watched, job)
    profile = _profiled(job, module, step, state, wrapping, known)
    notes = _notes_on_inputs(job, known, wire)
    if known:  # the time that this has saved is not to be spent on more blocks
        started -= min(_PROFILE_SHARE * job.time_budget_s, job.profile_calls() * known.step_s)
    sizes, seconds = allreduce_sizes(sum(profile.bytes)), min(10.0, job.time_budget_s * 0.1)
    table = timed_all_reduces(ranks, first.device, sizes, seconds, job.seed, (first.dtype, wire or first.dtype), job.progress.at)

    def elapsed_s() -> float:
        return ranks.max([time.perf_counter() - started])[0]

    # An upper bound for a step's time: how much communication backward hides is not known yet.
    step_s = (known.step_s if known else ranks.max([statistics.median(step.seconds)])[0]) + table.rows[-1].median_s
    effort = job.effort(step_s, job.time_budget_s - elapsed_s(), notes)
    bench = StepBench(ranks, wrapping, step, state, effort.timed_steps, job.seed, job.progress.at)
    options = options_to_race(job.options, compiled=job.compiled) if effort is _THOROUGH else []
    if known and effort.raced > 1 and not job.caps_mib and known.gain_at_most < WORTH_TUNING:
        effort = effort._replace(raced=1, race_blocks=(1, 1))
        notes.append(f"firkin.watch saw that no buckets could gain more than {100 * known.gain_at_most:.1f} %: no race, the prediction chose")
    recommended, results = tune_steps(
        profile, table, ranks.world, bench.blocks, elapsed_s, lambda values: ranks.all(values)[0],
        lambda setting, names: possible_options(bench, Setting(*setting), names, notes), seconds=job.time_budget_s,
        lists=_lists_possible(job), calibrations=effort.calibrations, calibration_blocks=effort.calibration_blocks, raced=effort.raced,
        race_blocks=effort.race_blocks, fewest_gain_blocks=_FEWEST_GAIN_BLOCKS, smallest_cap_mib=1.0 if job.compiled else 0.0,
        caps_mib=job.caps_mib, ddp_options=options,
    )  # fmt: skip
    if results.blocks < FEWEST_SAMPLES:
        notes.append(f"steps of {step_s:.2g} s: time for {results.blocks} blocks; fewer than {FEWEST_SAMPLES} cannot show a gain")
    notes.append(f"step was called {step.calls} times: its loaders and counters have moved on by that many")
    _add_facts(results, job, notes)
    # Rank 0's, on every rank: another's library may round differently.
    results, recommended = Results.parse(ranks.on_rank_0(results.to_json)), ranks.all(recommended)[0]
    choice = bench.settings[recommended]
    plan = Plan.of_counts(profile, choice.counts)
    names = tuple(tuple(names) for _, names in bench.live[recommended])
    if all(names):
        plan = Plan(names, plan.bytes)
    won = {name: value for name, value in choice.kwargs.items() if name in options}
    return TuneResult.of(results, plan, job.options | won, ranks.group), unlike


def _lists_possible(job: _Job) -> bool:
    """Whether a list of caps can give this model's DistributedDataParallel the buckets of any plan."""
    rebuilds = bool(job.options.get("static_graph")) or not job.options.get("find_unused_parameters")
    return rebuilds and _ddp.takes_lists() and not job.compiled and len({p.dtype for _, p in _ddp.reduced_parameters(job.model)}) == 1


def _add_facts(results: Results, job: _Job, notes: list[str]) -> None:
    """Adds the facts of this run that only PyTorch knows."""
    parameters = [p for _, p in _ddp.reduced_parameters(job.model)]
    results.add_facts(
        command_line=sys.argv, notes=notes, libtorch=torch.__version__, backend=str(job.ranks.backend), device=parameters[0].device.type,
        link=job.ranks.link.name if job.ranks.link else None, model=type(_ddp.without_compile(job.model)).__name__,
        dtype=str(parameters[0].dtype).removeprefix("torch."), parameters=sum(p.numel() for p in parameters), tensors=len(parameters),
        gradient_bytes=sum(p.nbytes for p in parameters),
    )  # fmt: skip
