"""The installed program: it runs from anywhere, finds LibTorch, and its data after its folder was moved.

FIRKIN_BINARY_DIR is the build to install, CMAKE_COMMAND its CMake.
"""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from commands import BUILD, BUILD_DEADLINE_S, CMAKE, checked, run
from folders import folder_until

TINY_RUN = ["--ranks", "2", "--d-model", "32", "--d-ff", "64", "--num-layers", "2", "--batch", "1", "--sequence", "16", "--blocks", "4",
            "--warmup", "1", "--steps-per-block", "1", "--profile-steps", "4", "--allreduce-time", "0.2s", "--cap", "0.01MiB,1MiB"]  # fmt: skip


class InstalledProgram(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder_until(cls.addClassCleanup)
        checked(CMAKE, "--install", BUILD, "--prefix", cls.folder / "first", deadline_s=BUILD_DEADLINE_S)
        cls.prefix = (cls.folder / "first").rename(cls.folder / "moved")
        cls.firkin = cls.prefix / "bin/firkin"
        cls.script = cls.prefix / "libexec/firkin/with-libtorch"

    def answer(self, *words) -> str:
        return checked(self.firkin, *words)

    # --- it runs

    def test_runs_from_another_folder(self):
        self.assertRegex(self.answer("--version"), r"^\d+\.\d+\.\d+\n$")
        self.assertIn("gpt2", self.answer("buckets"))
        self.assertIn("--ranks", self.answer("tune", "--help"))

    def test_licences_come_with_it(self):
        notices = (self.prefix / "share/doc/firkin/THIRD_PARTY_NOTICES").read_text()
        self.assertEqual(self.answer("--licenses"), notices)
        self.assertIn("vega-lite", notices)
        self.assertIn("Apache License", (self.prefix / "share/doc/firkin/LICENSE").read_text())

    def test_tunes_with_the_installed_text(self):
        out = self.folder / "tune"
        self.answer("tune", *TINY_RUN, "--out", out)
        self.assertIn('"cooperage.txt"', (out / "results.json").read_text())
        self.assertTrue((out / "report.html").exists())

    def text_in_use(self, **variables) -> str:
        """The message about a batch that is too large for the text names it."""
        result = run(self.firkin, "tune", "--batch", 1 << 20, "--sequence", "16", **variables)
        self.assertEqual(result.returncode, 2, result)
        return re.search(r"bytes of (.*)\n", result.stderr)[1]

    def test_data_lies_beside_the_program(self):
        self.assertEqual(self.text_in_use(), f"{self.prefix}/share/firkin/text/cooperage.txt")
        self.assertTrue((self.prefix / "share/firkin/cmsc828g/allreduce-times.csv").exists())

    def test_a_link_to_the_program_finds_its_data_too(self):
        link = self.folder / "firkin"
        link.symlink_to(self.firkin)
        self.assertEqual(run(link, "tune", "--batch", 1 << 20).stderr, run(self.firkin, "tune", "--batch", 1 << 20).stderr)

    def test_data_can_be_named_by_the_environment(self):
        named = shutil.copytree(self.prefix / "share/firkin", self.folder / "named")
        self.assertEqual(self.text_in_use(FIRKIN_DATA=str(named)), f"{named}/text/cooperage.txt")
        result = run(self.firkin, "tune", FIRKIN_DATA="/nowhere")
        self.assertEqual((result.returncode, result.stderr), (2, "firkin: FIRKIN_DATA=/nowhere: expected the folder with Firkin's data\n"))

    # --- with-libtorch finds LibTorch

    def stated(self, name: str) -> str:
        """What the script says of itself."""
        return re.search(rf"^{name}='(.*)'$", self.script.read_text(), re.MULTILINE)[1]

    def fake_libtorch(self, name: str, version: str | None = None) -> pathlib.Path:
        folder = self.folder / name
        header = folder / "include/torch/headeronly/version.h"
        header.parent.mkdir(parents=True)
        major, minor = (version or self.stated("series")).split(".")
        header.write_text(f"#define TORCH_VERSION_MAJOR {major}\n#define TORCH_VERSION_MINOR {minor}\n#define TORCH_VERSION_PATCH 0\n")
        (folder / "lib").mkdir()
        for library in self.stated("libraries").split(";"):
            (folder / f"lib/lib{library}.so").touch()
        return folder

    def start(self, built_with, *words, **variables) -> subprocess.CompletedProcess:
        """The script of a Firkin that was built with that LibTorch. Its program prints the library path and its arguments, and exits with 7."""
        with tempfile.TemporaryDirectory() as folder:
            script, program = pathlib.Path(folder) / "with-libtorch", pathlib.Path(folder) / "firkin-measure"
            for file, text in (
                (script, self.script.read_text().replace(f"'{self.stated('built_with')}'", f"'{built_with}'")),
                (program, '#!/bin/sh\nprintf "%s\\n" "$LD_LIBRARY_PATH" "$@"\nexit 7\n'),
            ):
                file.write_text(text)
                file.chmod(0o755)
            return run(script, *words, **variables)

    def python_of(self, libtorch) -> pathlib.Path:
        """A Python whose torch lies there."""
        python = self.folder / f"python-of-{libtorch.name}"
        python.write_text(f"#!/bin/sh\necho '{libtorch}'\n")
        python.chmod(0o755)
        return python

    def assert_starts(self, result: subprocess.CompletedProcess, library_path: str, *words: str):
        self.assertEqual((result.returncode, result.stdout.splitlines(), result.stderr), (7, [library_path, *words], ""))

    def assert_refused(self, result: subprocess.CompletedProcess, line: str):
        self.assertEqual((result.returncode, result.stdout, result.stderr), (2, "", f"firkin: {line}\n"))

    def test_libtorch_where_it_was_built_with_needs_no_library_path(self):
        self.assert_starts(self.start(self.fake_libtorch("at-home"), "buckets", "two words"), "", "buckets", "two words")

    def test_the_environment_names_a_libtorch_before_all_others(self):
        home, named = self.fake_libtorch("home"), self.fake_libtorch("named-in-place-of-home")
        self.assert_starts(self.start(home, FIRKIN_LIBTORCH=named), f"{named}/lib")

    def test_the_torch_of_python_is_taken_where_that_of_the_build_is_gone(self):
        libtorch = self.fake_libtorch("torch-of-python")
        self.assert_starts(self.start("/gone", FIRKIN_PYTHON=self.python_of(libtorch)), f"{libtorch}/lib")

    def test_a_libtorch_that_does_not_fit_is_refused_in_one_line(self):
        expected = f"expected the folder with include/ and lib/ of LibTorch {self.stated('series')}"
        older = self.fake_libtorch("older", "2.4")
        self.assert_refused(self.start("/gone", FIRKIN_LIBTORCH=older), f"FIRKIN_LIBTORCH={older}: LibTorch 2.4; {expected}")
        self.assert_refused(self.start("/gone", FIRKIN_LIBTORCH="/none"), f"FIRKIN_LIBTORCH=/none: no lib/libtorch.so; {expected}")

    def test_no_libtorch_is_one_line_that_says_what_to_do(self):
        series = self.stated("series")
        expected = f"expected a Python environment with torch {series}, or its folder in FIRKIN_LIBTORCH"
        for python, has in (("/bin/false", "no torch"), (self.python_of(self.fake_libtorch("too-old", "2.4")), "LibTorch 2.4")):
            refused = self.start("/gone", FIRKIN_PYTHON=python)
            self.assert_refused(refused, f"no LibTorch {series}: not in /gone, and {python} has {has}; {expected}")

    def test_only_what_measures_needs_libtorch(self):
        elsewhere = self.folder / "elsewhere"
        elsewhere.symlink_to(self.stated("built_with"))
        words = ("bench", "allreduce", "--ranks", 1, "-e", 64, "--time", "100ms", "--quiet", "--out", self.folder / "measured")
        for libtorch, command, code in ((elsewhere, words, 0), ("/none", words, 2), ("/none", ("buckets",), 0)):
            with self.subTest(libtorch=libtorch, command=command[0]):
                result = run(self.firkin, *command, FIRKIN_LIBTORCH=libtorch)
                self.assertEqual(result.returncode, code, result.stderr)
