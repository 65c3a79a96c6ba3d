"""Every reader of files and a malformed file, through the real program; the other ways to be wrong are tests of the readers.

FIRKIN names the binary. Each case ends with exit code 2, one line on standard error that names the file and the
line (in JSON the field), nothing on standard output, and no file written. None of the commands needs LibTorch.
"""

import os
import pathlib
import subprocess

from folders import InAFolder

FIRKIN = os.environ["FIRKIN"]
ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "data" / "cmsc828g"
GIB = 1 << 30
MOST_MEMORY_KIB = 200 << 10  # what a reader may take of a gigabyte, beyond what the program takes to say what it can do

TENSORS = "name,bytes,ready_s\nhead,4096,0.1\nblock,8192,0.2\nembedding,4096,0.3\n"
ALLREDUCE = "bytes,world_size,median_s\n1024,8,0.001\n1048576,8,0.002\n"
SIZES = (DATA / "layer-sizes-gpt2_large-bs4.csv").read_text()
TIMES = (DATA / "layer-times-gpt2_large-bs4.csv").read_text()
COURSE_ALLREDUCE = (DATA / "allreduce-times.csv").read_text()
NCCL = ("# Collective test starting: all_reduce_perf\n"
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
        "1024 256 float sum -1 20.0 0.05 0.09 0 25.0 0.04 0.07 0\n")
OSU = "# OSU MPI Allreduce Latency Test v7.3\n# Size       Avg Latency(us)\n1024    20.0\n"
TRACE = (ROOT / "tests" / "fuzz" / "corpus" / "trace" / "cpu").read_text()
INSPECTOR = (ROOT / "tests" / "fuzz" / "corpus" / "inspector" / "plain").read_text()
OTHERS_CSV = "bytes,time_us\n1024,20.0\n4096,25.0\n"
RESULTS = (ROOT / "tests" / "report" / "data" / "tune.json").read_text()

IMPORT = ["import", "--out", "out", "FILE"]

# A reader: what it accepts, the command that reads FILE, a part of it and what makes it malformed, and the line that this is on.
READERS = {
    "tensors.csv": (TENSORS, ["predict", "--tensors", "FILE", "--allreduce", "allreduce.csv"], ("8192", "many"), 3),
    "allreduce.csv": (ALLREDUCE, ["predict", "--tensors", "tensors.csv", "--allreduce", "FILE"], ("0.002", "fast"), 3),
    "sizes": (SIZES, [*IMPORT, "times", "course"], ("1310720", "-1310720"), 3),
    "times": (TIMES, [*IMPORT, "sizes", "course"], ("0.0214575081", "fast"), 3),
    "course": (COURSE_ALLREDUCE, [*IMPORT, "sizes", "times"], ("0.003005", "-1"), 3),
    "nccl.txt": (NCCL, [*IMPORT, "--world", "8"], ("20.0", "fast"), 3),
    "osu.txt": (OSU, [*IMPORT, "--world", "8"], ("20.0", "nan"), 3),
    "times.csv": (OTHERS_CSV, [*IMPORT, "--world", "8", "--collective", "all_reduce"], ("time_us", "time"), 1),
    "trace.json": (TRACE, IMPORT, ('"dur": 300', '"dur": long'), 2),
    "inspector.log": (INSPECTOR, IMPORT, ('"coll_exec_time_us": 25', '"coll_exec_time_us": -25'), 2),
    "results.json": (RESULTS, ["report", "FILE", "--out", "out"], ("0.014878", "-0.014878"), None),
}
GOOD_BESIDE = {"tensors.csv": TENSORS, "allreduce.csv": ALLREDUCE, "sizes": SIZES, "times": TIMES, "course": COURSE_ALLREDUCE}


class Malformed(InAFolder):
    def setUp(self):
        super().setUp()
        for name, text in GOOD_BESIDE.items():
            (self.folder / name).write_text(text)

    @classmethod
    def setUpClass(cls):
        cls.memory_of_help_kib = cls.run_firkin(["--help"], ".")[3]

    def run_reader(self, reader):
        return self.run_firkin(["bad" if word == "FILE" else word for word in READERS[reader][1]], self.folder)

    @staticmethod
    def run_firkin(words, folder):
        process = subprocess.Popen([FIRKIN, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with process:
            out, err = process.stdout.read(), process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode, out, err, usage.ru_maxrss

    def assert_rejected(self, reader):
        code, out, err, memory_kib = self.run_reader(reader)
        self.assertEqual((code, out), (2, ""), err)
        self.assertEqual(len(err.splitlines()), 1, err)
        place = "bad(:[1-9][0-9]*)?" if reader.endswith(".json") else "bad:[1-9][0-9]*"
        self.assertRegex(err, f"^firkin: {place}: .+; expected ." if ";" in err else f"^firkin: {place}: .")
        self.assertFalse((self.folder / "out").exists())
        self.assertLess(memory_kib - self.memory_of_help_kib, MOST_MEMORY_KIB)
        return err

    def test_what_the_malformed_files_are_made_of_is_accepted(self):
        for reader in READERS:
            with self.subTest(reader=reader):
                (self.folder / "bad").write_text(READERS[reader][0])
                code, _, err, _ = self.run_reader(reader)
                self.assertEqual(code, 0, err)

    def test_an_error_points_to_the_line_that_is_wrong(self):
        for reader, (good, _, (before, after), line) in READERS.items():
            with self.subTest(reader=reader):
                self.assertIn(before, good)
                (self.folder / "bad").write_text(good.replace(before, after, 1))
                self.assertTrue(self.assert_rejected(reader).startswith(f"firkin: bad:{line}: " if line else "firkin: bad: "))

    def test_a_line_of_a_gigabyte_is_read_no_further_than_its_limit(self):
        for reader in READERS:
            with self.subTest(reader=reader):
                with open(self.folder / "bad", "wb") as file:
                    file.write(READERS[reader][0].encode())
                    file.truncate(GIB)  # sparse: it takes no disk
                self.assertRegex(self.assert_rejected(reader), "not JSON" if reader == "trace.json" else "the line is longer than")

    def test_an_empty_file_and_bytes_that_are_no_text(self):
        for reader in READERS:
            for content in (b"", bytes(range(256))):
                with self.subTest(reader=reader, content=content[:1]):
                    (self.folder / "bad").write_bytes(content)
                    self.assert_rejected(reader)
