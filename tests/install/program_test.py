"""The installed program: it runs from anywhere, finds LibTorch, and its data after its folder was moved; shells complete its commands and
flags.

FIRKIN_BINARY_DIR is the build to install, CMAKE_COMMAND its CMake.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from commands import BUILD_DEADLINE_S, RUN_DEADLINE_S, environment, run

BUILD = pathlib.Path(os.environ["FIRKIN_BINARY_DIR"])
CMAKE = os.environ["CMAKE_COMMAND"]
TINY_RUN = ["--ranks", "2", "--d-model", "32", "--d-ff", "64", "--num-layers", "2", "--batch", "1", "--sequence", "16", "--blocks", "4",
            "--warmup", "1", "--steps-per-block", "1", "--profile-steps", "4", "--allreduce-time", "0.2", "--cap", "0.01MiB,1MiB"]  # fmt: skip


class InstalledProgram(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="firkin-program-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name).resolve()
        installed = run(CMAKE, "--install", BUILD, "--prefix", cls.folder / "first", deadline_s=BUILD_DEADLINE_S)
        assert installed.returncode == 0, installed.stderr
        cls.prefix = (cls.folder / "first").rename(cls.folder / "moved")
        cls.firkin = cls.prefix / "bin/firkin"
        cls.script = cls.prefix / "libexec/firkin/with-libtorch"

    def answer(self, *words) -> str:
        result = run(self.firkin, *words)
        self.assertEqual(result.returncode, 0, result)
        return result.stdout

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

    # --- shells complete it

    def path(self) -> str:
        return f"{self.prefix}/bin:{os.environ['PATH']}"

    def completed(self, *words, folder="/") -> list[str]:
        """What bash offers for the last of the words."""
        script = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _firkin; printf "%s\\n" "${COMPREPLY[@]}"'
        file = self.prefix / "share/bash-completion/completions/firkin"
        result = subprocess.run(["bash", "-c", script, file, *words], capture_output=True, text=True, timeout=RUN_DEADLINE_S, cwd=folder,
                                env=environment(PATH=self.path()))  # fmt: skip
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout.split()

    def commands(self, *words) -> list[str]:
        """The subcommands that --help lists."""
        _, _, listed = self.answer(*words, "--help").partition("Subcommands:\n")
        return re.findall(r"^  ([a-z0-9-]+)", listed.partition("\n\n")[0], re.MULTILINE)

    def test_bash_is_told_of_the_completions(self):
        file = self.prefix / "share/bash-completion/completions/firkin"
        result = run("bash", "-c", 'source "$0"; complete -p firkin', file)
        self.assertEqual(result.stdout, "complete -F _firkin firkin\n", result)

    def test_bash_offers_the_subcommands_that_help_lists(self):
        self.assertGreater(len(self.commands()), 3)
        self.assertEqual(self.completed("firkin", ""), self.commands())
        self.assertEqual(self.completed("firkin", "bench", ""), self.commands("bench"))
        self.assertEqual(self.completed("firkin", "pre"), ["predict"])
        self.assertEqual(self.completed("firkin", "--config", "some.toml", "bench", "st"), ["step"])

    def test_bash_offers_every_flag_that_help_lists(self):
        leaves = [[name, *below] for name in self.commands() for below in ([[sub] for sub in self.commands(name)] or [[]])]
        self.assertIn(["bench", "step"], leaves)
        for words in leaves:
            with self.subTest(words=words):
                flags = re.findall(r"^  (?:-\w,)?(--[a-z0-9-]+)", self.answer(*words, "--help-all"), re.MULTILINE)
                offered = self.completed("firkin", *words, "--")
                self.assertEqual(set(flags) - set(offered), set())
                self.assertLess(set(offered) - set(flags), {"--config", "--version", "--help-all", "--licenses"})  # of the program itself

    def test_bash_offers_listed_values_files_and_nothing_for_numbers(self):
        (self.folder / "words.txt").touch()
        self.assertEqual(self.completed("firkin", "completions", ""), ["bash", "zsh", "fish"])
        self.assertEqual(self.completed("firkin", "tune", "--data", "wor", folder=self.folder), ["words.txt"])
        self.assertEqual(self.completed("firkin", "tune", "--data", "=", "wor", folder=self.folder), ["words.txt"])
        self.assertEqual(self.completed("firkin", "report", "wor", folder=self.folder), ["words.txt"])
        self.assertEqual(self.completed("firkin", "tune", "--blocks", ""), [])

    def test_bash_offers_the_models_that_firkin_lists_and_files(self):
        (self.folder / "gpt2-mine.json").touch()
        listed = [model["name"] for model in json.loads(self.answer("buckets", "--json"))["models"]]
        for command in ["tune"], ["trace"], ["buckets"], ["bench", "step"], ["bench", "layers"]:
            with self.subTest(command=command):
                offered = self.completed("firkin", *command, "--model", "", folder=self.folder)
                self.assertEqual(offered[: len(listed)], listed)
                self.assertEqual(set(offered[len(listed) :]), {file.name for file in self.folder.iterdir()})
        offered = self.completed("firkin", "tune", "--model", "gpt2-", folder=self.folder)
        self.assertEqual(offered, ["gpt2-medium", "gpt2-large", "gpt2-xl", "gpt2-mine.json"])

    def test_zsh_loads_the_completions(self):
        if not shutil.which("zsh"):
            self.skipTest("no zsh on this machine")
        functions = self.prefix / "share/zsh/site-functions"
        self.assertEqual(run("zsh", "-fn", functions / "_firkin").stderr, "")
        loaded = run("zsh", "-fc", 'fpath=($0 $fpath); autoload -Uz compinit; compinit -u -D; print $_comps[firkin]', functions)
        self.assertEqual(loaded.stdout, "_firkin\n", loaded)

    def test_fish_offers_subcommands_flags_and_values(self):
        if not shutil.which("fish"):
            self.skipTest("no fish on this machine")
        file = self.prefix / "share/fish/vendor_completions.d/firkin.fish"
        for line, expected in [("firkin pre", ["predict"]), ("firkin bench st", ["step"]), ("firkin bench step --warm", ["--warmup"]),
                               ("firkin tune --blocks ", []), ("firkin completions z", ["zsh"]),
                               ("firkin tune --model gpt2-", ["gpt2-large", "gpt2-medium", "gpt2-xl"])]:  # fmt: skip
            with self.subTest(line=line):
                result = run("fish", "--no-config", "-c", 'source $argv[1]; complete -C "$argv[2]"', file, line, HOME=str(self.folder), PATH=self.path())
                self.assertEqual([offer.split("\t")[0] for offer in result.stdout.splitlines()], expected, result)


if __name__ == "__main__":
    unittest.main()
