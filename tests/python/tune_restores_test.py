"""What firkin.tune leaves behind: training programs as they were, in memory, state and graphs; and ranks that are alike."""

import collections
import contextlib
import copy
import gc
import io
import itertools
import os
import pathlib
import random
import re
import unittest
from unittest import mock

import firkin
import numpy as np
import pytest
import torch
import torch.distributed as dist
from firkin._state import State
from models import QUICK, WIDTH, Layers, TestCase, batches, layers, plain, refusals, same, seeded, step_of, tensors_of
from ranks import on_ranks, with_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Replacing(nn.Module):
    """Its buffer is another tensor after every call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean()
        return self.inner(x)


class Shadow:
    """An average by hand."""

    def __init__(self):
        self.of, self.count, self.steps, self.lately = {}, torch.zeros(1), 0, collections.deque([torch.zeros(1)], maxlen=3)

    @torch.no_grad()
    def update(self, model):
        self.count, self.steps = self.count + 1, self.steps + 1
        self.lately.append(self.count)
        for name, p in model.named_parameters() if self.steps > 3 else ():  # these come while it is tuned
            self.of.setdefault(name, torch.zeros_like(p)).lerp_(p, 0.1)


class Program:
    """It has been trained a little, and changes all that a program changes."""

    def __init__(self, rank):
        torch.manual_seed(0)
        self.model = Replacing()
        self.model.inner[0].bias.requires_grad_(False)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.teacher, self.adopter = (copy.deepcopy(self.model).requires_grad_(False) for _ in range(2))
        self.scripted = torch.jit.script(Replacing())
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.1, total_steps=3 + 5)  # which raises at its end
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
        self.bank, self.recent, self.shadow, self.unnamed = torch.zeros(16, WIDTH), [torch.zeros(1)], Shadow(), torch.zeros(1)
        self.generators = (torch.Generator(), random.Random(rank), np.random.default_rng(rank), np.random.RandomState(rank))
        self.also = [self.bank, self.recent, self.shadow, *self.generators]
        self.without_memory = [nn.LazyLinear(3), nn.Linear(3, 3, device="meta")]  # to be passed over
        self.data, self.calls, self.fails_at = batches(self.model), 0, None
        torch.manual_seed(7 + rank)
        random.seed(rank)
        np.random.seed(rank)
        for _ in range(3):
            self.step(self.model)
        self.model.train()
        self.adopter, self.calls = copy.deepcopy(self.teacher), 0  # in memory of its own again
        self.teacher.inner[0].bias.grad = torch.zeros(WIDTH)

    def step(self, model):
        self.calls += 1
        if self.calls == self.fails_at:
            raise KeyboardInterrupt
        x = next(self.data)
        self.optimizer.zero_grad(set_to_none=False)
        self.scaler.scale((model(x) - self.teacher(x)).square().mean() * (1 + random.random() + np.random.rand())).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.average.update_parameters(self.model)
        self.shadow.update(self.model)
        self.model.inner[1].eval()
        self.scripted(x)
        self.scripted.eval()
        with torch.no_grad():
            for ours, theirs, adopted in zip(*(part.parameters() for part in (self.model, self.teacher, self.adopter))):
                theirs.data.lerp_(ours, 0.1)
                adopted.data = ours.data  # the same memory from now on
            self.bank[:4].add_(x)
            self.unnamed.add_(1)
            if self.teacher.inner[0].bias.grad is not None:
                self.teacher.inner[0].bias.grad.add_(1)
        self.recent.append(self.bank[0].clone())
        self.generators[0].seed()
        for generator in self.generators[1:]:
            generator.random()

    def kept(self):
        modules = (self.model, self.average, self.teacher, self.adopter, self.scripted)
        tensor_generator, python, numpy, old_numpy = self.generators
        return copy.deepcopy({
            "modules": [part.state_dict() for part in modules], "modes": [part.training for part in (*self.model.modules(), self.scripted)],
            "gradients": [p.grad for part in modules[::2] for p in part.parameters()], "schedule": self.schedule.state_dict(),
            "optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict(),
            "random": (random.getstate(), torch.get_rng_state(), [str(part) for part in np.random.get_state()]),
            "generators": (tensor_generator.get_state(), python.getstate(), numpy.bit_generator.state, [str(part) for part in old_numpy.get_state()]),
            "bank": self.bank, "recent": self.recent, "shadow": vars(self.shadow) | {"lately": list(self.shadow.lately)},
        })  # fmt: skip


class WithHistory(torch.optim.SGD):
    """Its state has a container, and an iterator, which a tuning does not know how to put back."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("norms", collections.deque(maxlen=9)).append(p.detach().norm().item())
                next(self.state[p].setdefault("steps", itertools.count()))


def compiled(outer):
    """By cap how many graphs a step runs in each setting, and in the training afterwards: what PyTorch cuts by the bucket cap."""
    graphs = []

    def counts(graph, _inputs):
        def run(*arguments):
            graphs.append(graph)
            return graph.forward(*arguments)

        return run

    model = seeded(Layers, [512] * 9).float()  # 8 MiB
    optimizer, used = torch.optim.SGD(model.parameters(), lr=1e-3), {}

    def step(wrapped):
        graphs.clear()
        optimizer.zero_grad()
        wrapped(torch.ones(4, 512)).square().mean().backward()
        optimizer.step()
        ddp = next((part for part in wrapped.modules() if isinstance(part, DDP)), None)
        if ddp is not None:
            used.setdefault(ddp.bucket_bytes_cap / 2**20, set()).add(len(graphs))

    def wrap(module, **kwargs):
        return torch.compile(DDP(module, **kwargs), backend=counts) if outer else DDP(module, **kwargs)

    if not outer:
        model.compile(backend=counts)
    result = firkin.tune(model, step, wrap=wrap, caps_mib=[2.5], **QUICK)
    tuned, used = dict(used), {}
    step(wrap(model, bucket_cap_mb=2.5))
    return tuned, used, result.notes, list(result.ddp_kwargs())


def peak_mib():
    """Of this process's memory so far."""
    (line,) = (line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def memory_of_training_and_of_tuning(rank):
    """MiB: what model and optimiser hold; the peak of a plain training; by how much tuning exceeds that."""
    model = seeded(Layers, [1024] * 9).float()
    step = step_of(model)
    ddp = DDP(model)
    for _ in range(4):
        step(ddp)
    step.optimizer.zero_grad()
    del ddp
    trained = peak_mib()
    firkin.tune(model, step, **QUICK)
    more = peak_mib() - trained
    return sum(t.nbytes for t in tensors_of(model, step.optimizer)) / 2**20, trained, more


class PutsBack(TestCase):
    def assert_restored(self, program, before):
        now = program.kept()
        self.assertEqual([name for name in now if not same(now[name], before[name])], [])

    @on_ranks(2)
    def test_everything_bitwise_after_ctrl_c_as_well(self):
        program = Program(dist.get_rank())
        before, own = program.kept(), [p.data_ptr() for p in program.adopter.parameters()]
        result = firkin.tune(program.model, program.step, also=program.also, **QUICK)
        self.assert_restored(program, before)
        self.assertEqual([p.data_ptr() for p in program.adopter.parameters()], own)
        self.assertGreater(program.calls, 20)  # a schedule with an end does not run through it
        self.assertEqual(program.unnamed, 3 + program.calls)  # nothing else is put back
        self.assertTrue(any(f"step was called {program.calls} times" in note for note in result.notes))

        program.calls, program.fails_at = 0, 30  # on every rank
        backward = torch.autograd.backward
        with self.assertRaises(KeyboardInterrupt):
            firkin.tune(program.model, program.step, also=program.also, **QUICK)
        self.assert_restored(program, before)
        self.assertFalse([p for p in program.model.parameters() if p._backward_hooks or p._post_accumulate_grad_hooks])
        self.assertIs(torch.autograd.backward, backward)

    @on_ranks(2)
    def test_what_it_cannot_find_and_a_copy_that_does_not_fit_are_refused(self):
        model = layers()
        step = step_of(model)

        def tune(**arguments):
            firkin.tune(model, step, **QUICK | arguments)

        self.assert_refused(refusals({"tune: also[1] is a int; expected a tensor, a container or an object": lambda: tune(also=[step, 3])}))
        with mock.patch.object(firkin._tune, "available_memory_bytes", lambda: 4096):
            self.assert_refused(refusals({" GiB are free; expected restore=False": tune}))
        with mock.patch.object(firkin._tune, "_GIB", 1 << 10), contextlib.redirect_stderr(io.StringIO()) as lines:
            tune(progress=True)
        said = re.search(r"copies (\S+) GiB of .* on each rank, .*; (\S+) GiB for the 2 ranks of a node", lines.getvalue())
        self.assertEqual(said is not None, dist.get_rank() == 0, lines.getvalue())
        if said is not None:
            size, of_node = map(float, said.groups())
            self.assertAlmostEqual(2 * size, of_node, delta=0.01 * of_node)
            self.assertGreaterEqual(1.01 * size, sum(t.nbytes for t in tensors_of(model)) / (1 << 10))

    def test_a_model_that_gc_hides_is_refused(self):
        model = layers()
        gc.freeze()
        self.addCleanup(gc.unfreeze)
        self.assert_refused(refusals({"tune: gc.freeze() hides the model; expected gc.unfreeze() before": State(model).find}))

    @on_ranks(2)
    def test_what_cannot_be_put_back_or_drifts_apart_is_an_error_that_names_it(self):
        model, drifter = layers(), layers()
        step = step_of(model, optimizer=WithHistory(model.parameters(), lr=0.01))
        step(model)
        norms = copy.deepcopy([state["norms"] for state in step.optimizer.state.values()])

        def drifting(wrapped, optimizer, x):
            plain(wrapped, optimizer, x)
            with torch.no_grad():
                drifter.layers[1].bias.add_(dist.get_rank())

        drifts = "layers.1.bias' now differs between ranks; expected a step"
        self.assert_refused(refusals({
            "tune: 'steps of layers.0.weight in optimiser ": lambda: firkin.tune(model, step, **QUICK),
            drifts: lambda: firkin.tune(drifter, step_of(drifter, drifting), restore=False, **QUICK),
        }), "RuntimeError")  # fmt: skip
        self.assertEqual([state["norms"] for state in step.optimizer.state.values()], norms)


@pytest.mark.full
class Compiled(TestCase):
    @on_ranks(2)
    def test_graphs_are_cut_anew_for_every_setting_and_in_the_training_afterwards(self):
        for outer in (False, True):
            tuned, trained, notes, kwargs = compiled(outer)
            default = tuned.pop(25.0)  # as for what is profiled, which is not compiled
            self.assertEqual({len(counts) for counts in tuned.values()}, {1}, tuned)  # the same in every step
            self.assertLess(max(default), min(tuned[2.5]))
            self.assertEqual(trained, {2.5: tuned[2.5]})
            self.assertTrue(any("caps from 1 MiB on were considered" in note for note in notes), notes)
            self.assertNotIn("bucket_cap_mb_list", kwargs)


@pytest.mark.full
class Memory(unittest.TestCase):
    def test_a_tuning_takes_one_copy_of_model_and_optimiser_more_than_the_training(self):
        with mock.patch.dict(os.environ, MALLOC_MMAP_THRESHOLD_="65536"):  # what is freed is given back, and not counted again
            for held, trained, more in with_ranks(2, memory_of_training_and_of_tuning, start="spawn"):
                print(f"model and optimiser {held:.0f} MiB; peak of training {trained:.0f} MiB, of tuning {more:.0f} MiB more")
                self.assertGreater(held, 95)
                self.assertLess(more, held + 32)
