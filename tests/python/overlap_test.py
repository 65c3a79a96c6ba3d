"""Programs under the strategies "ordered" and "sharded", whose steps end later: to the bits of "bucketed"."""

import copy

import firkin
import pytest
import torch
import torch.distributed as dist
from models import (
    WIDTH, Layers, accumulating, batch, closing, loss_of, optimizer_of, over_a_slow_link, parameters_of, same, seeded, sgd, share, train,
)  # fmt: skip
from ranks import release, on_ranks
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.utils.checkpoint import checkpoint

STEPS = 5  # the first ones leave nothing on its way


def takes_groups(model):
    biases, weights = ([p for p in model.module.parameters() if p.dim() == dim] for dim in (1, 2))
    groups = [{"params": biases, "weight_decay": 0}, {"params": weights}]
    train(model, optimizer_of(model, torch.optim.AdamW, groups, lr=0.01, weight_decay=0.1), range(2 * STEPS))


def steps(how):
    def run(model):
        optimizer = optimizer_of(model)
        for step in range(2 * STEPS):
            how(model, optimizer, share(batch(step)))

    run.__name__ = how.__name__
    return run


def fast_forwards(model):
    """A schedule, to where training goes on: with steps that find no gradients."""
    optimizer = optimizer_of(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(3):
        optimizer.step()
        schedule.step()
    train(model, optimizer, range(2 * STEPS), after_step=schedule.step)


def scales(model):
    """One rank's gradient of one parameter overflows in a step, which every rank skips."""
    optimizer = optimizer_of(model)
    sharded = model.strategy == "sharded"
    scaler = (ShardedGradScaler if sharded else torch.amp.GradScaler)("cpu", init_scale=1024.0, growth_interval=3)
    for step in range(2 * STEPS):
        optimizer.zero_grad()
        extra = model.module.layers[0].bias.sum() * torch.inf if dist.get_rank() == 1 and step == 6 else 0
        scaler.scale(loss_of(model, step) + extra).backward()
        if sharded or step % 2:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return [torch.tensor(scaler.get_scale())]


def takes_a_checkpoint_within_a_step(model):
    """As a signal handler does, wherever it finds the program."""

    class Peeks(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            model.state_dict()

    train(model, optimizer_of(model, Peeks, promises=["elementwise"], lr=0.1), range(2 * STEPS))


# ---- What only "ordered" has: gradients that are on their way, too, and optimisers of PyTorch's.


def resumes_with_a_schedule(model, of_which=lambda optimizer: optimizer.optimizer):
    """Which changes the learning rate and the momentum between steps."""

    def make():
        optimizer = firkin.OverlappedOptimizer(model, sgd(model.parameters()))
        scheduled = of_which(optimizer)
        return scheduled, torch.optim.lr_scheduler.OneCycleLR(scheduled, max_lr=0.1, total_steps=3 * STEPS), optimizer

    scheduled, schedule, optimizer = make()
    train(model, optimizer, range(STEPS), after_step=schedule.step)
    saved = copy.deepcopy((scheduled.state_dict(), schedule.state_dict()))
    scheduled, schedule, optimizer = make()  # before its state is loaded
    scheduled.load_state_dict(saved[0])
    schedule.load_state_dict(saved[1])
    train(model, optimizer, range(STEPS), after_step=schedule.step)
    return [torch.tensor(group["lr"]) for group in optimizer.param_groups]


def schedules_and_checkpoints_the_overlapped_one(model):
    return resumes_with_a_schedule(model, lambda optimizer: optimizer)


def loads_right_after_a_step(model):
    optimizer = firkin.OverlappedOptimizer(model, sgd(model.parameters()))
    saved = copy.deepcopy(model.state_dict())
    layer = {name: torch.full_like(value, 0.01) for name, value in model.module.layers[3].state_dict().items()}
    train(model, optimizer, range(STEPS))
    model.load_state_dict(saved)
    train(model, optimizer, range(STEPS))
    model.module.layers[3].load_state_dict(layer)


def loads_the_optimizer_right_after_a_step(model):
    inner = sgd(model.parameters())
    optimizer = firkin.OverlappedOptimizer(model, inner)
    train(model, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, range(STEPS))
    optimizer.load_state_dict(saved)
    train(model, optimizer, range(STEPS))
    return [state["momentum_buffer"] for state in inner.state_dict()["state"].values()]


def clips_the_unwrapped_module(model):
    optimizer = firkin.OverlappedOptimizer(model, sgd(model.parameters()))
    train(model, optimizer, range(2 * STEPS), lambda: nn.utils.clip_grad_norm_(model.module.parameters(), 0.05))


def steps_by_hand(model):
    parameters = list(model.parameters())
    for step in range(2 * STEPS):
        loss_of(model, step).backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter -= 0.1 * parameter.grad
                parameter.grad = None


def averages(model):
    """The unwrapped module's parameters, read right after a step."""
    optimizer = firkin.OverlappedOptimizer(model, sgd(model.parameters()))
    averaged = torch.optim.swa_utils.AveragedModel(seeded(Layers, [WIDTH] * 5))
    train(model, optimizer, range(2 * STEPS), after_step=lambda: averaged.update_parameters(model.module))
    return list(averaged.parameters())


def ends_its_steps_by_itself(model):
    model = over_a_slow_link(model.strategy, finish_with_backward=False)
    parameters = list(model.parameters())
    optimizer = sgd(parameters)

    def finish():
        model.finish_gradient_synchronization()
        nn.utils.clip_grad_norm_(parameters, 0.05)

    train(model, optimizer, range(2 * STEPS), finish)
    return parameters


def steps_one_of_two_every_other_time(model):
    """The gradients of the other's skipped steps are dropped by its zero_grad(), though they may still be on their way."""
    first, second = (optimizer_of(model, parameters=part) for part in (list(model.parameters())[:5], list(model.parameters())[5:]))
    for step in range(2 * STEPS):
        for optimizer in (first, second):
            optimizer.zero_grad()
        loss_of(model, step).backward()
        first.step()
        if step % 2:
            second.step()


def changes_a_rate_that_is_a_tensor(model):
    """In place, after each step, while parameters still wait for theirs."""
    rate = torch.tensor(0.1, dtype=torch.float64)
    train(model, optimizer_of(model, torch.optim.Adam, lr=rate, foreach=False), range(2 * STEPS), after_step=lambda: rate.mul_(0.5))


# ---- What only "sharded" does in its own way.


def clips(model):
    """The norm is summed in another order."""
    optimizer = optimizer_of(model)
    clip = (lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.01)) if model.strategy == "bucketed" else lambda: optimizer.clip_grad_norm_(0.01)
    train(model, optimizer, range(2 * STEPS), clip)


def compiles_the_wrapped_module(model):
    if model.strategy == "sharded":
        model.module = torch.compile(model.module, backend="eager")
    train(model, optimizer_of(model), range(STEPS))


class CountsInGroups(torch.optim.Optimizer):
    """Corrects a moment by the steps that its group has counted, as timm's and apex's optimisers do: in a number, or in a tensor. Keeps gradients,
    as timm's Mars does."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            for p in group["params"]:
                if p.grad is not None:
                    moment = self.state[p].setdefault("moment", torch.zeros_like(p)).lerp_(p.grad - self.state[p].get("last", 0), 0.1)
                    self.state[p]["last"] = p.grad
                    p.sub_(moment * (group["lr"] / (1 - 0.9 ** group["steps"])))


class CountsWithGradients(CountsInGroups):
    """Leaves out a group that has no gradient in this call, its counter as well."""

    def step(self, closure=None):
        groups = self.param_groups
        self.param_groups = [group for group in groups if any(p.grad is not None for p in group["params"])]
        try:
            super().step()
        finally:
            self.param_groups = groups


def counts_steps_of_groups_with_gradients(model):
    return counts_steps_in_groups(model, CountsWithGradients)


def counts_steps_in_groups(model, optimizer_class=CountsInGroups):
    parameters = list(model.module.parameters())
    groups = [{"params": parameters[:3]}, {"params": parameters[3:], "steps": torch.zeros((), dtype=torch.double)}]
    optimizer = optimizer_of(model, optimizer_class, groups, promises=["elementwise"], defaults={"lr": 0.1})
    train(model, optimizer, range(2 * STEPS), after_step=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.8**epoch).step)
    return [torch.tensor(float(group["steps"])) for group in optimizer.state_dict()["param_groups"]]


def has_hooks_on_states(model):
    """One halves the learning rate of what is loaded, one adds an entry to what is saved."""
    optimizer = optimizer_of(model)

    def halve(_, state):
        return state | {"param_groups": [group | {"lr": group["lr"] / 2} for group in state["param_groups"]]}

    optimizer.register_load_state_dict_pre_hook(halve)
    optimizer.register_state_dict_post_hook(lambda _, state: state | {"epoch": 7})
    train(model, optimizer, range(2 * STEPS))
    saved = optimizer.state_dict()
    assert saved.pop("epoch") == 7
    optimizer.load_state_dict(saved)
    train(model, optimizer, range(STEPS))


def takes_named_parameters(model):
    train(model, optimizer_of(model, torch.optim.AdamW, list(model.module.named_parameters()), lr=0.01), range(2 * STEPS))


IN_BOTH = (
    takes_groups, takes_named_parameters, steps(accumulating), steps(closing), fast_forwards, scales,
    counts_steps_in_groups, counts_steps_of_groups_with_gradients, has_hooks_on_states, takes_a_checkpoint_within_a_step,
)  # fmt: skip
ORDERED = (
    resumes_with_a_schedule, schedules_and_checkpoints_the_overlapped_one, loads_right_after_a_step, loads_the_optimizer_right_after_a_step,
    clips_the_unwrapped_module, steps_by_hand, averages, ends_its_steps_by_itself, steps_one_of_two_every_other_time,
    changes_a_rate_that_is_a_tensor,
)  # fmt: skip
PROGRAMS = {"ordered": IN_BOTH + ORDERED, "sharded": (*IN_BOTH, clips, compiles_the_wrapped_module)}
NAMED = {program.__name__: program for programs in PROGRAMS.values() for program in programs}


def reached(strategy, program):
    """What it trains, and whether anything could have been on its way."""
    model = over_a_slow_link(strategy)
    results = program(model) or []
    tensors = [t.detach().clone() for t in [*results, *model.module.state_dict().values()]]
    late = model.stats().awaited_bytes > 0 or program is ends_its_steps_by_itself
    held = [model]
    del model
    release(held)
    return tensors, late


@pytest.mark.parametrize("name", NAMED)
@on_ranks(2)
def test_trains_to_the_bits_of_bucketed(name):
    expected, _ = reached("bucketed", NAMED[name])
    for strategy, programs in PROGRAMS.items():
        if NAMED[name] in programs:
            tensors, late = reached(strategy, NAMED[name])
            worst = max(float((a - b).abs().max()) for a, b in zip(expected, tensors, strict=True))
            assert worst <= (1e-12 if name == "clips" else 0), strategy
            assert late, strategy


@on_ranks(2)
def test_gradients_of_backwards_within_backward_are_there_after_it_or_divided():
    """All of them come from checkpoints that run again."""

    class Recomputed(Layers):
        def forward(self, x):
            x = x.requires_grad_()
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=True)
            return x

    reached = []
    for strategy in ("bucketed", "ordered", "sharded"):
        model = over_a_slow_link(strategy, seeded(Recomputed, [WIDTH] * 5))
        parameters = list(model.parameters())
        optimizer = optimizer_of(model) if strategy == "sharded" else sgd(parameters)

        def use():
            if strategy == "sharded":
                with pytest.raises(firkin.InputError, match="is divided among the ranks"):
                    nn.utils.clip_grad_norm_(parameters, 1.0)
            else:
                assert all(p.grad is not None for p in parameters)

        train(model, optimizer, range(2 * STEPS), use)
        reached.append(parameters_of(model))
    assert model.stats().awaited_bytes > 0
    assert all(same(reached[0], each) for each in reached)
