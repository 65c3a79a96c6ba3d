"""studies/worth: parameters of its models, the rules of others against their sources' own numbers, and a page that follows from the kept
results, which are this program's.

FIRKIN_SOURCE_DIR names the repository, FIRKIN the binary.
"""

import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import sys
import unittest
from unittest import mock

ROOT = pathlib.Path(os.environ["FIRKIN_SOURCE_DIR"])
sys.path.insert(0, str(ROOT / "studies" / "worth"))
import clusters
import models
import published
import rules
from predict import predict, without_needs

TORCH, VL_CONVERT = map(importlib.util.find_spec, ("torch", "vl_convert"))


def cluster(title):
    return next(found for found in clusters.all_clusters() if found.title.startswith(title))


def model(title):
    return next(found for found in models.all_models() if found.title == title)


class Models(unittest.TestCase):
    def test_parameters_are_those_of_the_published_models(self):
        counts = {found.title: (found.elements, sum(len(operation.parameters) for operation in found.operations)) for found in models.all_models()}
        self.assertEqual(counts, {
            "ResNet-50": (25_557_032, 161),
            "BERT-large": (336_226_108, 398),  # with the heads of both pretraining tasks
            "GPT-2 small": (124_439_808, 148),
            "gpt2-large": (774_030_080, 436),
            "gpt2-xl": (1_557_611_200, 580),
            "7B, LoRA": (39_976_960, 448),  # the trained part
        })  # fmt: skip
        self.assertEqual(models.cs336_xl(1024, 512, norms_last=False).elements, 1_998_235_200)

    def test_a_profile_is_in_gradient_ready_order_and_takes_the_time_asked_for(self):
        for found in models.all_models():
            profile = models.profile(found, 0.3)
            ready = [row[2] for row in profile.rows]
            self.assertEqual(ready, sorted(ready))
            self.assertLess(max(row[3] for row in profile.rows), profile.forward_s)
            self.assertAlmostEqual(profile.forward_s + profile.backward_s, 0.3, delta=0.3 * 0.01)

    def test_a_tied_weight_is_ready_last_and_needed_first(self):
        last = models.profile(model("GPT-2 small"), 1).rows[-1]
        self.assertEqual((last[0], last[1], last[3]), ("wte.weight", 50257 * 768 * 4, 0))

    def test_resnet_has_the_operations_of_its_paper(self):  # 3.8e9 multiply-adds (table 1) with the stride in front, 4.1e9 in the 3 x 3
        multiply_adds = models.flops(model("ResNet-50"))[0] / 2 / models.IMAGES
        self.assertAlmostEqual(multiply_adds, 4.09e9, delta=0.01e9)


class Rules(unittest.TestCase):
    def test_megatron_grows_with_the_ranks_beyond_40(self):
        self.assertEqual([rules.megatron(n) // 4 for n in (8, 40, 64, 2048)], [40_000_000, 40_000_000, 64_000_000, 2_048_000_000])

    def test_deepspeed_and_transformers(self):
        self.assertEqual(rules.deepspeed() // 4, 5e8)
        self.assertEqual(rules.transformers_auto(4096) // 4, 16_777_216)  # what "auto" becomes for a 7B

    def test_the_interconnect_follows_from_the_machines_that_are_spanned(self):
        names = [rules.interconnect("H100", 4, 4), rules.interconnect("H100", 8, 4), rules.interconnect("A100", 16, 8), rules.interconnect("A100", 8, 8),
                 rules.interconnect("A100", 2, 8, nvlink=False)]  # fmt: skip
        self.assertEqual(names, ["NVLINK_H100", "IB_NDR", "IB_HDR", "NVLINK_A100", "PCIE"])

    @unittest.skipUnless(TORCH, "no torch beside this Python")
    def test_inductor_is_what_torch_computes(self):
        from torch._inductor import comm_analysis, fx_passes  # noqa: F401
        from torch._inductor.fx_passes.fsdp import compute_pre_bucket_cap_mb

        if not hasattr(comm_analysis, "INTERCONNECT_PROFILES"):
            self.skipTest(f"torch {importlib.metadata.version('torch')} has no such rule")
        for name in rules.INDUCTOR:
            with mock.patch.object(comm_analysis, "detect_interconnect", lambda size, name=name: comm_analysis.InterconnectType[name]):
                for ranks in (2, 4, 8, 32, 128, 2048):
                    self.assertAlmostEqual(rules.inductor(ranks, name) / rules.MIB, compute_pre_bucket_cap_mb(ranks), places=6, msg=f"{name}, {ranks}")

    @unittest.skipUnless(TORCH, "no torch beside this Python")
    def test_the_baseline_of_predict_is_torchs_default(self):
        header = (pathlib.Path(TORCH.origin).parent / "include/torch/csrc/distributed/c10d/reducer.hpp").read_text()
        self.assertRegex(header, r"kDefaultFirstBucketBytes = 1024 \* 1024;")
        self.assertRegex(header, r"kDefaultBucketBytesCap = 25 \* 1024 \* 1024;")
        profile = models.profile(model("ResNet-50"), 1)
        result = predict(os.environ["FIRKIN"], without_needs(profile.csv()), cluster("AWS").allreduce_csv(16), 16)
        descriptions = {row["name"]: row["description"] for row in result["baselines"]}
        self.assertEqual(descriptions["pytorch"], "25 MiB, close-when-full, first bucket 1 MiB")
        self.assertRegex(descriptions["horovod"], "^128 MiB, at-most")

    def test_mg_wfbp_merges_while_waiting_costs_less_than_a_start_up(self):
        # alpha 2, beta 1. Alone at 0, the first would arrive at 3; the second is ready at 1, before 0 + 2: merged. The third, ready at 3, is
        # not ready before 1 + 2. It can leave when the first two have arrived, at 1 + 2 + 2 = 5; the fourth, ready at 6, is before 5 + 2.
        self.assertEqual(rules.mg_wfbp([0, 1, 3, 6], [1, 1, 1, 1], 2, 1), ([2, 2], 6 + 2 + 2))

    def test_mg_wfbp_in_predict_is_the_formula_at_its_authors_networks(self):
        # alpha and beta of 16 nodes in github.com/HKBU-HPML/MG-WFBP, commit 507f409d: 10GbE, and InfiniBand at 56 Gbit/s
        networks = [(0.0009080981007148093, 7.395651186836712e-10), (0.00023583677659915685, 4.0594787739537565e-10)]
        for alpha, beta in networks:
            for name, step_s in (("ResNet-50", 0.2), ("GPT-2 small", 1.0)):
                csv = without_needs(models.profile(model(name), step_s).csv())
                rows = [line.split(",") for line in csv.splitlines()[1:]]
                sizes, ready = [int(row[1]) for row in rows], [float(row[2]) for row in rows]
                table = "bytes,world_size,median_s\n" + "".join(f"{1 << k},16,{alpha + beta * (1 << k)!r}\n" for k in range(10, 31, 2))
                found = next(row for row in predict(os.environ["FIRKIN"], csv, table, 16)["baselines"] if row["name"] == "mg_wfbp")
                buckets, end_s = rules.mg_wfbp(ready, sizes, alpha, beta)
                self.assertEqual(found["buckets"], len(buckets), (alpha, name))
                self.assertTrue(math.isclose(found["backward_s"], end_s, rel_tol=1e-6), (alpha, name, found, end_s))
                self.assertTrue(1 < len(buckets) < len(sizes), (alpha, name))

    def test_every_rule_has_a_title_and_a_cap_or_is_a_baseline_of_predict(self):
        capped = [name for named in rules.caps(cluster("AWS"), 16, 1600).values() for name in named]
        self.assertEqual(set(rules.TITLES), {*capped, "pytorch", "horovod", "mg_wfbp"})


class Data(unittest.TestCase):
    def test_tcp_is_a_ring(self):
        seconds = dict(clusters.tcp(10)[8])[1 << 30]
        self.assertAlmostEqual(seconds, 14 * 50e-6 + 14 / 8 * (1 << 30) * 8 / 0.94e10, places=9)


class Kept(unittest.TestCase):
    result = json.loads((ROOT / "studies/worth/results.json").read_text())

    def test_nothing_beats_its_bound(self):
        for cell in self.result["cells"]:
            self.assertGreaterEqual(cell["ordered_s"], cell["bound_s"] * (1 - 1e-9))
            if cell["gradient_mib"] > 4000 or cell["cluster"].startswith("PCIe"):
                continue  # rules of others have buckets there that are larger than what was measured
            self.assertLessEqual(cell["plan_s"], min(cell["best_s"], *cell["rules_s"].values()) * (1 + 2e-3), cell)

    @unittest.skipUnless(VL_CONVERT, "no vl_convert beside this Python")
    def test_a_cell_and_a_sweep_are_what_this_program_predicts(self):
        import worth

        cell = worth.cell(os.environ["FIRKIN"], cluster("Alps"), 256, model("ResNet-50"))
        self.assert_close(cell, next(kept for kept in self.result["cells"] if all(kept[name] == cell[name] for name in ("cluster", "ranks", "model"))))
        network = worth.network(os.environ["FIRKIN"], cluster("Alps"), 256)
        self.assert_close(network, next(kept for kept in self.result["networks"] if (kept["cluster"], kept["ranks"]) == (network["cluster"], 256)))
        self.assert_close(published.judge(os.environ["FIRKIN"], published.sweeps()[0]), self.result["published"][0])

    def assert_close(self, made, kept):
        self.assertEqual(made.keys(), kept.keys())
        for name, value in made.items():
            if isinstance(value, dict):
                self.assert_close(value, kept[name])
            elif isinstance(value, float):
                self.assertTrue(math.isclose(value, kept[name], rel_tol=1e-3, abs_tol=1e-4), f"{name}: {value}, kept {kept[name]}: run worth.py")
            elif not isinstance(value, list):
                self.assertEqual(value, kept[name], name)
