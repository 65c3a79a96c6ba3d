"""register_comm_hook of firkin.DistributedDataParallel: PyTorch's own hooks against PyTorch's class, buckets, and failures."""

import datetime
import functools

import firkin
import pytest
import torch
import torch.distributed as dist
from models import WIDTH, Layers, assert_refused, layers, loss_of, parameters_of, raised, refusals, same, seeded, sgd
from ranks import on_ranks
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, post_localSGD_hook, powerSGD_hook, quantization_hooks
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 6


def bf16(state, bucket):  # PyTorch's class refuses its own by name where there is no GPU
    return default_hooks.bf16_compress_hook(state, bucket)


def low_rank():
    return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)


def local():
    return post_localSGD_hook.PostLocalSGDState(None, dist.new_subgroups(1)[0], start_localSGD_iter=3)


HOOKS = {  # makes the state; the hook
    "allreduce": (lambda: None, default_hooks.allreduce_hook),
    "allreduce of a group": (lambda: dist.group.WORLD, default_hooks.allreduce_hook),
    "fp16": (lambda: None, default_hooks.fp16_compress_hook),
    "bf16": (lambda: None, bf16),
    "PowerSGD": (low_rank, powerSGD_hook.powerSGD_hook),
    "batched PowerSGD": (low_rank, powerSGD_hook.batched_powerSGD_hook),
    "PowerSGD in fp16": (low_rank, default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)),
    "post-local SGD": (local, post_localSGD_hook.post_localSGD_hook),
    "quantised per tensor": (lambda: None, quantization_hooks.quantization_pertensor_hook),
    "quantised per channel": (lambda: None, quantization_hooks.quantization_perchannel_hook),
    "none at all": (lambda: None, debugging_hooks.noop_hook),
}
NOT_HERE = {"batched PowerSGD", "quantised per tensor", "quantised per channel"}  # PyTorch 2.13's class fails with them on a CPU


def trained(wrap, state, hook):
    """The parameters after some steps with gradients as small as float16 has them."""
    torch.manual_seed(1)
    module = layers()
    model = wrap(module)
    model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        (loss_of(model, step) * 1e-3).backward()
        optimizer.step()
    return model, parameters_of(module)


@pytest.mark.parametrize("name", HOOKS)
@on_ranks(2)
def test_pytorchs_own_give_pytorchs_bits(name):
    make_state, hook = HOOKS[name]
    if name in NOT_HERE:
        with pytest.raises((AssertionError, RuntimeError)):
            trained(DDP, make_state(), hook)
    else:
        _, expected = trained(DDP, make_state(), hook)
        _, ours = trained(firkin.DistributedDataParallel, make_state(), hook)
        assert same(ours, expected)


@on_ranks(2)
def test_in_several_buckets_as_well():
    # Not PowerSGD: it chains collectives, which over Gloo start in another order on every rank where there are several buckets.
    stock, expected = trained(functools.partial(DDP, bucket_cap_mb=0.01), None, bf16)
    buckets = tuple(tuple(names) for _, names in firkin._ddp.live_buckets(stock))
    plan = firkin.Plan(buckets, {name: p.nbytes for name, p in stock.module.named_parameters()})
    _, ours = trained(functools.partial(firkin.DistributedDataParallel, plan=plan), None, bf16)
    assert same(ours, expected)
    assert len(buckets) > 1


@pytest.mark.parametrize("name", ("fp16", "bf16"))
@on_ranks(2)
def test_compression_by_name_halves_the_bytes(name):
    model = firkin.DistributedDataParallel(layers(), compression=name)
    loss_of(model, 0).backward()
    bucket = model.stats().buckets[0]
    assert bucket.bytes / 2 <= bucket.bytes_on_wire < 0.6 * bucket.bytes  # with the gaps between tensors


@on_ranks(2)
def test_a_hook_sees_its_buckets_as_pytorch_documents_them():
    model = firkin.DistributedDataParallel(layers(), cap_mib=0.01)
    names = {p: name for name, p in model.module.named_parameters()}
    calls = []

    def hook(state, bucket):
        assert [g.shape for g in bucket.gradients()] == [p.shape for p in bucket.parameters()]
        assert sum(g.numel() for g in bucket.gradients()) == bucket.buffer().numel()
        calls.append((bucket.index(), bucket.is_last(), [names[p] for p in bucket.parameters()], state))
        bucket.set_buffer(bucket.buffer() / 4)
        return default_hooks.allreduce_hook(None, bucket)

    model.register_comm_hook("state", hook)
    for _ in range(3):
        calls.clear()
        model.zero_grad()
        model(torch.full((4, WIDTH), 1.0 + dist.get_rank())).sum().backward()
    buckets = model.buckets()
    assert len(buckets) > 1
    assert calls == [(i, i == len(buckets) - 1, names, "state") for i, names in enumerate(buckets)]
    alone = layers()
    sum(alone(torch.full((4, WIDTH), 1.0 + rank)).sum() for rank in range(2)).backward()
    torch.testing.assert_close([p.grad for p in model.module.parameters()], [p.grad / 8 for p in alone.parameters()])


@on_ranks(2)
def test_a_hook_that_fails_fails_the_step_on_every_rank():
    for where, everywhere, kind, words in (
        ("call", True, "ValueError", "no such codec"),
        ("future", False, "RuntimeError", "ZeroDivisionError"),
        ("nothing", True, "InputError", "expected a torch.futures.Future"),
        ("call", False, "ValueError", "no such codec"),
    ):
        group = dist.new_group([0, 1])
        model, step, is_own = firkin.DistributedDataParallel(layers(), process_group=group), 0, everywhere or dist.get_rank() == 1

        def hook(state, bucket, where=where, is_own=is_own):
            fails_now = step == 1 and is_own
            if fails_now and where == "call":
                raise ValueError("no such codec")
            if fails_now and where == "nothing":
                return None
            return default_hooks.allreduce_hook(state, bucket).then(lambda f: 1 // 0 if fails_now and where == "future" else f.value())

        model.register_comm_hook(model._group, hook)
        said = []
        for step in range(3):
            if step == 1 and where == "call" and not everywhere:  # Gloo gives a call up then that the other rank never made
                _set_pg_timeout(datetime.timedelta(seconds=1), group)
            model.zero_grad()
            said.append(raised(lambda: model(torch.full((4, WIDTH), 1.0 + dist.get_rank())).sum().backward()))
            if step < 2:
                assert all(p.grad is None for p in model.module.parameters()) == (step == 1)
        assert (said[0], said[1][0]) == ((None, ""), kind if is_own else "StepError"), said[1]
        assert words in said[1][1]
        if where == "call" and not everywhere:  # of the other rank's call nothing came back, and nothing ever will
            assert said[2][0] == "GroupError", said[2]
            assert "failed on rank 1 while other ranks waited" in said[2][1]
        else:
            assert said[2] == (None, "")


@on_ranks(2)
def test_a_step_that_one_rank_abandons_leaves_no_hook_waiting():
    model = firkin.DistributedDataParallel(layers())
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    for step in range(3):
        model.zero_grad()
        if step == 1 and dist.get_rank() == 1:
            model.abandon_step("no data")
        else:
            kind, said = raised(lambda: loss_of(model, step).backward())
            assert (kind, "no data" in said) == (("StepError", True) if step == 1 else (None, False)), said


@on_ranks(2)
def test_is_refused_with_a_reason_where_it_cannot_be():
    late, stepped, audited = (firkin.DistributedDataParallel(layers()) for _ in range(3))
    loss_of(late, 0).backward()
    _optimizer = firkin.OverlappedOptimizer(stepped, sgd(stepped.parameters()))
    audited.audit_optimizer(sgd(audited.parameters()))

    def register(hook=bf16, **options):
        model = firkin.DistributedDataParallel(seeded(Layers, [WIDTH] * 3).float(), **options)
        try:
            model.register_comm_hook(None, hook)
        finally:
            if model.strategy != "sharded":  # which needs an optimiser
                loss_of(model, 0).backward()  # nothing is left of what was refused

    assert_refused(refusals({
        "buckets arrive after the step": lambda: register(strategy="ordered"),
        "no rank gets the sum of a whole bucket": lambda: register(strategy="sharded"),
        "comparison only": lambda: register(strategy="flat"),
        "automatic buckets": lambda: register(buckets="automatic"),
        "the hook is a str": lambda: register("bf16"),
        "too late; expected before the first step": lambda: late.register_comm_hook(None, bf16),
        "audit_optimizer() and an OverlappedOptimizer": lambda: stepped.register_comm_hook(None, bf16),
        "before the first step, audit_optimizer()": lambda: audited.register_comm_hook(None, bf16),
        "gradient hook": lambda: firkin.DistributedDataParallel(layers()).register_comm_hook(None, low_rank if dist.get_rank() == 0 else bf16),
    }))  # fmt: skip
