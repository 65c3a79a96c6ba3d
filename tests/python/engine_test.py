"""firkin.DataParallel, the C++ engine from Python, on real ranks over Gloo on the loopback interface."""

import contextlib
import copy
import gc
import logging
import os
import tempfile
import unittest

import firkin
import torch
import torch.distributed as dist
from firkin._native import check_built_for
from models import Layers, Shuffled, WithUnused, batch, numbers, parameters_of, raised, seeded, share
from ranks import with_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.optimizer import _global_optimizer_pre_hooks

STRATEGIES = ("naive", "flat", "overlap", "bucketed", "planned", "ordered")


def one_process(model, steps, width, make_optimizer):
    optimizer = make_optimizer(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step, width)).square().mean().backward()
        optimizer.step()
    return parameters_of(model)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def two_linear_layers(width=16):
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))


def train_every_strategy(rank, model_class, arguments, width):
    expected = one_process(seeded(model_class, *arguments), 6, width, adamw)
    worst = {}
    for strategy in STRATEGIES:
        module = seeded(model_class, *arguments, seed=rank)  # ranks start differently
        reference = seeded(model_class, *arguments)
        if rank == 0:
            module.load_state_dict(reference.state_dict())
        plan = None
        if strategy == "planned":
            names = [name for name, _ in reference.named_parameters()][::-1]
            sizes = {name: p.numel() * p.element_size() for name, p in reference.named_parameters()}
            plan = firkin.Plan((tuple(names[:1]), tuple(names[1:])), sizes)
        model = firkin.DataParallel(module, plan=plan, cap_mib=0.0005, experiment={"strategy": strategy})
        optimizer = firkin.OverlappedOptimizer(model, adamw(model.parameters()))
        for step in range(6):
            optimizer.zero_grad()
            model(share(batch(step, width))).square().mean().backward()
            optimizer.step()
        worst[strategy] = max(float((a - b).abs().max()) for a, b in zip(expected, parameters_of(model)))
    return worst


def train_ordered_over_a_link(rank):
    """Bitwise: ordered against planned, with a schedule that changes the learning rate and the momentum between steps."""
    reached = {}
    late = 0.0
    for strategy in ("bucketed", "ordered"):
        module = seeded(Layers, [48] * 7)
        model = firkin.DataParallel(module, strategy=strategy, cap_mib=0.01, experiment={"link": "100mbit"})
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.OneCycleLR(inner, max_lr=0.1, total_steps=20)
        optimizer = firkin.OverlappedOptimizer(model, inner)
        for step in range(12):
            optimizer.zero_grad()
            model(share(batch(step, 48))).square().mean().backward()
            optimizer.step()
            schedule.step()
        late = model.stats().awaited_bytes
        reached[strategy] = list(copy.deepcopy(module.state_dict()).values())  # waits for what is on its way
    return late, all(torch.equal(a, b) for a, b in zip(reached["bucketed"], reached["ordered"]))


def users_hooks(rank):
    seen = []
    module = seeded(two_linear_layers)
    module[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(("before", p.grad.clone())))
    model = firkin.DataParallel(module)
    module[2].weight.register_post_accumulate_grad_hook(lambda p: seen.append(("after", p.grad.clone())))
    module[2].bias.register_hook(lambda gradient: gradient * 2)
    alone = copy.deepcopy({name: p.detach() for name, p in module.named_parameters()})
    for step in range(3):
        model.zero_grad()
        model(share(batch(step, 16))).square().mean().backward()
    plain = seeded(two_linear_layers)
    plain.load_state_dict(alone)
    plain(share(batch(2, 16))).square().mean().backward()
    own = torch.equal(dict(seen[-2:])["before"], plain[0].weight.grad) and torch.equal(dict(seen[-2:])["after"], plain[2].weight.grad)
    mean = plain[2].bias.grad * 2
    dist.all_reduce(mean)
    return len(seen), own, torch.allclose(module[2].bias.grad, mean / dist.get_world_size())


def no_sync_and_join(rank):
    results = {}
    model = firkin.DataParallel(seeded(two_linear_layers))
    with model.no_sync():
        model(share(batch(0, 16))).square().mean().backward()
    model(share(batch(1, 16))).square().mean().backward()
    mine = [p.grad.clone() for p in model.parameters()]
    plain = seeded(two_linear_layers)
    for step in range(2):
        plain(batch(step, 16)).square().mean().backward()
    results["no_sync"] = all(torch.allclose(a, p.grad) for a, p in zip(mine, plain.parameters()))

    model.zero_grad()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with model.join(optimizer.step):
        for step in range(2 + 3 * rank):
            optimizer.zero_grad()
            model(share(batch(step, 16))).square().mean().backward()
            optimizer.step()
    results["join"] = numbers(parameters_of(model) + [s["momentum_buffer"] for s in optimizer.state.values()])
    with model.join():
        for step in range(1 + rank):
            optimizer.zero_grad()
            model(share(batch(step, 16))).square().mean().backward()
            optimizer.step()
    results["join without a step"] = numbers(parameters_of(model))
    return results


class Boom(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        raise ValueError("boom")


class Fragile(nn.Module):
    """Its backward can fail between its layers: when some gradients are there."""

    def __init__(self):
        super().__init__()
        self.layers = two_linear_layers()
        self.fails = False

    def forward(self, x):
        x = self.layers[0](x)
        return self.layers[2](Boom.apply(x) if self.fails else x)


def fail_on_one_rank(rank):
    model = firkin.DataParallel(seeded(Fragile))
    errors = []

    def step(fails):
        model.module.fails = fails
        model(share(batch(0, 16))).square().mean().backward()

    step(False)
    gradient = model.module.layers[0].weight.grad.clone()
    model.zero_grad()
    try:
        step(rank == 1)
    except firkin.StepError as error:
        errors.append(("StepError", error.rank, error.step, error.reason))
    except ValueError as error:
        errors.append(("ValueError", str(error)))
    errors.append([p.grad is None for p in model.parameters()])
    step(False)  # as if nothing had been
    if rank == 0:
        model.abandon_step("no batch today")
    else:
        with contextlib.suppress(firkin.StepError):
            step(False)
    model.zero_grad()
    step(False)
    errors.append(torch.equal(gradient, model.module.layers[0].weight.grad))
    return errors


def bad_batches_in_a_row(rank):
    """What the handler of each iteration saw: rank 1's forward raises in four, two and two in a row, its backward in another."""
    model = firkin.DistributedDataParallel(seeded(two_linear_layers), cap_mib=1)
    seen = []
    for i, where in enumerate(["", "forward", "forward", "", "backward", "forward", "forward", ""]):
        try:
            model.zero_grad()
            if rank == 1 and where == "forward":
                raise ValueError(f"bad {i}")
            y = model(torch.full((1, 16), 1.0 + rank, dtype=torch.float64))
            if rank == 1 and where == "backward":
                y.register_hook(lambda _, i=i: (_ for _ in ()).throw(ValueError(f"bad {i}")))
            y.sum().backward()
            seen.append("")
        except Exception as error:
            model.abandon_step(str(error))
            model.abandon_step(str(error))
            seen.append(str(error))
    return seen, model.stats().steps


def bad_input(rank):
    good = seeded(two_linear_layers)
    sizes = {name: p.numel() * p.element_size() for name, p in good.named_parameters()}
    wrapped = seeded(two_linear_layers)
    keep = firkin.DataParallel(wrapped)
    other_plan = firkin.Plan((("nobody",),), {"nobody": 8})
    cases = {
        "no parameters": lambda: firkin.DataParallel(nn.Tanh()),
        "lazy": lambda: firkin.DataParallel(nn.LazyLinear(3)),
        "wrapped twice": lambda: firkin.DataParallel(wrapped),
        "different shapes": lambda: firkin.DataParallel(two_linear_layers(16 + rank)),
        "on one rank": lambda: firkin.DataParallel(good, cap_mib=-1 if rank == 1 else 1),
        "different caps": lambda: firkin.DataParallel(good, cap_mib=1 + rank),
        "no such strategy": lambda: firkin.DataParallel(good, strategy="telepathy"),
        "no such compression": lambda: firkin.DataParallel(good, compression="zip"),
        "no such link": lambda: firkin.DataParallel(good, experiment={"link": "fast"}),
        "no such experiment": lambda: firkin.DataParallel(good, experiment={"weather": "rain"}),
        "another model's plan": lambda: firkin.DataParallel(good, plan=other_plan),
        "no such buckets": lambda: firkin.DataParallel(good, buckets="best"),
        "a file alone": lambda: firkin.DataParallel(good, plan_file="buckets.json"),
        "automatic and flat": lambda: firkin.DataParallel(good, buckets="automatic", experiment={"strategy": "flat"}),
        "a plan for flat": lambda: firkin.DataParallel(
            good, plan=firkin.Plan((tuple(sizes),), sizes), experiment={"strategy": "flat"}
        ),
        "flat": lambda: firkin.DataParallel(good, strategy="flat"),
        "no device": lambda: firkin.DataParallel(two_linear_layers().to("meta")),
        "L-BFGS": lambda: firkin.OverlappedOptimizer(keep, torch.optim.LBFGS(keep.parameters())),
    }
    results = {name: raised(call) for name, call in cases.items()}
    model = firkin.DataParallel(good)  # nothing is left of what failed
    model(share(batch(0, 16))).square().mean().backward()
    results["afterwards"] = raised(lambda: None)
    return results


def unused_and_compressed(rank):
    results = {}
    model = firkin.DataParallel(seeded(WithUnused))
    results["unused"] = raised(lambda: model(share(batch(0, 16))).square().mean().backward())
    model = firkin.DataParallel(seeded(WithUnused), find_unused_parameters=True)
    model(share(batch(0, 16))).square().mean().backward()
    results["allowed"] = [name for name, p in model.module.named_parameters() if p.grad is None]
    module = seeded(two_linear_layers).float()
    model = firkin.DataParallel(module, compression="bf16", finish_with_backward=False)
    model(share(batch(0, 16)).float()).square().mean().backward()
    model.finish_gradient_synchronization()
    stats = model.stats()
    results["bytes"] = [stats.buckets[0].bytes, stats.buckets[0].bytes_on_wire < 0.6 * stats.buckets[0].bytes, stats.steps]
    return results


def train_automatically(rank, folder):
    """Over a link whose latency makes 400 bytes a bucket a bad choice."""
    lines = []

    class Lines(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    logging.getLogger("firkin").addHandler(Lines())
    buckets = []
    plan_file = os.path.join(folder, "buckets.json")
    for run in range(2):
        options = {"buckets": "automatic", "plan_file": plan_file, "cap_mib": 0.0004, "experiment": {"link": "1gbit,2ms"}}
        model = firkin.DataParallel(seeded(Layers, [48] * 7), **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        steps = 0
        while run == 0 and steps < 400 and "SETTLED" not in str(model.stats().automatic) or steps < 3:
            optimizer.zero_grad()
            model(share(batch(steps, 48))).square().mean().backward()
            optimizer.step()
            steps += 1
        buckets.append((len(model.buckets()), steps, str(model.stats().automatic)))
        kept = numbers(parameters_of(model))
        del model
        gc.collect()
    return buckets, lines, kept


def leave_nothing_behind(rank):
    module = seeded(Layers, [16] * 3)
    for strategy in ("bucketed", "ordered"):
        model = firkin.DataParallel(module, strategy=strategy)
        model(share(batch(0, 16))).square().mean().backward()
        model.drain()
        del model
        gc.collect()
    places = ("_forward_pre_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "named_parameters", "__reduce_ex__")
    hooks = sum(len(vars(part).get(place, ())) for part in module.modules() for place in places) + len(_global_optimizer_pre_hooks)
    hooks += sum(len(p._post_accumulate_grad_hooks or ()) for p in module.parameters())
    module.zero_grad()
    module(share(batch(rank, 16))).square().mean().backward()  # alone again: no collective
    return hooks


def come_and_go(rank, times):
    """Wrappers that are dropped while threads of their groups still let go of the last collective."""
    module = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)).double()
    for i in range(times):
        model = firkin.DataParallel(module, strategy=("bucketed", "ordered")[i % 2])
        for step in range(2):
            module.zero_grad()
            model(share(batch(step, 16))).square().mean().backward()
        if i % 4 > 1:
            model.drain()
        del model
    return i + 1


def same_names_as_pytorch(rank):
    ours, theirs = firkin.DataParallel(seeded(Shuffled)), DDP(seeded(Shuffled))
    return {
        "state_dict": list(ours.state_dict()) == list(theirs.state_dict()),
        "parameters": [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()],
        "loads": str(ours.load_state_dict(theirs.state_dict())),
    }


class Engine(unittest.TestCase):
    def test_every_strategy_trains_as_one_process(self):
        for model_class, arguments, width in ((Layers, ([16] * 5,), 16), (Layers, ([16] * 4, True), 16), (Shuffled, (16,), 16)):
            for worst in with_ranks(2, train_every_strategy, model_class, arguments, width):
                for strategy in STRATEGIES:
                    with self.subTest(model=model_class.__name__, strategy=strategy):
                        self.assertLess(worst[strategy], 1e-9)

    def test_ordered_hides_behind_the_next_forward_and_changes_no_bit(self):
        for late, same in with_ranks(2, train_ordered_over_a_link):
            self.assertGreater(late, 0)
            self.assertTrue(same)

    def test_hooks_of_the_user_see_the_ranks_own_gradient(self):
        for calls, own, mean in with_ranks(2, users_hooks):
            self.assertEqual(calls, 6)
            self.assertTrue(own)
            self.assertTrue(mean)

    def test_no_sync_and_join(self):
        first, second = with_ranks(2, no_sync_and_join)
        for results in (first, second):
            self.assertTrue(results["no_sync"])
        for what in ("join", "join without a step"):
            self.assertEqual(first[what], second[what], what)

    def test_a_rank_that_raises_is_named_on_the_other_and_the_next_step_is_clean(self):
        first, second = with_ranks(2, fail_on_one_rank)
        self.assertEqual(first[0][:3], ("StepError", 1, 1))
        self.assertIn("boom", first[0][3])
        self.assertEqual(second[0], ("ValueError", "boom"))
        for errors in (first, second):
            self.assertEqual(errors[1], [True] * 4)
            self.assertTrue(errors[2])

    def test_bad_batches_in_a_row_fail_their_own_steps(self):
        (others, steps), (own, own_steps) = with_ranks(2, bad_batches_in_a_row)
        self.assertEqual((steps, own_steps), (3, 3))
        self.assertEqual([i for i, said in enumerate(own) if said], [1, 2, 4, 5, 6])
        for i, said in enumerate(own):
            self.assertIn(f"bad {i}" if said else "", others[i])
            self.assertEqual(bool(said), bool(others[i]))

    def test_bad_input_is_one_line_on_every_rank(self):
        expected = {
            "no parameters": "no trainable parameter",
            "lazy": "weight of a lazy module has no shape yet",
            "wrapped twice": "0.weight is wrapped already",
            "different shapes": "rank 1 has",
            "on one rank": "rank 1: DataParallel: cap_mib -1",
            "different caps": "rank 0 has cap 1048576 bytes; rank 1 has cap 2097152 bytes",
            "no such strategy": "telepathy",
            "no such compression": "expected none, bf16 or fp16",
            "no such link": "fast",
            "another model's plan": "made for another model",
            "no such buckets": "expected None or 'automatic'",
            "a file alone": "plan_file without",
            "automatic and flat": "expected bucketed or ordered",
            "a plan for flat": "expected planned or ordered",
            "flat": "strategy 'flat'; expected 'bucketed', 'planned', 'ordered' or 'sharded'",
            "no such experiment": "experiment 'weather'; expected 'strategy' or 'link'",
            "no device": "0.weight is on meta",
            "L-BFGS": "expected another optimiser",
        }
        for results in with_ranks(2, bad_input):
            for name, words in expected.items():
                with self.subTest(name):
                    self.assertEqual(results[name][0], "InputError", results[name])
                    self.assertIn(words, results[name][1])
                    self.assertNotIn("\n", results[name][1])
            self.assertEqual(results["afterwards"], (None, ""))

    def test_without_a_process_group(self):
        kind, text = raised(lambda: firkin.DataParallel(two_linear_layers()))
        self.assertEqual(kind, "InputError")
        self.assertIn("init_process_group", text)

    def test_unused_parameters_and_compression(self):
        for results in with_ranks(2, unused_and_compressed):
            self.assertIn("no gradient for spare.weight, spare.bias", results["unused"][1])
            self.assertEqual(results["allowed"], ["spare.weight", "spare.bias"])
            gradient_bytes = 4 * 2 * (16 * 16 + 16)
            self.assertEqual(results["bytes"], [gradient_bytes, True, 1])

    def test_automatic_buckets_are_chosen_said_and_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            first, second = with_ranks(2, train_automatically, folder)
        self.assertEqual(first[0], second[0])
        self.assertEqual(first[2], second[2])
        (chosen, steps, phase), (again, few, _) = first[0]
        self.assertEqual(phase, "AutomaticPhase.SETTLED")
        self.assertLess(chosen, 12)  # of one for each tensor
        self.assertLess(steps, 400)
        self.assertEqual((again, few), (chosen, 3))
        self.assertRegex(first[1][0], r"buckets? .* instead of")
        self.assertRegex(first[1][-1], r"as .*buckets\.json says")
        self.assertEqual(second[1], [])

    def test_goes_without_a_trace(self):
        self.assertEqual(with_ranks(2, leave_nothing_behind), [0, 0])

    def test_can_be_dropped_as_soon_as_a_step_has_ended(self):
        self.assertEqual(with_ranks(2, come_and_go, 40), [40, 40])

    def test_names_are_those_of_pytorch(self):
        for results in with_ranks(2, same_names_as_pytorch):
            self.assertEqual(results, {"state_dict": True, "parameters": True, "loads": "<All keys matched successfully>"})

    def test_an_engine_for_another_pytorch_is_refused_and_for_another_build_of_it_taken(self):
        check_built_for(torch.__version__.split("+")[0] + "+cu999")
        kind, text = raised(lambda: check_built_for("2.0.1"))
        self.assertEqual(kind, "InputError")
        self.assertIn(f"built for torch 2.0.1, but this is {torch.__version__}", text)


class EngineFull(unittest.TestCase):
    def test_can_be_dropped_as_soon_as_a_step_has_ended_however_often(self):
        self.assertEqual(with_ranks(2, come_and_go, 300), [300, 300])


if __name__ == "__main__":
    unittest.main()
