"""What firkin.tune leaves behind: training programs as they were, in memory, state and graphs; and ranks that are alike."""

import collections
import contextlib
import copy
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
import torch
import torch.distributed as dist
from models import QUICK, WIDTH, Layers, TestCase, batches, layers, plain, refusals, same, seeded, step_of, tensors_of
from ranks import on_ranks, with_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Everything(nn.Module):
    """With buffers and random numbers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("mean", torch.zeros(1))
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean()  # another tensor every time
        return self.inner(x)


class Everywhere:
    """A program that has been trained a little: it changes all that a program changes."""

    def __init__(self, rank):
        self.model = Everything()
        self.frozen = self.model.inner[0].bias.requires_grad_(False)
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.1, total_steps=3 + 5)  # which raises at its end
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.data, self.fails_at = batches(self.model), None
        self.calls = 0
        torch.manual_seed(7 + rank)
        random.seed(rank)
        np.random.seed(rank)
        self.generators = (torch.Generator(), random.Random(rank), np.random.default_rng(rank))
        for _ in range(3):
            self.step(self.model)
        self.model.train()
        self.calls = 0

    def step(self, model):
        self.calls += 1
        if self.calls == self.fails_at:
            raise KeyboardInterrupt
        self.optimizer.zero_grad(set_to_none=False)
        self.scaler.scale(model(next(self.data)).square().mean() * (1 + random.random() + np.random.rand())).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.average.update_parameters(self.model)
        self.model.inner[1].eval()
        self.generators[0].seed()
        self.generators[1].random()
        self.generators[2].random()

    def kept(self):
        gradients = [p.grad if p.grad is None else p.grad.clone() for p in self.model.parameters()]
        modules = [{name: value.clone() for name, value in part.state_dict().items()} for part in (self.model, self.average)]
        schedule = {name: value for name, value in self.schedule.state_dict().items() if name != "_get_lr_called_within_step"}
        groups = [{name: value for name, value in group.items() if name != "params"} for group in self.optimizer.param_groups]
        state = [value.clone() for state in self.optimizer.state.values() for value in state.values()]
        return {
            "gradients": gradients, "modules": modules, "schedule": schedule, "groups": groups, "state": state,
            "scaler": self.scaler.state_dict(), "random": random.getstate(), "cpu": torch.get_rng_state(),
            "modes": [part.training for part in self.model.modules()],
            "generators": (self.generators[0].get_state(), self.generators[1].getstate(), self.generators[2].bit_generator.state),
            "numpy": [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],
        }  # fmt: skip


BANK = torch.zeros(16, WIDTH)
RUNNING = torch.zeros(WIDTH)


class WithQueue(nn.Module):
    """A memory bank in buffers, and tensors in attributes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("queue", torch.zeros(16, WIDTH))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))
        self.inner = layers(1)
        self.running, self.seen = torch.zeros(WIDTH), []

    @torch.no_grad()
    def push(self, keys):
        self.queue[int(self.at) : int(self.at) + len(keys)] = keys
        self.at.copy_((self.at + len(keys)) % 16)
        self.running = 0.9 * self.running + 0.1 * keys.mean(0)
        self.seen.append(keys[0])


class Shadow:
    """An average by hand."""

    def __init__(self, model):
        self.of = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.lazily = None

    @torch.no_grad()
    def update(self, model):
        self.lazily = self.lazily or {}
        for name, p in model.named_parameters():
            self.of[name] = 0.9 * self.of[name] + 0.1 * p
            self.lazily.setdefault(name, torch.zeros_like(p)).add_(p)


class ByHand:
    """An optimiser of no class of PyTorch's, whose state comes with the first step."""

    def __init__(self, parameters):
        self.parameters, self.momentum = list(parameters), {}

    @torch.no_grad()
    def step(self):
        for p in self.parameters:
            momentum = self.momentum.setdefault(p, torch.zeros_like(p)).mul_(0.9).add_(p.grad)
            p.sub_(0.01 * momentum)


class WithHistory(torch.optim.SGD):
    """Its state has a container, and an iterator, which a tuning does not know how to put back."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("norms", collections.deque(maxlen=9)).append(float(p.norm()))
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

    if outer:
        wrap = lambda module, **kwargs: torch.compile(DDP(module, **kwargs), backend=counts)  # noqa: E731
        result = firkin.tune(model, step, wrap=wrap, caps_mib=[2.5], **QUICK)
    else:
        model.compile(backend=counts)
        wrap = DDP
        result = firkin.tune(model, step, caps_mib=[2.5], **QUICK)
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
    def assert_restored(self, now, before):
        self.assertEqual([name for name in now if not same(now[name], before[name])], [])

    @on_ranks(2)
    def test_everything_bitwise_after_ctrl_c_as_well(self):
        program = Everywhere(dist.get_rank())
        before = program.kept()
        result = firkin.tune(program.model, program.step, **QUICK)
        self.assert_restored(program.kept(), before)
        self.assertGreater(program.calls, 20)  # a schedule with an end does not run through it
        self.assertTrue(any(f"step was called {program.calls} times" in note for note in result.notes))

        program.calls, program.fails_at = 0, 30  # on every rank
        backward = torch.autograd.backward
        with self.assertRaises(KeyboardInterrupt):
            firkin.tune(program.model, program.step, **QUICK)
        self.assert_restored(program.kept(), before)
        self.assertFalse([p for p in program.model.parameters() if p._backward_hooks or p._post_accumulate_grad_hooks])
        self.assertIs(torch.autograd.backward, backward)

    @on_ranks(2)
    def test_what_a_step_moves_beside_its_model(self):
        student = layers(2)
        teacher, target, adopter = (copy.deepcopy(student).requires_grad_(False) for _ in range(3))
        bank, shadow, optimizer = WithQueue(), Shadow(student), ByHand(student.parameters())
        statistics, history, recent = {"mean": torch.zeros(())}, [torch.zeros(1)], collections.deque([torch.zeros(1)], maxlen=3)
        level, data, calls = torch.zeros(()), batches(student), [0]
        without_memory = [nn.LazyLinear(3), nn.Linear(3, 3, device="meta")]  # noqa: F841: modules of this process, to be passed over
        adopted = {name: tensor.data for name, tensor in adopter.named_parameters()}

        def step(model, keyword=torch.zeros(2)):  # noqa: B008: a default is a place like any other
            nonlocal level
            global RUNNING
            calls[0] += 1
            x = next(data)
            for p in student.parameters():
                p.grad = None
            (model(x) - teacher(x)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                for theirs, late, other, ours in zip(teacher.parameters(), target.parameters(), adopter.parameters(), student.parameters()):
                    theirs.data.mul_(0.9).add_(ours.data, alpha=0.1)
                    if calls[0] % 7 == 0:
                        late.copy_(ours)
                    other.data = ours.data  # the same memory from now on
                bank.push(x)
                BANK[:4].add_(x)
                RUNNING = RUNNING + x.mean(0)
                shadow.update(student)
                statistics["mean"] = 0.9 * statistics["mean"] + x.mean()
                history.append(x.mean().reshape(1))
                recent.append(x.mean().reshape(1))
                keyword.add_(1)
                level = level + x.mean()
                step.scale = getattr(step, "scale", torch.ones(())) * 0.99

        def kept():
            return {
                "student": tensors_of(student), "teacher": tensors_of(teacher), "target": tensors_of(target), "adopter": tensors_of(adopter),
                "queue": [*tensors_of(bank), bank.running, *bank.seen], "average by hand": [*shadow.of.values()],
                "state by hand": len(optimizer.momentum), "made lazily": shadow.lazily, "global in place": BANK, "global": RUNNING,
                "in a dict": statistics, "in a list": history, "in a deque": list(recent), "closure": level, "default": step.__defaults__, "attribute": getattr(step, "scale", None),
            }  # fmt: skip

        before = copy.deepcopy(kept())
        firkin.tune(student, step, **QUICK)
        self.assert_restored(kept(), before)
        self.assertTrue(all(p.data_ptr() == adopted[name].data_ptr() for name, p in adopter.named_parameters()))  # in memory of their own
        self.assertGreater(calls[0], 20)

    @on_ranks(2)
    def test_large_tensors_outside_of_modules_are_asked_for_and_the_copy_is_said_or_refused(self):
        model, bank = layers(), torch.zeros(64, WIDTH)

        def filling(wrapped, optimizer, x):
            plain(wrapped, optimizer, x)
            bank.add_(torch.ones(64, WIDTH))

        step = step_of(model, filling)

        def tune(**arguments):
            firkin.tune(model, step, **QUICK | arguments)

        with mock.patch.object(firkin._state, "_LOOSE_BYTES", 4096):
            self.assert_refused(refusals({"tune: step changes 'bank' (0 MiB), ": tune}))
            bank.zero_()
            tune(also=[bank])
        self.assertFalse(bank.any())
        with mock.patch.object(firkin._tune, "available_memory_bytes", lambda: 4096):
            self.assert_refused(refusals({" GiB are free; expected restore=False": tune}))
        with mock.patch.object(firkin._tune, "_GIB", 1 << 10), contextlib.redirect_stderr(io.StringIO()) as lines:
            tune(progress=True)
        said = re.search(r"keeps (\S+) GiB a rank on the host, .*: parameters and buffers (\S+) [+] gradients (\S+) [+] optimizers (\S+);"
                         r" (\S+) GiB for the 2 ranks of a node", lines.getvalue())  # fmt: skip
        self.assertEqual(said is not None, dist.get_rank() == 0, lines.getvalue())
        if said is not None:
            copy, tensors, gradients, states, of_node = map(float, said.groups())
            self.assertAlmostEqual(tensors + gradients + states, copy, delta=0.01 * copy)
            self.assertAlmostEqual(2 * copy, of_node, delta=0.01 * of_node)

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


class CompiledFull(TestCase):
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

    @on_ranks(2)
    def test_a_compiled_module_gets_caps_only(self):
        model = torch.compile(layers(), backend="eager")
        self.assertIn("caps from 1 MiB on were considered", firkin.tune(model, step_of(model), **QUICK).notes[0])


class MemoryFull(unittest.TestCase):
    def test_a_tuning_takes_one_copy_of_model_and_optimiser_more_than_the_training(self):
        with mock.patch.dict(os.environ, MALLOC_MMAP_THRESHOLD_="65536"):  # what is freed is given back, and not counted again
            for held, trained, more in with_ranks(2, memory_of_training_and_of_tuning, start="spawn"):
                print(f"model and optimiser {held:.0f} MiB; peak of training {trained:.0f} MiB, of tuning {more:.0f} MiB more")
                self.assertGreater(held, 95)
                self.assertLess(more, held + 32)
