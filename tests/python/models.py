"""Models, batches and steps for the tests, and what ranks have of them."""

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 32  # of layers()
QUICK = {"time_budget_s": 0.5, "progress": False}  # firkin.tune with the fewest steps that it does


class Layers(nn.Module):
    """Linear layers, used in order of registration; the last may be tied to the first."""

    def __init__(self, widths, tied=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
        if tied:
            self.layers[-1].weight = self.layers[0].weight

    def forward(self, x):
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


def training_step(model, optimizer="sgd"):
    """A step as a user writes one; the optimiser is over the module's parameters."""
    made = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9) if optimizer == "sgd" else torch.optim.Adam(model.parameters())
    x = inputs(model)

    def step(wrapped):
        made.zero_grad()
        wrapped(x).square().mean().backward()
        made.step()

    step.optimizer = made
    return step


def seeded(model_class, *arguments, seed=0):
    torch.manual_seed(seed)
    return model_class(*arguments).double()


def batch(step, width, samples=8):
    return torch.randn(samples, width, generator=torch.Generator().manual_seed(1000 + step), dtype=torch.float64)


def layers(count=4):
    return seeded(Layers, [WIDTH] * (count + 1)).float()


def batches():
    """Other ones on every rank."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    while True:
        yield torch.randn(4, WIDTH, generator=generator)


def plain(model, optimizer=None):
    """A step of layers() over batches()."""
    optimizer, data = optimizer or torch.optim.Adam(model.parameters()), batches()

    def step(model):
        optimizer.zero_grad()
        model(next(data)).square().mean().backward()
        optimizer.step()

    step.optimizer = optimizer
    return step


def tensors_of(model, *optimizers):
    states = [value for o in optimizers for state in o.state.values() for value in state.values()]
    return [*model.state_dict().values(), *(value for value in states if isinstance(value, torch.Tensor))]


def unlike(tensors):
    """How many tensors are not those of rank 0."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, [tensor.clone() for tensor in tensors])
    return sum(not torch.equal(a, b) for a, b in zip(everyone[0], tensors, strict=True))


def share(whole):
    """This rank's part of the global batch."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return whole.chunk(size)[rank]


def numbers(tensors):
    """What a queue carries."""
    return [tensor.tolist() for tensor in tensors]


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
    except Exception as error:  # noqa: BLE001: the test looks at it
        return type(error).__name__, str(error)
    return None, ""


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
