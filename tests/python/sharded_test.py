"""firkin.ShardedOptimizer: training of "bucketed" to the last bit, with a P-th of the optimiser's state on each rank. Programs: overlap_test.py."""

import copy
import io

import firkin
import pytest
import torch
import torch.distributed as dist
from cs336_adapters import get_sharded_optimizer
from models import (
    WIDTH, Lamb, Layers, assert_refused, loss_of, optimizer_of, over_a_slow_link, parameters_of, refusals, seeded, train,
)  # fmt: skip
from ranks import on_ranks, with_ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

STEPS = 5
CLASSES = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.001, "momentum": 0.5}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.01}),
    **{each.__name__: (each, {"lr": 0.01}) for each in (torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax, torch.optim.Adadelta)},
    **{each.__name__: (each, {"lr": 0.01}) for each in (torch.optim.ASGD, torch.optim.Rprop)},
}


def wrapped(strategy, **options):
    return over_a_slow_link(strategy, seeded(Layers, [WIDTH, 31, WIDTH, WIDTH, WIDTH]), **options)


def elements(states):
    return sum(v.numel() for state in states.values() for v in state.values() if torch.is_tensor(v) and v.dim() > 0)


def optimizer_by_name(model, name):
    if name == "Muon":
        matrices = [p for p in model.module.parameters() if p.dim() == 2]
        return optimizer_of(model, torch.optim.Muon, matrices, promises=["whole_parameters"], lr=1e-3)
    if name == "Lamb":
        return optimizer_of(model, Lamb, promises=["whole_parameters"], lr=0.01)
    optimizer_class, options = CLASSES[name]
    return optimizer_of(model, optimizer_class, **options)


def steps_as_bucketed(rank, name, saved=None):
    """From the saved state of another group on, if there is one. Returns a state to save, and the share of it that this rank holds."""
    reached = []
    for strategy in ("bucketed", "sharded"):
        model = wrapped(strategy)
        optimizer = optimizer_by_name(model, name)
        if saved is not None:
            parameters, state = torch.load(io.BytesIO(saved))
            model.module.load_state_dict(parameters)
            optimizer.load_state_dict(state)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        train(model, optimizer, range(STEPS))
        schedule.step()  # the learning rate is saved, too
        train(model, optimizer, range(STEPS))
        reached.append((copy.deepcopy(model.module.state_dict()), optimizer.state_dict()))
    torch.testing.assert_close(*reached, rtol=0, atol=0 if dist.get_world_size() < 3 else 1e-12)  # sums of more are made in another order
    assert dist.get_world_size() == 1 or model.stats().awaited_bytes > 0
    file = io.BytesIO()
    torch.save(reached[1], file)
    return file.getvalue(), elements(optimizer.optimizer.state) / elements(reached[1][1]["state"])


@pytest.mark.parametrize("name", (*CLASSES, "Lamb", "Muon"))
def test_trains_as_bucketed_does_with_a_part_of_the_state(name):
    held = [share for _, share in with_ranks(2, steps_as_bucketed, name)]
    assert sum(held) == pytest.approx(1)
    assert max(held) < (0.52 if name in CLASSES else 0.75)  # Lamb and Muon have each parameter on one rank, in its shape


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


@on_ranks(2)
def test_the_courses_adapter_steps_an_unwrapped_module_as_the_plain_optimiser_with_a_part_of_its_state():
    """examples/python/cs336_adapters.py in the shape of the course's test: the optimiser gets parameters, and the module is not wrapped."""
    for tied in (False, True):
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
        assert len(parameters_of(sharded)) == (5 if tied else 6)
        torch.testing.assert_close(parameters_of(sharded), parameters_of(plain))
        assert elements(optimizers[1].optimizer.state) / elements(optimizers[0].state) < 0.6


@on_ranks(2)
def test_what_cannot_work_is_refused_in_one_line_on_every_rank():
    model, without_optimizer = wrapped("sharded"), wrapped("sharded")
    optimizer = optimizer_of(model)

    def scales_alone():
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(model, 0)).backward()
        scaler.step(optimizer)

    def ignores():
        module = seeded(Layers, [WIDTH] * 4)
        torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["layers.0.weight"])
        firkin.DistributedDataParallel(module, strategy="sharded")

    def loads_what_is_frozen():
        module = seeded(Layers, [WIDTH] * 4)
        module.layers[0].requires_grad_(False)
        model = firkin.DistributedDataParallel(module, strategy="sharded")
        plain = torch.optim.Adagrad(seeded(Layers, [WIDTH] * 4).parameters())
        firkin.ShardedOptimizer(model, torch.optim.Adagrad, model.parameters()).load_state_dict(plain.state_dict())

    def after_a_backward(use):
        model = wrapped("sharded")
        optimizer = optimizer_of(model)
        loss_of(model, 0).backward()
        use(model, optimizer)

    def steps_twice(_model, optimizer):
        optimizer.step()
        optimizer.step()

    def replaces_a_gradient(model, optimizer):
        p = next(model.parameters())
        p.grad = torch.zeros_like(p)
        optimizer.step()

    def drops_a_gradient(model, optimizer):
        next(model.parameters()).grad = None
        optimizer.step()

    def adds_a_group():
        model = wrapped("sharded")
        optimizer = optimizer_of(model, parameters=list(model.parameters())[1:])
        optimizer.add_param_group({"params": [next(model.parameters())]})
        train(model, optimizer, range(1))

    def saves_a_list():
        class Remembers(torch.optim.SGD):
            def step(self, closure=None):
                super().step()
                for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
                    self.state[p]["last"] = [p.grad.clone()]

        model = wrapped("sharded")
        remembers = optimizer_of(model, Remembers, promises=["elementwise"])
        train(model, remembers, range(1))
        remembers.state_dict()

    def hooks_the_inner_one():
        handle = optimizer.optimizer.register_step_post_hook(lambda *_: None)
        try:
            optimizer.step()
        finally:
            handle.remove()

    def goes_back_through_an_old_graph():
        model = wrapped("sharded")
        optimizer, old = optimizer_of(model), loss_of(model, 0)
        train(model, optimizer, range(1))
        old.backward()

    assert_refused(refusals({
        "strategy sharded": lambda: firkin.ShardedOptimizer(wrapped("bucketed"), torch.optim.SGD, lr=0.1),
        "this DataParallel already has one": lambda: optimizer_of(model),
        "a parameter of shape [2] that the model does not train": lambda: optimizer_of(wrapped("sharded"), parameters=[torch.zeros(2)]),
        "expected the groups of construction": adds_a_group,
        "expected its state_dict()": lambda: copy.deepcopy(optimizer),
        "LBFGS is not known to step each element by itself": lambda: optimizer_of(wrapped("sharded"), torch.optim.LBFGS, lr=1),
        "elementwise=True or whole_parameters=True where": lambda: optimizer_of(wrapped("sharded"), torch.optim.Adafactor, lr=0.0),
        "the strategy sharded takes no gradient hook": lambda: wrapped("sharded", compression="bf16"),
        "layers.0.weight is not to be synchronised": ignores,
        "the scaler judged by each rank's own gradients": scales_alone,
        "is divided among the ranks": lambda: after_a_backward(lambda model, _: nn.utils.clip_grad_norm_(model.parameters(), 1.0)),
        "ShardedOptimizer: step() without exactly one synchronising backward() before it": lambda: after_a_backward(steps_twice),
        "the state last is a list": saves_a_list,
        "is a hook on step()": hooks_the_inner_one,
        "its state cannot be set; expected load_state_dict()": lambda: optimizer.__setstate__({}),
        "the state is divided among the ranks": lambda: optimizer.state,
        "has another gradient than backward left": lambda: after_a_backward(replaces_a_gradient),
        "than backward left, or none": lambda: after_a_backward(drops_a_gradient),
        "expected state_dict() and load_state_dict()": lambda: get_optimizer_state_dict(model.module, optimizer),
        f"the state of a frozen parameter of shape [{WIDTH}, {WIDTH}]; expected it thawed": loads_what_is_frozen,
    }))  # fmt: skip
    assert_refused(refusals({
        "expected a ShardedOptimizer first": lambda: loss_of(without_optimizer, 0).backward(),
        "modified by an inplace operation": goes_back_through_an_old_graph,
    }), "RuntimeError", "StepError")  # fmt: skip


@pytest.mark.parametrize("name", ("AdamW", "Lamb"))
def test_a_checkpoint_of_three_ranks_goes_on_with_one_two_and_four(name):
    saved, *others = (state for state, _ in with_ranks(3, steps_as_bucketed, name))
    assert others == [saved] * 2
    for size in (1, 2, 4):
        with_ranks(size, steps_as_bucketed, name, saved)
