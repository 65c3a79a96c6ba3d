"""firkin.ShardedOptimizer: training of "bucketed" to the last bit, with a P-th of the optimiser's state on each rank."""

import copy
import io
import pathlib
import sys
import unittest

import firkin
import torch
import torch.distributed as dist
from models import Lamb, Layers, batch, numbers, parameters_of, raised, seeded, share
from ranks import with_ranks
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"
WIDTH = 48
STEPS = 8
CLASSES = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.001, "momentum": 0.5}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.01}),
}


def wrapped(strategy, **options):
    """Over a link so slow that parameters are on their way when step() returns. Buckets cross the tensors' boundaries."""
    options = {"strategy": strategy, "cap_mib": 0.04, "experiment": {"link": "100mbit"}, **options}
    return firkin.DistributedDataParallel(seeded(Layers, [WIDTH, 31, WIDTH, WIDTH, WIDTH]), **options)


def make(model, optimizer_class, **options):
    if model.strategy == "sharded":
        return firkin.ShardedOptimizer(model, optimizer_class, **options)
    return optimizer_class(model.parameters(), **options)


def train(model, optimizer, steps, after_backward=lambda: None):
    for step in steps:
        optimizer.zero_grad()
        model(share(batch(step, WIDTH))).square().mean().backward()
        after_backward()
        optimizer.step()


def trains_alike(rank):
    """By optimiser: parameters, the largest difference in the whole state, and this rank's share of the state's elements."""
    found = {}
    for name, (optimizer_class, options) in CLASSES.items():
        reached = {}
        for strategy in ("bucketed", "sharded"):
            model = wrapped(strategy)
            optimizer = make(model, optimizer_class, **options)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            train(model, optimizer, range(STEPS))
            schedule.step()
            train(model, optimizer, range(STEPS))
            reached[strategy] = parameters_of(model), optimizer.state_dict(), optimizer.state
        alone = optimizer.state_dict(to=1)
        (plain, whole, all_of_it), (sharded, gathered, part_of_it) = reached.values()
        elements = [sum(v.numel() for state in each.values() for v in state.values() if torch.is_tensor(v) and v.dim() > 0)
                    for each in (part_of_it, all_of_it)]  # fmt: skip
        found[name] = {
            "parameters": all(torch.equal(a, b) for a, b in zip(plain, sharded)),
            "state": str(whole) == str(gathered) and all(
                torch.equal(v, gathered["state"][i][k]) for i, state in whole["state"].items() for k, v in state.items() if torch.is_tensor(v)
            ),
            "share": elements[0] / elements[1],
            "alone": (len(alone["state"]), len(alone["param_groups"])) == (len(gathered["state"]) if rank == 1 else 0, len(gathered["param_groups"])),
            "late": model.stats().awaited_bytes > 0,
        }  # fmt: skip
    return found


def resumes(rank, saved):
    """From what another number of ranks has saved, as plain AdamW does."""
    optimizer_class, options = CLASSES["AdamW"]
    saved = torch.load(io.BytesIO(saved))
    reached = []
    for strategy in ("bucketed", "sharded"):
        model = wrapped(strategy)
        model.module.load_state_dict(saved["model"])
        optimizer = make(model, optimizer_class, **options)
        optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))
        train(model, optimizer, range(STEPS))
        reached.append((numbers(parameters_of(model)), optimizer.state_dict()["param_groups"]))
    return reached


def saves(rank):
    model = wrapped("sharded")
    optimizer = make(model, *CLASSES["AdamW"][:1], **CLASSES["AdamW"][1])
    train(model, optimizer, range(STEPS))
    optimizer.param_groups[0]["lr"] = 0.005
    file = io.BytesIO()
    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, file)
    return file.getvalue()


def over_parameters(model, name):
    if name == "Muon":
        weights = [p for p in model.module.parameters() if p.dim() == 2]
        return firkin.ShardedOptimizer(model, torch.optim.Muon, weights) if model.strategy == "sharded" else torch.optim.Muon(weights)
    return make(model, Lamb, lr=0.01, **({"whole_parameters": True} if model.strategy == "sharded" else {}))


def steps_whole_parameters(rank, name, saved=None):
    """From the saved state of another number of ranks on, if there is one: (parameters, state) by strategy, saved; this rank's share of moments."""
    reached = []
    for strategy in ("bucketed", "sharded"):
        model = wrapped(strategy)
        optimizer = over_parameters(model, name)
        if saved is not None:
            parameters, state = torch.load(io.BytesIO(saved))[1]
            model.module.load_state_dict(parameters)
            optimizer.load_state_dict(state)
        train(model, optimizer, range(STEPS))
        reached.append((copy.deepcopy(model.module.state_dict()), optimizer.state_dict()))
    held = sum(v.numel() for state in optimizer.state.values() for v in state.values())
    share = held / sum(v.numel() for state in reached[1][1]["state"].values() for v in state.values())
    file = io.BytesIO()
    torch.save(reached, file)
    return file.getvalue(), share


def difference(a, b):
    """Of two states, the largest."""
    if torch.is_tensor(a):
        return float((a.double() - b.double()).abs().max())
    if isinstance(a, dict):
        assert a.keys() == b.keys(), (a.keys(), b.keys())
        return max((difference(a[key], b[key]) for key in a), default=0.0)
    return 0.0


def in_groups(model):
    biases = [p for p in model.module.parameters() if p.dim() == 1]
    weights = [p for p in model.module.parameters() if p.dim() == 2]
    return [{"params": biases, "weight_decay": 0}, {"params": weights}]


def programs(rank):
    """What each reaches under both strategies is the same."""

    def groups(model, steps=range(STEPS)):
        options = {"lr": 0.01, "weight_decay": 0.1}
        if model.strategy == "sharded":
            train(model, firkin.ShardedOptimizer(model, torch.optim.AdamW, in_groups(model), **options), steps)
        else:
            train(model, torch.optim.AdamW(in_groups(model), **options), steps)

    def clips(model):
        optimizer = make(model, torch.optim.SGD, lr=0.1)
        clip = (lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.01)) if model.strategy == "bucketed" else (
            lambda: optimizer.clip_grad_norm_(0.01))  # fmt: skip
        train(model, optimizer, range(STEPS), clip)

    def closes(model):
        optimizer = make(model, torch.optim.SGD, lr=0.1)

        def closure():
            optimizer.zero_grad()
            loss = model(share(batch(0, WIDTH))).square().mean()
            loss.backward()
            return loss

        assert all(optimizer.step(closure).item() > 0 for _ in range(STEPS))

    def scales(model):
        """One rank's gradient of one parameter overflows in a step, which every rank skips."""
        optimizer = make(model, torch.optim.SGD, lr=0.1)
        scaler = (torch.amp.GradScaler if model.strategy == "bucketed" else ShardedGradScaler)("cpu", init_scale=1024.0)
        for step in range(STEPS):
            optimizer.zero_grad()
            bias = model.module.layers[0].bias
            extra = bias.sum() * torch.inf if rank == 1 and step == 2 else 0
            scaler.scale(model(share(batch(step, WIDTH))).square().mean() + extra).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 512.0

    def adds_a_group(model):
        named = dict(model.module.named_parameters())
        late = [named.pop("layers.3.weight"), named.pop("layers.3.bias")]
        options = {"lr": 0.01, "weight_decay": 0.1}
        sharded = model.strategy == "sharded"
        optimizer = (
            firkin.ShardedOptimizer(model, torch.optim.AdamW, named.values(), **options) if sharded
            else torch.optim.AdamW(named.values(), **options)
        )  # fmt: skip
        train(model, optimizer, range(2))
        optimizer.add_param_group({"params": late, "lr": 0.02})
        train(model, optimizer, range(2, STEPS))
        states = optimizer.state_dict()["state"]
        return [states[i]["exp_avg"] for i in sorted(states)]

    def accumulates(model):
        optimizer = make(model, torch.optim.SGD, lr=0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            with model.no_sync():
                model(share(batch(step, WIDTH))).square().mean().backward()
            model(share(batch(step + 100, WIDTH))).square().mean().backward()
            optimizer.step()

    def joins(model):
        optimizer = make(model, torch.optim.SGD, lr=0.1)
        with model.join(optimizer.step):
            train(model, optimizer, range(STEPS + 2 * dist.get_rank()))

    def copies(model):
        train(model, make(model, torch.optim.SGD, lr=0.1), range(STEPS))
        return parameters_of(copy.deepcopy(model))

    found = {}
    for program in (groups, clips, closes, scales, adds_a_group, accumulates, joins, copies):
        reached = {}
        for strategy in ("bucketed", "sharded"):
            model = wrapped(strategy)
            reached[strategy] = [*(program(model) or []), *parameters_of(model)]
        found[program.__name__] = max(float((a - b).abs().max()) for a, b in zip(*reached.values()))
    return found


def refusals(rank):
    model = wrapped("sharded")
    optimizer = make(model, torch.optim.SGD, lr=0.1)

    def scaled():
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(model(share(batch(0, WIDTH))).square().mean()).backward()
        scaler.step(optimizer)

    def thaws():
        module = seeded(Layers, [WIDTH] * 4)
        module.layers[0].requires_grad_(False)
        model = firkin.DistributedDataParallel(module, strategy="sharded")
        optimizer = make(model, torch.optim.SGD, lr=0.1)
        train(model, optimizer, range(2))
        model.module.layers[0].requires_grad_(True)
        train(model, optimizer, range(2))

    def loads_what_is_frozen():
        module = seeded(Layers, [WIDTH] * 4)
        plain = torch.optim.Adagrad(module.parameters())
        module.layers[0].requires_grad_(False)
        model = firkin.DistributedDataParallel(module, strategy="sharded")
        firkin.ShardedOptimizer(model, torch.optim.Adagrad, model.parameters()).load_state_dict(plain.state_dict())

    def without_an_optimizer():
        model = wrapped("sharded")
        model(share(batch(0, WIDTH))).square().mean().backward()

    def forgets_a_step():
        model = wrapped("sharded")
        _optimizer = make(model, torch.optim.SGD, lr=0.1)
        for step in range(2):
            model(share(batch(step, WIDTH))).square().mean().backward()

    return {
        "another strategy": raised(lambda: firkin.ShardedOptimizer(wrapped("bucketed"), torch.optim.SGD, lr=0.1)),
        "a second one": raised(lambda: make(model, torch.optim.SGD, lr=0.1)),
        "strange parameters": raised(lambda: firkin.ShardedOptimizer(wrapped("sharded"), torch.optim.SGD, [torch.zeros(2)], lr=0.1)),
        "add_param_group": raised(lambda: optimizer.add_param_group({"params": [next(model.parameters())]})),
        "pickle": raised(lambda: copy.deepcopy(optimizer)),
        "whole parameters": raised(lambda: make(wrapped("sharded"), torch.optim.LBFGS)),
        "whole matrices": raised(lambda: make(wrapped("sharded"), torch.optim.Adafactor, whole_parameters=False)),
        "compression": raised(lambda: wrapped("sharded", compression="bf16")),
        "no optimiser": raised(without_an_optimizer),
        "GradScaler": raised(scaled),
        "thaws": raised(thaws),
        "loads what is frozen": raised(loads_what_is_frozen),
        "forgets a step": raised(forgets_a_step),
    }


class Toy(nn.Module):
    """Layers without and with biases; a parameter that is not trained; where asked, two layers with one weight."""

    def __init__(self, tied):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(10, 10, bias=False), nn.Linear(10, 50), nn.Linear(50, 10, bias=False)
        self.last = nn.Linear(10, 10, bias=False)
        self.frozen = nn.Parameter(torch.tensor([2.0, 2.0]), requires_grad=False)
        if tied:
            self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.third(self.second(self.first(x).relu()).relu()))


def steps_as_the_course_does(rank, tied):
    """examples/python/cs336_adapters.py in the shape of the course's test: the optimiser gets parameters, and the module is not wrapped."""
    sys.path.insert(0, str(EXAMPLES))
    from cs336_adapters import get_sharded_optimizer

    torch.manual_seed(42)
    plain = Toy(tied)
    sharded = copy.deepcopy(plain)
    options = {"lr": 0.1, "weight_decay": 0.1, "betas": (0.9, 0.999), "eps": 1e-8}
    optimizers = torch.optim.AdamW(plain.parameters(), **options), get_sharded_optimizer(sharded.parameters(), torch.optim.AdamW, **options)
    for _ in range(10):
        x, y = torch.rand(32, 10), torch.rand(32, 10)
        for model, optimizer in zip((plain, sharded), optimizers):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    kept = [sum(v.numel() for state in o.state.values() for v in state.values() if v.dim() > 0) for o in optimizers]
    return [torch.allclose(a, b) for a, b in zip(parameters_of(plain), parameters_of(sharded))], kept[1] / kept[0]


def in_bf16():
    module = seeded(Layers, [WIDTH, 31, WIDTH]).bfloat16()
    return firkin.DistributedDataParallel(module, strategy="sharded", cap_mib=0.001, experiment={"link": "100mbit"})


def train_in_bf16(model, steps, update):
    for step in steps:
        model(share(batch(step, WIDTH)).bfloat16()).square().mean().backward()
        update()


def by_hand(model, steps):
    """Steps of AdamW on copies in float32, of all parameters on every rank. Returns these."""
    parameters = list(model.parameters())
    masters = [p.detach().float().clone().requires_grad_() for p in parameters]
    optimizer = torch.optim.AdamW(masters, lr=1e-4)

    def update():
        for p, master in zip(parameters, masters):
            master.grad, p.grad = p.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for p, master in zip(parameters, masters):
                p.copy_(master)

    train_in_bf16(model, steps, update)
    return [master.detach() for master in masters]


def masters_of(optimizer):
    return [state["master"] for state in optimizer.state_dict()["state"].values()]


def keeps_masters(rank):
    module = seeded(Layers, [WIDTH, 31, WIDTH]).bfloat16()
    expected = by_hand(firkin.DistributedDataParallel(module, cap_mib=0.001), range(2 * STEPS))
    models = [in_bf16() for _ in range(2)]
    first, second = [firkin.ShardedOptimizer(model, torch.optim.AdamW, lr=1e-4, master_weights=True) for model in models]
    train_in_bf16(models[0], range(STEPS), first.step)
    saved = copy.deepcopy((models[0].module.state_dict(), first.state_dict()))
    train_in_bf16(models[0], range(STEPS, 2 * STEPS), first.step)
    models[1].module.load_state_dict(saved[0])
    second.load_state_dict(saved[1])
    train_in_bf16(models[1], range(STEPS, 2 * STEPS), second.step)
    held = sum(state["exp_avg"].numel() for state in first.state.values()) / sum(p.numel() for p in module.parameters())
    return {
        "as by hand": all(torch.equal(a, b) for a, b in zip(masters_of(first), expected)),
        "rounded": all(torch.equal(a.bfloat16(), p) for a, p in zip(expected, parameters_of(models[0]))),
        "more than rounded": any(not torch.equal(a.bfloat16().float(), a) for a in expected),
        "goes on": all(torch.equal(a, b) for a, b in zip(masters_of(second), expected)),
        "state": {str(state["exp_avg"].dtype) for state in first.state.values()} == {"torch.float32"} and held,
    }


class Sharded(unittest.TestCase):
    def test_masters_of_parts_step_as_masters_of_everything(self):
        for found in with_ranks(2, keeps_masters):
            self.assertAlmostEqual(found.pop("state"), 1 / 2, delta=0.05)
            self.assertEqual(set(found.values()), {True}, found)

    def test_trains_as_bucketed_does_with_half_of_the_state(self):
        for found in with_ranks(2, trains_alike):
            for name, facts in found.items():
                with self.subTest(name):
                    self.assertTrue(facts["parameters"] and facts["state"] and facts["late"] and facts["alone"], facts)
                    self.assertAlmostEqual(facts["share"], 1 / 2, delta=0.02)

    def test_optimisers_that_look_at_whole_parameters_have_each_on_one_rank(self):
        for name in ("Lamb", "Muon"):
            with self.subTest(name):
                of_ranks = with_ranks(2, steps_whole_parameters, name)
                for reached, held in of_ranks:
                    bucketed, sharded = torch.load(io.BytesIO(reached))
                    self.assertEqual(difference(bucketed[0], sharded[0]), 0)
                    self.assertEqual(difference(bucketed[1]["state"], sharded[1]["state"]), 0)
                    self.assertLess(held, 0.75)
                self.assertAlmostEqual(sum(held for _, held in of_ranks), 1)

    def test_whole_parameters_of_three_ranks_go_on_with_one_two_and_four(self):
        (saved, _), *_ = with_ranks(3, steps_whole_parameters, "Lamb")
        for size in (1, 2, 4):
            for reached, _ in with_ranks(size, steps_whole_parameters, "Lamb", saved):
                self.assertLess(max(map(difference, *torch.load(io.BytesIO(reached)))), 1e-12)

    def test_a_checkpoint_of_three_ranks_goes_on_with_two_and_one(self):
        saved, *others = with_ranks(3, saves)
        for other in others:
            self.assertEqual(other, saved)
        for size in (2, 1):
            for (plain, groups), (sharded, sharded_groups) in with_ranks(size, resumes, saved):
                self.assertEqual(plain, sharded)
                self.assertEqual(groups, sharded_groups)
                self.assertEqual(groups[0]["lr"], 0.005)

    def test_programs_reach_what_they_reach_under_bucketed(self):
        for found in with_ranks(2, programs):
            self.assertLess(found.pop("clips"), 1e-12)  # the norm is summed in another order
            self.assertEqual(set(found.values()), {0.0}, found)

    def test_the_courses_adapter_steps_an_unwrapped_module_as_the_plain_optimiser_with_a_part_of_its_state(self):
        for tied in (False, True):
            with self.subTest(tied=tied):
                for same, share in with_ranks(2, steps_as_the_course_does, tied):
                    self.assertEqual(same, [True] * (5 if tied else 6))
                    self.assertLess(share, 0.6)

    def test_what_cannot_work_is_refused_in_one_line_on_every_rank(self):
        expected = {
            "another strategy": "strategy sharded",
            "a second one": "this DataParallel already has one",
            "strange parameters": "a parameter of shape [2] that the model does not train",
            "add_param_group": "in another group already",
            "pickle": "expected its state_dict()",
            "whole parameters": "LBFGS looks at all parameters at once",
            "whole matrices": "Adafactor looks at whole parameters; expected whole_parameters=True",
            "compression": "the strategy sharded takes no gradient hook",
            "no optimiser": "expected a ShardedOptimizer first",
            "GradScaler": "the scaler judged by each rank's own gradients",
            "thaws": "expected parameters_changed() on every rank after such a change",
            "loads what is frozen": "the state of a frozen parameter of shape [48, 48]; expected it thawed first",
            "forgets a step": "expected ShardedOptimizer::step() on every rank",
        }
        for found in with_ranks(2, refusals):
            for name, words in expected.items():
                with self.subTest(name):
                    self.assertIn(words, found[name][1])
                    self.assertNotIn("\n", found[name][1].strip())


if __name__ == "__main__":
    unittest.main()
