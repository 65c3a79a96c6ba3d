"""Other people's programs: they change what the wrapped module holds, keep what it gives them, or move parameters by themselves.

Under every strategy they must train as with means taken by hand. The ranks live on and take one program after another.
"""

import copy
import warnings

import firkin
import pytest
import torch
import torch.distributed as dist
from models import Layers, assert_refused, raised, seeded
from ranks import on_ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from trainees import SGD, STEPS, STRATEGIES, WIDTH, Trainee, assert_as_by_hand, assert_every_rank_says_why_not, batch, net, trains


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
        return x - self.level


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


def replacing_a_part(trainee, step):
    if step == 3:
        trainee.module[0] = nn.BatchNorm1d(WIDTH, affine=False).double()
    trainee.plain(step)


def forward_twice(trainee, step):
    outputs = [trainee.model(batch(step, micro)) for micro in range(2)]
    for y in outputs:
        trainee.drain()
        trainee.backward(y.square().mean())


def stepping_by_itself_and_going_back(trainee, step):
    """As often as the rank likes, to start the step from what that has given."""
    if step == 0:
        trainee.inner = torch.optim.SGD(trainee.leaves, lr=0.01)
    trainee.drain()
    start = [p.detach().clone() for p in trainee.leaves]
    for micro in range(1 + dist.get_rank()):
        with trainee.alone():
            trainee.model(batch(step, micro)).square().mean().backward()
        trainee.inner.step()
        trainee.inner.zero_grad()
    x = batch(step) + trainee.leaves[0].detach().mean()
    with torch.no_grad():
        for p, value in zip(trainee.leaves, start):
            p.copy_(value)
    trainee.backward(trainee.model(x).square().mean())


def dropping_a_micro_batch(trainee, step):
    with trainee.alone():
        trainee.model(batch(step, 1)).square().mean().backward()
    trainee.optimizer.zero_grad()
    trainee.plain(step)


def keeping_gradients(trainee, step):
    """Of two tasks, to step with a mixture."""
    of_tasks = []
    for task in range(2):
        trainee.optimizer.zero_grad()
        trainee.backward(trainee.model(batch(step))[:, task].square().mean())
        trainee.drain()
        of_tasks.append([p.grad for p in trainee.leaves])
    trainee.kept += [g for gradients in of_tasks for g in gradients]
    for p, a, b in zip(trainee.leaves, *of_tasks):
        p.grad = a - 0.5 * b


def gradients_of_its_own(hold):
    """The program steps with gradients that it holds besides grad(). hold(leaves): how it came by them, each with its parameter's elements."""

    def program(strategy):
        trainee = Trainee(strategy, net())
        held = hold(trainee.leaves)
        for step in range(STEPS):
            for g in held or ():
                g.zero_()
            trainee.plain(step)
            trainee.drain()
            if held is None:
                held = [p.grad for p in trainee.leaves]
            with torch.no_grad():
                for p, g in zip(trainee.leaves, held):
                    p.sub_(g.view(p.shape), alpha=0.1)
        trainee.kept = held
        return trainee

    return program


def laid_into_one_tensor(leaves):
    whole = torch.zeros(sum(p.numel() for p in leaves), dtype=torch.float64)
    held = list(whole.split([p.numel() for p in leaves]))
    for p, g in zip(leaves, held):
        p.grad = g.view(p.shape)
    return held


def made_beforehand(leaves):
    for p in leaves:
        p.grad = torch.zeros_like(p)
    return [p.grad for p in leaves]


def taken_once(_leaves):
    """From the first step."""
    return


class Aliased(nn.Module):
    """Every forward calls its layers by another name."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4)).double()
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        for i in range(len(self.layers)):
            self.active = self.layers[(i + self.steps) % len(self.layers)]
            x = torch.tanh(self.active(x))
        return x


def reordering_parts(trainee, step):
    if step == 3:
        trainee.module.layers = nn.ModuleList(reversed(trainee.module.layers))
    trainee.plain(step)


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
        torch.manual_seed(2)
        self.embed = nn.Linear(WIDTH, 9)
        self.inner = torch.jit.script(self.Inner().double())
        self.read = nn.Linear(9, 3)
        self.double()

    def forward(self, x):
        return self.read(self.inner(torch.tanh(self.embed(x))))


def saves(make):
    """Right after its last step."""

    def program(strategy):
        trainee = trains(make)(strategy)
        trainee.kept = [value.clone() for value in trainee.model.state_dict().values()]
        return trainee

    return program


class DropsWeights(nn.Module):
    """Every forward puts a tensor computed from the raw weight where the layer keeps its parameter."""

    def __init__(self, width):
        super().__init__()
        torch.manual_seed(4)
        self.inner = nn.Linear(width, width)
        self.raw = self.inner.weight
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        mask = torch.rand(self.raw.shape, generator=torch.Generator().manual_seed(self.steps)) < 0.8
        self.inner._parameters["weight"] = self.raw * mask / 0.8
        return self.inner(x)


def normalised(normalise):
    module = net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        normalise(module[0])
    return module


def adapting(trainee, step):
    """A step of the task's own first, on weights that a call puts in the parameters' places (MAML)."""
    trainee.drain()
    named = dict(trainee.model.named_parameters())
    inner = torch.func.functional_call(trainee.model, named, (batch(step),)).square().mean()
    gradients = torch.autograd.grad(inner, list(named.values()), create_graph=True)
    adapted = {name: p - 0.1 * g for (name, p), g in zip(named.items(), gradients)}
    trainee.backward(torch.func.functional_call(trainee.model, adapted, (batch(step, 1),)).square().mean())


def beside_a_teacher(trainee, step):
    """Which is the module itself, with parameters that a call puts in the places of its own."""
    trainee.drain()
    teacher = {name: nn.Parameter(0.9 * p.detach()) for name, p in trainee.model.named_parameters()}
    taught = torch.func.functional_call(trainee.model, teacher, (batch(step),)).detach()
    trainee.backward((trainee.model(batch(step)) - taught).square().mean())


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
    "state_dict()": lambda part: part.state_dict().values(),
    "attributes": lambda part: [getattr(layer, name) for layer in (part[0], part[2], part[4]) for name in ("weight", "bias")],
}


NEEDS_GRADIENTS = {  # of which "sharded" has none after a backward
    "two graphs through batch norm": trains(lambda: net(nn.BatchNorm1d(WIDTH)), forward_twice),
    "gradients kept": trains(net, keeping_gradients),
    **{f"gradients of its own, {hold.__name__}": gradients_of_its_own(hold) for hold in (laid_into_one_tensor, made_beforehand, taken_once)},
}
PROGRAMS = {
    "nothing but steps": trains(net),
    "a tied weight": trains(lambda: seeded(Layers, [WIDTH] * 4, True)),
    **{f"buffer: {how.__name__}": trains(lambda how=how: net(Centred(how))) for how in (reassigns, registers_late, removes_and_registers_again)},
    "replaces a part without parameters": trains(lambda: net(nn.Identity()), replacing_a_part),
    "parts under changing names": trains(Aliased),
    "reorders its parts": trains(lambda: seeded(Layers, [WIDTH] * 5), reordering_parts),
    "drops a micro-batch": trains(net, dropping_a_micro_batch),
    "steps by itself and goes back": trains(net, stepping_by_itself_and_going_back, audit_every=0),
    "a scripted part": saves(OfScript),
    "all scripted": saves(lambda: torch.jit.script(net())),
    "drops weights": trains(lambda: net(DropsWeights(WIDTH))),
    "old weight norm": trains(lambda: normalised(torch.nn.utils.weight_norm)),
    "weight norm": trains(lambda: normalised(torch.nn.utils.parametrizations.weight_norm)),
    "functional_call with adapted weights": trains(net, adapting),
    "functional_call with a teacher's parameters": trains(net, beside_a_teacher),
    **{f"momentum contrast by {name}": trains(lambda read=read: Contrast(read)) for name, read in READS.items()},
    **NEEDS_GRADIENTS,
}  # fmt: skip
WITHOUT_LATE = {  # what "ordered" and "sharded" refuse
    "a scripted part": "torch.jit.script has compiled inner",
    "all scripted": "torch.jit.script has compiled the module",
    "steps by itself and goes back": "SGD.step\\(\\) steps parameters that are stepped here",
}
REFUSED = {(name, strategy): words for name, words in WITHOUT_LATE.items() for strategy in ("ordered", "sharded")}
BESIDES = [*REFUSED, *((name, "sharded") for name in NEEDS_GRADIENTS)]


@pytest.mark.parametrize("name", PROGRAMS)
@on_ranks(2, full=3)
def test_trains_as_by_hand_under_every_strategy(name):
    assert_as_by_hand(name, PROGRAMS, BESIDES)


@on_ranks(2, full=3)
def test_or_every_rank_has_an_error_that_says_why_not():
    assert_every_rank_says_why_not(PROGRAMS, REFUSED)


@on_ranks(2, full=3)
def test_a_rank_that_misses_a_step_is_every_ranks_error_in_the_next():
    """In one step the loss of rank 1 depends on no parameter."""
    for strategy in (*STRATEGIES, "bucketed, plain optimiser"):
        trainee = Trainee(strategy.split(",")[0], net(), audit_every=0)
        if "plain" in strategy:
            trainee.optimizer = torch.optim.SGD(trainee.leaves, **SGD)

        def backward(trainee, step):
            if dist.get_rank() == 1 and step == 2:
                trainee.backward(torch.zeros((), requires_grad=True))
            else:
                trainee.plain(step)

        kind, said = raised(lambda: trainee.train(backward))
        if strategy in ("ordered", "sharded"):  # whose optimiser refuses that step at once
            trainee.model.abandon_step(said)
            assert "step() without exactly one synchronising backward() before it" in said
        else:
            assert_refused({"the optimiser's steps are 1 on rank 0 and 2 on rank 1": (kind, said)}, "AuditError")
        trainee.train(steps=2)


@on_ranks(2, full=3)
def test_a_step_that_only_makes_the_optimizers_state_is_none_that_others_miss():
    """One rank steps an optimiser that has no state yet with zeros for gradients, before the first step and, under bucketed, between steps."""

    def of_checkpoints(trainee):
        get_optimizer_state_dict(trainee.module, trainee.optimizer)

    def of_horovod(trainee):
        for p in trainee.leaves:
            p.grad = torch.zeros_like(p)
        trainee.optimizer.step()
        trainee.optimizer.zero_grad()

    for make_state in (of_checkpoints, of_horovod):
        for strategy in ("bucketed, plain optimiser", "bucketed", "ordered"):
            trainee = Trainee(strategy.split(",")[0], net(), audit_every=0)
            trainee.optimizer = torch.optim.SGD(trainee.leaves, lr=0.1)
            if "plain" not in strategy:
                trainee.optimizer = firkin.OverlappedOptimizer(trainee.model, trainee.optimizer)
            for step in range(3):
                if dist.get_rank() == 1 and (step == 0 or strategy != "ordered"):
                    make_state(trainee)
                trainee.train(steps=1)
                trainee.drain()
                trainee.optimizer.zero_grad()


@on_ranks(2, full=3)
def test_steps_of_optimizers_that_come_and_go_are_counted_by_optimizer():
    """One rank frees each, and another that is made there may get its address."""
    for is_overlapped in (False, True):
        trainee, kept = Trainee("bucketed", net(), audit_every=0), []
        for step in range(4):
            trainee.module.zero_grad()
            trainee.plain(step)
            for _ in range(3):
                optimizer = torch.optim.SGD(trainee.leaves, lr=0.01)
                if is_overlapped:
                    optimizer = firkin.OverlappedOptimizer(trainee.model, optimizer)
                optimizer.step()
                if dist.get_rank() == 0:
                    kept.append(optimizer)
                del optimizer
