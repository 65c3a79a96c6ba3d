"""firkin.watch: what it names in running programs, that it leaves them alone, and what it writes."""

import contextlib
import copy
import io
import itertools
import json
import logging
import tempfile
import time
import unittest
from pathlib import Path

import firkin
import models
import torch
import torch.distributed as dist
from firkin import _watch
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

EVERY, WARMUP = 10, 3
STEPS = WARMUP + EVERY + 12  # rank 0 looks at the store every tenth step
SLOW_S = 0.05  # more than a busy machine makes the other rank wait for a processor in most steps
PHASES = ("before forward", "forward", "loss and backward")


class Delayed(torch.autograd.Function):
    """Backward takes longer."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(SLOW_S)
        return gradient


class Net(torch.nn.Module):
    """Layers that sleep where they are told to."""

    def __init__(self, slow_in=""):
        super().__init__()
        self.slow_in = slow_in
        self.layers = torch.nn.ModuleList(torch.nn.Linear(models.WIDTH, models.WIDTH) for _ in range(4))

    def forward(self, x):
        if self.slow_in == "forward":
            time.sleep(SLOW_S)
        for i, layer in enumerate(self.layers):
            x = torch.tanh(layer(Delayed.apply(x) if i == 1 and self.slow_in == "loss and backward" else x))
        return x


@contextlib.contextmanager
def logged():
    """What the logger says meanwhile: levels and lines."""
    log, handler, records = logging.getLogger("firkin"), logging.Handler(), []
    handler.emit = lambda record: records.append((record.levelname, record.getMessage()))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield records
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)


def late_hook(_, bucket):
    """Its result comes 15 ms after its sum."""

    def late(future):
        time.sleep(0.015)
        return future.value()[0]

    return dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future().then(late)


ENGINES = {
    "stock": lambda net: DistributedDataParallel(net, bucket_cap_mb=0.005),
    "firkin": lambda net: firkin.DistributedDataParallel(net, cap_mib=0.005),
}


def seen(engine, slow_in="", hook=None):
    """Rank 1 is slow: the summary, what was logged, and what the writer got."""
    is_slow, values = dist.get_rank() == 1, []
    ddp = ENGINES[engine](Net(slow_in if is_slow else ""))
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    with logged() as lines:
        watch = firkin.watch(ddp, every=EVERY, warmup=WARMUP, writer=lambda *each: values.append(each))
        step = models.step_of(ddp)
        for _ in range(STEPS):
            if slow_in == "before forward" and is_slow:
                time.sleep(SLOW_S)
            step(ddp)
        watch.close()
    return dict(watch.summary()), lines, values


class NamedTest(unittest.TestCase):
    cases = (*(("stock", where) for where in PHASES), ("firkin", "loss and backward"))

    @on_ranks(2)
    def test_a_slow_rank_and_its_phase(self):
        for engine, where in self.cases:
            summary, lines, values = seen(engine, where)
            if dist.get_rank() == 1:
                self.assertEqual((summary, lines, values), ({}, [], []))
                continue
            self.assertEqual(summary["causes"][0], "slow rank", (engine, where))
            self.assertEqual((summary["last_rank"], summary["last_in"], summary["steps"]), (1, where, EVERY))
            self.assertGreater(summary["waited_s"][0], summary["waited_s"][1])
            self.assertEqual(lines[0][0], "WARNING")
            self.assertRegex(lines[0][1], r"^firkin.watch, steps \d+ to \d+, 2 ranks: .* a step\n")
            self.assertIn("rank 1 is last in", lines[0][1])
            self.assertEqual((values[0][1], set(values[0][0])), (summary["last_step"], {f"firkin/{name}" for name in (
                "step_s", "exposed_s", "waiting_s", "gain_at_most_s", "last_rank", "last_share")}))  # fmt: skip

    @on_ranks(2)
    def test_communication_that_nothing_hides(self):
        summary, lines, _ = seen("stock", hook=late_hook)
        if dist.get_rank() == 0:
            self.assertIn("communication", summary["causes"])  # beside other tests a rank may be slow as well
            self.assertGreater(summary["exposed_s"], 0.01)
            self.assertGreater(len(summary["bucket_bytes"]), 1)
            self.assertGreater(summary["bytes_per_s"], 0)
            self.assertIn("communication not hidden", lines[0][1])


class NamedFull(NamedTest):
    cases = tuple(("firkin", where) for where in PHASES)

    @on_ranks(2)
    def test_communication_without_phases_or_buckets(self):
        """As on a GPU: durations of every tenth pass, which PyTorch takes on CPUs as well."""
        ddp = ENGINES["stock"](Net())
        ddp.register_comm_hook(None, late_hook)
        with logged():
            watch = _watch.Watch(ddp, _watch._StockOnGpu(ddp), EVERY, 0, None, None)
            step = models.step_of(ddp)
            for _ in range(45):
                step(ddp)
            watch.close()
        if dist.get_rank() == 0:
            summary = watch.summary()
            self.assertIn("communication", summary["causes"])  # beside other tests a rank may be slow as well
            self.assertEqual((summary["phases"], summary["bucket_bytes"]), (["forward and backward"], []))
            self.assertEqual(summary["gain_at_most_s"], summary["exposed_s"])


class WrittenTest(unittest.TestCase):
    @on_ranks(2)
    def test_a_program_that_ends_early_is_told_of_at_its_close(self):
        ddp = ENGINES["stock"](Net())
        hooks = len(ddp._forward_pre_hooks)
        table = firkin.AllReduceTable([firkin.AllReduceRow(size, 2, 1e-4 + size * 1e-9) for size in (4, 1 << 12, 1 << 20)])
        with tempfile.TemporaryDirectory() as folder, logged() as lines, firkin.watch(ddp, warmup=WARMUP, table=table) as watch:
            step = models.step_of(ddp)
            for _ in range(10):
                step(ddp)
            copied = copy.deepcopy(ddp)
            torch.save(ddp, io.BytesIO())
            self.assertEqual(watch.summary(), {})
            watch.close()
            watch.trace(f"{folder}/trace.json")
            watch.report(f"{folder}/page.html")
            texts = {path.name: path.read_text() for path in Path(folder).iterdir()}
        for _ in range(3):
            step(ddp)
            copied(models.inputs(copied)).sum().backward()
        self.assertEqual(len(ddp._forward_pre_hooks), hooks)
        self.assertIsNotNone(watch.profile())
        summary = watch.summary()
        if dist.get_rank() == 1:
            self.assertEqual((texts, summary, lines), ({}, {}, []))
            return
        self.assertEqual(set(texts), {"trace.json", "page.html"})
        events = json.loads(texts["trace.json"])["traceEvents"]
        self.assertEqual({event["pid"] for event in events}, {0, 1})
        self.assertLessEqual({*PHASES, "bucket 0"}, {event["name"] for event in events})
        self.assertTrue(all(event["dur"] >= 0 for event in events))
        self.assertIn("communication not hidden", texts["page.html"])
        self.assertGreater(summary["best_cap"]["high_s"], summary["best_cap"]["low_s"])
        self.assertIn("predicted best: bucket_cap_mb=", lines[0][1])


class TunedTest(unittest.TestCase):
    @on_ranks(2)
    def test_a_watch_of_the_model_replaces_the_profile(self):
        net = Net()
        ddp = ENGINES["stock"](net)
        with logged(), firkin.watch(ddp, warmup=WARMUP) as watch:
            step = models.step_of(ddp)
            for _ in range(12):
                step(ddp)
        with logged(), firkin.watch(ENGINES["stock"](models.layers(2))) as of_another:
            pass

        def tuned(watched):
            """How often firkin.tune steps, whether it says that it took the watch's profile, and that."""
            calls = []

            def counting(model):
                calls.append(1)
                model(torch.ones(4, models.WIDTH)).sum().backward()

            result = firkin.tune(net, counting, watched=watched, restore=False, **models.QUICK)
            return len(calls), any("seen by firkin.watch" in note for note in result.notes), len(result.profile)

        without, seen, tensors = tuned(None)
        fewer, is_seen, seen_tensors = tuned(watch)
        self.assertLess(fewer, without)
        self.assertEqual((seen, is_seen, seen_tensors, tuned(of_another)[1]), (False, True, tensors, False))


class RefusedTest(models.TestCase):
    @on_ranks(2)
    def test_in_one_line(self):
        ddp, ours = ENGINES["stock"](Net()), ENGINES["firkin"](Net())
        table = firkin.AllReduceTable([firkin.AllReduceRow(4, 3, 1e-4)])

        def with_pythons_reducer():
            with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
                firkin.watch(ENGINES["stock"](Net()))

        self.assert_refused(models.refusals({
            "Net neither is nor contains a DistributedDataParallel": lambda: firkin.watch(Net()),
            "every 0, warmup 20": lambda: firkin.watch(ddp, every=0),
            "a table with 2 ranks": lambda: firkin.watch(ddp, table=table),
            "a table with Firkin's engine": lambda: firkin.watch(ours, table=table),
            "watched already": lambda: [firkin.watch(ddp) for _ in range(2)],
            "python_reducer": with_pythons_reducer,
        }))  # fmt: skip


# ---- Programs as people write them, watched and not: each is given the wrapped model and a batch.


def evaluating(model, optimizer, x):
    models.plain(model, optimizer, x)
    with torch.no_grad():
        model(x)


class Checkpointed(Net):
    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(checkpoint(layer, x, use_reentrant=False))
        return x


def halve(parameter):
    parameter.grad.mul_(0.5)


def hooked(net):
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(halve)
    return net


def with_norm(net):
    net.layers.insert(2, torch.nn.BatchNorm1d(models.WIDTH))
    return net


PROGRAMS = {  # the module, the step, and what is done to the wrapped model
    "plain": (Net, models.plain, None), "accumulation": (Net, models.accumulating, None), "closure": (Net, models.closing, None),
    "evaluation": (Net, evaluating, None), "hooks": (lambda: hooked(Net()), models.plain, None),
    "buffers": (lambda: with_norm(Net()), models.plain, None), "checkpointing": (Checkpointed, models.plain, None),
}  # fmt: skip
COMPILED = {
    "compile(ddp)": (Net, models.plain, lambda ddp: torch.compile(ddp, backend="aot_eager")),
    "compile(module)": (lambda: torch.compile(Net(), backend="aot_eager"), models.plain, None),
}


WRAPS = ENGINES | {"default": DistributedDataParallel}  # PyTorch compiles for no smaller cap than 1 MiB


def trained(program, engine, watched):
    """All gradients and the parameters at the end."""
    torch.manual_seed(0)
    make, step, then = program
    ddp = WRAPS[engine](make())
    model = ddp if then is None else then(ddp)
    other = WRAPS[engine](Net())  # a second model
    watches = [firkin.watch(each, every=6, warmup=2) for each in ((model, other) if watched else ())]
    optimizer = torch.optim.SGD([*ddp.parameters(), *other.parameters()], lr=0.1, momentum=0.9)
    generator, kept = torch.Generator().manual_seed(dist.get_rank()), []
    for _ in range(12):
        step(model, optimizer, torch.randn(8, models.WIDTH, generator=generator))
        other(torch.randn(8, models.WIDTH, generator=generator)).sum().backward()
        kept += [p.grad.clone() for p in ddp.parameters()]
    for watch in watches:
        watch.close()
    told = [bool(watch.summary()) for watch in watches]
    return [*kept, *models.parameters_of(ddp)], told


class ProgramsTest(unittest.TestCase):
    ranks, programs = 2, tuple(zip(PROGRAMS, itertools.cycle(ENGINES)))

    @on_ranks(2)
    def test_change_no_bit(self):
        with logged():
            for name, engine in self.programs:
                (without, _), (watched, told) = (trained((PROGRAMS | COMPILED)[name], engine, is_watched) for is_watched in (False, True))
                self.assertTrue(models.same(without, watched), (name, engine))
                self.assertEqual(told, [dist.get_rank() == 0] * 2, (name, engine))


class ProgramsFull(ProgramsTest):
    ranks, programs = 3, (*itertools.product(PROGRAMS, ENGINES), *itertools.product(COMPILED, ["default"]))
