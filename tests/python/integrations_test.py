"""examples/python and firkin.integrations on two real ranks: Transformers' Trainer (PEFT's LoRA too), Accelerate, Lightning, torchvision's
ResNet-50 and a compiled model of timm's, with the buckets that were tuned.

Skipped where they are not installed; tools/bootstrap test-all does.
"""

import functools
import importlib.util
import json
import pathlib
import tempfile
import unittest

import pytest
from launched import torchrun

for needed in ("transformers", "accelerate", "lightning", "peft", "timm", "torchvision"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"no {needed}: tools/bootstrap test-all installs it", allow_module_level=True)
HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = ("hf_trainer", "accelerate_ddp", "lightning_ddp")
ANOTHER = r"^check: bucket \d+ .*; expected "


@functools.cache
def ran(*words):
    """What each of two ranks saw: integrations_ranks.py of an example, integrations_callbacks.py of the callbacks."""
    with tempfile.TemporaryDirectory() as folder:
        printed = torchrun(HERE / words[0], *words[1:], folder)
        return printed, [json.loads((pathlib.Path(folder) / f"{rank}.json").read_text()) for rank in range(2)]


class Examples(unittest.TestCase):
    def test_train_with_the_buckets_that_were_tuned_and_say_which(self):
        for name in EXAMPLES:
            printed, ranks = ran("integrations_ranks.py", name)
            sizes = ", ".join(f"{size / 2**20:.2f}" for size in ranks[0]["tuned"])
            for rank in ranks:
                with self.subTest(name):
                    self.assertIn(rank["choice"], ("cap", "torch default"))
                    self.assertEqual(rank["logged"], rank["tuned"])
                    self.assertIn(f"DistributedDataParallel has these buckets, in MiB: {sizes}\n", printed)

    def test_hand_on_whatever_buckets_they_are_given_and_others_are_noticed(self):
        for name in EXAMPLES:
            for rank in ran("integrations_ranks.py", name)[1]:
                self.assertGreater(len({str(given["logged"]) for given in rank["given"]}), 1)
                for given in rank["given"]:
                    with self.subTest(name, kwargs=given["kwargs"]):
                        self.assertEqual(given["logged"], given["expected"])
                        self.assertRegex(given["check_of_another_plan"], ANOTHER)
                if name == "lightning_ddp":
                    self.assertIn("bucket_cap_mb_list", [name for given in rank["given"] for name in given["kwargs"]])

    def test_that_the_trainer_looks_for_unused_parameters_unless_told_not_to_is_noticed(self):
        for rank in ran("integrations_ranks.py", "hf_trainer")[1]:
            self.assertRegex(rank["check_of_the_trainers_default"], ANOTHER)


class Callbacks(unittest.TestCase):
    def test_a_training_is_bitwise_the_one_without_and_has_the_buckets_that_were_found(self):
        _, ranks = ran("integrations_callbacks.py")
        self.assertGreaterEqual(len(ranks[0]), 12)
        self.assertTrue(all(outcome["steps_watched"] for name, outcome in ranks[0].items() if "watched" in name))
        for rank in ranks:
            for name, outcome in rank.items():
                with self.subTest(name):
                    self.assertEqual(outcome["different"], 0)
                    if "check" in outcome:
                        self.assertRegex(outcome["check"], r"^check: \d+ buckets, as tuned: ")
