"""firkin.tune, firkin.profile and firkin.measure_all_reduce on two real ranks, over Gloo on the loopback interface."""

import functools
import json
import pathlib
import tempfile
import unittest
from unittest import mock

import firkin
import torch
import torch.distributed as dist
from firkin._allreduce import count_wrong, fill_with_known_values
from firkin._measure import Setting, StepBench, Wrapping, options_to_race, race_options
from firkin._ranks import Ranks
from firkin._state import State
from models import QUICK, Layers, Shuffled, WithUnused, inputs, raised, seeded, tensors_of, training_step, unlike
from ranks import with_ranks
from torch.nn.parallel import DistributedDataParallel as DDP


def tune_and_use(rank, ddp_kwargs):
    model = seeded(Layers, [64] * 9, seed=rank).float()  # ranks start differently: the first wrapping makes them alike
    step = training_step(model, "adam")
    before = [p.detach().clone() for p in model.parameters()]
    result = firkin.tune(model, step, ddp_kwargs=ddp_kwargs, restore=False, **QUICK)
    different = unlike(tensors_of(model, step.optimizer))
    moved = sum(int(not torch.equal(a, b)) for a, b in zip(before, model.parameters()))
    hooks = sum(len(p._post_accumulate_grad_hooks or {}) for p in model.parameters())
    ddp = DDP(model, **result.ddp_kwargs())
    for _ in range(4):
        step(ddp)
    result.check(ddp, strict=True)
    return {
        "kwargs": result.ddp_kwargs(),
        "buckets": result.plan.buckets,
        "choice": result.choice,
        "json": result.results_json,
        "speedup": (result.speedup.low, float(result.speedup), result.speedup.high),
        "different": different,
        "moved": moved,
        "hooks": hooks,
        "step_s": result.step_s,
    }


def tune_with_unused(rank):
    model = seeded(WithUnused).float()
    return firkin.tune(model, training_step(model), ddp_kwargs={"find_unused_parameters": True}, **QUICK).ddp_kwargs()


def profile_and_measure(rank):
    model = seeded(Shuffled).float()
    profile = firkin.profile(model, training_step(model), steps=3, warmup=1)
    curve = firkin.measure_all_reduce(sizes=[4, 4096, 1 << 20], time_budget_s=0.5)
    best = firkin.predict(profile, curve).best_cap
    return profile.names, profile.ready_s, [(r.bytes, r.world_size, r.median_s, r.gap_s, r.wrong) for r in curve.rows], best.backward_s


def blocks_in_unequal_time(rank):
    """Ranks' clocks never say quite the same."""
    model = seeded(Layers, [8, 8]).float()
    step = training_step(model)
    ranks = Ranks(None)
    bench = StepBench(ranks, Wrapping(ranks, model, {}, DDP), step, State(model))
    samples = bench.blocks([Setting("none", [], {})], fewest=1, most=4, seconds=1e-9 if rank else 1e9, seed=0, on_block=lambda _: None)
    return [len(series) for series in samples]


def race_of_options(rank):
    """Notes and winners: measured in two blocks, too few to show anything; and by times in which everything gains."""
    ranks, said = Ranks(None), {}
    for habit in ("none", "keeps gradients", "accumulates", "detaches gradients"):
        model = seeded(Layers, [8, 8]).float()
        plain, kept = training_step(model), []

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

        bench = StepBench(ranks, Wrapping(ranks, model, {}, DDP), step, State(model), 1)
        setting, names = Setting("1 MiB", [2], {"bucket_cap_mb": 1.0}), options_to_race({}, compiled=False)
        blocks = functools.partial(bench.blocks, fewest=2, most=2, seconds=0, seed=0, on_block=lambda _: None)
        measured = race_options(bench, setting, names, blocks)
        faster = race_options(bench, setting, names, lambda raced: [[1.0 - 0.1 * (i > 0)] * 6 for i in range(len(raced))])
        said[habit] = measured[0], list(faster[0]), [note for note in faster[1] if "not tried" in note]
    return said


def tune_in_a_subgroup(rank):
    group = dist.new_group([0, 2])
    if rank != 1:
        model = seeded(Layers, [32] * 4).float()
        return firkin.tune(model, training_step(model), process_group=group, **QUICK).plan.buckets
    return raised(lambda: firkin.tune(Layers([8, 8]), lambda model: None, process_group=group))[1]


def no_backward(model):
    model(inputs(model))


def two_backwards(model):
    for _ in range(2):
        model(inputs(model)).sum().backward()


def failing(model):
    raise ArithmeticError("the step's own error")


BAD = {
    "no parameters": (lambda rank: torch.nn.ReLU(), None),
    "parameters on one rank only": (lambda rank: Layers([8, 8]) if rank else torch.nn.ReLU(), None),
    "different models": (lambda rank: Layers([8, 8 + rank]), None),
    "no backward": (lambda rank: Layers([8, 8]), no_backward),
    "no backward on rank 1": (lambda rank: Layers([8, 8]), {0: None, 1: no_backward}),
    "two backwards": (lambda rank: Layers([8, 8]), two_backwards),
    "not a function": (lambda rank: Layers([8, 8]), 7),
    "not a module": (lambda rank: "model", no_backward),
    "a step that fails on rank 1": (lambda rank: Layers([8, 8]), {0: None, 1: failing}),
    "unused parameters": (lambda rank: WithUnused(), None),
}


def said_of_bad_input(rank):
    said = {}

    def says(name, model, step=None, **arguments):
        said[name] = raised(lambda: firkin.tune(model, step or training_step(model), **QUICK | arguments))

    for name, (make, step) in BAD.items():
        model = make(rank)
        chosen = step[rank] if isinstance(step, dict) else step
        has_none = not list(getattr(model, "parameters", list)())
        says(name, model, chosen or (no_backward if has_none else None))
    says("a bucket cap of one's own", Layers([8, 8]), ddp_kwargs={"bucket_cap_mb": 3})
    says("an unknown argument", Layers([8, 8]), ddp_kwargs={"bucket_cap": 3})
    says("no time", Layers([8, 8]), time_budget_s=0)
    says("other seconds on rank 1", Layers([8, 8]), no_backward, time_budget_s=1.0 + rank)
    says("other arguments on rank 1", Layers([8, 8]), no_backward, ddp_kwargs={"static_graph": rank == 1})
    says("wrapped already", DDP(Layers([8, 8])))
    said["other steps on rank 1"] = raised(lambda: firkin.profile(Layers([8, 8]), no_backward, steps=3 + rank))
    said["other sizes on rank 1"] = raised(lambda: firkin.measure_all_reduce(sizes=[4] if rank else [8]))
    return said


def all_jobs(rank):
    """What two ranks do here, in one process each: starting ranks takes longer than most of it."""
    return {
        "bad input": said_of_bad_input(rank),
        "one by one": profile_and_measure(rank),
        "unequal time": blocks_in_unequal_time(rank),
        "options": race_of_options(rank),
        "plain": tune_and_use(rank, {}),
        "static": tune_and_use(rank, {"static_graph": True, "gradient_as_bucket_view": True}),
        "unused": tune_with_unused(rank),
    }


@functools.cache
def two_ranks():
    return with_ranks(2, all_jobs)


def results_of(job):
    return [result[job] for result in two_ranks()]


class Tune(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.results = results_of("plain")

    def test_every_rank_has_the_same_result(self):
        first, second = self.results
        for name in ("kwargs", "buckets", "choice", "json", "speedup"):
            self.assertEqual(first[name], second[name])

    def test_ranks_are_alike_afterwards_and_were_trained(self):
        for result in self.results:
            self.assertEqual(result["different"], 0)
            self.assertGreater(result["moved"], 0)
            self.assertEqual(result["hooks"], 0)

    def test_the_choice_is_one_of_pytorchs_arguments(self):
        result = self.results[0]
        expected = {"cap": {"bucket_cap_mb"}, "torch default": set()}[result["choice"]]
        self.assertEqual(set(result["kwargs"]), expected)
        self.assertEqual(sorted(result["speedup"]), list(result["speedup"]))

    def test_results_json_has_the_answer_and_every_sample(self):
        results = json.loads(self.results[0]["json"])
        self.assertEqual(results["command"], "tune")
        self.assertEqual(len(results["profile"]["tensors"]), 16)
        self.assertIn("best_predicted", results)
        names = results["samples"]["settings"]
        self.assertEqual(names[:2], ["none", "torch default"])
        self.assertEqual([len(series) >= 2 for series in results["samples"]["step_s"]], [True] * len(names))

    def test_a_result_can_be_written(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "page.html"
            firkin._core.write_report(self.results[0]["json"], page)
            self.assertIn("DistributedDataParallel", page.read_text())

    def test_static_graph_is_measured_and_passed_on(self):
        kwargs = results_of("static")[0]["kwargs"]
        self.assertTrue(kwargs["static_graph"] and kwargs["gradient_as_bucket_view"])

    def test_unused_parameters_are_allowed_where_pytorch_looks_for_them(self):
        self.assertTrue(results_of("unused")[0]["find_unused_parameters"])

    def test_ranks_end_with_the_same_block_however_their_clocks_differ(self):
        self.assertEqual(results_of("unequal time"), [[1], [1]])

    def test_a_group_of_some_ranks(self):
        first, outsider, third = with_ranks(3, tune_in_a_subgroup)
        self.assertEqual(first, third)
        self.assertIn("this rank is not in the process group", outsider)


class OneByOne(unittest.TestCase):
    def test_profile_and_all_reduce_are_the_same_on_every_rank_and_lead_to_a_prediction(self):
        first, second = results_of("one by one")
        self.assertEqual(first, second)
        names, ready_s, rows, best_s = first
        self.assertEqual(names[0].split(".")[0], "third")
        self.assertEqual([row[:2] for row in rows], [(4, 2), (4096, 2), (1 << 20, 2)])
        for _, _, median_s, gap_s, wrong in rows:
            self.assertGreater(median_s, 0)
            self.assertGreater(gap_s, 0)
            self.assertEqual(wrong, 0)
        self.assertGreater(best_s, 0)


class Options(unittest.TestCase):
    def test_those_race_that_a_program_permits_and_win_by_an_interval(self):
        known = options_to_race({}, compiled=False)
        self.assertIn("gradient_as_bucket_view", known)
        self.assertNotIn("static_graph", options_to_race({"find_unused_parameters": True}, compiled=False))
        self.assertNotIn("static_graph", options_to_race({"static_graph": False}, compiled=False))
        kept_back = {
            "none": ([], ""), "accumulates": (["static_graph"], "under no_sync()"),
            "keeps gradients": (["gradient_as_bucket_view"], "the program keeps gradients"),
            "detaches gradients": (["gradient_as_bucket_view"], "the step fails with it (Can't detach views"),
        }  # fmt: skip
        for said in results_of("options"):
            for habit, (left_out, reason) in kept_back.items():
                with self.subTest(habit):
                    measured, faster, notes = said[habit]
                    self.assertEqual(measured, {})  # by two blocks
                    self.assertEqual(faster, [name for name in known if name not in left_out])
                    self.assertEqual(len(notes), len(left_out))
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


class BadInput(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.said = results_of("bad input")

    def says(self, case, *words):
        for rank in range(2):
            kind, message = self.said[rank][case]
            self.assertEqual(kind, "InputError", message)
            self.assertNotIn("\n", message)
            for word in words:
                self.assertIn(word, message)

    def test_every_rank_raises_the_same(self):
        for case in self.said[0]:
            if case != "a step that fails on rank 1":
                self.assertEqual(self.said[0][case], self.said[1][case], case)
        self.assertEqual(len(self.said[0]), len(BAD) + 8)

    def test_a_module_without_parameters(self):
        self.says("no parameters", "ReLU has no parameter that needs a gradient")
        self.says("parameters on one rank only", "rank 0: ", "ReLU has no parameter")

    def test_different_models(self):
        self.says("different models", "tune: model is 'Layers, ", " on rank 1, 'Layers, ", " on rank 0; expected the same everywhere")

    def test_a_step_without_one_backward(self):
        self.says("no backward", "step did no backward passes; expected one")
        self.says("no backward on rank 1", "rank 1: step did no backward")
        self.says("two backwards", "step did 2 backward passes")

    def test_what_is_no_model_or_no_step(self):
        self.says("not a function", "step is a int; expected a function")
        self.says("not a module", "model is a str; expected a torch.nn.Module")
        self.says("wrapped already", "wrapped in DistributedDataParallel already")

    def test_a_parameter_without_a_gradient(self):
        self.says("unused parameters", "'spare.weight' got no gradient")

    def test_arguments(self):
        self.says("a bucket cap of one's own", "'bucket_cap_mb'; expected arguments that the tuner does not set")
        self.says("an unknown argument", "'bucket_cap' is not an argument of torch")
        self.says("no time", "time_budget_s 0; expected more than 0")

    def test_other_arguments_on_another_rank(self):
        self.says("other seconds on rank 1", "tune: time_budget_s is 2.0 on rank 1, 1.0 on rank 0; expected the same everywhere")
        self.says("other arguments on rank 1", "tune: ddp_kwargs is {'static_graph': True} on rank 1")
        self.says("other steps on rank 1", "profile: steps is 4 on rank 1, 3 on rank 0")
        self.says("other sizes on rank 1", "measure_all_reduce: sizes is [4] on rank 1, [8] on rank 0")

    def test_a_step_of_the_users_that_fails_keeps_its_error_and_stops_the_others(self):
        self.assertEqual(self.said[1]["a step that fails on rank 1"], ("ArithmeticError", "the step's own error"))
        self.assertEqual(
            self.said[0]["a step that fails on rank 1"], ("RuntimeError", "rank 1 failed: ArithmeticError: the step's own error")
        )

    def test_no_process_group_and_one_rank(self):
        model = Layers([8, 8])
        with self.assertRaisesRegex(firkin.InputError, r"^no process group; expected torch.distributed.init_process_group\(\) first"):
            firkin.tune(model, training_step(model))
        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
            with self.assertRaisesRegex(firkin.InputError, "^only one rank; expected at least 2"):
                firkin.tune(model, training_step(model))
            ranks = Ranks(None)
            with mock.patch.object(ranks, "_backends", "cpu:gloo,cuda:nccl"):  # what a CUDA build makes of init_process_group()
                self.assertEqual(ranks.gradient_device().type, "cuda" if torch.cuda.is_available() else "cpu")
            dist.destroy_process_group()


if __name__ == "__main__":
    unittest.main()
