"""examples/python as a reader starts it, under torchrun on two ranks: watch_then_tune.py, plain.py, its functions as targets of the
command, and automatic.py."""

import importlib.util
import math
import pathlib
import re
import unittest

from folders import InAFolder
from launched import torchrun

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"


class WatchThenTune(InAFolder):
    def test_says_what_communication_costs_and_what_was_gained(self):
        shorter = self.folder / "shorter.py"
        shorter.write_text(f"""import functools, runpy, sys
import firkin
sys.path.insert(0, {str(EXAMPLES)!r})
firkin.tune = functools.partial(firkin.tune, time_budget_s=1)
runpy.run_path({str(EXAMPLES / "watch_then_tune.py")!r})
""")
        said = torchrun(shorter)
        self.assertRegex(said, r"(?s)firkin\.watch, steps .* communication not hidden .*\nstrategy +buckets +step")


class Plain(InAFolder):
    def test_a_transformer_learns_with_the_buckets_that_were_tuned(self):
        page = self.folder / "report.html"
        said = torchrun(EXAMPLES / "plain.py", "--seconds", "1", "--steps", "40", "--report", page)
        self.assertIn("DistributedDataParallel", page.read_text())
        loss = float(re.search(r"trained 40 steps: loss ([\d.]+)", said)[1])
        self.assertLess(loss, math.log(256) / 1.5)  # tuning trained it as well; before that no byte was likelier than another
        sizes = re.search(r"DistributedDataParallel has these buckets, in MiB: (.*)", said)[1]
        self.assertAlmostEqual(sum(map(float, sizes.split(", "))), 1.78, delta=0.05)

    def test_its_residual_network_is_a_target_of_the_command_and_gets_one_cap_where_asked(self):
        said = torchrun("-m", "firkin.tune", f"{EXAMPLES / 'plain.py'}:resnet", "--time-budget-s", "1", "--out", self.folder)
        self.assertLessEqual({"results.json", "report.html", "tensors.csv", "allreduce.csv"}, {path.name for path in self.folder.iterdir()})
        self.assertIn("DistributedDataParallel(model", said)
        self.assertNotIn("bucket_cap_mb_list", said)
        self.assertEqual(len((self.folder / "tensors.csv").read_text().splitlines()), 1 + 41)


@unittest.skipUnless(importlib.util.find_spec("firkin._engine"), "the engine is not built")
class Automatic(unittest.TestCase):
    def test_finds_buckets_while_it_trains(self):
        said = torchrun(EXAMPLES / "automatic.py")
        self.assertRegex(said, r"trained 200 steps: loss [\d.]+; buckets: \d+, settled")
        self.assertEqual(len(re.findall("^firkin: .*; it measured for", said, re.MULTILINE)), 1, said)  # what was chosen, or why nothing
