"""firkin.watch: shows where the time of a running data-parallel program goes, without touching its steps.

It uses no gradient hook, no communication hook and no collective. PyTorch's reducer takes the times itself, in C++. A
forward pre-hook reads them once per pass, and ranks exchange them through the process group's store, where nobody
waits. include/firkin/plan/watched_steps.h says what follows from the times.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import pathlib
import socket
import statistics
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from firkin import _core, _ddp
from firkin._core import AllReduceTable, InputError, Profile
from firkin._data_parallel import DistributedDataParallel as Ours
from firkin._link import world_of
from firkin._torch import dist, torch
from torch.nn.parallel import DistributedDataParallel as DDP

_log = logging.getLogger("firkin")

_USUAL_RATE = 100  # PyTorch takes times in one of so many passes. There is no getter (kDDPRuntimeLoggingSampleRate in reducer.hpp).
_LOOK_EVERY = 10  # how often rank 0 looks at the store, in passes
_READ_AT_ONCE = 8  # how many ranks' steps are read in one look
_STALE_PASSES = 2  # passes after which the reducer's times are from the new rate
_MISSED = 3  # windows without the steps of some rank, after which a line says so
_STAMPS = ("forward_compute_time_start", "backward_compute_time_start", "backward_comm_time_start",
           "backward_compute_time_end", "backward_comm_time_end")  # fmt: skip

_WRITTEN = ("step_s", "exposed_s", "waiting_s", "gain_at_most_s", "last_rank", "last_share")

_summing = ThreadPoolExecutor(1)  # beside training, without Python's lock: with many ranks it takes milliseconds
_watches: weakref.WeakKeyDictionary[torch.nn.Module, Watch] = weakref.WeakKeyDictionary()


def _ends_step(model: torch.nn.Module) -> bool:
    """Whether this pass is neither an evaluation nor one that only accumulates gradients."""
    return torch.is_grad_enabled() and bool(model.require_backward_grad_sync)


@torch.compiler.disable
def _before_forward(module: torch.nn.Module, *_: Any) -> None:
    # A plain function, because modules are pickled with their hooks. A copy of the model is not watched.
    if (watch := _watches.get(module)) is None or not _ends_step(module):
        return
    try:
        watch._pass(module)
    except Exception as error:  # noqa: BLE001: training goes on without the watch if the store or the writer fails
        watch._take_off(module)
        _log.warning("firkin.watch ends: %s: %s", type(error).__name__, error)


@torch.compiler.disable
def _after_forward(module: torch.nn.Module, *_: Any) -> None:
    if (watch := _watches.get(module)) is not None and _ends_step(module):
        watch._source.forward_ended_ns = time.perf_counter_ns()


class _Step(NamedTuple):
    """One step of this rank, in nanoseconds; see RankStep of watched_steps.h."""

    number: int
    phases: list[int]
    exposed: int
    gradients: int = 0
    backward: int = 0  # from the start of backward to the end of the step
    ready: list[int] = []  # per parameter, from the start of backward
    sent: list[int] = []  # per bucket


def _seconds(nanoseconds: Sequence[int]) -> list[float]:
    return [each // 1000 / 1e6 for each in nanoseconds]  # to a microsecond, so that texts stay short


class _Stock:
    """Reads PyTorch's DistributedDataParallel on CPUs: five time stamps per pass, and each gradient's ready time."""

    phases = ("before forward", "forward", "loss and backward")
    rate = 1  # times are taken in each pass

    def __init__(self, ddp: DDP) -> None:
        self._passes, self._end, self._ready = 0, 0, []  # type: ignore[var-annotated]
        self.broadcasts_in_forward = bool(ddp.will_sync_module_buffers())  # type: ignore[no-untyped-call]
        self.group = ddp.process_group
        self.parameters = _ddp.reduced_parameters(ddp.module)

    def read(self, ddp: DDP) -> _Step | None:
        """The step before the last: PyTorch stores the stamps of a step during the next forward."""
        self._passes += 1
        ready, self._ready = self._ready, ddp.reducer.get_backward_stats()
        logged = ddp.logger._get_ddp_logging_data().ints_map
        forward, backward, launch, last, end = (logged.get(name, 0) for name in _STAMPS)
        if self._passes <= _STALE_PASSES or not 0 < forward <= backward <= launch <= end or not backward <= last <= end:
            return None  # from the old rate, or from a pass without backward
        before, self._end = self._end, end
        if not 0 < before <= forward or not ready:
            return None
        phases = [forward - before, backward - forward, last - backward]
        first = min((each for each in ready if each > 0), default=0)
        return _Step(logged["iteration"], phases, end - last, end - backward - first, end - backward, ready)

    def buckets(self, ddp: DDP) -> list[tuple[int, list[int]]]:
        """The size of each bucket and the indices of its parameters; empty until PyTorch has rebuilt its buckets."""
        try:
            live = _ddp.live_buckets(ddp)
        except InputError:
            return []
        index = {name: i for i, (name, _) in enumerate(self.parameters)}
        return [(size, [index[name] for name in names]) for size, names in zip(live.bytes, live.names or [])]

    def last_bytes(self, steps: Sequence[_Step]) -> int:
        """The size of the tensor whose gradient was the last."""
        ready = steps[-1].ready if steps else []
        return self.parameters[max(range(len(ready)), key=ready.__getitem__)][1].nbytes if ready else 0


class _StockOnGpu(_Stock):
    """The same on GPUs. Time stamps are the host's there, so it reads only durations between events."""

    phases = ("forward and backward",)
    rate = 10  # reading waits for the events of the pass

    def __init__(self, ddp: DDP) -> None:
        super().__init__(ddp)
        self.broadcasts_in_forward = False  # does not matter with a single phase
        self._number = 0

    def read(self, ddp: DDP) -> _Step | None:
        self._passes += 1
        if self._passes % self.rate:
            return None
        logged = ddp.logger._get_ddp_logging_data().ints_map
        number, before, now = logged.get("iteration", 0), self._end, time.perf_counter_ns()
        is_another, self._number, self._end = number != self._number, number, now
        if not before or not is_another:
            return None
        step = (now - before) // self.rate
        exposed = max(0, logged.get("backward_comm_time", 0) - logged.get("backward_compute_comm_overlap_time", 0))
        return _Step(number, [max(0, step - exposed)], exposed)

    def buckets(self, ddp: DDP) -> list[tuple[int, list[int]]]:
        return []


class _Engine:
    """Reads stats() of Firkin's engine."""

    phases = _Stock.phases
    forward_ended_ns = 0
    broadcasts_in_forward = False  # the engine broadcasts buffers with the last bucket
    parameters: list[tuple[str, torch.nn.Parameter]] = []

    def __init__(self, model: Ours) -> None:
        self.group = model._group or dist.group.WORLD
        self._steps, self._end, self._forward_ns, self._stats = model.stats().steps, 0, 0, model.stats()
        self._sizes = {name: p.nbytes for name, p in model._parameters_then}

    def read(self, model: Ours) -> _Step | None:
        now, forward, stats = time.perf_counter_ns(), self._forward_ns, model.stats()
        self._forward_ns = now
        if stats.steps == self._steps:
            return None
        is_next, self._steps = stats.steps == self._steps + 1, stats.steps
        before, self._end = self._end, stats.ended_ns
        if not is_next or not 0 < before <= forward <= self.forward_ended_ns <= stats.began_ns:
            return None
        waits = round(1e9 * stats.forward_wait_s)  # for strategies that communicate during forward
        exposed = round(1e9 * stats.exposed_wait_s)
        phases = [forward - before, self.forward_ended_ns - forward - waits, stats.ended_ns - self.forward_ended_ns - exposed]
        gradients = stats.ended_ns - stats.began_ns
        self._stats = stats
        sent = [gradients - round(1e9 * bucket.launch_s) for bucket in stats.buckets]
        return _Step(stats.steps, phases, exposed + waits, gradients, 0, [], sent)

    def buckets(self, model: Ours) -> list[tuple[int, list[int]]]:
        return [(bucket.bytes, []) for bucket in self._stats.buckets]

    def last_bytes(self, steps: Sequence[_Step]) -> int:
        return max((self._sizes.get(name, 0) for name in self._stats.tensors[-1:]), default=0)


def _summed(texts: list[str]) -> tuple[list[str], dict[str, Any]]:
    return texts, json.loads(_core.watched_summary(texts))


class Watch:
    """A running watch, as watch() returns it. Only rank 0 has results on all ranks. Not thread-safe."""

    def __init__(
        self, model: torch.nn.Module, source: Any, every: int, warmup: int, writer: Callable[..., Any] | None, table: AllReduceTable | None
    ) -> None:
        self._model, self._source = weakref.ref(model), source
        self._every, self._warmup, self._writer, self._table = every, warmup, writer, table
        self._rank, self._size, self._world = dist.get_rank(source.group), dist.get_world_size(source.group), world_of(source.group)
        self._store = dist.distributed_c10d._world.pg_map[source.group][1]
        # Each rank counts its own watches. All get the same number, since they call watch() at the same places.
        self._key = f"firkin/watch/{self._store.add(f'firkin/watches/{self._rank}', 1)}"
        self._passes = self._window = self._missed = 0
        self._first: int | None = None  # the number of the first step
        self._steps: list[_Step] = []  # the current window's
        self._ready: list[list[int]] = []  # the previous window's
        self._buckets: list[tuple[int, list[int]]] = []
        self._wanted: int | None = None  # the window that rank 0 is collecting
        self._texts: list[str] = []  # what it has collected, by rank
        self._sum: Future[tuple[list[str], dict[str, Any]]] | None = None
        self._told: list[str] = []  # the texts of the last window that was reported
        self._summary: dict[str, Any] = {}
        self._put_on(model)

    def _put_on(self, model: Any) -> None:
        self._hooks: list[Any] = [model.register_forward_pre_hook(_before_forward)]
        if isinstance(model, Ours):
            self._hooks.append(model.register_forward_hook(_after_forward))
        else:
            model._set_ddp_runtime_logging_sample_rate(self._source.rate)
        _watches[model] = self

    def _take_off(self, model: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if not isinstance(model, Ours):
            model._set_ddp_runtime_logging_sample_rate(_USUAL_RATE)
        del _watches[model]

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pass(self, model: torch.nn.Module) -> None:
        self._passes += 1
        if (step := self._source.read(model)) is not None:
            if self._first is None:
                self._first = step.number + self._warmup
            window = (step.number - self._first) // self._every
            if window > self._window:
                self._publish(model)
                self._window = window
            if window >= 0:
                self._steps.append(step)
        if self._passes % _LOOK_EVERY == 0:
            self._look()

    def _place(self, rank: int, window: int) -> str:
        """The key for a rank's window: each rank uses two keys in turn, so that the store does not grow."""
        return f"{self._key}/{rank}/{window % 2}"

    def _publish(self, model: torch.nn.Module) -> None:
        """Tells rank 0 of the window that has ended."""
        steps, self._steps = self._steps, []
        buckets = self._buckets = self._source.buckets(model)
        self._ready = [step.ready for step in steps if step.ready]
        rows = []
        for step in steps:
            sent = step.sent
            if step.ready:  # a bucket is launched with its last gradient, and after the bucket before it
                last = itertools.accumulate((max((step.ready[i] for i in part), default=0) for _, part in buckets), max)
                sent = [step.backward - each for each in last]
            exposed_s, gradients_s = _seconds([step.exposed, step.gradients])
            rows.append({"step": step.number, "phases_s": _seconds(step.phases), "exposed_s": exposed_s, "gradients_s": gradients_s,
                         "sent_s": _seconds(sent)})  # fmt: skip
        mine = {
            "host": socket.gethostname(), "threads": torch.get_num_threads(), "cpus": sorted(os.sched_getaffinity(0)),
            "phases": self._source.phases, "broadcasts_in_forward": self._source.broadcasts_in_forward,
            "bucket_bytes": [size for size, _ in buckets], "last_bytes": self._source.last_bytes(steps), "steps": rows,
        }  # fmt: skip
        self._store.set(self._place(self._rank, self._window), f"{self._window} {json.dumps(mine)}")
        if self._rank:
            return
        self._missed = self._missed + 1 if self._wanted is not None else 0
        if self._missed == _MISSED:
            _log.warning("firkin.watch: rank %d has told nothing; expected firkin.watch(model) on every rank", len(self._texts))
        self._wanted, self._texts = self._window, []

    def _look(self) -> None:
        """Rank 0 collects what the others have put into the store, a few at a time, without waiting."""
        if self._sum is not None and self._sum.done():
            self._tell(*self._sum.result())
            self._sum = None
        for _ in range(_READ_AT_ONCE):
            if self._wanted is None or not self._store.check([place := self._place(len(self._texts), self._wanted)]):
                return
            window, text = self._store.get(place).decode().split(" ", 1)
            if int(window) != self._wanted:
                return
            self._texts.append(text)
            if len(self._texts) == self._size:
                self._wanted, self._sum = None, _summing.submit(_summed, self._texts)

    def _tell(self, texts: list[str], summary: dict[str, Any]) -> None:
        before = self._summary.get("causes")
        if summary["steps"]:
            self._summary, self._told = summary, texts
            if self._table is not None:
                self._add_best_cap(self._table)
            if self._writer is not None:
                self._writer({f"firkin/{name}": summary[name] for name in _WRITTEN}, summary["last_step"])
        # Warnings are shown even if the program has not set up logging, so the first lines are one, and those that name
        # another cause than before.
        level = logging.INFO if summary.get("causes") == before else logging.WARNING
        _log.log(level, "firkin.watch, %s", summary["lines"].rstrip())

    def _add_best_cap(self, table: AllReduceTable) -> None:
        summary, profile = self._summary, self.profile()
        if profile is None or not self._buckets:
            return
        work_s, counts = max(summary["step_s"] - summary["exposed_s"], 1e-9), [len(part) for _, part in self._buckets]
        *best, is_in_use = _core.best_watched_cap(profile, table, self._world, work_s, counts)
        summary["best_cap"] = dict(zip(("cap_mib", "step_s", "low_s", "high_s", "in_use_s"), best))
        cap, step_s, low_s, high_s, in_use_s = best
        says = "makes the buckets in use" if is_in_use else f"{step_s * 1e3:.4g} ms a step ({low_s * 1e3:.4g} to {high_s * 1e3:.4g})"
        summary["lines"] += f"  predicted best: bucket_cap_mb={cap:.6g}, {says}; those in use: {in_use_s * 1e3:.4g} ms\n"

    def summary(self) -> dict[str, Any]:
        """The last window that was reported, in seconds, and "lines".

        Empty before the first window ends, and on other ranks than 0.
        The fields are those of WatchSummary in include/firkin/plan/watched_steps.h; with a table also "best_cap".
        """
        return self._summary

    def profile(self) -> Profile | None:
        """A profile like firkin.profile()'s, from this rank's last window: medians, measured while gradients were sent.

        None if the times of single gradients are not known: before the first window ends, with Firkin's engine, and on
        GPUs.
        """
        if not self._ready:
            return None
        named = [(name, p.nbytes) for name, p in self._source.parameters]
        ready_s = [1e-9 * statistics.median(each) for each in zip(*self._ready)]
        order = sorted(range(len(named)), key=ready_s.__getitem__)
        return Profile([named[i][0] for i in order], [named[i][1] for i in order], [ready_s[i] for i in order])

    def close(self, timeout_s: float = 10.0) -> None:
        """Ends the watch and reports the window that is being collected.

        If the program ends within its first window, it reports the steps so far. Rank 0 waits for the others' steps;
        the other ranks do not wait.
        """
        if not self._hooks or (model := self._model()) is None:
            return
        self._take_off(model)
        deadline = time.monotonic() + timeout_s
        if self._steps and self._window == 0:
            self._publish(model)
        while (self._wanted is not None or self._sum is not None) and time.monotonic() < deadline:
            self._look()
            time.sleep(1e-3)

    def _spans(self) -> list[tuple[int, str, str, float, float]]:
        """The last step that all ranks have seen: rank, kind, name, and start and end in seconds since the first rank began it."""
        found: list[tuple[int, str, str, float, float]] = []
        rows = [{row["step"]: row for row in json.loads(text)["steps"]} for text in self._told]
        last = [of_rank[self._summary["last_step"]] for of_rank in rows]
        end = max((sum(row["phases_s"]) + row["exposed_s"] for row in last), default=0.0)
        for rank, row in enumerate(last):
            at = end - sum(row["phases_s"]) - row["exposed_s"]
            for name, length in zip(self._summary["phases"], row["phases_s"]):
                found.append((rank, "compute", name, at, at + length))
                at += length
            until = end
            for k, (size, sent) in reversed(list(enumerate(zip(self._summary["bucket_bytes"], row["sent_s"])))):
                found.append((rank, "communication", f"bucket {k}", end - sent, max(end - sent, until)))
                until -= size / (self._summary["bytes_per_s"] or math.inf)
            if not row["sent_s"]:
                found.append((rank, "communication", "not hidden", end - row["exposed_s"], end))
        return found

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the last step that all ranks have seen as a Chrome trace, for https://ui.perfetto.dev.

        It has phases, and buckets from launch to end. The end is known for the last bucket only; for the others it is
        estimated from the link's rate. Writes nothing before summary() has something.
        """
        if spans := self._spans():
            events = [{"name": name, "ph": "X", "pid": rank, "tid": kind, "ts": 1e6 * start, "dur": 1e6 * (end - start)}
                      for rank, kind, name, start, end in spans]  # fmt: skip
            pathlib.Path(path).write_text(json.dumps({"traceEvents": events}))

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes an HTML page with the lines, and with the step of trace() as `firkin trace` draws it.

        Viewing it needs no network. Writes nothing before summary() has something.
        """
        if spans := self._spans():
            traces = [{"strategy": "watched", "name": f"rank {rank}", "file": "", "timeline": [
                          {"activity": kind, "start_s": start, "end_s": end} for of, kind, _, start, end in spans if of == rank]}
                      for rank in range(self._size)]  # fmt: skip
            page = {"schema": "firkin.results/1", "command": "watch", "notes": [line.strip() for line in self._summary["lines"].splitlines()],
                    "environment": {"firkin": _core.version, "libtorch": torch.__version__, "world_size": self._world},
                    "traces": traces}  # fmt: skip
            _core.write_report(json.dumps(page), os.fspath(path))


def watch(
    model: torch.nn.Module,
    *,
    every: int = 100,
    warmup: int = 20,
    table: AllReduceTable | None = None,
    writer: Callable[[dict[str, float], int], Any] | None = None,
) -> Watch:
    """Shows where the time of a running training goes: work, waiting for slower ranks, exposed communication.

        watch = firkin.watch(model)      # anywhere before the loop, at the same place on every rank; not collective

    model: PyTorch's DistributedDataParallel, Firkin's, or a module that contains one. After every `every` steps rank 0
    logs four lines (logger "firkin"): as a warning at first and when they name another cause, otherwise as information.
    The first `warmup` steps do not count. table: from measure_all_reduce(), to predict the best cap too.
    writer(values, step): called on rank 0 with the figures of each window, such as wandb.log or accelerator.log.

    Results of steps stay the same, bit for bit. docs/watch.md says how the cost is measured, what the figures do not
    show, and what is not known on GPUs.

    Raises InputError for a model without a DistributedDataParallel, for one that is watched already or uses
    optimize_ddp="python_reducer", for arguments out of range, and for a table if it is for other ranks or if the times
    of single gradients are not known.
    """
    ours = next((part for part in model.modules() if isinstance(part, Ours)), None) if isinstance(model, torch.nn.Module) else None
    wrapped: Any = ours if ours is not None else _ddp.ddp_in(model, "watch")
    if every < 1 or warmup < 0:
        raise InputError(f"watch: every {every}, warmup {warmup}; expected at least 1 and 0")
    if wrapped in _watches:
        raise InputError("watch: this model is watched already; expected close() first")
    if getattr(wrapped, "_use_python_reducer", False):
        raise InputError('watch: optimize_ddp="python_reducer" takes no times; expected another value of torch._dynamo.config.optimize_ddp')
    on_cpu = all(p.device.type == "cpu" for p in wrapped.parameters())
    source = (_Engine if ours is not None else _Stock if on_cpu else _StockOnGpu)(wrapped)
    if table is not None and (type(source) is not _Stock or (size := world_of(source.group)) not in table.world_sizes):
        what = f"{size} ranks" if type(source) is _Stock else "Firkin's engine or GPUs"
        raise InputError(f"watch: a table with {what}; expected PyTorch's DistributedDataParallel on CPUs, and measure_all_reduce() on its ranks")
    return Watch(wrapped, source, every, warmup, writer, table)
