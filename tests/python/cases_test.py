"""Other people's programs: they change what the wrapped module holds, keep what it gives them, or move parameters by themselves.

Under every strategy they must train as with means taken by hand. The ranks live on and take one program after another.
"""

import contextlib
import copy
import unittest
import warnings

import firkin
import torch
import torch.distributed as dist
from models import raised
from ranks import with_ranks
from torch import nn

STEPS = 6  # the first ones leave nothing on its way under "ordered"
WIDTH = 6
STRATEGIES = ("bucketed", "planned", "ordered", "sharded")
SGD = {"lr": 0.1, "momentum": 0.9}


class Trainee:
    """A module in training: wrapped, or, without a strategy, with means taken by hand."""

    def __init__(self, strategy, module, **options):
        self.strategy, self.module = strategy, module
        self.leaves = [p for p in module.parameters() if p.requires_grad and p.is_leaf]
        if strategy is None:
            self.model, self.optimizer = module, torch.optim.SGD(self.leaves, **SGD)
            return
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
        for p in self.leaves:
            have = torch.tensor(float(p.grad is not None))
            dist.all_reduce(have)
            if have:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        for buffer in self.module.buffers():
            sent = buffer.detach().clone()
            dist.broadcast(sent, 0)
            buffer.data.copy_(sent)

    def alone(self):
        return contextlib.nullcontext() if self.strategy is None else self.model.no_sync()

    def drain(self):
        if self.strategy is not None:
            self.model.drain()

    def train(self, steps=STEPS, loss=lambda y: y.square().mean()):
        for step in range(steps):
            self.optimizer.zero_grad()
            self.backward(loss(self.model(batch(step))))
            self.optimizer.step()


def batch(step, micro=0, width=WIDTH):
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + dist.get_rank())
    return torch.randn(8, width, generator=generator, dtype=torch.float64) + dist.get_rank()


def net(*more):
    torch.manual_seed(1)
    return nn.Sequential(*more, nn.Linear(WIDTH, 9), nn.Tanh(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3)).double()


class Centred(nn.Module):
    """Subtracts a running mean, which it keeps in a buffer as `keep` says."""

    def __init__(self, keep):
        super().__init__()
        self.keep, self.steps = keep, 0
        if keep is not registers_late:
            self.register_buffer("level", torch.zeros(WIDTH, dtype=torch.float64))

    def forward(self, x):
        with torch.no_grad():
            self.keep(self, x)
        self.steps += 1
        return x - self.level.mean(0) if self.level.dim() == 2 else x - self.level


def reassigns(part, x):
    part.level = 0.7 * part.level + 0.3 * x.mean(0)


def registers_late(part, x):
    if part.steps == 0:
        part.register_buffer("level", torch.zeros(WIDTH, dtype=torch.float64))
    part.level.mul_(0.7).add_(0.3 * x.mean(0))


def removes_and_registers_again(part, x):
    if part.steps == 2:
        del part.level
        part.register_buffer("level", x.mean(0))
    part.level.mul_(0.7).add_(0.3 * x.mean(0))


def grows(part, x):
    part.level = torch.cat([part.level.reshape(-1, WIDTH), x[:2]])


def changes_dtype(part, x):
    if part.steps == 3:
        part.level = part.level.float()
    part.level.mul_(0.7).add_(0.3 * x.mean(0).to(part.level.dtype))


def keeps_a_level(how):
    def run(strategy):
        trainee = Trainee(strategy, net(Centred(how)))
        trainee.train()
        return trainee

    return run


def replaces_a_part_without_parameters(strategy):
    trainee = Trainee(strategy, net(nn.Identity()))
    for step in range(STEPS):
        if step == 3:
            trainee.module[0] = nn.BatchNorm1d(WIDTH, affine=False).double()
        trainee.optimizer.zero_grad()
        trainee.backward(trainee.model(batch(step)).square().mean())
        trainee.optimizer.step()
    return trainee


def goes_forward_twice_through_a_batch_norm(strategy):
    trainee = Trainee(strategy, net(nn.BatchNorm1d(WIDTH)))
    for step in range(STEPS):
        trainee.optimizer.zero_grad()
        outputs = [trainee.model(batch(step, micro)) for micro in range(2)]
        for y in outputs:
            trainee.drain()
            trainee.backward(y.square().mean())
        trainee.optimizer.step()
    return trainee


def climbs_and_goes_back(strategy):
    trainee = Trainee(strategy, net())
    for step in range(STEPS):
        x = batch(step)
        with trainee.alone():
            trainee.model(x).square().mean().backward()
        with torch.no_grad():
            here = [p.clone() for p in trainee.leaves]
            for p in trainee.leaves:
                p.add_(p.grad, alpha=0.1)
        trainee.optimizer.zero_grad()
        trainee.module.zero_grad()
        trainee.backward(trainee.model(x).square().mean())
        with torch.no_grad():
            for p, value in zip(trainee.leaves, here):
                p.copy_(value)
        trainee.optimizer.step()
        trainee.optimizer.zero_grad()
    return trainee


def normalises_between_micro_batches(strategy):
    trainee = Trainee(strategy, net())
    for step in range(STEPS):
        trainee.optimizer.zero_grad()
        with trainee.alone():
            trainee.model(batch(step)).square().mean().backward()
        with torch.no_grad():
            trainee.leaves[0].div_(trainee.leaves[0].norm())
        trainee.backward(trainee.model(batch(step, 1)).square().mean())
        trainee.optimizer.step()
    return trainee


def has_noise_of_its_own(strategy):
    """Every rank moves its weights by its own noise for each of two micro-batches, and back."""
    trainee = Trainee(strategy, net(), audit_every=2)
    for step in range(STEPS):
        trainee.optimizer.zero_grad()
        trainee.drain()
        here = [p.detach().clone() for p in trainee.leaves]
        for micro in range(2):
            x = batch(step, micro)
            with torch.no_grad():
                for p in trainee.leaves:
                    p.add_(x.mean(), alpha=0.1)
            if micro == 0:
                with trainee.alone():
                    trainee.model(x).square().mean().backward()
            else:
                trainee.backward(trainee.model(x).square().mean())
            with torch.no_grad():
                for p, value in zip(trainee.leaves, here):
                    p.copy_(value)
        trainee.optimizer.step()
    return trainee


def steps_by_itself_and_goes_back(strategy):
    """As often as the rank likes, to start the step from what that has given."""
    trainee = Trainee(strategy, net(), audit_every=0)
    inner = torch.optim.SGD(trainee.leaves, lr=0.01)
    for step in range(STEPS):
        trainee.optimizer.zero_grad()
        trainee.drain()
        here = [p.detach().clone() for p in trainee.leaves]
        for micro in range(1 + dist.get_rank()):
            with trainee.alone():
                trainee.model(batch(step, micro)).square().mean().backward()
            inner.step()
            inner.zero_grad()
        x = batch(step) + trainee.leaves[0].detach().mean()
        with torch.no_grad():
            for p, value in zip(trainee.leaves, here):
                p.copy_(value)
        trainee.backward(trainee.model(x).square().mean())
        trainee.optimizer.step()
    return trainee


def keeps_gradients(take, to_none=True):
    def run(strategy):
        trainee = Trainee(strategy, net())
        trainee.kept = []
        for step in range(STEPS):
            of_tasks = []
            for task in range(2):
                trainee.optimizer.zero_grad(set_to_none=to_none)
                trainee.backward(trainee.model(batch(step))[:, task].square().mean())
                trainee.drain()
                of_tasks.append([take(p.grad) for p in trainee.leaves])
            trainee.kept += [g for gradients in of_tasks for g in gradients]
            for p, a, b in zip(trainee.leaves, *of_tasks):
                p.grad = (a - 0.5 * b).reshape(p.shape)
            trainee.optimizer.step()
        return trainee

    return run


class OfScript(nn.Module):
    """With a part that torch.jit.script has compiled, which has a batch norm and assigns a buffer of its own."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(9)
            self.layer = nn.Linear(9, 9)
            self.register_buffer("level", torch.zeros(9))

        def forward(self, x):
            self.level = 0.7 * self.level + 0.3 * x.mean(0).detach()
            return self.layer(self.norm(x)) - self.level

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(WIDTH, 9)
        self.inner = torch.jit.script(self.Inner().double())
        self.read = nn.Linear(9, 3)

    def forward(self, x):
        return self.read(self.inner(torch.tanh(self.embed(x))))


def has_a_scripted_part(strategy):
    torch.manual_seed(2)
    trainee = Trainee(strategy, OfScript().double())
    trainee.train()
    return trainee


def is_scripted(strategy):
    trainee = Trainee(strategy, torch.jit.script(net()))
    trainee.train()
    return trainee


class DropsWeights(nn.Module):
    """Every forward puts a tensor computed from the raw weight where the layer keeps its parameter."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.raw = self.inner.weight
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        mask = torch.rand(self.raw.shape, generator=torch.Generator().manual_seed(self.steps)) < 0.8
        self.inner._parameters["weight"] = self.raw * mask / 0.8
        return self.inner(x)


def drops_weights(strategy):
    trainee = Trainee(strategy, net(DropsWeights(WIDTH)))
    trainee.train()
    return trainee


def normalises_weights(normalise):
    def run(strategy):
        module = net()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            normalise(module[0])
        trainee = Trainee(strategy, module)
        trainee.train()
        return trainee

    return run


def adapts(strategy):
    """A step of the task's own first, on weights that a call puts in the parameters' places (MAML)."""
    trainee = Trainee(strategy, net())
    for step in range(STEPS):
        trainee.optimizer.zero_grad()
        trainee.drain()
        named = dict(trainee.model.named_parameters())
        inner = torch.func.functional_call(trainee.model, named, (batch(step),)).square().mean()
        gradients = torch.autograd.grad(inner, list(named.values()), create_graph=True)
        adapted = {name: p - 0.1 * g for (name, p), g in zip(named.items(), gradients)}
        trainee.backward(torch.func.functional_call(trainee.model, adapted, (batch(step, 1),)).square().mean())
        trainee.optimizer.step()
    return trainee


class Contrast(nn.Module):
    """A key encoder follows the query encoder, which forward reads before it calls it."""

    def __init__(self, read):
        super().__init__()
        self.query, self.read = net(), read
        self.key = copy.deepcopy(self.query).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            for k, q in zip(self.key.parameters(), self.read(self.query), strict=True):
                k.mul_(0.8).add_(q, alpha=0.2)
            keys = self.key(x)
        return self.query(x) - keys


READS = {
    "parameters()": lambda part: part.parameters(),
    "named_parameters()": lambda part: (p for _, p in part.named_parameters()),
    "state_dict()": lambda part: part.state_dict().values(),
    "get_parameter()": lambda part: [part.get_parameter(f"{i}.{name}") for i in (0, 2, 4) for name in ("weight", "bias")],
    "attributes": lambda part: [getattr(layer, name) for layer in (part[0], part[2], part[4]) for name in ("weight", "bias")],
}


def follows_with_momentum(read):
    def run(strategy):
        trainee = Trainee(strategy, Contrast(read))
        trainee.train()
        return trainee

    return run


NEEDS_GRADIENTS = {  # of which "sharded" has none after a backward
    "two graphs through batch norm": goes_forward_twice_through_a_batch_norm,
    "gradients kept": keeps_gradients(lambda g: g),
    "what lies in the gradients' memory kept": keeps_gradients(lambda g: g.detach().view(-1)),
    "copies of gradients kept, zeroed in place": keeps_gradients(torch.clone, to_none=False),
}
PROGRAMS = {
    **{f"buffer: {how.__name__}": keeps_a_level(how) for how in (reassigns, registers_late, removes_and_registers_again, grows, changes_dtype)},
    "replaces a part without parameters": replaces_a_part_without_parameters,
    "sharpness-aware": climbs_and_goes_back,
    "normalises between micro-batches": normalises_between_micro_batches,
    "noise of its own": has_noise_of_its_own,
    "steps by itself and goes back": steps_by_itself_and_goes_back,
    "a scripted part": has_a_scripted_part,
    "all scripted": is_scripted,
    "drops weights": drops_weights,
    "old weight norm": normalises_weights(torch.nn.utils.weight_norm),
    "weight norm": normalises_weights(torch.nn.utils.parametrizations.weight_norm),
    "functional_call with adapted weights": adapts,
    **{f"momentum contrast by {name}": follows_with_momentum(read) for name, read in READS.items()},
    **NEEDS_GRADIENTS,
}


def results_of(trainee):
    trainee.drain()
    return [t.detach().clone() for t in (*trainee.leaves, *trainee.module.buffers(), *getattr(trainee, "kept", ()))]


def off(ours, by_hand):
    if [t.shape for t in ours] != [t.shape for t in by_hand]:
        return "shapes differ"
    return max(float((a.cdouble() - b.cdouble()).abs().max()) for a, b in zip(ours, by_hand))


def run_all(rank):
    """By program and strategy: how far from by hand, or the error."""
    found = {}
    for name, program in PROGRAMS.items():
        by_hand = results_of(program(None))
        for strategy in STRATEGIES:
            if strategy == "sharded" and name in NEEDS_GRADIENTS:
                continue
            reached = []
            error = raised(lambda: reached.append(off(results_of(program(strategy)), by_hand)))
            found[name, strategy] = reached[0] if reached else error
    return found


def complains(rank):
    """What is different on the ranks is every rank's error."""
    trainee = Trainee("bucketed", net(Centred(reassigns)))
    trainee.train(2)
    trainee.module[0].keep = lambda part, x: setattr(part, "level", torch.zeros(2 + rank, WIDTH, dtype=torch.float64))
    of_shapes = raised(lambda: trainee.train(1))
    trainee.module[0].keep = reassigns
    trainee.module[0].level = torch.zeros(WIDTH, dtype=torch.float64)
    trainee.train(2)

    stepper = Trainee("bucketed", net(), audit_every=0)
    stepper.train(1)
    with stepper.alone():
        stepper.model(batch(0)).square().mean().backward()
    stepper.optimizer.step()
    of_step = raised(lambda: stepper.train(3))

    model = firkin.DistributedDataParallel(net())
    temperature = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.Adam([*model.parameters(), temperature])
    model.audit_optimizer(optimizer)
    model.audit()
    with torch.no_grad():
        temperature.add_(rank)
    return of_shapes, of_step, raised(model.audit)


def misses_a_step(rank):
    """In one step the loss of rank 1 depends on no parameter."""
    found = {}
    for strategy in (*STRATEGIES, "bucketed, plain optimiser"):
        trainee = Trainee(strategy.split(",")[0], net(), audit_every=0)
        if "plain" in strategy:
            trainee.optimizer = torch.optim.SGD(trainee.leaves, **SGD)

        def train(trainee=trainee):
            for step in range(STEPS):
                trainee.optimizer.zero_grad()
                misses = rank == 1 and step == 2
                trainee.backward(torch.zeros((), requires_grad=True) if misses else trainee.model(batch(step)).square().mean())
                trainee.optimizer.step()

        found[strategy] = raised(train)
        trainee.train(2)
    return found


class Programs(unittest.TestCase):
    maxDiff = None
    ranks = 2

    def test_train_as_by_hand_under_every_strategy(self):
        for rank, found in enumerate(with_ranks(self.ranks, run_all)):
            with self.subTest(rank=rank):
                wrong = {case: what for case, what in found.items() if not (isinstance(what, float) and what < 1e-6)}
                self.assertEqual(wrong, {})


class ProgramsFull(Programs):
    ranks = 3


class Complaints(unittest.TestCase):
    def test_a_rank_that_misses_a_step_is_every_ranks_error_in_the_next(self):
        for ranks in (2, 3):
            for found in with_ranks(ranks, misses_a_step):
                for strategy, (kind, said) in found.items():
                    with self.subTest(strategy, ranks=ranks):
                        self.assertEqual(kind, "AuditError", said)
                        self.assertIn("the optimiser's steps are 1 on rank 0 and 2 on rank 1", said)

    def test_what_differs_between_ranks_is_every_ranks_error(self):
        for of_shapes, of_step, of_audit in with_ranks(2, complains):
            self.assertEqual(of_shapes[0], "StepError", of_shapes)
            self.assertIn("buffer 0.level [3, 6]", of_shapes[1])
            self.assertEqual(of_step[0], "AuditError", of_step)
            self.assertIn("no_sync", of_step[1])
            self.assertEqual(of_audit[0], "AuditError", of_audit)
            self.assertIn("tensor 6 of the optimiser's group 0", of_audit[1])


if __name__ == "__main__":
    unittest.main()
