"""firkin.tune with training programs as they are: they work, or are refused in one line; and everything is as it was afterwards."""

import contextlib
import copy
import functools
import itertools
import json
import os
import pathlib
import pickle
import random
import tempfile
import unittest
from unittest import mock

import firkin
import torch
import torch.distributed as dist
from models import Layers, WithUnused, raised
from ranks import with_ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

WIDTH = 32
QUICK = {"time_budget_s": 0.5, "progress": False}  # the fewest steps that the tuner does


def layers(count=4):
    torch.manual_seed(0)
    return Layers([WIDTH] * (count + 1))


def batches():
    generator = torch.Generator().manual_seed(dist.get_rank())
    while True:
        yield torch.randn(4, WIDTH, generator=generator)


def plain(model, optimizer=None):
    """A step as a user writes one."""
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
    everyone = [None, None]
    dist.all_gather_object(everyone, [tensor.clone() for tensor in tensors])
    assert len(everyone[0]) == len(everyone[1])
    return sum(not torch.equal(a, b) for a, b in zip(*everyone))


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
    torch.manual_seed(0)
    model = Checkpointed([WIDTH] * 5)
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


class Everything(nn.Module):
    """With buffers and random numbers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return self.inner(x)


class Everywhere:
    """A program that has been trained a little: it changes all that a program changes."""

    def __init__(self, rank):
        self.model = Everything()
        self.frozen = self.model.inner[0].bias.requires_grad_(False)
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.1, total_steps=20)  # which raises at its end
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


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


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


def refused(rank):
    said = {}

    def says(name, model, step, **arguments):
        said[name] = raised(lambda: firkin.tune(model, step, **QUICK, **arguments))

    model, short = layers(), None
    short, optimizer = itertools.islice(batches(), 30), torch.optim.SGD(model.parameters(), lr=0.1)

    def loads(model):
        optimizer.zero_grad()
        model(next(short)).sum().backward()
        optimizer.step()

    before = [p.detach().clone() for p in model.parameters()]
    says("30 batches", model, loads)
    said["30 batches, put back"] = all(map(torch.equal, before, model.parameters()))
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
    torch.manual_seed(0)
    model = WithUnused(WIDTH)
    return firkin.tune(model, plain(model), ddp_kwargs={"static_graph": True}, **QUICK).ddp_kwargs()


def compresses(rank):
    """A hook that compresses: half the bytes travel."""
    used = []

    def wrap(module, **kwargs):
        ddp = DDP(module, **kwargs)
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        used.append(kwargs)
        return ddp

    model = layers()
    result = firkin.tune(model, plain(model), wrap=wrap, **QUICK)
    return len(used), sum(result.profile.bytes), max(row.bytes for row in result.curve.rows), [row.wrong for row in result.curve.rows]


def has_groups(rank):
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))["replicate"]  # as with HSDP
    model = layers()
    meshed = firkin.tune(model, plain(model), ddp_kwargs={"device_mesh": mesh}, **QUICK)
    group = dist.new_group([0, 1])
    grouped = firkin.tune(model, plain(model), ddp_kwargs={"process_group": group}, **QUICK)
    hooks = len(model._forward_hooks) + len(model._forward_pre_hooks)  # PyTorch's, for a mesh that is cut out of another
    return meshed.ddp_kwargs().get("device_mesh") is mesh, grouped.ddp_kwargs()["process_group"] is group, hooks


def has_a_result(rank):
    model = layers()
    step = plain(model)
    result = firkin.tune(model, step, ddp_kwargs={"process_group": dist.group.WORLD, "gradient_as_bucket_view": True}, **QUICK)
    again = pickle.loads(pickle.dumps(result))
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):  # the first one goes to older/
            result.save(folder)
        older = sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("tuned.json"))
        loaded = firkin.load(folder)
        with mock.patch.dict(os.environ, FIRKIN_TUNED=folder):
            found = firkin.load()
        missing = raised(lambda: firkin.load(folder + "/none"))
    ddp = found.wrap(model)
    early = found.check(ddp)
    for _ in range(4):
        step(ddp)
    settings = {
        name: found.for_(name) for name in ("torch", "transformers", "accelerate", "lightning", "deepspeed", "megatron-lm", "horovod")
    }
    scale = result.at(64)
    here = result.at(64, firkin.AllReduceTable([firkin.AllReduceRow(row.bytes, 64, row.median_s) for row in result.curve.rows]))
    return {
        "dicts": result.to_dict() == again.to_dict() == loaded.to_dict() == found.to_dict() == copy.deepcopy(result).to_dict(),
        "cap_mib": result.cap_mib, "older": older, "missing": missing, "json": json.loads(json.dumps(result.to_dict()))["choice"], "repr": repr(result),
        "html": result._repr_html_(), "plot": result.plot()._repr_mimebundle_(), "early": early, "check": found.check(ddp, strict=True),
        "other": raised(lambda: found.wrap(layers(2))), "settings": settings, "unknown": raised(lambda: found.for_("jax")),
        "speedup": (result.speedup.low, float(result.speedup), result.speedup.high), "options": loaded.ddp_kwargs(),
        "scale": (str(scale), scale.caps_mib, scale.cap_mib), "here": (str(here), here.caps_mib),
    }  # fmt: skip


def compiles(rank, outer=False):
    """By how many graphs a step runs in each setting, and in the training afterwards: what PyTorch cuts by the bucket cap."""
    graphs = []

    def counts(graph, _inputs):
        def run(*arguments):
            graphs.append(graph)
            return graph.forward(*arguments)

        return run

    torch.manual_seed(0)
    model = Layers([512] * 9)  # 8 MiB
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


def all_programs(rank):
    programs = (
        scales, autocasts_and_freezes, closes, checkpoints, accumulates, has_two_models, puts_back, drifts_apart, refused, has_several_dtypes,
        has_a_static_graph_with_unused, compresses, has_groups, has_a_result, compiles, compiles_around_ddp,
    )  # fmt: skip
    return {program.__name__: program(rank) for program in programs}


@functools.cache
def ran():
    return with_ranks(2, all_programs)


def of(program):
    return [rank[program.__name__] for rank in ran()]


class Works(unittest.TestCase):
    def alike_and_further_on(self, program):
        for different, moved, *_ in of(program):
            self.assertEqual(different, 0)
            self.assertTrue(moved)

    def test_a_gradient_scaler_whose_loss_overflows_on_one_rank(self):
        self.alike_and_further_on(scales)
        self.assertEqual(of(scales)[0][2:], of(scales)[1][2:])
        self.assertTrue(of(scales)[0][2]["scale"])

    def test_bfloat16_autocast_and_frozen_layers(self):
        self.alike_and_further_on(autocasts_and_freezes)

    def test_a_closure(self):
        self.alike_and_further_on(closes)

    def test_reentrant_checkpointing(self):
        self.alike_and_further_on(checkpoints)

    def test_accumulation_under_no_sync(self):
        self.alike_and_further_on(accumulates)
        self.assertTrue(of(accumulates)[0][2].startswith("layers.3."))

    def test_two_models(self):
        self.assertEqual(of(has_two_models), [(True, 0)] * 2)

    def test_several_dtypes_have_one_cap(self):
        self.assertLessEqual(of(has_several_dtypes)[0].keys(), {"bucket_cap_mb"})

    def test_a_static_graph_with_unused_parameters(self):
        self.assertTrue(of(has_a_static_graph_with_unused)[0]["static_graph"])

    def test_a_communication_hook_that_wrap_registers_is_measured_with(self):
        wrapped, gradients, largest, wrong = of(compresses)[0]
        self.assertGreater(wrapped, 10)
        self.assertEqual(gradients, largest)  # sizes are of gradients, though half of that travels
        self.assertEqual(set(wrong), {0})

    def test_a_device_mesh_and_a_group_among_ddps_arguments(self):
        for mesh, group, hooks in of(has_groups):
            self.assertTrue(mesh and group)
            self.assertEqual(hooks, 0)


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

    def test_ranks_that_drift_apart_are_an_error_that_names_the_tensor(self):
        for kind, said in of(drifts_apart):
            self.assertEqual(kind, "RuntimeError")
            self.assertRegex(said, r"^tune: '.*layers\.1\.bias.*' now differs between ranks; expected a step")


class Refuses(unittest.TestCase):
    def says(self, case, words):
        for rank in of(refused):
            kind, said = rank[case]
            self.assertEqual(kind, "InputError", said)
            self.assertRegex(said, words)
            self.assertNotIn("\n", said)

    def test_a_loader_that_ends(self):
        self.says("30 batches", r"^step: its batches ended in call 31; expected one per call \(up to \d+, .* starts over$")
        self.assertEqual([rank["30 batches, put back"] for rank in of(refused)], [True, True])

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


class Result(unittest.TestCase):
    def setUp(self):
        self.result = of(has_a_result)[0]

    def test_pickled_copied_saved_and_loaded_it_is_the_same(self):
        self.assertTrue(self.result["dicts"])
        self.assertEqual(self.result["older"], ["older/1/tuned.json", "tuned.json"])
        self.assertIn(self.result["json"], ("cap", "torch default"))
        self.assertEqual(self.result["options"]["gradient_as_bucket_view"], True)
        self.assertNotIn("process_group", self.result["options"])
        self.assertRegex(self.result["missing"][1], "^load: .*none/tuned.json: No such file or directory; expected the folder of a saved result")

    def test_wraps_and_checks(self):
        self.assertRegex(self.result["early"], "^check: no rebuild of the buckets is logged yet")
        self.assertRegex(self.result["check"], r"^check: \d+ buckets, as tuned: ")
        self.assertRegex(self.result["other"][1], "^plan: made for another model")

    def test_is_seen_in_a_line_a_page_and_a_chart(self):
        self.assertLess(len(self.result["repr"]), 200)
        self.assertRegex(self.result["repr"], r"[\d.]+ ms a step")
        for part in ("<table>", "torch default", "<svg", "polyline"):
            self.assertIn(part, self.result["html"])
        self.assertEqual(len(self.result["plot"]["application/vnd.vegalite.v5+json"]["layer"]), 4)
        low, middle, high = self.result["speedup"]
        self.assertTrue(low <= middle <= high)

    def test_each_framework_gets_its_own_names(self):
        settings = self.result["settings"]
        self.assertEqual(settings["transformers"]["ddp_find_unused_parameters"], False)
        self.assertNotIn("bucket_cap_mb_list", settings["accelerate"])
        self.assertEqual(settings["accelerate"]["gradient_as_bucket_view"], True)
        self.assertEqual(settings["torch"], settings["lightning"])
        size = round(self.result["cap_mib"] * 2**20)
        self.assertEqual(settings["deepspeed"], {"reduce_bucket_size": size // 4})
        self.assertEqual(settings["megatron-lm"], {"ddp_bucket_size": size // 4})
        self.assertEqual(settings["horovod"], {"HOROVOD_FUSION_THRESHOLD": size})
        self.assertRegex(self.result["unknown"][1], "^for_: 'jax'; expected one of torch, transformers")

    def test_more_ranks_than_were_here(self):
        said, forms, cap = self.result["scale"]
        self.assertIn("one minute on 64 ranks settles it", said)
        self.assertLessEqual({"ring"}, forms.keys())
        self.assertGreater(cap, 0)
        self.assertEqual((self.result["here"][1], self.result["here"][0].count("\n")), ({}, 0))


class Compiled(unittest.TestCase):
    def test_graphs_are_cut_anew_for_every_setting_and_in_the_training_afterwards(self):
        for program in (compiles, compiles_around_ddp):
            tuned, trained, _, _ = of(program)[0]
            self.assertEqual({len(counts) for counts in tuned.values()}, {1}, tuned)  # the same in every step
            self.assertLess(max(tuned[25.0]), min(tuned[2.5]))
            self.assertEqual(trained, {2.5: tuned[2.5]})

    def test_says_what_was_considered(self):
        for program in (compiles, compiles_around_ddp):
            _, _, notes, kwargs = of(program)[0]
            self.assertTrue(any("caps from 1 MiB on were considered" in note for note in notes), notes)
            self.assertNotIn("bucket_cap_mb_list", kwargs)


if __name__ == "__main__":
    unittest.main()
