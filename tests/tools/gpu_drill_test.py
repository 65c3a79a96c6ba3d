"""tools/gpu-drill run: that no part stops another, that commands end with their part's time, and in the second tier the whole drill on the CPU.

FIRKIN_SOURCE_DIR names the repository, FIRKIN_BUILD the build folder.
"""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import time
import unittest

import pytest

ROOT = pathlib.Path(os.environ["FIRKIN_SOURCE_DIR"])
BUILD = pathlib.Path(os.environ["FIRKIN_BUILD"])
sys.path.insert(0, str(ROOT / "tools" / "drill"))
import parts
import run as drill_run
from drill import Drill, Failed, Finding
from folders import InAFolder
from processes import ends


class Drilled(InAFolder):
    def setUp(self):
        super().setUp()
        self.out.mkdir()


class Parts(Drilled):
    def drill(self, dry=True):
        return Drill(self.out, BUILD, dry, quick=dry, limit_s=60)

    def outcome(self, *commands, dry=True):
        return drill_run.outcome(self.drill(dry), parts.Part("part", 60, commands))

    def test_they_fit_into_the_time_that_all_have(self):
        self.assertEqual(len(parts.PARTS), 7)
        self.assertLessEqual(sum(part.seconds for part in parts.PARTS), drill_run.LIMIT_S)
        self.assertLessEqual(drill_run.LIMIT_S, 9 * 60)

    def test_what_is_judged_by_times_counts_on_a_gpu_alone(self):
        for found, dry, status in (
            (Finding("x"), False, "PASS"),
            (Finding("x", fast=False), False, "FAIL"),
            (Finding("x", fast=False), True, "PASS"),
            (Finding("x", right=False), True, "FAIL"),
            (Finding("x", refused="not there"), False, "SKIP"),
            (Finding("x", refused="not there", fast=False), False, "FAIL"),
        ):
            with self.subTest(found=found, dry=dry):
                self.assertEqual(self.outcome(lambda *_, found=found: found, dry=dry)[0], status)

    def test_one_that_is_broken_is_a_failure_with_its_reason(self):
        status, text = self.outcome(lambda *_: Finding("found before"), lambda *_: {}["not there"], lambda *_: self.fail("was run"))
        self.assertEqual((status, text), ("FAIL", "found before; KeyError: 'not there'"))

    def test_what_is_not_judged_is_told_and_costs_nothing(self):
        status, text = self.outcome(parts.Command("none", "tune --model not-there", is_judged=False), lambda *_: Finding("found behind"))
        self.assertEqual((status, text.split("; ")[-1]), ("PASS", "found behind"))
        self.assertIn("not-there", text)

    def test_a_refusal_of_the_program_is_skipped_and_a_flag_that_it_does_not_know_is_a_failure(self):
        for flags, status in (("--model not-there", "SKIP"), ("--not-there", "FAIL")):
            said = self.outcome(parts.Command("none", f"tune {flags}"))
            self.assertEqual((said[0], "not-there" in said[1]), (status, True), said)

    def test_words_are_those_of_a_whole_run_a_quick_one_and_one_on_the_cpu(self):
        for dry, words in ((False, ["--world", "8", "--link", "100gbit,30us,sms=1", "--cap", "1MiB,2MiB"]),
                           (True, ["--world", "8", "--link", "100gbit,30us", "--cap", "1MiB"])):  # fmt: skip
            self.assertEqual(self.drill(dry).words("{tcp}{cuda:,sms=1} --cap {1MiB,2MiB|1MiB}"), ["--ranks", "1", *words])

    def test_a_cluster_has_published_times_of_its_own_ranks(self):
        for name, (world, source) in parts.CLUSTERS.items():
            with self.subTest(cluster=name):
                link = self.drill().link(name)
                if ".csv" in source:
                    rows = [line.split(",") for line in link.read_text().splitlines()[1:]]
                    self.assertGreater(len(rows), 10)
                    self.assertEqual({int(row[1]) for row in rows}, {world})
                    self.assertTrue(all(0 < float(row[2]) < 10 for row in rows))

    def test_a_command_ends_with_the_time_of_its_part_and_its_children_with_it(self):
        drill = self.drill()
        for seconds in (1, 4, 16):  # until the shell has come so far
            drill.deadline = time.monotonic() + seconds
            with self.assertRaisesRegex(Failed, r"sleeper had not ended in the part's time") as failed:
                drill.run("sleeper", "bash", "-c", "sleep 600 & echo $!; wait")
            child = str(failed.exception).split()[-1]
            if child.isdigit():
                break
        self.assertTrue(ends(int(child)))

    def test_what_does_not_fit_into_a_file_is_left_out_from_the_largest_on(self):
        folder = self.out / "1-part"
        folder.mkdir()
        (folder / "small").write_text("small")
        (folder / "large").write_bytes(os.urandom(drill_run.MOST_BYTES + 1))
        with contextlib.redirect_stderr(io.StringIO()) as said:
            drill_run.pack(folder, self.out / "1-part.tar.gz")
        self.assertIn("large is left out", said.getvalue())
        with tarfile.open(self.out / "1-part.tar.gz") as tar:
            self.assertEqual(tar.getnames(), ["1-part/small"])
        self.assertFalse(folder.exists())


def run_drill(*words):
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run([ROOT / "tools" / "gpu-drill", *map(str, words)], env=os.environ | {"PATH": path}, capture_output=True, text=True)


class Commands(Drilled):
    def test_what_is_wrong_with_them_is_one_line(self):
        for words, said in (
            ((), "expected build, or run OUT"),
            (("drill",), "expected build, or run OUT"),
            (("build", "there"), "expected build alone"),
            (("run", self.out, "--build", self.out), "holds no firkin"),
        ):
            with self.subTest(words=words):
                ended = run_drill(*words)
                self.assertEqual(ended.returncode, 2, ended.stderr)
                self.assertIn(said, ended.stderr.splitlines()[-1])


@unittest.skipUnless((BUILD / "python/firkin").exists(), "the Python package is not in this build")
@pytest.mark.full
class OnTheCpu(Drilled):
    def test_every_part_runs(self):
        ended = run_drill("run", self.out, "--dry", "--build", BUILD)
        lines = ended.stdout.splitlines()
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertEqual([line.split()[1] for line in lines], [str(number) for number in range(1, 8)], ended.stdout)
        for line in lines:
            self.assertRegex(line, r"^(PASS|SKIP) ")
        results = json.loads((self.out / "results.json").read_text())
        self.assertEqual([part["status"] for part in results["parts"]], [line.split()[0] for line in lines])
        files = list(self.out.iterdir())
        self.assertLessEqual(len(files), 8)
        for file in files:
            self.assertTrue(file.is_file())
            self.assertLessEqual(file.stat().st_size, 16 << 20)
