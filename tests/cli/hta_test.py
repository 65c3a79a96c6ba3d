"""HolisticTraceAnalysis (HTA) reads the traces of firkin trace --kineto, and finds the overlap that results.json states.

FIRKIN names the binary; HTA_VENV the virtual environment with HTA, which tools/bootstrap test makes. Where there is none the exit code is
77, which ctest shows as skipped.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

VENV = pathlib.Path(os.environ["HTA_VENV"]).absolute()
if not (VENV / "firkin-requirements.txt").exists():  # written when all is installed
    print(f"skipped: no HolisticTraceAnalysis in {VENV}; tools/bootstrap test installs it")
    sys.exit(77)
if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
    python = str(VENV / "bin" / "python")
    os.execv(python, [python, "-W", "ignore::FutureWarning", *sys.argv])

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # else it cuts every operator to whole microseconds

import logging
import re

import hta.utils.utils
from hta.analyzers.communication_analysis import CommunicationAnalysis
from hta.trace_analysis import TraceAnalysis

logging.disable(logging.WARNING)
hta.utils.utils.NCCL_KERNEL_RE = re.compile(r"^(gloo|nccl):")  # c10d's names; HTA has no setting for this

FIRKIN = os.environ["FIRKIN"]
DEADLINE_S = 200
TOLERANCE_POINTS = 0.5  # HTA rounds to hundredths of a point
TOLERANCE_S = 1e-6
STEPS = 3
STRATEGIES = ["naive", "overlap", "bucketed"]
BACKWARD_OF_MILLISECONDS = ["--d-model", "128", "--d-ff", "512", "--num-layers", "2", "--batch", "4", "--sequence", "128"]


def analysis_of(files):
    return TraceAnalysis(trace_files={rank: str(file) for rank, file in files.items()}, include_last_profiler_step=True)


def overlap_points(trace):
    """Per rank: the percentage of communication that HTA finds beside computation."""
    table = CommunicationAnalysis.get_comm_comp_overlap(trace, visualize=False)
    return dict(zip(table["rank"], table["comp_comm_overlap_pctg"]))


def overlap_points_of_step(trace, step):
    whole = trace.traces
    trace.traces = {rank: events[events["iteration"] == step] for rank, events in whole.items()}
    try:
        return overlap_points(trace)
    finally:
        trace.traces = whole


class HandWritten(unittest.TestCase):
    """HTA by itself, on a trace that can be reckoned in the head."""

    def test_a_collective_half_beside_an_operator_is_50_percent(self):
        def event(name, category, ts, dur, **args):
            return {"ph": "X", "name": name, "cat": category, "pid": 0, "tid": args.get("stream", 1), "ts": ts, "dur": dur, "args": args}

        trace = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 2},
            "traceEvents": [
                {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0.0, "args": {"name": "rank 0"}},
                event("ProfilerStep#0", "user_annotation", 0.0, 200.0, correlation=1),
                event("aten::mm", "cpu_op", 0.0, 100.0),
                event("aten::mm", "kernel", 0.0, 100.0, stream=1, correlation=1),
                event("gloo:all_reduce", "kernel", 50.0, 100.0, stream=100, correlation=1),
            ],
        }
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "trace.rank0.json"
            file.write_text(json.dumps(trace))
            self.assertEqual(overlap_points(analysis_of({0: file}).t), {0: 50.0})


class OfFirkin(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.out = pathlib.Path(folder.name).resolve() / "out"  # HTA takes relative paths from elsewhere
        words = ["--kineto", "--ranks", "2", "--strategies", ",".join(STRATEGIES), "--cap-mib", "0.25", "--steps", str(STEPS)]
        run = subprocess.run(
            [FIRKIN, "trace", *words, *BACKWARD_OF_MILLISECONDS, "--out", str(cls.out)], capture_output=True, text=True, timeout=DEADLINE_S
        )
        if run.returncode != 0:
            raise AssertionError(run.stderr)
        results = json.loads((cls.out / "results.json").read_text())
        cls.listed = results["files"]
        cls.samples = {row["strategy"]: [rank["samples"] for rank in row["ranks"]] for row in results["traces"]}
        cls.files = {
            row["strategy"]: [row["file"].replace(".json", f".rank{rank}.json") for rank in range(len(row["ranks"]))]
            for row in results["traces"]
        }
        cls.analyses = {
            strategy: analysis_of({rank: cls.out / name for rank, name in enumerate(names)}) for strategy, names in cls.files.items()
        }

    def each_rank(self):
        for strategy in STRATEGIES:
            self.assertEqual(len(self.samples[strategy]), 2)
            for rank, samples in enumerate(self.samples[strategy]):
                yield strategy, rank, samples

    def test_every_rank_has_a_file_that_results_json_lists(self):
        for strategy, rank, _ in self.each_rank():
            self.assertIn(self.files[strategy][rank], self.listed)
            self.assertIn(f'"rank": {rank}', (self.out / self.files[strategy][rank]).read_text())  # what HTA looks for in a folder

    def test_the_overlap_of_every_rank_is_ours(self):
        for strategy, rank, samples in self.each_rank():
            ours = 100 * sum(samples["overlapped_s"]) / sum(samples["communication_s"])
            found = overlap_points(self.analyses[strategy].t)[rank]
            self.assertAlmostEqual(found, ours, delta=TOLERANCE_POINTS, msg=(strategy, rank))

    def test_the_overlap_of_every_step_is_ours(self):
        for strategy, rank, samples in self.each_rank():
            trace = self.analyses[strategy].t
            self.assertEqual(list(trace.get_iterations(rank)), list(range(STEPS)))
            for step in range(STEPS):
                ours = 100 * samples["overlapped_s"][step] / samples["communication_s"][step]
                found = overlap_points_of_step(trace, step)[rank]
                self.assertAlmostEqual(found, ours, delta=TOLERANCE_POINTS, msg=(strategy, rank, step))

    def test_seconds_of_computation_and_of_exposed_communication_are_ours(self):
        for strategy, rank, samples in self.each_rank():
            table = self.analyses[strategy].get_temporal_breakdown(visualize=False).set_index("rank").loc[rank]
            exposed_s = sum(samples["communication_s"]) - sum(samples["overlapped_s"])
            self.assertAlmostEqual(1e-6 * table["compute_time(us)"], sum(samples["compute_s"]), delta=TOLERANCE_S, msg=(strategy, rank))
            self.assertAlmostEqual(1e-6 * table["non_compute_time(us)"], exposed_s, delta=TOLERANCE_S, msg=(strategy, rank))

    def test_there_is_overlap_to_compare(self):
        for rank, points in overlap_points(self.analyses["overlap"].t).items():
            self.assertGreater(points, 1, rank)


if __name__ == "__main__":
    unittest.main(verbosity=2)
