"""firkin.tune with training programs as they are: they work, or are refused in one line that says what to write instead."""

import contextlib
import itertools
import unittest

import firkin
import torch
import torch.distributed as dist
from models import QUICK, WIDTH, Layers, WithUnused, batches, layers, plain, raised, seeded, tensors_of, unlike
from ranks import of
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


def trains_on(model, step, *optimizers, **arguments):
    """Tunes without putting anything back: ranks must be alike, and further on."""
    before = [p.detach().clone() for p in model.parameters()]
    firkin.tune(model, step, restore=False, **QUICK, **arguments)
    moved = any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))
    return unlike(tensors_of(model, *optimizers)), moved


def scales(rank):
    model = layers()
    optimizer, scaler, data, calls = (
        torch.optim.SGD(model.parameters(), lr=0.01),
        torch.amp.GradScaler("cpu", init_scale=1024.0),
        batches(),
        [],
    )

    def step(model):
        optimizer.zero_grad()
        loss = model(next(data)).square().mean()
        calls.append(1)
        scaler.scale(loss * (torch.inf if rank == 1 and len(calls) == 5 else 1)).backward()  # in a step without communication
        scaler.step(optimizer)
        scaler.update()

    restored = {}
    before = scaler.state_dict()
    firkin.tune(model, step, **QUICK)
    restored["scale"] = scaler.state_dict() == before
    calls.clear()
    alike = trains_on(model, step, optimizer)
    return *alike, restored, scaler.get_scale()


def autocasts_and_freezes(rank):
    """As with LoRA: what is trained is small, and lies between what is not."""
    model = layers()
    for layer in model.layers[::2]:
        layer.requires_grad_(False)
    optimizer, data = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad]), batches()

    def step(model):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(next(data)).square().mean()
        loss.backward()
        optimizer.step()

    return trains_on(model, step, optimizer)


def closes(rank):
    model = layers()
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), batches()

    def step(model):
        def closure():
            optimizer.zero_grad()
            loss = model(next(data)).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)

    return trains_on(model, step, optimizer)


class Checkpointed(Layers):
    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(lambda x, layer=layer: torch.tanh(layer(x)), x.requires_grad_(), use_reentrant=True)
        return x


def checkpoints(rank):
    model = seeded(Checkpointed, [WIDTH] * 5).float()
    step = plain(model)
    return trains_on(model, step, step.optimizer)


def accumulating(model, optimizer, no_sync=True):
    data = batches()

    def step(model):
        optimizer.zero_grad()
        for i in range(3):
            with model.no_sync() if no_sync and i < 2 else contextlib.nullcontext():
                (model(next(data)).square().mean() / 3).backward()
        optimizer.step()

    return step


def accumulates(rank):
    model = layers()
    optimizer = torch.optim.Adam(model.parameters())
    step = accumulating(model, optimizer)
    names = firkin.profile(model, step, steps=3).names
    return *trains_on(model, step, optimizer), names[0]


def has_two_models(rank):
    """A second model, with an optimiser of its own, that nobody wraps: ranks drift apart in it while tuning, and it is put back."""
    model, second = layers(), layers(2)
    first, other = torch.optim.Adam(model.parameters()), torch.optim.Adam(second.parameters())
    data = batches()

    def step(model):
        other.zero_grad()
        with torch.no_grad():
            made = model(next(data))
        second(made).square().mean().backward()
        other.step()
        first.zero_grad()
        second(model(next(data))).square().mean().backward()
        first.step()

    before = [tensor.clone() for tensor in tensors_of(second)]
    firkin.tune(model, step, **QUICK)
    return all(torch.equal(a, b) for a, b in zip(before, tensors_of(second, other), strict=True)), unlike(tensors_of(second, other))


def refused(rank):
    said = {}

    def says(name, model, step, **arguments):
        said[name] = raised(lambda: firkin.tune(model, step, **QUICK, **arguments))

    model = layers()
    short, optimizer = itertools.islice(batches(), 10), torch.optim.SGD(model.parameters(), lr=0.1)  # fewer than a slow machine needs

    def loads(model):
        optimizer.zero_grad()
        model(next(short)).sum().backward()
        optimizer.step()

    before = [p.detach().clone() for p in model.parameters()]
    says("10 batches", model, loads)
    said["10 batches, put back"] = all(map(torch.equal, before, model.parameters()))
    says("no no_sync", model, accumulating(model, optimizer, no_sync=False))
    data = batches()
    outer = plain(model)
    for name, arguments in {"outer": {}, "outer, find unused": {"ddp_kwargs": {"find_unused_parameters": True}}}.items():
        says(name, model, lambda _: outer(model), **arguments)

    def only_no_sync(wrapped):
        with wrapped.no_sync():
            wrapped(next(data)).sum().backward()

    says("only under no_sync", model, only_no_sync)
    synced = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SyncBatchNorm(WIDTH))
    says("SyncBatchNorm on a CPU", synced, plain(synced))
    says("wrap gives something else", model, outer, wrap=lambda module, **_: module)
    return said


def has_several_dtypes(rank):
    model = layers()
    model.layers[1].half()

    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = model.layers

        def forward(self, x):
            for layer in self.layers:
                x = layer(x.to(layer.weight.dtype))
            return x.float()

    mixed = Cast()
    return firkin.tune(mixed, plain(mixed, torch.optim.SGD(mixed.parameters(), lr=1e-3)), **QUICK).ddp_kwargs()


def has_a_static_graph_with_unused(rank):
    model = seeded(WithUnused, WIDTH).float()
    return firkin.tune(model, plain(model), ddp_kwargs={"static_graph": True}, **QUICK).ddp_kwargs()


def compresses(rank, hook=default_hooks.fp16_compress_hook):
    """Half the bytes travel."""
    used = []

    def wrap(module, **kwargs):
        ddp = DDP(module, **kwargs)
        ddp.register_comm_hook(None, hook)
        used.append(kwargs)
        return ddp

    model = layers()
    result = firkin.tune(model, plain(model), wrap=wrap, **QUICK)
    rows = result.curve.rows
    return len(used), sum(result.profile.bytes), max(row.bytes for row in rows), [row.wrong for row in rows], result.notes


def compresses_to_bfloat16(rank):
    def a_bf16_compress_hook(group, bucket):  # PyTorch's own, by its name, only for a GPU
        return default_hooks.bf16_compress_hook(group, bucket)

    return compresses(rank, a_bf16_compress_hook)


def unwraps(rank):
    """By isinstance, as many programs do."""
    model, data, kinds = layers(), batches(), set()
    optimizer = torch.optim.Adam(model.parameters())

    def step(wrapped):
        kinds.add(isinstance(wrapped, DDP) and wrapped.module is model)
        optimizer.zero_grad()
        wrapped(next(data)).square().mean().backward()
        optimizer.step()

    firkin.tune(model, step, **QUICK)
    return kinds


def has_groups(rank):
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))["replicate"]  # as with HSDP
    model = layers()
    meshed = firkin.tune(model, plain(model), ddp_kwargs={"device_mesh": mesh}, **QUICK)
    group = dist.new_group([0, 1])
    grouped = firkin.tune(model, plain(model), ddp_kwargs={"process_group": group}, **QUICK)
    hooks = len(model._forward_hooks) + len(model._forward_pre_hooks)  # PyTorch's, for a mesh that is cut out of another
    return meshed.ddp_kwargs().get("device_mesh") is mesh, grouped.ddp_kwargs()["process_group"] is group, hooks


class Checks(unittest.TestCase):
    def alike_and_further_on(self, program):
        for different, moved, *_ in of(program):
            self.assertEqual(different, 0)
            self.assertTrue(moved)

    def is_measured_with_its_hook(self, program):
        wrapped, gradients, largest, wrong, notes = of(program)[0]
        self.assertGreater(wrapped, 10)
        self.assertEqual(gradients, largest)  # sizes are of gradients, though half of that travels
        self.assertEqual(set(wrong), {0})
        self.assertFalse([note for note in notes if "without it" in note])


class Works(Checks):
    def test_a_gradient_scaler_whose_loss_overflows_on_one_rank(self):
        self.alike_and_further_on(scales)
        self.assertEqual(of(scales)[0][2:], of(scales)[1][2:])
        self.assertTrue(of(scales)[0][2]["scale"])

    def test_accumulation_under_no_sync(self):
        self.alike_and_further_on(accumulates)
        self.assertTrue(of(accumulates)[0][2].startswith("layers.3."))

    def test_a_communication_hook_that_wrap_registers_is_measured_with(self):
        self.is_measured_with_its_hook(compresses)


class WorksFull(Checks):
    def test_bfloat16_autocast_and_frozen_layers(self):
        self.alike_and_further_on(autocasts_and_freezes)

    def test_a_closure(self):
        self.alike_and_further_on(closes)

    def test_reentrant_checkpointing(self):
        self.alike_and_further_on(checkpoints)

    def test_two_models(self):
        self.assertEqual(of(has_two_models), [(True, 0)] * 2)

    def test_several_dtypes_have_one_cap(self):
        self.assertLessEqual(of(has_several_dtypes)[0].keys(), {"bucket_cap_mb"})

    def test_a_static_graph_with_unused_parameters(self):
        self.assertTrue(of(has_a_static_graph_with_unused)[0]["static_graph"])

    def test_a_hook_of_another_name_is_measured_with_too(self):
        self.is_measured_with_its_hook(compresses_to_bfloat16)

    def test_a_step_that_unwraps_its_model_by_class(self):
        self.assertEqual(of(unwraps), [{True}] * 2)

    def test_a_device_mesh_and_a_group_among_ddps_arguments(self):
        for mesh, group, hooks in of(has_groups):
            self.assertTrue(mesh and group)
            self.assertEqual(hooks, 0)


class Refuses(unittest.TestCase):
    def says(self, case, words):
        for rank in of(refused):
            kind, said = rank[case]
            self.assertEqual(kind, "InputError", said)
            self.assertRegex(said, words)
            self.assertNotIn("\n", said)

    def test_a_loader_that_ends(self):
        self.says("10 batches", r"^step: its batches ended in call 11; expected one per call \(up to \d+, .* starts over$")
        self.assertEqual([rank["10 batches, put back"] for rank in of(refused)], [True, True])

    def test_accumulation_that_averages_every_time(self):
        self.says("no no_sync", r"step did 3 backward passes; expected one, and with gradient accumulation .*no_sync\(\):`$")

    def test_a_step_without_a_backward_that_averages(self):
        self.says("only under no_sync", r"no synchronising backward pass; expected the last one outside no_sync\(\)$")

    def test_a_step_that_uses_the_model_from_outside(self):
        for case in ("outer", "outer, find unused"):
            self.says(case, "^step did not call the model it was given; expected step.model. to use its argument")

    def test_synchronised_batch_norm_on_a_cpu_with_pytorchs_own_words(self):
        for rank in of(refused):
            kind, said = rank["SyncBatchNorm on a CPU"]
            self.assertEqual(kind, "ValueError")
            self.assertIn("SyncBatchNorm", said)

    def test_a_wrap_that_wraps_nothing(self):
        self.says("wrap gives something else", "^wrap: Layers neither is nor contains a DistributedDataParallel")


if __name__ == "__main__":
    unittest.main()
