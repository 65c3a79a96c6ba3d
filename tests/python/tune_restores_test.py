"""What firkin.tune leaves behind: training programs as they were, in memory, state and graphs; and ranks that are alike."""

import collections
import contextlib
import copy
import io
import os
import pathlib
import random
import unittest
from unittest import mock

import firkin
import torch
from models import QUICK, WIDTH, Layers, batches, layers, plain, raised, same, seeded, tensors_of, training_step
from ranks import of, with_ranks
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
        self.data, self.fails_at = batches(), None
        self.calls = 0
        torch.manual_seed(7 + rank)
        random.seed(rank)
        for _ in range(3):
            self.step(self.model)
        self.calls = 0

    def step(self, model):
        self.calls += 1
        if self.calls == self.fails_at:
            raise KeyboardInterrupt
        self.optimizer.zero_grad(set_to_none=False)
        self.scaler.scale(model(next(self.data)).square().mean() * (1 + random.random())).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.average.update_parameters(self.model)

    def kept(self):
        gradients = [p.grad if p.grad is None else p.grad.clone() for p in self.model.parameters()]
        modules = [{name: value.clone() for name, value in part.state_dict().items()} for part in (self.model, self.average)]
        schedule = {name: value for name, value in self.schedule.state_dict().items() if name != "_get_lr_called_within_step"}
        groups = [{name: value for name, value in group.items() if name != "params"} for group in self.optimizer.param_groups]
        state = [value.clone() for state in self.optimizer.state.values() for value in state.values()]
        return {
            "gradients": gradients, "modules": modules, "schedule": schedule, "groups": groups, "state": state,
            "scaler": self.scaler.state_dict(), "random": random.getstate(), "cpu": torch.get_rng_state(),
        }  # fmt: skip


def puts_back(rank):
    program = Everywhere(rank)
    before = program.kept()
    result = firkin.tune(program.model, program.step, **QUICK)
    calls = program.calls
    tuned = {name: same(value, before[name]) for name, value in program.kept().items()}
    program.calls, program.fails_at = 0, 30  # on every rank
    backward = torch.autograd.backward
    interrupted = raised_any(lambda: firkin.tune(program.model, program.step, **QUICK))
    stopped = {name: same(value, before[name]) for name, value in program.kept().items()}
    hooks = sum(len(p._backward_hooks or {}) + len(p._post_accumulate_grad_hooks or {}) for p in program.model.parameters())
    return tuned, (interrupted, stopped, hooks, torch.autograd.backward is backward), calls, result.notes


def raised_any(call):
    try:
        call()
    except BaseException as error:  # noqa: BLE001
        return type(error).__name__
    return None


def drifts_apart(rank):
    """A step that steps with gradients of its own beside the model's."""
    model = layers()
    step = plain(model)

    def drifting(wrapped):
        step(wrapped)
        with torch.no_grad():
            model.layers[1].bias.add_(rank)

    return raised(lambda: firkin.tune(model, drifting, restore=False, **QUICK))


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


def moves_others(rank):
    """By name, what a step moves beside its model, and whether that is as before, bit for bit."""
    student = layers(2)
    teacher, target, adopter = (copy.deepcopy(student).requires_grad_(False) for _ in range(3))
    bank, shadow, optimizer = WithQueue(), Shadow(student), ByHand(student.parameters())
    statistics, history, recent = {"mean": torch.zeros(())}, [torch.zeros(1)], collections.deque([torch.zeros(1)], maxlen=3)
    level, data, calls = torch.zeros(()), batches(), [0]
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
            "queue": [*tensors_of(bank), bank.running, *bank.seen], "average by hand": [*shadow.of.values()], "state by hand": len(optimizer.momentum),
            "made lazily": shadow.lazily, "global in place": BANK, "global": RUNNING, "in a dict": statistics, "in a list": history,
            "in a deque": list(recent), "closure": level, "default": step.__defaults__, "attribute": getattr(step, "scale", None),
        }  # fmt: skip

    before = copy.deepcopy(kept())
    firkin.tune(student, step, **QUICK)
    restored = {name: same(value, before[name]) for name, value in kept().items()}
    restored["memory of its own"] = all(p.data_ptr() == adopted[name].data_ptr() for name, p in adopter.named_parameters())
    return restored, calls[0]


def reaches_too_much(rank):
    """What is neither in a module nor small is asked for by name, and the copy by its size."""
    model, data = layers(), torch.zeros(64, WIDTH)
    bank = torch.zeros(64, WIDTH)
    plain_step = plain(model)

    def step(wrapped):
        plain_step(wrapped)
        bank.add_(data + 1)

    with mock.patch.object(firkin._state, "_LOOSE_BYTES", 4096):
        said = raised(lambda: firkin.tune(model, step, **QUICK))
        bank.zero_()
        firkin.tune(model, step, also=[bank], **QUICK)
    restored = not bank.any()
    with mock.patch.object(firkin._tune, "available_memory_bytes", lambda: 4096):
        no_room = raised(lambda: firkin.tune(model, step, **QUICK))
    with mock.patch.object(firkin._tune, "_GIB", 1 << 10), contextlib.redirect_stderr(io.StringIO()) as lines:
        firkin.tune(model, step, **QUICK | {"progress": True})
    return said, restored, no_room, lines.getvalue()


class WithHistory(torch.optim.SGD):
    """Its state has what a tuning does not know how to put back."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("norms", collections.deque(maxlen=9)).append(float(p.norm()))


def cannot_be_put_back(rank):
    model = layers()
    step = plain(model, WithHistory(model.parameters(), lr=0.01))
    step(model)
    return raised(lambda: firkin.tune(model, step, **QUICK))


def compiles(rank, outer=False):
    """By how many graphs a step runs in each setting, and in the training afterwards: what PyTorch cuts by the bucket cap."""
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


def compiles_around_ddp(rank):
    return compiles(rank, outer=True)


def has_a_compiled_module(rank):
    model = torch.compile(layers(), backend="eager")
    return firkin.tune(model, training_step(model), **QUICK).notes


def peak_mib():
    """Of this process's memory so far."""
    (line,) = (line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def memory_of_training_and_of_tuning(rank):
    """MiB: what model and optimiser hold; the peak of a plain training; by how much tuning exceeds that."""
    model = seeded(Layers, [1024] * 17).float()
    step = training_step(model, "adam")
    ddp = DDP(model)
    for _ in range(4):
        step(ddp)
    step.optimizer.zero_grad()
    del ddp
    trained = peak_mib()
    firkin.tune(model, step, **QUICK)
    more = peak_mib() - trained
    return sum(t.nbytes for t in tensors_of(model, step.optimizer)) / 2**20, trained, more


class PutsBack(unittest.TestCase):
    def test_everything_bitwise(self):
        for tuned, *_ in of(puts_back):
            self.assertEqual(tuned, dict.fromkeys(tuned, True))

    def test_after_ctrl_c_as_well(self):
        for _, (error, stopped, hooks, backward), *_ in of(puts_back):
            self.assertEqual(error, "KeyboardInterrupt")
            self.assertEqual(stopped, dict.fromkeys(stopped, True))
            self.assertEqual((hooks, backward), (0, True))

    def test_a_schedule_with_an_end_does_not_run_through_it(self):
        for *_, calls, notes in of(puts_back):
            self.assertGreater(calls, 20)
            self.assertTrue(any(f"step was called {calls} times" in note for note in notes))

    def test_what_a_step_moves_beside_its_model(self):
        for restored, calls in of(moves_others):
            self.assertEqual(restored, dict.fromkeys(restored, True))
            self.assertGreater(calls, 20)

    def test_large_tensors_outside_of_modules_are_asked_for(self):
        for (kind, said), restored, *_ in of(reaches_too_much):
            self.assertEqual(kind, "InputError")
            self.assertRegex(said, r"^tune: step changes 'bank' \(0 MiB\), .*; expected it in also=\[...\], or restore=False$")
            self.assertTrue(restored)

    def test_the_copy_is_said_before_it_is_made_and_refused_where_there_is_no_room(self):
        for rank, (*_, (kind, said), lines) in enumerate(of(reaches_too_much)):
            self.assertEqual(kind, "InputError")
            self.assertRegex(said, r"^tune: a copy of .* GiB for each of 2 ranks on .*; expected restore=False")
            self.assertEqual("GiB a rank on the host, to put back afterwards" in lines, rank == 0, lines)

    def test_what_cannot_be_put_back_is_an_error_that_names_it(self):
        for kind, said in of(cannot_be_put_back):
            self.assertEqual(kind, "RuntimeError")
            self.assertRegex(said, r"^tune: 'norms of layers\.0\.weight in optimiser \d+' on rank 0 was not restored; expected ")

    def test_ranks_that_drift_apart_are_an_error_that_names_the_tensor(self):
        for kind, said in of(drifts_apart):
            self.assertEqual(kind, "RuntimeError")
            self.assertRegex(said, r"^tune: '.*layers\.1\.bias.*' now differs between ranks; expected a step")


class CompiledFull(unittest.TestCase):
    def test_graphs_are_cut_anew_for_every_setting_and_in_the_training_afterwards(self):
        for program in (compiles, compiles_around_ddp):
            tuned, trained, _, _ = of(program)[0]
            default = tuned.pop(25.0)  # as for what is profiled, which is not compiled
            self.assertEqual({len(counts) for counts in tuned.values()}, {1}, tuned)  # the same in every step
            self.assertLess(max(default), min(tuned[2.5]))
            self.assertEqual(trained, {2.5: tuned[2.5]})

    def test_says_what_was_considered(self):
        for program in (compiles, compiles_around_ddp):
            _, _, notes, kwargs = of(program)[0]
            self.assertTrue(any("caps from 1 MiB on were considered" in note for note in notes), notes)
            self.assertNotIn("bucket_cap_mb_list", kwargs)

    def test_a_compiled_module_gets_caps_only(self):
        self.assertIn("caps from 1 MiB on were considered", of(has_a_compiled_module)[0][0])


class MemoryFull(unittest.TestCase):
    def test_a_tuning_takes_one_copy_of_model_and_optimiser_more_than_the_training(self):
        with mock.patch.dict(os.environ, MALLOC_MMAP_THRESHOLD_="65536"):  # what is freed is given back, and not counted again
            for held, trained, more in with_ranks(2, memory_of_training_and_of_tuning, start="spawn"):
                print(f"model and optimiser {held:.0f} MiB; peak of training {trained:.0f} MiB, of tuning {more:.0f} MiB more")
                self.assertGreater(held, 190)
                self.assertLess(more, held + 32)


if __name__ == "__main__":
    unittest.main()
