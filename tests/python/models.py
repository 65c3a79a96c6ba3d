"""Models, batches and steps for the tests, what ranks have of them, and errors of one line."""

import itertools
import unittest

import firkin
import torch
import torch.distributed as dist
from ranks import of_all
from torch import nn

WIDTH = 32  # of layers()
QUICK = {"time_budget_s": 0.5, "progress": False}  # firkin.tune with the fewest steps that it does


class Layers(nn.Module):
    """Linear layers, used in order of registration, on batches of any dtype; the last may be tied to the first."""

    def __init__(self, widths, tied=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        if tied:
            self.layers[-1].weight = self.layers[0].weight

    def forward(self, x):
        x = x.to(self.layers[0].weight.dtype)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Shuffled(nn.Module):
    """Used in another order than registered."""

    def __init__(self, width=16):
        super().__init__()
        self.second = nn.Linear(width, width)
        self.third = nn.Linear(width, width)
        self.first = nn.Linear(width, width)

    def forward(self, x):
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


class WithUnused(nn.Module):
    """`spare` gets no gradient."""

    def __init__(self, width=16):
        super().__init__()
        self.spare = nn.Linear(width, width)
        self.used = nn.Linear(width, width)

    def forward(self, x):
        return self.used(x)


def inputs(model, batch=4):
    first = next(p for p in model.parameters() if p.dim() == 2)
    return torch.randn(batch, first.shape[1])


def seeded(model_class, *arguments, seed=0):
    torch.manual_seed(seed)
    return model_class(*arguments).double()


def batch(step):
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1000 + step), dtype=torch.float64)


def loss_of(model, step):
    """Of this rank's share of the step's batch."""
    return model(share(batch(step))).square().mean()


def train(model, optimizer, steps, after_backward=lambda: None, after_step=lambda: None):
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        after_backward()
        optimizer.step()
        after_step()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def optimizer_of(model, optimizer_class=torch.optim.SGD, parameters=None, promises=(), **options):
    """As the strategy has it. promises: arguments that are True, such as "elementwise"."""
    options, promises = options or {"lr": 0.1, "momentum": 0.9}, dict.fromkeys(promises, True)
    if model.strategy == "sharded":
        return firkin.ShardedOptimizer(model, optimizer_class, parameters, **promises, **options)
    optimizer = optimizer_class(parameters or model.parameters(), **options)
    return firkin.OverlappedOptimizer(model, optimizer, **promises) if model.strategy == "ordered" else optimizer


def over_a_slow_link(strategy, module=None, **options):
    """Gradients are on their way when backward() returns, in buckets that cross the tensors' boundaries."""
    options = {"strategy": strategy, "cap_mib": 0.01, "link": "100mbit", **options}
    return firkin.DistributedDataParallel(module or seeded(Layers, [WIDTH] * 5), **options)


def layers(count=4):
    return seeded(Layers, [WIDTH] * (count + 1)).float()


def batches(model):
    """Other ones on every rank."""
    generator, (width,) = torch.Generator().manual_seed(dist.get_rank() if dist.is_initialized() else 0), inputs(model, 1).shape[1:]
    while True:
        yield torch.randn(4, width, generator=generator)


def plain(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def accumulating(model, optimizer, x):
    optimizer.zero_grad()
    with model.no_sync():
        model(x).square().mean().backward()
    model(x + 1).square().mean().backward()
    optimizer.step()


def closing(model, optimizer, x):
    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0


def step_of(model, how=plain, optimizer=None):
    """A step over batches(), as users write one for firkin.tune."""
    optimizer, data = optimizer or torch.optim.Adam(model.parameters()), batches(model)

    def step(wrapped):
        how(wrapped, optimizer, next(data))

    step.optimizer = optimizer
    return step


def tensors_of(model, *optimizers):
    states = [value for o in optimizers for state in o.state.values() for value in state.values()]
    return [*model.state_dict().values(), *(value for value in states if isinstance(value, torch.Tensor))]


def unlike(tensors):
    """How many tensors are not those of rank 0."""
    first, *_ = of_all([tensor.clone() for tensor in tensors])
    return sum(not torch.equal(a, b) for a, b in zip(first, tensors, strict=True))


def share(whole):
    """This rank's part of the global batch."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return whole.chunk(size)[rank]


def parameters_of(model):
    return [p.detach().clone() for p in model.parameters()]


def same(a, b):
    """Bit for bit, down to the last tensor of whatever holds them."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def raised(call):
    """The error, whole: its class and its one line."""
    try:
        call()
    except Exception as error:  # the test looks at it
        return type(error).__name__, str(error)
    return None, ""


def refusals(calls):
    """What each call raises. calls: by the words that its error is to have."""
    return {words: raised(call) for words, call in calls.items()}


def assert_same(value):
    """On all ranks."""
    assert of_all(value) == [value] * dist.get_world_size()


def assert_refused(found, *kinds):
    """found: what refusals() returned. kinds: of errors; otherwise InputError."""
    for words, (kind, said) in found.items():
        assert kind in (kinds or ("InputError",)) and words in said and "\n" not in said, f"expected {words}, in one line; found {kind}: {said}"


class TestCase(unittest.TestCase):
    maxDiff = None
    assert_same, assert_refused = staticmethod(assert_same), staticmethod(assert_refused)


class Lamb(torch.optim.Optimizer):
    """Looks at whole parameters: each moves by a share of its own length. One state has another shape."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                moment = self.state[p].setdefault("moment", torch.zeros_like(p))
                rows = self.state[p].setdefault("rows", torch.zeros(len(p), dtype=p.dtype))
                moment.mul_(0.9).add_(p.grad)
                rows.add_(p.grad.reshape(len(p), -1).square().sum(1))
                p.sub_(moment * (group["lr"] * p.norm() / (moment.norm() + rows.norm() + 1e-9)))
