"""firkin.tune with training programs as they are: they work, or are refused in one line that says what to write instead."""

import itertools

import firkin
import pytest
import torch
import torch.distributed as dist
from models import (
    QUICK, WIDTH, Layers, TestCase, accumulating, batches, closing, layers, parameters_of, plain, refusals, same, seeded, step_of,
    tensors_of, unlike,
)  # fmt: skip
from ranks import on_ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


def with_frozen_layers():
    """As with LoRA: what is trained is small, and lies between what is not."""
    model = layers()
    for layer in model.layers[::2]:
        layer.requires_grad_(False)
    return model


def autocasting(model, optimizer, x):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(x).square().mean()
    loss.backward()
    optimizer.step()


def in_a_hook(model, optimizer, x):
    """As with cached contrastive losses: the loss depends on no parameter, and its hook runs the backward passes that train."""
    optimizer.zero_grad()
    with torch.no_grad():
        loss = model(x).square().mean().requires_grad_()

    def again(gradient):
        with torch.enable_grad():
            with model.no_sync():
                (gradient * model(x[:2]).square().mean()).backward()
            (gradient * model(x[2:]).square().mean()).backward()

    loss.register_hook(again)
    loss.backward()
    optimizer.step()


class Checkpointed(Layers):
    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(lambda x, layer=layer: torch.tanh(layer(x)), x.requires_grad_(), use_reentrant=True)
        return x


def a_bf16_compress_hook(group, bucket):  # PyTorch's own, by its name, only for a GPU
    return default_hooks.bf16_compress_hook(group, bucket)


class Programs(TestCase):
    def assert_trains_on(self, model, step, *optimizers):
        """Tunes without putting anything back: ranks must be alike, and further on."""
        before = parameters_of(model)
        firkin.tune(model, step, restore=False, **QUICK)
        self.assertEqual(unlike(tensors_of(model, *optimizers)), 0)
        self.assertFalse(all(map(torch.equal, before, model.parameters())))


class Works(Programs):
    @on_ranks(2)
    def test_a_gradient_scaler_whose_loss_overflows_on_one_rank(self):
        model, calls = layers(), []
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

        def scaling(model, optimizer, x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            calls.append(1)
            scaler.scale(loss * (torch.inf if dist.get_rank() == 1 and len(calls) == 5 else 1)).backward()  # in a step without communication
            scaler.step(optimizer)
            scaler.update()

        step, before = step_of(model, scaling), scaler.state_dict()
        firkin.tune(model, step, **QUICK)
        self.assertEqual(scaler.state_dict(), before)
        calls.clear()
        self.assert_trains_on(model, step, step.optimizer)
        self.assert_same(scaler.get_scale())

    @on_ranks(2)
    def test_accumulation_under_no_sync_and_backward_passes_in_a_hook_of_another(self):
        for how in (accumulating, in_a_hook):
            model = layers()
            step = step_of(model, how)
            self.assertTrue(firkin.profile(model, step, steps=3).names[0].startswith("layers.3."))
            self.assert_trains_on(model, step, step.optimizer)

    @on_ranks(2)
    def test_a_communication_hook_that_wrap_registers_is_measured_with(self):
        """Half the bytes travel."""
        for hook in (default_hooks.fp16_compress_hook, a_bf16_compress_hook):
            model, used = layers(), []

            def wrap(module, hook=hook, used=used, **kwargs):
                ddp = DDP(module, **kwargs)
                ddp.register_comm_hook(None, hook)
                used.append(kwargs)
                return ddp

            result = firkin.tune(model, step_of(model), wrap=wrap, **QUICK)
            self.assertGreater(len(used), 10)
            self.assertEqual(sum(result.profile.bytes), max(row.bytes for row in result.curve.rows))  # sizes are of gradients
            self.assertEqual({row.wrong for row in result.curve.rows}, {0})
            self.assertFalse([note for note in result.notes if "without it" in note])


@pytest.mark.full
class WorksWithRareSteps(Programs):
    @on_ranks(2)
    def test_autocast_with_frozen_layers_a_closure_and_reentrant_checkpointing(self):
        reentrant = seeded(Checkpointed, [WIDTH] * 5).float()
        for model, how in ((with_frozen_layers(), autocasting), (layers(), closing), (reentrant, plain)):
            step = step_of(model, how)
            self.assert_trains_on(model, step, step.optimizer)

    @on_ranks(2)
    def test_several_dtypes_have_one_cap(self):
        class Cast(Layers):
            def forward(self, x):
                for layer in self.layers:
                    x = layer(x.to(layer.weight.dtype))
                return x.float()

        mixed = seeded(Cast, [WIDTH] * 5).float()
        mixed.layers[1].half()
        step = step_of(mixed, optimizer=torch.optim.SGD(mixed.parameters(), lr=1e-3))
        self.assertLessEqual(firkin.tune(mixed, step, **QUICK).ddp_kwargs().keys(), {"bucket_cap_mb"})

    @on_ranks(2)
    def test_a_step_that_unwraps_its_model_by_class(self):
        """By isinstance, as many programs do."""
        model, kinds = layers(), set()

        def unwrapping(wrapped, optimizer, x):
            kinds.add(isinstance(wrapped, DDP) and wrapped.module is model)
            plain(wrapped, optimizer, x)

        firkin.tune(model, step_of(model, unwrapping), **QUICK)
        self.assertEqual(kinds, {True})

    @on_ranks(2)
    def test_a_device_mesh_and_a_group_among_ddps_arguments(self):
        mesh = dist.device_mesh.init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))["replicate"]  # as with HSDP
        model = layers()
        for name, value in {"device_mesh": mesh, "process_group": dist.new_group([0, 1])}.items():
            self.assertIs(firkin.tune(model, step_of(model), ddp_kwargs={name: value}, **QUICK).ddp_kwargs()[name], value)
        self.assertEqual(len(model._forward_hooks) + len(model._forward_pre_hooks), 0)  # PyTorch's, for a mesh that is cut out of another


class Refuses(TestCase):
    @on_ranks(2)
    def test_in_one_line_what_cannot_be_tuned(self):
        model = layers()
        data, outer, before = batches(model), step_of(model), parameters_of(model)
        short, optimizer = itertools.islice(batches(model), 10), torch.optim.SGD(model.parameters(), lr=0.1)  # fewer than a slow machine needs

        def tune(step, **arguments):
            firkin.tune(model, step, **QUICK, **arguments)

        def only_no_sync(wrapped):
            with wrapped.no_sync():
                wrapped(next(data)).sum().backward()

        ends = {"step: its batches ended in call 11; expected a loader that starts over": lambda: tune(lambda model: plain(model, optimizer, next(short)))}
        self.assert_refused(refusals(ends))
        self.assertTrue(same(before, parameters_of(model)))
        self.assert_refused(refusals({
            "no synchronising backward pass; expected the last one outside no_sync()": lambda: tune(only_no_sync),
            "step did not call the model it was given; expected step(model) to use its argument": lambda: tune(lambda _: outer(model)),
            "step did not call the model it was given": lambda: tune(lambda _: outer(model), ddp_kwargs={"find_unused_parameters": True}),
            "wrap: Layers neither is nor contains a DistributedDataParallel": lambda: tune(outer, wrap=lambda module, **_: module),
        }))  # fmt: skip

    @on_ranks(2)
    def test_synchronised_batch_norm_on_a_cpu_with_pytorchs_own_words(self):
        synced = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SyncBatchNorm(WIDTH))
        with self.assertRaisesRegex(ValueError, "SyncBatchNorm"):
            firkin.tune(synced, step_of(synced), **QUICK)
