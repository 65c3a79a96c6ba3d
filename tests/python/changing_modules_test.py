"""Modules whose parameters are frozen, thawed, added or replaced after wrapping, and audits: equal ranks, or the same error on all of them."""

import copy

import firkin
import pytest
import torch
import torch.distributed as dist
from models import (
    WIDTH, Layers, assert_refused, optimizer_of, over_a_slow_link, parameters_of, refusals, same, seeded, sgd, train, unlike,
)  # fmt: skip
from ranks import on_ranks
from torch import nn


def wrapped(start=lambda module: None, **options):
    module = seeded(Layers, [WIDTH] * 4)
    start(module)
    return firkin.DistributedDataParallel(module, **options)


def frozen(module):
    module.layers[0].requires_grad_(False)


def thaw(model, optimizer):
    model.module.layers[0].requires_grad_(True)


def grow(model, optimizer, value=None):
    """value: the new weights', which otherwise are the same on all ranks."""
    torch.manual_seed(7)
    layer = nn.Linear(WIDTH, WIDTH).double()
    if value is not None:
        nn.init.constant_(layer.weight, value)
    model.module.layers.append(layer)
    optimizer.add_param_group({"params": list(layer.parameters())})


def replace(model, optimizer):
    layer = model.module.layers[1]
    old, layer.weight = layer.weight, nn.Parameter(layer.weight.detach().clone())
    group = optimizer.param_groups[0]
    group["params"] = [layer.weight if p is old else p for p in group["params"]]


def replace_the_module(model, optimizer):
    model.module = copy.deepcopy(model.module)
    optimizer.param_groups[0]["params"] = list(model.parameters())


def drop(model, optimizer):
    del model.module.layers[2]


CHANGES = {
    "freeze": (lambda model, _: frozen(model.module), {}),
    "thaw": (thaw, {"start": frozen}),
    "grow": (grow, {}),
    "replace": (replace, {}),
    "replace, find_unused_parameters": (replace, {"find_unused_parameters": True}),
    "drop": (drop, {}),
    "replace the module": (replace_the_module, {}),
    "convert and back": (lambda model, _: model.float().double(), {}),  # which gives gradients, too, other memory
}


@pytest.mark.parametrize("name", CHANGES)
@on_ranks(2, full=3)
def test_ranks_stay_alike_and_train_what_is_there(name):
    change, options = CHANGES[name]
    model = wrapped(**options)
    optimizer = sgd(model.parameters())
    train(model, optimizer, range(3))
    change(model, optimizer)
    before = parameters_of(model)
    train(model, optimizer, range(3))
    model.audit()
    assert not same(before, parameters_of(model))
    assert unlike(parameters_of(model)) == 0


@on_ranks(2, full=3)
def test_parameters_changed_gives_new_ones_rank_0s_values():
    model = wrapped()
    optimizer = sgd(model.parameters())
    train(model, optimizer, range(2))
    grow(model, optimizer, 0.1 * (dist.get_rank() + 1))
    model.parameters_changed()
    train(model, optimizer, range(3))
    assert unlike(parameters_of(model)) == 0


@on_ranks(2)
def test_ordered_follows_no_other_parameters():
    for change, named in ((grow, "layers.3.bias"), (replace, "layers.1.weight")):
        ordered = wrapped(strategy="ordered")
        optimizer = optimizer_of(ordered)
        train(ordered, optimizer, range(2))
        ordered.drain()
        change(ordered, optimizer.optimizer)
        expected = f"other parameters than before ({named}), which strategy ordered does not follow in Python; expected a new"
        assert_refused(refusals({expected: lambda: train(ordered, optimizer, range(1))}))


@on_ranks(2)
def test_under_sharded_every_change_is_every_ranks_error_until_it_is_undone():
    changes = {
        "expected a new DistributedDataParallel and ShardedOptimizer after such a change": (
            lambda module: module.layers[1].requires_grad_(False), lambda module: module.layers[1].requires_grad_(True)
        ),
        "other parameters than before (layers.3.bias), which strategy sharded does not follow": (
            lambda module: module.layers.append(nn.Linear(WIDTH, WIDTH).double()), lambda module: module.layers.__delitem__(3)
        ),
    }  # fmt: skip
    model = over_a_slow_link("sharded", seeded(Layers, [WIDTH] * 4))
    optimizer = optimizer_of(model)
    train(model, optimizer, range(2))
    for said, (change, undo) in changes.items():
        change(model.module)
        assert_refused(refusals({said: lambda: train(model, optimizer, range(1))}), "StepError", "InputError")
        assert_refused(refusals({"parameters changed under strategy sharded": model.parameters_changed}))
        undo(model.module)
        train(model, optimizer, range(3))
        assert unlike(parameters_of(model)) == 0


def assert_differs(words, call):
    assert_refused(refusals({words: call}), "AuditError")


@on_ranks(2)
def test_audits_name_what_differs_on_every_rank():
    model = wrapped(audit_every=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (dist.get_rank() + 1))
    assert_differs("layers.0.weight", lambda: train(model, optimizer, range(8)))

    sharded = wrapped(strategy="sharded", audit_every=4)
    of_sharded = optimizer_of(sharded, torch.optim.Adam, lr=torch.tensor(0.1), betas=(0.9, 0.99))
    train(sharded, of_sharded, range(8))
    group = of_sharded.param_groups[0]
    for key, value in (("lr", torch.tensor(0.1 + dist.get_rank())), ("betas", (0.9, 0.99 - 0.1 * dist.get_rank()))):
        kept, group[key] = group[key], value
        assert_differs(f"{key} of group 0 differs between rank 0 and rank 1", lambda: train(sharded, of_sharded, range(8)))
        group[key] = kept
        sharded.audit()

    model, temperature = wrapped(audit_every=0), nn.Parameter(torch.ones(()))
    adam = torch.optim.Adam([*model.parameters(), temperature], lr=0.1)
    model.audit_optimizer(adam)
    train(model, adam, range(3))
    momentum = adam.state[model.module.layers[2].bias]["exp_avg"]
    for tensor, named in ((temperature.data, "tensor 6 of the optimiser's group 0"), (momentum, "exp_avg of layers.2.bias")):
        model.audit()
        before = tensor.clone()
        tensor.add_(dist.get_rank())
        assert_differs(named, model.audit)
        tensor.copy_(before)
