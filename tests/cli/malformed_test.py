"""Every reader of files against every way in which a file is malformed, through the real program.

FIRKIN names the binary. Each case ends with exit code 2, one line on standard error that names the file and the
line (in JSON the field), nothing on standard output, and no file written. None of the commands needs LibTorch.
"""

import os
import pathlib
import subprocess
import tempfile
import unittest

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
NCCL = ("# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
        "1024 256 float sum -1 20.0 0.05 0.09 0 25.0 0.04 0.07 0\n")
OSU = "# OSU MPI Allreduce Latency Test v7.3\n# Size       Avg Latency(us)\n1024    20.0\n"
OTHERS_CSV = "size,time\n1024,20.0\n4096,25.0\n"
RESULTS = (ROOT / "tests" / "report" / "data" / "tune.json").read_text()

# A reader: what it accepts, the command that reads FILE, and a substitution for each malformation. None: the format has no such thing.
#   missing: a column or field; text, negative, nan: in a number; duplicate: a name that may be there once; unsorted: times out of order.
READERS = {
    "tensors.csv": dict(
        good=TENSORS, command=["predict", "--tensors", "FILE", "--allreduce", "allreduce.csv"],
        missing=("ready_s", "ready"), text=("8192", "many"), negative=("8192", "-8192"), nan=("0.2", "nan"), duplicate=("block", "head"),
        unsorted=("0.2", "0.05")),
    "allreduce.csv": dict(
        good=ALLREDUCE, command=["predict", "--tensors", "tensors.csv", "--allreduce", "FILE"],
        missing=("median_s", "speed"), text=("0.002", "fast"), negative=("0.002", "-0.002"), nan=("0.002", "nan"),
        duplicate=("world_size", "world_size,bytes"), unsorted=None),
    "sizes": dict(
        good=SIZES, command=["import", "FILE", "times", "course", "--out", "out"],
        missing=("No. Params", "Params"), text=("1310720", "many"), negative=("1310720", "-1310720"), nan=("1310720", "nan"),
        duplicate=("Block 3,", "Block 4,"), unsorted=None),
    "times": dict(
        good=TIMES, command=["import", "sizes", "FILE", "course", "--out", "out"],
        missing=("mean", "average"), text=("0.0214575081", "fast"), negative=("0.0214575081", "-1"), nan=("0.0214575081", "nan"),
        duplicate=("block_1 grad", "block_2 grad"), unsorted=None),
    "course": dict(
        good=COURSE_ALLREDUCE, command=["import", "sizes", "times", "FILE", "--out", "out"],
        missing=("average_time", "time"), text=("0.003005", "fast"), negative=("0.003005", "-1"), nan=("0.003005", "nan"),
        duplicate=("average_time", "average_time,backend"), unsorted=None),
    "nccl.txt": dict(
        good=NCCL, command=["import", "FILE", "--world", "8", "--out", "out"],
        missing=("time algbw", "algbw"), text=("20.0", "fast"), negative=("20.0", "-20.0"), nan=("20.0", "nan"), duplicate=None,
        unsorted=None),
    "osu.txt": dict(
        good=OSU, command=["import", "FILE", "--world", "8", "--out", "out"],
        missing=("Allreduce", "Broadcast"), text=("20.0", "fast"), negative=("20.0", "-20.0"), nan=("20.0", "nan"), duplicate=None,
        unsorted=None),
    "times.csv": dict(
        good=OTHERS_CSV, command=["import", "FILE", "--world", "8", "--unit", "us", "--out", "out"],
        missing=("time", "speed"), text=("20.0", "fast"), negative=("20.0", "-20.0"), nan=("20.0", "nan"), duplicate=("size", "time"),
        unsorted=None),
    "results.json": dict(
        good=RESULTS, command=["report", "FILE", "--out", "out"],
        missing=('"measured_s"', '"measured"'), text=("0.014878", '"early"'), negative=("0.014878", "-0.014878"), nan=("0.014878", "NaN"),
        duplicate=("blocks.11.v.weight", "lm_head.weight"), unsorted=("0.014878", "0.2")),
}
GOOD_BESIDE = {"tensors.csv": TENSORS, "allreduce.csv": ALLREDUCE, "sizes": SIZES, "times": TIMES, "course": COURSE_ALLREDUCE}


class Malformed(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name, text in GOOD_BESIDE.items():
            (self.folder / name).write_text(text)

    @classmethod
    def setUpClass(cls):
        cls.memory_of_help_kib = cls.run_firkin(["--help"], ".")[3]

    def run_reader(self, reader):
        return self.run_firkin(["bad" if word == "FILE" else word for word in READERS[reader]["command"]], self.folder)

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

    def reject(self, malformations):
        for reader, case in READERS.items():
            for malformation in malformations:
                if case[malformation] is None:
                    continue
                with self.subTest(reader=reader, malformation=malformation):
                    before, after = case[malformation]
                    self.assertIn(before, case["good"])
                    (self.folder / "bad").write_text(case["good"].replace(before, after, 1))
                    self.assert_rejected(reader)

    def test_what_the_malformed_files_are_made_of_is_accepted(self):
        for reader in READERS:
            with self.subTest(reader=reader):
                (self.folder / "bad").write_text(READERS[reader]["good"])
                code, _, err, _ = self.run_reader(reader)
                self.assertEqual(code, 0, err)

    def test_malformed_content(self):
        self.reject(["text", "missing", "negative", "nan", "duplicate", "unsorted"])

    def test_an_error_points_to_the_line_that_is_wrong(self):
        for reader, line in (("tensors.csv", 3), ("allreduce.csv", 3), ("nccl.txt", 2), ("times", 3)):
            with self.subTest(reader=reader):
                before, after = READERS[reader]["text"]
                (self.folder / "bad").write_text(READERS[reader]["good"].replace(before, after, 1))
                self.assertTrue(self.assert_rejected(reader).startswith(f"firkin: bad:{line}: "))

    def test_a_line_of_a_gigabyte_is_read_no_further_than_its_limit(self):
        for reader, case in READERS.items():
            with self.subTest(reader=reader):
                with open(self.folder / "bad", "wb") as file:
                    file.write(case["good"].encode())
                    file.truncate(GIB)  # sparse: it takes no disk
                self.assertRegex(self.assert_rejected(reader), "the line is longer than")

    def test_an_empty_file_and_bytes_that_are_no_text(self):
        for reader in READERS:
            for content in (b"", bytes(range(256))):
                with self.subTest(reader=reader, content=content[:1]):
                    (self.folder / "bad").write_bytes(content)
                    self.assert_rejected(reader)


if __name__ == "__main__":
    unittest.main()
