"""Programs that train: wrapped under a strategy, and, to compare, with means taken by hand. A program returns its Trainee for a strategy."""

import contextlib
import math

import firkin
import pytest
import torch
import torch.distributed as dist
from ranks import release
from torch import nn

STEPS = 5  # the first ones leave nothing on its way under "ordered"
WIDTH = 6
STRATEGIES = ("bucketed", "planned", "ordered", "sharded")
SGD = {"lr": 0.1, "momentum": 0.9}


class Trainee:
    """A module in training: wrapped, or, without a strategy, with means taken by hand."""

    def __init__(self, strategy, module, **options):
        self.strategy, self.module, self.kept = strategy, module, []
        self.leaves = [p for p in module.parameters() if p.requires_grad and p.is_leaf]
        if strategy is None:
            self.model, self.optimizer = module, torch.optim.SGD(self.leaves, **SGD)
            return
        with torch.no_grad():
            for p in self.leaves:
                p.add_(dist.get_rank())  # wrapping gives every rank rank 0's values
        if strategy == "planned":
            sizes = {name: p.nbytes for name, p in module.named_parameters() if p.requires_grad and p.is_leaf}
            options["plan"] = firkin.Plan(tuple((name,) for name in reversed(sizes)), sizes)
        else:
            options["cap_mib"] = 0.0003
        self.model = firkin.DistributedDataParallel(module, strategy=strategy, **options)
        if strategy == "sharded":
            self.optimizer = firkin.ShardedOptimizer(self.model, torch.optim.SGD, **SGD)
        else:
            self.optimizer = firkin.OverlappedOptimizer(self.model, torch.optim.SGD(self.leaves, **SGD))

    def backward(self, loss, **options):
        loss.backward(**options)
        if self.strategy is None:
            self.average()

    def average(self):
        """By hand. A parameter without a gradient counts as zeros where another rank has one."""
        have = torch.tensor([float(p.grad is not None) for p in self.leaves])
        dist.all_reduce(have)
        trained = [p for p, any_has in zip(self.leaves, have) if any_has]
        for p in trained:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        sent = [buffer.detach().clone() for buffer in self.module.buffers()]
        works = [dist.all_reduce(p.grad, async_op=True) for p in trained] + [dist.broadcast(tensor, 0, async_op=True) for tensor in sent]
        for work in works:
            work.wait()
        for p in trained:
            p.grad /= dist.get_world_size()
        for buffer, received in zip(self.module.buffers(), sent):
            buffer.data.copy_(received)

    def alone(self):
        return contextlib.nullcontext() if self.strategy is None else self.model.no_sync()

    def drain(self):
        if self.strategy is not None:
            self.model.drain()

    def plain(self, step, micro=0):
        self.backward(self.model(batch(step, micro)).square().mean())

    def train(self, backward=plain, steps=STEPS):
        """backward(trainee, step): the backwards of a step."""
        for self.step in range(steps):
            self.optimizer.zero_grad()
            backward(self, self.step)
            self.optimizer.step()
        return self


def batch(step, micro=0):
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + dist.get_rank())
    return torch.randn(8, WIDTH, generator=generator, dtype=torch.float64) + dist.get_rank()


def net(*more):
    torch.manual_seed(1)
    return nn.Sequential(*more, nn.Linear(WIDTH, 9), nn.Tanh(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def trains(make, backward=Trainee.plain, **options):
    """A program. make(): the module. options: DistributedDataParallel's."""
    return lambda strategy: Trainee(strategy, make(), **({} if strategy is None else options)).train(backward)


def results_of(trainee):
    trainee.drain()
    return [t.detach().clone() for t in (*trainee.leaves, *trainee.module.buffers(), *trainee.kept)]


def off(ours, by_hand):
    if [t.shape for t in ours] != [t.shape for t in by_hand]:
        return math.inf
    return max(float((a.cdouble() - b.cdouble()).abs().max()) for a, b in zip(ours, by_hand))


def assert_as_by_hand(name, programs, besides=()):
    """besides: (name, strategy) that are left out, as "planned" is on two ranks: "bucketed" of another plan."""
    by_hand = results_of(programs[name](None))
    for strategy in STRATEGIES:
        if (name, strategy) not in besides and (strategy != "planned" or dist.get_world_size() > 2):
            trainee = programs[name](strategy)
            assert off(results_of(trainee), by_hand) < 1e-6, strategy
            release(vars(trainee))


def assert_every_rank_says_why_not(programs, refused):
    """refused: what each rank says, by (program, strategy)."""
    for (name, strategy), words in refused.items():
        with pytest.raises(Exception, match=words):
            results_of(programs[name](strategy))
