"""firkin.tune, firkin.profile and firkin.measure_all_reduce on two real ranks, over Gloo on the loopback interface."""

import functools
import json
import unittest
from unittest import mock

import firkin
import torch
import torch.distributed as dist
from firkin._allreduce import count_wrong, fill_with_known_values
from firkin._measure import Setting, StepBench, Wrapping, options_to_race, possible_options
from firkin._ranks import Ranks
from firkin._state import State
from models import QUICK, Layers, Shuffled, TestCase, WithUnused, inputs, parameters_of, raised, refusals, seeded, step_of, tensors_of, unlike
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel as DDP


def bench_of(model, step, timed_steps=2):
    ranks = Ranks(None)
    return StepBench(ranks, Wrapping(ranks, model, {}, DDP), step, State(model), timed_steps)


class Tune(TestCase):
    @on_ranks(2)
    def test_every_rank_has_the_same_result_with_every_sample_and_was_trained(self):
        model = seeded(Layers, [64] * 9, seed=dist.get_rank()).float()  # ranks start differently: the first wrapping makes them alike
        step, before = step_of(model), parameters_of(model)
        result = firkin.tune(model, step, restore=False, **QUICK)
        self.assertEqual(unlike(tensors_of(model, step.optimizer)), 0)
        self.assertGreater(sum(not torch.equal(a, b) for a, b in zip(before, model.parameters())), 0)
        self.assertFalse(any(p._post_accumulate_grad_hooks for p in model.parameters()))
        speedup = [result.speedup_ci[0], result.speedup, result.speedup_ci[1]]
        self.assertEqual(speedup, sorted(speedup))
        self.assert_same((result.ddp_kwargs(), result.plan.buckets, result.choice, result.results_json, speedup))
        self.assertEqual(set(result.ddp_kwargs()), {"cap": {"bucket_cap_mb"}, "torch default": set()}[result.choice])

        results = json.loads(result.results_json)
        self.assertEqual((results["command"], len(results["profile"]["tensors"])), ("tune", 16))
        self.assertIn("best_predicted", results)
        names = results["samples"]["settings"]
        self.assertEqual(names[:2], ["none", "torch default"])
        self.assertEqual([len(series) >= 2 for series in results["samples"]["step_s"]], [True] * len(names))

    @on_ranks(2)
    def test_static_graph_and_unused_parameters_are_measured_and_passed_on(self):
        model = seeded(Layers, [64] * 9).float()
        static = {"static_graph": True, "gradient_as_bucket_view": True}
        step = step_of(model)
        result = firkin.tune(model, step, ddp_kwargs=static, **QUICK)
        self.assertLessEqual(static.items(), result.ddp_kwargs().items())
        ddp = DDP(model, **result.ddp_kwargs())
        for _ in range(4):
            step(ddp)
        result.check(ddp)
        model, unused = seeded(WithUnused).float(), {"find_unused_parameters": True}
        result = firkin.tune(model, step_of(model), ddp_kwargs=unused, **QUICK)
        self.assertLessEqual(unused.items(), result.ddp_kwargs().items())

    @on_ranks(2)
    def test_ranks_end_with_the_same_block_however_their_clocks_differ(self):
        model = seeded(Layers, [8, 8]).float()
        samples = bench_of(model, step_of(model)).blocks("", [Setting([], {})], 1, 4, 1e-9 if dist.get_rank() else 1e9)
        self.assertEqual([len(series) for series in samples], [1])

    @on_ranks(3)
    def test_a_group_of_some_ranks(self):
        group = dist.new_group([0, 2])
        model = seeded(Layers, [32] * 4).float()
        if dist.get_rank() == 1:
            words = "this rank is not in the process group"
            self.assert_refused(refusals({words: lambda: firkin.tune(model, lambda model: None, process_group=group)}))
            buckets = None
        else:
            buckets = firkin.tune(model, step_of(model), process_group=group, **QUICK).plan.buckets
        first = [buckets]
        dist.broadcast_object_list(first, 0)
        self.assertIn(buckets, (None, *first))

    @on_ranks(2)
    def test_profile_and_all_reduce_are_the_same_on_every_rank_and_lead_to_a_prediction(self):
        model = seeded(Shuffled).float()
        profile = firkin.profile(model, step_of(model), steps=3, warmup=1)
        curve = firkin.measure_all_reduce(sizes=[4, 4096, 1 << 20], time_budget_s=1.5)  # less is too short for gaps on a busy machine
        rows = [(row.bytes, row.world_size, row.median_s, row.gap_s, row.wrong) for row in curve.rows]
        self.assert_same((profile.names, profile.ready_s, rows))
        self.assertEqual(profile.names[0].split(".")[0], "third")
        self.assertEqual([(row.bytes, row.world_size, row.wrong) for row in curve.rows], [(4, 2, 0), (4096, 2, 0), (1 << 20, 2, 0)])
        self.assertGreater(min(min(row.median_s, row.gap_s) for row in curve.rows), 0)
        self.assertGreater(firkin.predict(profile, curve).best_cap.backward_s, 0)


class Options(unittest.TestCase):
    def test_those_race_that_pytorch_has_and_the_program_has_not_set(self):
        self.assertIn("gradient_as_bucket_view", options_to_race({}, compiled=False))
        for given in ({"find_unused_parameters": True}, {"static_graph": False}):
            self.assertNotIn("static_graph", options_to_race(given, compiled=False))

    @on_ranks(2)
    def test_and_that_a_program_permits(self):
        for habit, refused, reason in (
            ("none", [], ""),
            ("accumulates", ["static_graph"], "under no_sync()"),
            ("keeps gradients", ["gradient_as_bucket_view"], "the program keeps gradients"),
            ("detaches gradients", ["gradient_as_bucket_view"], "the step fails with it (Can't detach views"),
        ):
            model = seeded(Layers, [8, 8]).float()
            plain, kept = step_of(model), []

            def step(wrapped, habit=habit, plain=plain, kept=kept, model=model):
                if habit == "accumulates":
                    with wrapped.no_sync():
                        wrapped(inputs(model)).sum().backward()
                plain(wrapped)
                if habit == "keeps gradients":
                    kept[:] = [p.grad.view(-1) for p in model.parameters()]
                if habit == "detaches gradients":
                    for p in model.parameters():
                        p.grad.detach_()

            bench, known = bench_of(model, step, 1), options_to_race({}, compiled=False)
            setting = Setting([2], {"bucket_cap_mb": 1.0})
            notes = []
            self.assertEqual(possible_options(bench, setting, known, notes), [name for name in known if name not in refused], habit)
            self.assertEqual(len(notes), len(refused), habit)
            self.assertIn(reason, "".join(notes))


class KnownSumsOfManyRanks(unittest.TestCase):
    def test_are_exact_and_miss_no_rank_and_no_element(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for ranks in (2, 23, 256, 257, 1000):
                with self.subTest(dtype=dtype, ranks=ranks):
                    values = torch.empty(ranks, 2000, dtype=dtype)
                    for rank in range(ranks):
                        fill_with_known_values(values[rank], rank, ranks)
                    sums = functools.reduce(torch.add, values)
                    self.assertEqual(count_wrong(sums), 0)
                    self.assertEqual(count_wrong(sums.roll(1)), 2000)
                    for missing in (0, ranks // 2, ranks - 1):
                        self.assertEqual(count_wrong(sums - values[missing]), int((values[missing] != 0).sum()))


def no_backward(model):
    model(inputs(model))


def two_backwards(model):
    for _ in range(2):
        model(inputs(model)).sum().backward()


def failing(model):
    raise ArithmeticError("the step's own error")


class BadInput(TestCase):
    def tune(self, model=None, step=None, **arguments):
        model = Layers([8, 8]) if model is None else model
        firkin.tune(model, step or step_of(model), **QUICK | arguments)

    @on_ranks(2)
    def test_every_rank_raises_the_same_line(self):
        rank, tune = dist.get_rank(), self.tune
        found = refusals({
            "ReLU has no parameter that needs a gradient": lambda: tune(torch.nn.ReLU(), no_backward),
            "rank 0: ": lambda: tune(Layers([8, 8]) if rank else torch.nn.ReLU(), no_backward),
            "' on rank 0; expected the same everywhere": lambda: tune(Layers([8, 8 + rank])),
            "step did no backward passes; expected one": lambda: tune(step=no_backward),
            "rank 1: step did no backward": lambda: tune(step=no_backward if rank else None),
            "step did 2 backward passes; expected one, and with gradient accumulation": lambda: tune(step=two_backwards),
            "step is a int; expected a function": lambda: tune(step=7),
            "model is a str; expected a torch.nn.Module": lambda: tune("model", no_backward),
            "wrapped in DistributedDataParallel already": lambda: tune(DDP(Layers([8, 8]))),
            "'spare.weight' got no gradient": lambda: tune(WithUnused()),
            "'bucket_cap_mb'; expected arguments that the tuner does not set": lambda: tune(ddp_kwargs={"bucket_cap_mb": 3}),
            "'bucket_cap' is not an argument of torch": lambda: tune(ddp_kwargs={"bucket_cap": 3}),
            "time_budget_s 0; expected more than 0": lambda: tune(time_budget_s=0),
            "tune: time_budget_s is 2.0 on rank 1, 1.0 on rank 0; expected the same everywhere": lambda: tune(time_budget_s=1.0 + rank),
            "tune: ddp_kwargs is {'static_graph': True} on rank 1": lambda: tune(ddp_kwargs={"static_graph": rank == 1}),
            "profile: steps is 4 on rank 1, 3 on rank 0": lambda: firkin.profile(Layers([8, 8]), no_backward, steps=3 + rank),
            "measure_all_reduce: sizes is [4] on rank 1, [8] on rank 0": lambda: firkin.measure_all_reduce(sizes=[4] if rank else [8]),
            "all-reduce size 6: expected a positive multiple of 4 bytes": lambda: firkin.measure_all_reduce(sizes=[8, 6]),
        })  # fmt: skip
        self.assert_refused(found)
        self.assert_same(found)

    @on_ranks(2)
    def test_a_step_of_the_users_that_fails_keeps_its_error_and_stops_the_others(self):
        own, others = ("ArithmeticError", "the step's own error"), ("RuntimeError", "rank 1 failed: ArithmeticError: the step's own error")
        self.assertEqual(raised(lambda: self.tune(step=failing if dist.get_rank() else None)), own if dist.get_rank() else others)

    def test_no_process_group_and_one_rank(self):
        self.assert_refused(refusals({"no process group; expected torch.distributed.init_process_group() first": self.tune}))
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.assert_refused(refusals({"only one rank; expected at least 2": self.tune}))
        ranks = Ranks(None)
        with mock.patch.object(ranks, "_backends", "cpu:gloo,cuda:nccl"):  # what a CUDA build makes of init_process_group()
            self.assertEqual(ranks.gradient_device().type, "cuda" if torch.cuda.is_available() else "cpu")
        dist.destroy_process_group()
