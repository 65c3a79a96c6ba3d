"""register_comm_hook of firkin.DistributedDataParallel: PyTorch's own hooks against PyTorch's class, buckets, and failures."""

import datetime
import functools
import unittest

import firkin
import torch
import torch.distributed as dist
from models import WIDTH, Layers, batch, layers, parameters_of, raised, seeded, share
from ranks import of, with_ranks
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, post_localSGD_hook, powerSGD_hook, quantization_hooks
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
        (model(share(batch(step, WIDTH)).float()).square().mean() * 1e-3).backward()
        optimizer.step()
    return model, parameters_of(module)


def like_pytorch(rank, name):
    """Whether the hook gives the same bits in one bucket; None: PyTorch's class cannot run it here."""
    make_state, hook = HOOKS[name]
    try:
        _, expected = trained(DDP, make_state(), hook)
    except (AssertionError, RuntimeError):
        return None
    _, ours = trained(firkin.DistributedDataParallel, make_state(), hook)
    return all(map(torch.equal, ours, expected))


def like_pytorch_in_several_buckets(rank):
    # Not PowerSGD: it chains collectives, which over Gloo start in another order on every rank where there are several buckets.
    stock, expected = trained(functools.partial(DDP, bucket_cap_mb=0.01), None, bf16)
    live = firkin._ddp.live_buckets(stock)
    plan = firkin.Plan(live.names, {name: p.nbytes for name, p in stock.module.named_parameters()})
    _, ours = trained(functools.partial(firkin.DistributedDataParallel, plan=plan), None, bf16)
    return all(map(torch.equal, ours, expected)), len(live.names)


def what_a_hook_sees(rank):
    model = firkin.DistributedDataParallel(layers(), cap_mib=0.01)
    names = {p: name for name, p in model.module.named_parameters()}
    seen = []

    def hook(state, bucket):
        shapes = [g.shape for g in bucket.gradients()] == [p.shape for p in bucket.parameters()]
        whole = sum(g.numel() for g in bucket.gradients()) == bucket.buffer().numel()
        seen.append((bucket.index(), bucket.is_last(), [names[p] for p in bucket.parameters()], shapes and whole, state))
        bucket.set_buffer(bucket.buffer() / 4)
        return default_hooks.allreduce_hook(None, bucket)

    model.register_comm_hook("state", hook)
    for step in range(3):
        seen.clear()
        model.zero_grad()
        model(torch.full((4, WIDTH), 1.0 + rank)).sum().backward()
    fourth = [p.grad.clone() for p in model.module.parameters()]
    alone = layers()
    sum(alone(torch.full((4, WIDTH), 1.0 + r)).sum() for r in range(2)).backward()
    right = all(torch.allclose(a, p.grad / 8, rtol=1e-5) for a, p in zip(fourth, alone.parameters()))
    expected = [(i, i == len(model.buckets()) - 1, names, True, "state") for i, names in enumerate(model.buckets())]
    return seen == expected, len(seen), right


def fails(rank):
    """Per case: what this rank raises, whether gradients are gone, what the next step raises, and whether it is right."""

    def broken(where, everywhere):
        group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=15))  # until Gloo gives a call up that the other rank never made
        model = firkin.DistributedDataParallel(layers(), process_group=group)
        step = 0

        def hook(state, bucket):
            fails_now = step == 1 and (rank == 1 or everywhere)
            if fails_now and where == "call":
                raise ValueError("no such codec")
            if fails_now and where == "nothing":
                return None
            return default_hooks.allreduce_hook(state, bucket).then(lambda f: 1 // 0 if fails_now and where == "future" else f.value())

        model.register_comm_hook(model._group, hook)
        said = []
        for step in range(3):
            model.zero_grad()
            said.append(raised(lambda: model(torch.full((4, WIDTH), 1.0 + rank)).sum().backward()))
            said.append(all(p.grad is None for p in model.module.parameters()))
        return said

    places = {"call everywhere": ("call", True), "future": ("future", False), "nothing everywhere": ("nothing", True), "call": ("call", False)}
    return {name: broken(*place) for name, place in places.items()}


def refused(rank):
    said = {}

    def says(name, hook, **options):
        model = firkin.DistributedDataParallel(seeded(Layers, [WIDTH] * 3).float(), **options)
        said[name] = raised(lambda: model.register_comm_hook(None, hook))
        if model.strategy != "sharded":  # which needs an optimiser
            model(share(batch(0, WIDTH)).float()).square().mean().backward()  # nothing is left of what was refused

    says("ordered", bf16, strategy="ordered")
    says("sharded", bf16, strategy="sharded")
    says("flat", bf16, experiment={"strategy": "flat"})
    says("automatic", bf16, buckets="automatic")
    says("no hook", "bf16")
    model = firkin.DistributedDataParallel(layers())
    model(share(batch(0, WIDTH)).float()).sum().backward()
    said["late"] = raised(lambda: model.register_comm_hook(None, bf16))
    said["other hooks"] = raised(lambda: firkin.DistributedDataParallel(layers()).register_comm_hook(None, bf16 if rank else low_rank))
    return said


class CommHooks(unittest.TestCase):
    def test_pytorchs_own_give_pytorchs_bits(self):
        for name in HOOKS:
            with self.subTest(name):
                self.assertEqual(with_ranks(2, like_pytorch, name), [None if name in NOT_HERE else True] * 2)
        for same, buckets in of(like_pytorch_in_several_buckets):
            self.assertTrue(same)
            self.assertGreater(buckets, 1)

    def test_a_hook_sees_its_buckets_as_pytorch_documents_them(self):
        for seen, buckets, right in of(what_a_hook_sees):
            self.assertTrue(seen and right)
            self.assertGreater(buckets, 1)

    def test_a_hook_that_fails_fails_the_step_on_every_rank(self):
        own = {
            "call everywhere": ("ValueError", "no such codec"), "call": ("ValueError", "no such codec"),
            "future": ("RuntimeError", "ZeroDivisionError"), "nothing everywhere": ("InputError", "expected a torch.futures.Future"),
        }  # fmt: skip
        for rank, results in enumerate(of(fails)):
            for case, (first, kept, failed, gone, third, _) in results.items():
                with self.subTest(case, rank=rank):
                    self.assertEqual((first, kept), ((None, ""), False))
                    kind, words = own[case] if rank == 1 or "everywhere" in case else ("StepError", own[case][1])
                    self.assertEqual(failed[0], kind, failed)
                    self.assertIn(words, failed[1])
                    self.assertTrue(gone)
                    if case == "call":  # of the other rank's call nothing came back, and nothing ever will
                        self.assertEqual(third[0], "GroupError", third)
                        self.assertIn("failed on rank 1 while other ranks waited", third[1])
                    else:
                        self.assertEqual(third, (None, ""))

    def test_is_refused_with_a_reason_where_it_cannot_be(self):
        expected = {
            "ordered": "buckets arrive after the step", "sharded": "no rank gets the sum of a whole bucket", "flat": "comparison only",
            "automatic": "automatic buckets", "no hook": "the hook is a str", "late": "too late", "other hooks": "gradient hook",
        }  # fmt: skip
        for results in of(refused):
            for case, words in expected.items():
                with self.subTest(case):
                    kind, said = results[case]
                    self.assertEqual(kind, "InputError", said)
                    self.assertIn(words, said)
                    self.assertNotIn("\n", said)


if __name__ == "__main__":
    unittest.main()
