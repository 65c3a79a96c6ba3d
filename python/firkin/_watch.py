"""firkin.watch: shows where the time of a running data-parallel program goes, without touching its steps.

It uses no hook on gradients or communication and no collective. PyTorch's reducer takes the times, in C++. A forward
pre-hook reads them once per pass, and ranks exchange them through the process group's store, where nobody waits.
include/firkin/plan/watched_steps.h says what follows from the times.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import itertools
import json
import logging
import math
import os
import pathlib
import socket
import statistics
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from firkin import _core, _ddp
from firkin._core import AllReduceTable, InputError, Profile
from firkin._data_parallel import DistributedDataParallel as Ours
from firkin._ranks import Ranks
from firkin._torch import dist, torch
from torch.nn.parallel import DistributedDataParallel as DDP

_log = logging.getLogger("firkin")

_USUAL_RATE = 100  # PyTorch takes times in one of this many passes (kDDPRuntimeLoggingSampleRate in reducer.hpp; no getter)
_RUN, _CYCLE = 5, 20  # after the first window, reads _RUN steps in a row of every _CYCLE
_POLL_EVERY = 10  # how often rank 0 polls the store, in passes
_MISSED = 3  # so many windows without some rank's steps are worth a warning
_CLOSE_S = 10.0  # how long rank 0 waits for the other ranks' steps in close()
_EXIT_S = 5.0  # how long rank 0 waits for the other ranks' steps when the program ends
_OVERLAP_SETTINGS = ("CUDA_DEVICE_MAX_CONNECTIONS", "TORCH_NCCL_ENABLE_TIMING")  # kOverlapSettings of watched_steps.h
_TRUE = ("1", "t", "true", "y", "yes")  # what PyTorch takes for true in a variable of the environment
_STAMPS = ("forward_compute_time_start", "backward_compute_time_start", "backward_comm_time_start",
           "backward_compute_time_end", "backward_comm_time_end")  # fmt: skip
_TYPES = {torch.float64: "double", torch.float32: "float", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16"}  # as c10 names them
_WRITTEN = ("step_s", "exposed_s", "waiting_s", "gain_at_most_s", "last_rank", "last_share")

_summing = ThreadPoolExecutor(1)  # sums up beside training, without the GIL: with many ranks that takes milliseconds
_watches: weakref.WeakKeyDictionary[torch.nn.Module, Watch] = weakref.WeakKeyDictionary()
_open: set[Watch] = set()  # watches outlive their models, to report at the end of the program


@atexit.register
def _close_all() -> None:
    # A program that an exception ends must not wait here for ranks that wait for it.
    timeout_s = 0.0 if getattr(sys, "last_value", None) is not None else _EXIT_S
    for watch in list(_open):
        try:
            watch.close(timeout_s)
        except Exception as error:  # the store may be gone with the rank that holds it
            _log.debug("firkin.watch: nothing to report at the end: %s", error)


def _watch_of(module: torch.nn.Module) -> Watch | None:
    """The module's watch. None in passes that are evaluations, or that only accumulate gradients."""
    return _watches.get(module) if torch.is_grad_enabled() and module.require_backward_grad_sync else None


@torch.compiler.disable
def _before_forward(module: torch.nn.Module, *_: Any) -> None:
    # A plain function, because modules are pickled with their hooks. A copy of the model is not watched.
    if (watch := _watch_of(module)) is not None:
        try:
            watch._pass(module)
        except Exception as error:  # training goes on without the watch if the store or the writer fails
            watch._take_off(module)
            _open.discard(watch)
            _log.warning("firkin.watch ends: %s: %s", type(error).__name__, error)


@torch.compiler.disable
def _after_forward(module: torch.nn.Module, *_: Any) -> None:
    if (watch := _watch_of(module)) is not None:
        watch._source.forward_ended_ns = time.perf_counter_ns()


def _row(step: int, phases: Sequence[int], exposed: int, gradients: int = 0, sent: Sequence[int] = ()) -> dict[str, Any]:
    """A RankStep of watched_steps.h, from nanoseconds: to a microsecond, so that texts stay short."""
    phases_s, sent_s = ([each // 1000 / 1e6 for each in part] for part in (phases, sent))
    return {"step": step, "phases_s": phases_s, "exposed_s": exposed // 1000 / 1e6, "gradients_s": gradients // 1000 / 1e6, "sent_s": sent_s}


@dataclasses.dataclass
class _Parameter:
    name: str
    bytes: int
    elements: int
    dtype: torch.dtype


class _Stock:
    """Reads PyTorch's DistributedDataParallel on CPUs: five time stamps per pass, and each gradient's ready time.

    Like the sources below it keeps nothing of the model alive.
    """

    phases: tuple[str, ...] = ("before forward", "forward", "loss and backward")
    lead = 3  # passes before the first whole step: in two the stamps are stale, and a step begins where the one before ended
    run, rate = _RUN, 1

    def __init__(self, ddp: DDP) -> None:
        self.parameters = [_Parameter(name, p.nbytes, p.numel(), p.dtype) for name, p in _ddp.reduced_parameters(ddp.module)]
        self._keeps_first_buckets = ddp.find_unused_parameters and not ddp.static_graph
        self._broadcasts = bool(ddp.will_sync_module_buffers())  # type: ignore[no-untyped-call]
        self._buckets: list[tuple[int, list[int]]] = []  # the size of each and the indices of its parameters; empty until PyTorch has rebuilt them
        self.rows: list[dict[str, Any]] = []  # the steps of the last window
        self.passes: list[int] = []  # the pass of each of these steps
        self.ready: list[list[int]] = []  # when each parameter's gradient was ready, in each of these steps
        self.counts: list[int] = []  # how many tensors each bucket has

    def take_times(self, ddp: DDP, begins: bool) -> None:
        ddp._set_ddp_runtime_logging_sample_rate(self.rate if begins else _USUAL_RATE)  # type: ignore[no-untyped-call]

    def read(self, ddp: DDP) -> Any:
        """Stamps of the step before the last, which PyTorch stores during the next forward, and ready times of the last."""
        self._buckets = self._buckets or self._live_buckets(ddp)
        return ddp.logger._get_ddp_logging_data().ints_map, ddp.reducer.get_backward_stats()  # type: ignore[union-attr]

    def window(self, reads: list[tuple[int, Any]]) -> dict[str, Any]:
        """What was read before these passes, as RankSteps of watched_steps.h."""
        buckets = self._buckets
        self.counts, self.ready, self.rows, self.passes = [len(part) for _, part in buckets], [], [], []
        self.bucket_bytes, rows = [size for size, _ in buckets], self.rows
        # Each read has the stamps of the step before the last, so those of one step stand in the read after that of its ready times.
        for (at, (before, ready)), (_, (logged, _)) in itertools.pairwise(reads):
            began, number = before.get(_STAMPS[-1], 0), logged.get("iteration", 0)
            forward, backward, launch, last, end = (logged.get(name, 0) for name in _STAMPS)
            is_next = number == before.get("iteration", 0) + 1 and 0 < began <= forward <= backward <= launch <= end
            if not is_next or not backward <= last <= end or not ready:  # passes between them, or one without backward
                continue
            # A bucket is launched with its last gradient, and after the bucket before it.
            launches = itertools.accumulate((max((ready[i] for i in part), default=0) for _, part in buckets), max)
            first = min((each for each in ready if each > 0), default=0)
            phases, sent = [forward - began, backward - forward, last - backward], [end - backward - each for each in launches]
            rows.append(_row(number, phases, end - last, end - backward - first, sent))
            self.ready.append(ready)
            self.passes.append(at - 1)
        latest = max(range(len(self.parameters)), key=self.ready[-1].__getitem__) if rows else 0
        return {"bucket_bytes": self.bucket_bytes, "last_bytes": self.parameters[latest].bytes, "steps": rows,
                "broadcasts_in_forward": self._broadcasts, "keeps_first_buckets": self._keeps_first_buckets}  # fmt: skip

    def _live_buckets(self, ddp: DDP) -> list[tuple[int, list[int]]]:
        try:
            live = _ddp.live_buckets(ddp)
        except InputError:
            return []
        index = {parameter.name: i for i, parameter in enumerate(self.parameters)}
        return [(size, [index[name] for name in names]) for size, names in live if names]


class _StockOnGpu(_Stock):
    """Reads PyTorch's DistributedDataParallel on GPUs: durations between events alone, because time stamps are the host's."""

    phases = ("forward and backward",)
    run, rate = _CYCLE, 10  # reading waits for the events of the pass

    def read(self, ddp: DDP) -> Any:
        return time.perf_counter_ns(), ddp.logger._get_ddp_logging_data().ints_map  # type: ignore[union-attr]

    def window(self, reads: list[tuple[int, Any]]) -> dict[str, Any]:
        rows = []
        for (_, (began, before)), (_, (now, logged)) in itertools.pairwise(reads):
            if (number := logged.get("iteration", 0)) != before.get("iteration", 0):
                exposed = max(0, logged.get("backward_comm_time", 0) - logged.get("backward_compute_comm_overlap_time", 0))
                rows.append(_row(number, [max(0, (now - began) // self.rate - exposed)], exposed))
        return {"steps": rows}


class _Engine:
    """Reads stats() of Firkin's engine."""

    phases, lead, run, rate = _Stock.phases, 1, _RUN, 1
    forward_ended_ns = 0
    ready: tuple[list[int], ...] = ()

    def __init__(self, model: Ours) -> None:
        self.passes: list[int] = []
        self._sizes = {name: p.nbytes for name, p in model._parameters_then}

    def take_times(self, model: Ours, begins: bool) -> None:
        """The engine takes times in every pass."""

    def read(self, model: Ours) -> Any:
        """When forward begins, when the one before ended, and the stats of its step."""
        return time.perf_counter_ns(), self.forward_ended_ns, model.stats()

    def window(self, reads: list[tuple[int, Any]]) -> dict[str, Any]:
        rows, self.passes = [], []
        for (at, (forward, _, before)), (_, (_, computed, stats)) in itertools.pairwise(reads):
            if stats.steps != before.steps + 1 or not 0 < before.ended_ns <= forward <= computed <= stats.began_ns:
                continue
            exposed, waits = round(1e9 * stats.exposed_wait_s), round(1e9 * stats.forward_wait_s)  # those of strategies that wait in forward
            phases = [forward - before.ended_ns, computed - forward - waits, stats.ended_ns - computed - exposed]
            gradients = stats.ended_ns - stats.began_ns
            sent = [gradients - round(1e9 * bucket.launch_s) for bucket in stats.buckets]
            rows.append(_row(stats.steps, phases, exposed + waits, gradients, sent))
            self.passes.append(at)
        last = reads[-1][1][2]
        last_bytes = max((self._sizes.get(name, 0) for name in last.tensors[-1:]), default=0)
        return {"bucket_bytes": [bucket.bytes for bucket in last.buckets], "last_bytes": last_bytes, "steps": rows}


def _summed(texts: list[str]) -> tuple[list[str], dict[str, Any]]:
    return texts, json.loads(_core.watched_summary(texts))


class Watch(contextlib.AbstractContextManager["Watch"]):
    """A running watch, as watch() returns it. Only rank 0 has results on all ranks. Not thread-safe.

    It ends with close(), as a context manager, or with the program, whichever comes first.
    """

    def __init__(
        self, model: Any, source: Any, every: int, warmup: int, writer: Callable[..., Any] | None, table: AllReduceTable | None
    ) -> None:
        self._model, self._source = weakref.ref(model), source
        self._every, self._warmup, self._writer, self._table = every, warmup, writer, table
        # Of these only numbers are kept: a watch must keep neither the group nor the model alive.
        ranks, first = Ranks(model.process_group), next(model.parameters())
        self._rank, self._size, self._world = ranks.rank, ranks.size, ranks.world
        self._store = dist.distributed_c10d._world.pg_map[model.process_group][1]
        # Each rank counts its own watches: all get the same number, since they call watch() at the same places.
        self._exchange = _core.WatchExchange(self._store.add(f"firkin/watches/{self._rank}", 1), self._rank, self._size)
        self._is_on_gpu = first.device.type != "cpu"
        self._parameter = weakref.ref(next((p for p in model.parameters() if p.requires_grad), first))
        self._versions: dict[int, int] = {}  # the parameter's version before each pass of the current window, which an optimiser's step raises
        self._passes = 0
        self._reading = 0  # passes of the current run of reads; 0 between runs
        self._reads: list[tuple[int, Any]] = []  # what was read in the current window, with its pass
        self._sum: Future[tuple[list[str], dict[str, Any]]] | None = None
        self._reported: list[str] = []  # the texts of the last window that was reported
        self._summary: dict[str, Any] = {}
        self._put_on(model)
        _open.add(self)

    def _put_on(self, model: Any) -> None:
        self._hooks: list[Any] = [model.register_forward_pre_hook(_before_forward)]
        if isinstance(model, Ours):
            self._hooks.append(model.register_forward_hook(_after_forward))
        _watches[model] = self

    def _take_off(self, model: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._reading = [], 0
        self._source.take_times(model, False)
        del _watches[model]

    def __exit__(self, error: object, *_: object) -> None:
        # Ranks that the exception has not reached may wait for this one.
        self.close(0.0 if error else _CLOSE_S)

    def _pass(self, model: torch.nn.Module) -> None:
        """Reads nothing during warm-up, each step of the first window, and then runs of steps."""
        source, at = self._source, self._passes - self._warmup - self._source.lead  # `at` is 0 at the first step's reading
        if at > 0 and at % self._every == 0:
            self._publish()
        if -source.lead <= at < self._every or at >= 0 and at % self._every % _CYCLE < source.lead + source.run:
            if not self._reading:
                source.take_times(model, True)
            self._reading += 1
            if (parameter := self._parameter()) is not None:
                self._versions[self._passes] = parameter._version
            if self._reading >= source.lead and self._passes % source.rate == 0:
                self._reads.append((self._passes, source.read(model)))
        elif self._reading:
            source.take_times(model, False)
            self._reading = 0
        self._passes += 1
        if self._passes % _POLL_EVERY == 0:
            self._collect()

    def _publish(self) -> None:
        """Sends rank 0 the window that has ended."""
        source, versions = self._source, self._versions
        mine = source.window(self._reads) | {
            "host": socket.gethostname(), "threads": torch.get_num_threads(), "cpus": sorted(os.sched_getaffinity(0)),
            "phases": source.phases,
        }  # fmt: skip
        followed = [at for at in source.passes if at in versions and at + 1 in versions]
        mine["averaged"], mine["updated"] = len(followed), sum(versions[at] != versions[at + 1] for at in followed)
        if self._is_on_gpu:
            mine["settings"] = [f"{name}=1" for name in _OVERLAP_SETTINGS if os.environ.get(name, "").lower() in _TRUE]
        self._reads, self._versions = self._reads[-1:], {}  # the next step begins with the last read
        self._store.set(*self._exchange.end_window(json.dumps(mine)))
        if self._exchange.missed == _MISSED:
            _log.warning("firkin.watch: rank %d has told nothing; expected firkin.watch(model) on every rank", len(self._exchange.texts))

    def _collect(self) -> None:
        """On rank 0: reports the window that has been summed up, and starts to sum up the one that has arrived from all ranks."""
        if self._sum is not None and self._sum.done():
            self._report(*self._sum.result())
            self._sum = None
        if self._has_collected():
            self._sum = _summing.submit(_summed, self._exchange.texts)

    def _has_collected(self) -> bool:
        return self._exchange.collect(lambda key: self._store.check([key]), lambda key: self._store.get(key).decode())

    def _report(self, texts: list[str], summary: dict[str, Any]) -> None:
        before = self._summary.get("causes")
        if summary["steps"]:
            self._summary, self._reported = summary, texts
            if self._table is not None and (profile := self.profile()) is not None and self._source.counts:
                work_s = max(summary["step_s"] - summary["exposed_s"], 1e-9)
                lines, summary["best_cap"] = _core.best_watched_cap(profile, self._table, self._world, work_s, self._source.counts)
                summary["lines"] += lines
            if self._writer is not None:
                self._writer({f"firkin/{name}": summary[name] for name in _WRITTEN}, summary["last_step"])
        # Lines are warnings, shown even without logging set up, at first and when they name another cause.
        level = logging.INFO if summary.get("causes") == before else logging.WARNING
        _log.log(level, "firkin.watch, %s", summary["lines"].rstrip())

    def summary(self) -> dict[str, Any]:
        """The last reported window: WatchSummary of include/firkin/plan/watched_steps.h in seconds, "lines", with a table "best_cap".

        Empty before the first window ends, and on ranks other than 0.
        """
        return self._summary

    def profile(self) -> Profile | None:
        """A profile like firkin.profile()'s, from this rank's last window: medians, measured while gradients were sent.

        None before the first window ends, with Firkin's engine, and on GPUs.
        """
        if not self._source.ready:
            return None
        named = [(parameter.name, parameter.bytes) for parameter in self._source.parameters]
        ready_s = [1e-9 * statistics.median(each) for each in zip(*self._source.ready)]
        order = sorted(range(len(named)), key=ready_s.__getitem__)
        return Profile([named[i][0] for i in order], [named[i][1] for i in order], [ready_s[i] for i in order])

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Ends the watch, and reports the window that is being collected or, within the first, the steps so far.

        Rank 0 waits up to timeout_s for the others' steps; the other ranks do not wait, and none does if an exception
        leaves a `with` block. A program that ends without close() ends its watches as well; rank 0 then waits up to 5 s,
        or not at all if an exception ended the program.
        """
        if self not in _open:
            return
        _open.discard(self)
        if (model := self._model()) is not None and self._hooks:
            self._take_off(model)
        deadline = time.monotonic() + timeout_s
        if self._exchange.windows == 0 and len(self._reads) > 1:
            self._publish()
        elif self._exchange.windows == 0 and self._passes and self._rank == 0:
            _log.warning("firkin.watch ends after %d steps; expected more than warmup=%d and %d", self._passes, self._warmup, self._source.lead)
        while self._sum is not None or self._exchange.is_collecting:
            if self._sum is not None:
                self._report(*self._sum.result())
                self._sum = None
            elif self._has_collected():
                self._report(*_summed(self._exchange.texts))
            elif time.monotonic() >= deadline:
                rank = len(self._exchange.texts)
                _log.warning("firkin.watch ends without the last steps: rank %d told nothing within %g s", rank, timeout_s)
                return
            else:
                time.sleep(1e-3)

    def _spans(self) -> list[tuple[int, str, str, float, float]]:
        """The last step that all ranks have seen: rank, kind, name, and start and end in seconds since the first rank began it."""
        found: list[tuple[int, str, str, float, float]] = []
        rows = [{row["step"]: row for row in json.loads(text)["steps"]} for text in self._reported]
        last = [of_rank[self._summary["last_step"]] for of_rank in rows]
        end = max((sum(row["phases_s"]) + row["exposed_s"] for row in last), default=0.0)
        for rank, row in enumerate(last):
            at = end - (sum(row["phases_s"]) + row["exposed_s"])  # 0 for the rank that took longest, not a rounding error below it
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

    def _events(self) -> list[dict[str, Any]]:
        """This rank's last window as torch.profiler would have recorded it, for read_trace(); on CPUs under stock DDP."""
        source, events, at = self._source, [], 0.0

        def add(category: str, name: str, start: float, length: float, elements: int | None = None, dtype: Any = None) -> None:
            shape = {} if elements is None else {"Input Dims": [[elements]], "Input type": [_TYPES.get(dtype, str(dtype))]}
            events.append({"ph": "X", "cat": category, "name": name, "pid": self._rank, "tid": "profile",
                           "ts": 1e6 * start, "dur": 1e6 * length, "args": shape})  # fmt: skip

        for row, ready in zip(source.rows, source.ready):
            before, forward, backward = row["phases_s"]
            begun, end = at + before + forward, at + before + forward + backward + row["exposed_s"]
            add("user_annotation", "DistributedDataParallel.forward", at + before, forward)
            add("cpu_op", "autograd::engine::evaluate_function: first", begun, 0.0)
            for parameter, ready_ns in zip(source.parameters, ready):
                add("cpu_op", "torch::autograd::AccumulateGrad", begun + 1e-9 * ready_ns, 0.0, parameter.elements, parameter.dtype)
            until, dtype = end, source.parameters[0].dtype
            for size, sent in reversed(list(zip(source.bucket_bytes, row["sent_s"]))):
                start = end - sent
                add("user_annotation", "gloo:all_reduce", start, max(0.0, until - start), size // dtype.itemsize, dtype)
                until -= size / (self._summary.get("bytes_per_s") or math.inf)
            at = end
        return events

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the last step that all ranks have seen as a Chrome trace, for https://ui.perfetto.dev.

        Shows phases, and buckets from launch to end (estimated from the link's rate except for the last). Under stock
        DistributedDataParallel on CPUs it also holds the steps of this rank's last window, gradient by gradient, which
        read_trace() and `firkin import` read back. Writes nothing before summary() has something.
        """
        if spans := self._spans():
            events = [{"name": name, "ph": "X", "pid": rank, "tid": kind, "ts": 1e6 * start, "dur": 1e6 * (end - start)}
                      for rank, kind, name, start, end in spans]  # fmt: skip
            if self._source.ready:
                events += self._events()
            about = {"backend": "gloo", "rank": self._rank, "world_size": self._size}
            pathlib.Path(path).write_text(json.dumps({"distributedInfo": about, "traceEvents": events}))

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes an HTML page with the lines and the step of trace(); viewing it needs no network.

        Writes nothing before summary() has something.
        """
        if spans := self._spans():
            ranks = [[(kind, start, end) for of, kind, _, start, end in spans if of == rank] for rank in range(self._size)]
            lines = [line.strip() for line in self._summary["lines"].splitlines()]
            _core.Results.watched(lines, torch.__version__, self._world, ranks).report(os.fspath(path))


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
    logs what they were spent on, why communication was not hidden, and what to do next (logger "firkin"): as a warning at
    first and when the lines name another cause, otherwise as information. A program that ends before, or calls close(),
    gets the lines of the steps so far. The first `warmup` steps do not count. After the first `every` steps only five of
    every twenty are read. table: from measure_all_reduce(), to predict the best cap too. writer(values, step): called on
    rank 0 with the figures of each window, such as wandb.log or accelerator.log.

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
    if table is not None and (type(source) is not _Stock or (size := Ranks(wrapped.process_group).world) not in table.world_sizes):
        what = f"{size} ranks" if type(source) is _Stock else "Firkin's engine or GPUs, where no times of buckets are read"
        raise InputError(f"watch: a table with {what}; expected PyTorch's DistributedDataParallel on CPUs, and measure_all_reduce() on its ranks")
    return Watch(wrapped, source, every, warmup, writer, table)
