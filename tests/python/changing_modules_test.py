"""Modules whose parameters are frozen, thawed, added or replaced after wrapping, and audits: equal ranks, or the same error on all of them."""

import unittest

import firkin
import torch
from models import Layers, numbers, parameters_of, raised, seeded
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

    awaited = {}
    for strategy in ("ordered", "sharded"):
        model = wrapped(strategy=strategy)
        optimizer = firkin.OverlappedOptimizer(model, sgd(model)) if strategy == "ordered" else (
            firkin.ShardedOptimizer(model, torch.optim.SGD, lr=0.1))  # fmt: skip
        train(model, optimizer, 2, rank)
        model.module.layers.append(nn.Linear(WIDTH, WIDTH).double())
        awaited[strategy] = raised(lambda model=model, optimizer=optimizer: train(model, optimizer, 1, rank))
    return {"noticed": noticed, "after": after_the_error, "told": numbers(parameters_of(told)), **awaited}


def audits(rank):
    model = wrapped(audit_every=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1))
    of_a_rate = raised(lambda: train(model, optimizer, 8, rank))

    model = wrapped(audit_every=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model.audit_optimizer(optimizer)
    train(model, optimizer, 3, rank)
    model.audit()
    if rank == 1:
        optimizer.state[model.module.layers[2].bias]["exp_avg"][0] += 1e-3
    return of_a_rate, raised(model.audit)


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
            for strategy in ("ordered", "sharded"):
                kind, said = found[strategy]
                self.assertEqual(kind, "InputError", said)
                self.assertRegex(said, f"strategy {strategy} cannot follow in Python; expected a new DistributedDataParallel and optimiser")
        self.assertEqual(first["after"], second["after"])
        self.assertEqual(first["told"], second["told"])


class Audits(unittest.TestCase):
    def test_name_what_differs_on_every_rank(self):
        for of_a_rate, of_a_state in with_ranks(2, audits):
            self.assertEqual(of_a_rate[0], "AuditError", of_a_rate)
            self.assertRegex(of_a_rate[1], "layers.0.weight")
            self.assertEqual(of_a_state[0], "AuditError", of_a_state)
            self.assertRegex(of_a_state[1], "exp_avg of layers.2.bias")


if __name__ == "__main__":
    unittest.main()
