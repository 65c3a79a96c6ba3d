"""Modules whose parameters are frozen, thawed, added or replaced after wrapping, and audits: equal ranks, or the same error on all of them."""

import copy
import unittest

import firkin
import torch
from models import Lamb, Layers, numbers, parameters_of, raised, same, seeded
from ranks import with_ranks
from torch import nn

WIDTH = 8


def wrapped(start=lambda module: None, **options):
    module = seeded(Layers, [WIDTH] * 4)
    start(module)
    return firkin.DistributedDataParallel(module, **options)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model, optimizer, steps, rank):
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank), dtype=torch.float64)).square().mean().backward()
        optimizer.step()


def freeze(model, optimizer, rank):
    model.module.layers[0].requires_grad_(False)


def thaw(model, optimizer, rank):
    model.module.layers[0].requires_grad_(True)


def grow(model, optimizer, rank):
    torch.manual_seed(7)
    model.module.layers.append(nn.Linear(WIDTH, WIDTH).double())
    optimizer.add_param_group({"params": list(model.module.layers[-1].parameters())})


def grow_with_values_of_each_ranks_own(model, optimizer, rank):
    model.module.layers.append(nn.Linear(WIDTH, WIDTH).double())
    with torch.no_grad():
        model.module.layers[-1].weight.fill_(0.1 * (rank + 1))
    optimizer.add_param_group({"params": list(model.module.layers[-1].parameters())})


def replace(model, optimizer, rank):
    layer = model.module.layers[1]
    old, layer.weight = layer.weight, nn.Parameter(layer.weight.detach().clone())
    group = optimizer.param_groups[0]
    group["params"] = [layer.weight if p is old else p for p in group["params"]]


def drop(model, optimizer, rank):
    del model.module.layers[2]


CHANGES = {
    "freeze": (freeze, {}),
    "thaw": (thaw, {"start": lambda module: module.layers[0].requires_grad_(False)}),
    "grow": (grow, {}),
    "replace": (replace, {}),
    "replace, find_unused_parameters": (replace, {"find_unused_parameters": True}),
    "drop": (drop, {}),
}


def changes(rank):
    """By change: all parameters after it, and whether the changed module went on to train."""
    found = {}
    for name, (change, options) in CHANGES.items():
        model = wrapped(**options)
        optimizer = sgd(model)
        train(model, optimizer, 3, rank)
        change(model, optimizer, rank)
        before = numbers(parameters_of(model))
        train(model, optimizer, 3, rank)
        model.audit()
        found[name] = numbers(parameters_of(model)), numbers(parameters_of(model)) != before
    return found


def errors(rank):
    model = wrapped()
    optimizer = sgd(model)
    train(model, optimizer, 2, rank)
    grow_with_values_of_each_ranks_own(model, optimizer, rank)
    noticed = raised(lambda: train(model, optimizer, 1, rank))
    train(model, optimizer, 3, rank)  # which includes the layer, with rank 0's values
    after_the_error = numbers(parameters_of(model))

    told = wrapped()
    optimizer = sgd(told)
    train(told, optimizer, 2, rank)
    grow_with_values_of_each_ranks_own(told, optimizer, rank)
    told.parameters_changed()
    train(told, optimizer, 3, rank)

    ordered = wrapped(strategy="ordered")
    optimizer = firkin.OverlappedOptimizer(ordered, sgd(ordered))
    train(ordered, optimizer, 2, rank)
    ordered.module.layers.append(nn.Linear(WIDTH, WIDTH).double())
    refused = raised(lambda: train(ordered, optimizer, 1, rank))
    return {"noticed": noticed, "after": after_the_error, "told": numbers(parameters_of(told)), "ordered": refused}


OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, {}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01}, {}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.1}, {}),  # makes its state when it is constructed
    "Lamb": (Lamb, {"lr": 0.1}, {"whole_parameters": True}),
}


def all_changes(model, optimizer, rank):
    """One after another; yields after each."""
    layers = model.module.layers

    def let_go(parameters):
        if model.strategy == "bucketed":
            for p in parameters:
                optimizer.state.pop(p, None)
                optimizer.param_groups[0]["params"] = [each for each in optimizer.param_groups[0]["params"] if each is not p]

    for wanted in (True, False, True):
        layers[0].requires_grad_(wanted)
        yield f"thawed {wanted}"
    layers[1].bias.requires_grad_(False)
    layers[2].requires_grad_(False)
    yield "frozen"
    old, layers[1].weight = layers[1].weight, nn.Parameter(layers[1].weight.detach() + rank)  # which become rank 0's
    layers[1].bias.requires_grad_(True)
    let_go([old])
    optimizer.add_param_group({"params": [layers[1].weight], "lr": 0.02})
    yield "replaced"
    layers.insert(1, nn.Linear(WIDTH, WIDTH).double())
    optimizer.add_param_group({"params": list(layers[1].parameters())})
    yield "added"
    layers[3].requires_grad_(True)
    let_go(list(layers[0].parameters()))
    del layers[0]
    yield "dropped"


def over_the_slow_link(strategy):
    """In buckets that cross the tensors' boundaries. The first layer is frozen."""
    options = {"strategy": strategy, "cap_mib": 0.0007, "experiment": {"link": "100mbit"}}
    return wrapped(lambda module: module.layers[0].requires_grad_(False), **options)


def follows(rank):
    """By optimiser and change: whether parameters and states under "sharded" are those under "bucketed", and what the next forward awaits."""
    found = {}
    for name, (optimizer_class, options, of_sharded) in OPTIMIZERS.items():
        reached = []
        for strategy in ("bucketed", "sharded"):
            model = over_the_slow_link(strategy)
            optimizer = optimizer_class(model.parameters(), **options) if strategy == "bucketed" else (
                firkin.ShardedOptimizer(model, optimizer_class, model.parameters(), **of_sharded, **options))  # fmt: skip
            train(model, optimizer, 3, rank)
            model.after = {}
            for change in all_changes(model, optimizer, rank):
                model.parameters_changed()
                train(model, optimizer, 3, rank)
                model.audit()
                model.after[change] = copy.deepcopy((parameters_of(model), optimizer.state_dict()["state"]))
            reached.append(model.after)
        plain, sharded = reached
        found[name] = {change: same(plain[change], sharded[change]) for change in plain}
        found[name]["late"] = model.stats().awaited_bytes > 0
    return found


def joins_without_a_word(rank):
    """Of all trained parameters. A change fails the step on every rank, or for good where one rank alone has it."""
    reached = []
    for strategy in ("bucketed", "sharded"):
        model = over_the_slow_link(strategy)
        optimizer = sgd(model) if strategy == "bucketed" else firkin.ShardedOptimizer(model, torch.optim.SGD, lr=0.1, momentum=0.9)
        train(model, optimizer, 2, rank)
        thaw(model, optimizer, rank)
        said = None if strategy == "bucketed" else raised(lambda: train(model, optimizer, 1, rank))
        train(model, optimizer, 3, rank)
        reached.append(parameters_of(model))
    grown = raised(lambda: (model.module.layers.append(nn.Linear(WIDTH, WIDTH).double()), train(model, optimizer, 1, rank)))
    before = parameters_of(model)
    train(model, optimizer, 3, rank)
    moved = [not torch.equal(a, b) for a, b in zip(before, parameters_of(model))]
    alone = {}
    for strategy in ("bucketed", "sharded"):
        model = over_the_slow_link(strategy)
        optimizer = sgd(model) if strategy == "bucketed" else firkin.ShardedOptimizer(model, torch.optim.SGD, lr=0.1, momentum=0.9)
        train(model, optimizer, 2, rank)
        if rank == 1:
            model.module.layers.append(nn.Linear(WIDTH, WIDTH).double())
        alone[strategy] = raised(lambda: train(model, optimizer, 1, rank)), raised(model.parameters_changed)
        if rank == 1:
            del model.module.layers[3]
        again = [raised(lambda: train(model, optimizer, 1, rank)) for _ in range(3)]
        alone[strategy] += (again, numbers(parameters_of(model)))
    return same(*reached), said, grown, all(moved), numbers(parameters_of(model)), alone


def keeps_masters(rank):
    """Against AdamW on copies in float32 of all parameters."""
    reached = []
    for strategy in ("bucketed", "sharded"):
        module = seeded(Layers, [WIDTH] * 4).bfloat16()
        module.layers[0].requires_grad_(False)
        model = firkin.DistributedDataParallel(module, strategy=strategy, cap_mib=0.0003, experiment={"link": "100mbit"})
        parameters = list(model.parameters())
        if strategy == "bucketed":
            masters = [p.detach().float().clone().requires_grad_() for p in parameters]
            optimizer = torch.optim.AdamW(masters, lr=1e-4)
        else:
            optimizer = firkin.ShardedOptimizer(model, torch.optim.AdamW, parameters, lr=1e-4, master_weights=True)
        for step in range(24):
            if step in (6, 12, 18):
                module.layers[0].requires_grad_(step < 18)
                module.layers[2].weight.requires_grad_(step != 12)
                model.parameters_changed()
            model.zero_grad()
            x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank)).bfloat16()
            model(x).square().mean().backward()
            if strategy == "bucketed":
                for p, master in zip(parameters, masters):
                    master.grad = None if p.grad is None else p.grad.float()
            optimizer.step()
            if strategy == "bucketed":
                with torch.no_grad():
                    for p, master in zip(parameters, masters):
                        p.copy_(master)
        states = optimizer.state_dict()["state"]
        if strategy == "bucketed":
            for i, state in states.items():
                state["master"] = masters[i].detach()
        reached.append(copy.deepcopy((parameters_of(model), states)))
    return same(*reached)


def audits(rank):
    model = wrapped(audit_every=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1))
    of_a_rate = raised(lambda: train(model, optimizer, 8, rank))

    model = wrapped(strategy="sharded", audit_every=4)
    optimizer = firkin.ShardedOptimizer(model, torch.optim.Adam, lr=torch.tensor(0.1), betas=(0.9, 0.99))
    train(model, optimizer, 8, rank)
    of_options = []
    for key, value in (("lr", torch.tensor(0.1 + rank)), ("betas", (0.9, 0.99 - 0.1 * rank))):
        kept, optimizer.param_groups[0][key] = optimizer.param_groups[0][key], value
        of_options.append(raised(lambda: train(model, optimizer, 8, rank)))
        optimizer.param_groups[0][key] = kept
        model.audit()

    model = wrapped(audit_every=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model.audit_optimizer(optimizer)
    train(model, optimizer, 3, rank)
    model.audit()
    if rank == 1:
        optimizer.state[model.module.layers[2].bias]["exp_avg"][0] += 1e-3
    return of_a_rate, raised(model.audit), of_options


class ChangingModules(unittest.TestCase):
    def test_ranks_stay_alike_and_train_what_is_there(self):
        for ranks in (2, 3):
            first, *others = with_ranks(ranks, changes)
            for name, (parameters, trained) in first.items():
                with self.subTest(name, ranks=ranks):
                    self.assertTrue(trained)
                    for other in others:
                        self.assertEqual(other[name][0], parameters)

    def test_values_that_differ_are_every_ranks_error_once_or_become_rank_0s_where_it_is_said(self):
        first, second = with_ranks(2, errors)
        for found in (first, second):
            kind, said = found["noticed"]
            self.assertEqual(kind, "StepError", said)
            self.assertIn("layers.3.weight", said)
            kind, said = found["ordered"]
            self.assertEqual(kind, "InputError", said)
            self.assertIn("strategy ordered cannot follow in Python; expected a new DistributedDataParallel and optimiser", said)
        self.assertEqual(first["after"], second["after"])
        self.assertEqual(first["told"], second["told"])


class Sharded(unittest.TestCase):
    def test_parameters_and_states_after_every_change_are_those_of_bucketed(self):
        for found in with_ranks(2, follows):
            for name, after in found.items():
                for change, is_same in after.items():
                    with self.subTest(name, change=change):
                        self.assertTrue(is_same)

    def test_masters_outlast_changes(self):
        self.assertEqual(with_ranks(2, keeps_masters), [True, True])

    def test_a_change_without_a_word_is_every_ranks_error_once_and_a_lone_ranks_until_it_is_undone(self):
        first, second = with_ranks(2, joins_without_a_word)
        for is_as_bucketed, thawed, grown, all_moved, _, alone in (first, second):
            self.assertTrue(is_as_bucketed and all_moved)
            for kind, said in (thawed, grown):
                self.assertEqual(kind, "StepError", said)
                self.assertIn("expected parameters_changed() on every rank", said)
            self.assertEqual(alone["sharded"][:2], alone["bucketed"][:2])
            self.assertIn("rank 0 has nothing more; rank 1 has trainable parameter layers.3.weight", alone["sharded"][0][1])
            self.assertEqual([kind for kind, _ in alone["sharded"][2]], ["StepError", None, None])
        self.assertEqual(first[4], second[4])
        self.assertEqual(first[-1]["sharded"][3], second[-1]["sharded"][3])


class Audits(unittest.TestCase):
    def test_name_what_differs_on_every_rank(self):
        for of_a_rate, of_a_state, of_options in with_ranks(2, audits):
            self.assertEqual([kind for kind, _ in of_options], ["AuditError", "AuditError"], of_options)
            for name, (_, said) in zip(("lr", "betas"), of_options):
                self.assertIn(f"{name} of group 0 differs between rank 0 and rank 1", said)
            self.assertEqual(of_a_rate[0], "AuditError", of_a_rate)
            self.assertRegex(of_a_rate[1], "layers.0.weight")
            self.assertEqual(of_a_state[0], "AuditError", of_a_state)
            self.assertRegex(of_a_state[1], "exp_avg of layers.2.bias")


if __name__ == "__main__":
    unittest.main()
