"""The installed program: it runs from anywhere, finds its data after its folder was moved, and shells complete its commands and flags.

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

BUILD = pathlib.Path(os.environ["FIRKIN_BINARY_DIR"])
CMAKE = os.environ["CMAKE_COMMAND"]
DEADLINE_S = 120  # a hang, not a benchmark
TINY_RUN = ["--ranks", "2", "--d-model", "32", "--d-ff", "64", "--num-layers", "2", "--batch", "1", "--sequence", "16", "--blocks", "4",
            "--warmup", "1", "--steps", "1", "--profile-steps", "4", "--allreduce-seconds", "0.2", "--cap-mib", "0.01,1"]  # fmt: skip
OURS = ("FIRKIN_", "LD_LIBRARY_PATH", "PYTHON")  # how the names of variables start that could help the program to find something


def run(*words, **variables) -> subprocess.CompletedProcess:
    """In a folder that is not ours, without this build's variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=DEADLINE_S, cwd="/", env=kept | variables)


class InstalledProgram(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="firkin-program-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name).resolve()
        installed = run(CMAKE, "--install", BUILD, "--prefix", cls.folder / "first")
        assert installed.returncode == 0, installed.stderr
        cls.prefix = (cls.folder / "first").rename(cls.folder / "moved")
        cls.firkin = cls.prefix / "bin/firkin"

    def answer(self, *words) -> str:
        result = run(self.firkin, *words)
        self.assertEqual(result.returncode, 0, result)
        return result.stdout

    # --- it runs

    def test_runs_from_another_folder(self):
        self.assertRegex(self.answer("--version"), r"^\d+\.\d+\.\d+\n$")
        self.assertIn("gpt2", self.answer("models"))
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

    def test_reports_charts_need_a_python_with_vl_convert(self):
        results = self.folder / "results.json"
        shutil.copy(self.results_of_a_run(), results)
        result = run(self.firkin, "report", results, "--svg", FIRKIN_PYTHON="/bin/false")
        self.assertEqual(result.returncode, 1, result)
        self.assertIn("FIRKIN_PYTHON names a Python with vl-convert-python", result.stderr)

    def results_of_a_run(self) -> pathlib.Path:
        self.answer("bench", "allreduce", "--ranks", "2", "--begin", "1K", "--end", "4K", "--seconds", "0.2", "--out", self.folder / "allreduce")
        return self.folder / "allreduce/results.json"

    # --- shells complete it

    def completed(self, *words, folder="/") -> list[str]:
        """What bash offers for the last of the words."""
        script = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _firkin; printf "%s\\n" "${COMPREPLY[@]}"'
        file = self.prefix / "share/bash-completion/completions/firkin"
        result = subprocess.run(["bash", "-c", script, file, *words], capture_output=True, text=True, timeout=DEADLINE_S, cwd=folder)
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
                flags = re.findall(r"^  (?:-\w,)?(--[a-z0-9-]+)", self.answer(*words, "--help"), re.MULTILINE)
                offered = self.completed("firkin", *words, "--")
                self.assertEqual(set(flags) - set(offered), set())
                self.assertLess(set(offered) - set(flags), {"--config", "--version", "--help-all", "--licenses"})  # of the program itself

    def test_bash_offers_listed_values_files_and_nothing_for_numbers(self):
        (self.folder / "words.txt").touch()
        self.assertEqual(self.completed("firkin", "completions", ""), ["bash", "zsh", "fish"])
        self.assertEqual(self.completed("firkin", "tune", "--text", "wor", folder=self.folder), ["words.txt"])
        self.assertEqual(self.completed("firkin", "tune", "--text", "=", "wor", folder=self.folder), ["words.txt"])
        self.assertEqual(self.completed("firkin", "report", "wor", folder=self.folder), ["words.txt"])
        self.assertEqual(self.completed("firkin", "tune", "--blocks", ""), [])

    def test_bash_offers_the_models_that_firkin_lists_and_files(self):
        (self.folder / "gpt2-mine.json").touch()
        listed = [model["name"] for model in json.loads(self.answer("models", "--json"))["models"]]
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
                result = run("fish", "--no-config", "-c", 'source $argv[1]; complete -C "$argv[2]"', file, line, HOME=str(self.folder))
                self.assertEqual([offer.split("\t")[0] for offer in result.stdout.splitlines()], expected, result)


if __name__ == "__main__":
    unittest.main()
