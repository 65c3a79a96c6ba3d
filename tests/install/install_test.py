"""The installed package: a project of its own finds it, builds against it, and trains on two ranks under every launcher.

FIRKIN_BINARY_DIR is the build to install, FIRKIN_SOURCE_DIR holds the example; CMAKE_COMMAND, CMAKE_CXX_COMPILER and CMAKE_CXX_FLAGS are
those of the build. torchrun is the one beside this Python.
"""

import os
import pathlib
import re
import shutil
import sys
import unittest

from commands import BUILD, BUILD_DEADLINE_S, CMAKE, SOURCE, checked, run
from folders import folder_until
from ports import reserved_port
from processes import mpirun

QUICK = {"CMAKE_CXX_FLAGS_RELEASE": "-O0"}  # whether they build is tried here
TORCHRUN = pathlib.Path(sys.executable).parent / "torchrun"


def epochs(output: str) -> list[tuple[float, float]]:
    """(loss, accuracy) of every epoch that the example printed."""
    return [(float(loss), float(right)) for loss, right in re.findall(r"^epoch \d+: loss (\S+), accuracy (\S+)$", output, re.MULTILINE)]


class InstalledPackage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder_until(cls.addClassCleanup)
        cls.prefix = cls.folder / "prefix"
        checked(CMAKE, "--install", BUILD, "--prefix", cls.prefix, deadline_s=BUILD_DEADLINE_S)
        cls.program = cls.built_example("digits")
        cls.reference = checked(cls.program, "--ranks", "2")

    @classmethod
    def built_example(cls, name: str) -> pathlib.Path:
        # A copy: the example has to build without anything around it.
        example = shutil.copytree(SOURCE / "examples" / name, cls.folder / "source" / name)
        settings = {key: os.environ[key] for key in ("CMAKE_CXX_COMPILER", "CMAKE_CXX_FLAGS")} | {"CMAKE_PREFIX_PATH": cls.prefix} | QUICK
        build = cls.folder / name
        checked(CMAKE, "-S", example, "-B", build, *(f"-D{key}={value}" for key, value in settings.items()), deadline_s=BUILD_DEADLINE_S)
        checked(CMAKE, "--build", build, deadline_s=BUILD_DEADLINE_S)
        return build / name

    def assert_same_training(self, output: str):
        self.assertEqual(epochs(output), epochs(self.reference), output)
        self.assertIn("ranks with the same parameters: 2", output)

    def test_trains_under_its_own_ranks_flag(self):
        steps = epochs(self.reference)
        self.assertEqual(len(steps), 8, self.reference)
        losses = [loss for loss, _ in steps]
        self.assertEqual(losses, sorted(losses, reverse=True))
        self.assertLess(losses[-1], 0.1 * losses[0])
        self.assertGreater(steps[-1][1], 0.9)
        self.assertIn("ranks with the same parameters: 2", self.reference)

    def test_trains_the_same_under_torchrun(self):
        words = ["--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
        self.assert_same_training(checked(TORCHRUN, *words, "--no-python", self.program))

    def test_trains_the_same_under_mpirun(self):
        words = [mpirun(), "--oversubscribe", "--bind-to", "none", "-np", "2", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
        with reserved_port() as port:
            self.assert_same_training(checked(*words, "-x", f"MASTER_PORT={port}", self.program))

    def test_trains_the_same_batches_on_one_rank(self):
        alone = epochs(checked(self.program))
        first_loss, expected = alone[0][0], epochs(self.reference)[0][0]
        self.assertAlmostEqual(first_loss, expected, delta=1e-3 * expected)  # rounding grows with every step

    def test_it_refuses_a_libtorch_of_another_series_without_advice_that_fails(self):
        header = self.folder / "other/include/torch/headeronly/version.h"
        header.parent.mkdir(parents=True)
        header.write_text("".join(f"#define TORCH_VERSION_{part} 9\n" for part in ("MAJOR", "MINOR", "PATCH")))
        settings = {"CMAKE_PREFIX_PATH": self.prefix, "CMAKE_CXX_COMPILER": os.environ["CMAKE_CXX_COMPILER"], "FIRKIN_LIBTORCH": self.folder / "other"}
        words = ["-S", SOURCE / "examples/own_model", "-B", self.folder / "refused", *(f"-D{name}={value}" for name, value in settings.items())]
        result = run(CMAKE, *words)
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(" ".join(result.stderr.split()), "LibTorch 9.9.9 in .*: expected .* or build Firkin from source with this one")

    def test_a_module_of_the_users_own_is_tuned(self):
        program = self.built_example("own_model")
        tuned = self.folder / "tuned"
        output = checked(program, "--ranks", "2", "4", tuned)
        pasted = r"((Set|Try) a cap of .* paste +firkin::DataParallelOptions options{.cap = {|Keep PyTorch's default.* paste +firkin::DataParallelOptions options{.cap = firkin::)"
        self.assertRegex(output, "(?s)" + pasted)  # a busy machine shows no gain
        self.assertRegex(output, r"20 steps with \d+ buckets: loss \d")
        self.assertLessEqual({"results.json", "tensors.csv", "allreduce.csv"}, {file.name for file in tuned.iterdir()})

    def test_a_language_model_continues_from_its_checkpoint(self):
        words = [self.built_example("train"), "--data", SOURCE / "data/text/cooperage.txt", "--out", self.folder / "training", "--layers", "1"]
        checked(*words, "--ranks", "2", "--steps", "10")
        output = checked(*words, "--steps", "12", "--resume")
        self.assertIn("10 steps done\nstep 10: loss ", output)
        self.assertIn("\nstep 11: loss ", output)

    def test_installed_package_does_not_name_the_source_folder(self):
        for file in self.prefix.rglob("*.cmake"):
            self.assertNotIn(f"{SOURCE}/include", file.read_text(), file)
