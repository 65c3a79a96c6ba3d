"""`firkin import` and `firkin predict` of traces: what they write and print; how a trace is read is for tests/import to say."""

import ctypes
import gzip
import json
import pathlib
import re
import subprocess

from program import DEADLINE_S, FIRKIN, InFolder

SIZES = [1 << 20, 1 << 18, 1 << 16]  # elements, in gradient-ready order


def trace(rank, steps=4, shapes=True):
    """Backward begins at 10 ms of each step of 100 ms; gradients are ready every 10 ms after it, and travel at 0.25 ns a byte after 1 ms."""
    events = []

    def add(category, name, start_ms, length_ms, elements=None):
        shape = {"Input Dims": [[elements]], "Input type": ["float"]} if elements and shapes else {}
        events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": 1e3 * start_ms, "dur": 1e3 * length_ms, "args": shape})

    for i in range(steps):
        at = 100.0 * i
        add("user_annotation", "DistributedDataParallel.forward", at, 9)
        add("cpu_op", "aten::mm", at, 9)
        add("cpu_op", "autograd::engine::evaluate_function: MmBackward0", at + 10, 1)
        for k, elements in enumerate(SIZES):
            add("cpu_op", "MmBackward0", at + 10 + 10 * k, 9)
            add("cpu_op", "torch::autograd::AccumulateGrad", at + 20 + 10 * k, 0.1, elements)
            add("user_annotation", "gloo:all_reduce", at + 21 + 10 * k - rank, 1 + 1e-6 * elements + rank, elements)
    about = {"backend": "gloo", "rank": rank, "world_size": 2}
    return json.dumps({"schemaVersion": 1, "distributedInfo": about, "baseTimeNanoseconds": 1_790_000_000_000_000_000, "traceEvents": events})


class Traces(InFolder):
    def setUp(self):
        super().setUp()
        self.files = []
        for rank in range(2):
            self.files.append(self.folder / f"trace_{rank}.json.gz")
            self.files[-1].write_bytes(gzip.compress(trace(rank).encode()))

    def test_import_writes_the_profile_the_table_and_a_page(self):
        said = self.assert_succeeds("import", *self.files, "--out", self.out).stdout
        self.assertIn("A step takes 100 ms: backward 30 ms", said)
        self.assertIn("Every gradient travels in an all-reduce of its own", said)
        self.assertIn("A step's all-reduces on rank 0: medians, from the start of backward\n", said)
        self.assertEqual((self.out / "tensors.csv").read_text().splitlines()[0], "name,bytes,ready_s")
        rows = [line.split(",") for line in (self.out / "tensors.csv").read_text().splitlines()[1:]]
        self.assertEqual([(int(size), round(float(ready), 6)) for _, size, ready in rows], [(4 * n, 0.01 * (k + 1)) for k, n in enumerate(SIZES)])
        rows = [line.split(",") for line in (self.out / "allreduce.csv").read_text().splitlines()[1:]]
        self.assertEqual([int(row[0]) for row in rows], [4 * n for n in sorted(SIZES)])
        self.assertAlmostEqual(float(rows[-1][2]), 1e-3 + 1e-9 * SIZES[0], places=6)  # of the rank that joined last
        traced = self.results()["traced"]
        self.assertEqual((traced["steps"], traced["world_size"], len(traced["ranks"])), (4, 2, 2))
        self.assertAlmostEqual(traced["ranks"][1]["waiting_s"], 3e-3, places=6)
        self.assert_read_whole("allreduce", "timeline")

    def test_predict_takes_the_trace_and_its_own_times_or_a_table(self):
        traces = [word for file in self.files for word in ("--trace", file)]
        self.assertIn("Backward with its communication, by bucket cap", self.assert_succeeds("predict", *traces).stdout)
        (self.folder / "fast.csv").write_text("bytes,world_size,median_s\n1024,2,0.00001\n4194304,2,0.0001\n")
        said = self.assert_succeeds("predict", "--trace", self.files[0], "--allreduce", self.folder / "fast.csv").stdout
        self.assertRegex(" ".join(said.split()), "The all-reduce table is .* times as fast as what the run saw")
        self.assert_refused("predict", "--trace", self.files[0], mentions="expected --allreduce or --cluster")

    def test_what_is_refused_is_named_and_leaves_no_folder(self):
        bare, cut = self.folder / "bare.json", self.folder / "cut.json.gz"
        bare.write_text(trace(0, shapes=False))
        log = self.folder / "all_reduce.log.gz"
        log.write_bytes(gzip.compress(b"bytes,time_us,ranks\n1024,20,8\n"))
        for files, mentions in [
            ([bare], "record_shapes=True"),
            ([self.files[0]] * 2, "rank 0, as in another trace"),
            ([log], "all_reduce.log.gz:1: zipped; expected it unzipped"),
            ([self.folder / "none"], "none: cannot be read: No such file or directory; expected a trace of torch.profiler, "),
        ]:
            self.assert_refused("import", *files, "--out", self.out, mentions=mentions)
        for kept in (100, -20, -8):
            cut.write_bytes(self.files[0].read_bytes()[:kept])
            self.assert_refused("import", cut, "--out", self.out, mentions="cut.json.gz: the zipped file is cut off")
        self.assertFalse(self.out.exists())

    def test_without_zlib_only_a_zipped_trace_is_refused(self):
        ctypes.CDLL("libz.so.1")
        zlib = re.search(r"\S+/libz\.so\S*", pathlib.Path("/proc/self/maps").read_text())[0]
        hidden = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount --bind /dev/null "$0" && exec "$@"', zlib]
        if subprocess.run([*hidden, "true"], capture_output=True).returncode != 0:
            self.skipTest("this process may not mount")

        def firkin(*words):
            return subprocess.run([*hidden, FIRKIN, *words], capture_output=True, text=True, timeout=DEADLINE_S)

        refused = firkin("import", self.files[0], "--out", self.out)
        line = f"firkin: {self.files[0]}: zipped, and this system has no zlib (libz.so.1): unzip it first\n"
        self.assertEqual((refused.returncode, refused.stdout, refused.stderr), (1, "", line))
        plain = self.folder / "plain.json"
        plain.write_text(trace(0))
        self.assertIn("A step takes 100 ms", firkin("import", plain, "--out", self.out).stdout)
