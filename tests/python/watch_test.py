"""firkin.watch: what it names in running programs, that it leaves them alone, and what it writes."""

import contextlib
import copy
import io
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
from ranks import of, with_ranks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

EVERY, WARMUP = 15, 3
STEPS = WARMUP + EVERY + 15  # rank 0 looks at the store every tenth step
SLOW_S = 0.02
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


def seen(rank, engine, slow_in="", hook=None):
    """Rank 1 is slow: the summary, what was logged, and what the writer got."""
    ddp, values = ENGINES[engine](Net(slow_in if rank == 1 else "")), []
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    with logged() as lines:
        watch = firkin.watch(ddp, every=EVERY, warmup=WARMUP, writer=lambda *each: values.append(each))
        step = models.plain(ddp)
        for _ in range(STEPS):
            if slow_in == "before forward" and rank == 1:
                time.sleep(SLOW_S)
            step(ddp)
        watch.close()
    return dict(watch.summary()), lines, values


def programs(rank):
    found = {(engine, where): seen(rank, engine, where) for engine in ENGINES for where in PHASES}
    return found | {("stock", "communication"): seen(rank, "stock", hook=late_hook)}


class NamedTest(unittest.TestCase):
    def test_a_slow_rank_and_its_phase(self):
        on_0, on_1 = of(programs)
        for engine in ENGINES:
            for where in PHASES:
                with self.subTest(engine=engine, where=where):
                    summary, lines, values = on_0[engine, where]
                    self.assertEqual(summary["causes"][0], "slow rank")
                    self.assertEqual((summary["last_rank"], summary["last_in"], summary["steps"]), (1, where, EVERY))
                    self.assertGreater(summary["waited_s"][0], summary["waited_s"][1])
                    self.assertEqual(lines[0][0], "WARNING")
                    self.assertRegex(lines[0][1], r"^firkin.watch, steps \d+ to \d+, 2 ranks: .* a step\n")
                    self.assertIn("rank 1 is last in", lines[0][1])
                    self.assertEqual((values[0][1], set(values[0][0])), (summary["last_step"], {f"firkin/{name}" for name in (
                        "step_s", "exposed_s", "waiting_s", "gain_at_most_s", "last_rank", "last_share")}))  # fmt: skip
                    self.assertEqual(on_1[engine, where], ({}, [], []))

    def test_communication_that_nothing_hides(self):
        summary, lines, _ = of(programs)[0]["stock", "communication"]
        self.assertIn("communication", summary["causes"])  # beside other tests a rank may be slow as well
        self.assertGreater(summary["exposed_s"], 0.01)
        self.assertEqual(len(summary["launched_s"]), len(summary["bucket_bytes"]))
        self.assertIn("communication not hidden", lines[0][1])


def written(rank):
    """Files, and what is left of a watch that was taken off."""
    ddp = ENGINES["stock"](Net())
    hooks = len(ddp._forward_pre_hooks)
    rows = [firkin.AllReduceRow(size, 2, 1e-4 + size * 1e-9) for size in (4, 1 << 12, 1 << 20)]
    with tempfile.TemporaryDirectory() as folder, logged() as lines, firkin.watch(ddp, warmup=WARMUP, table=firkin.AllReduceTable(rows)) as watch:
        step = models.plain(ddp)
        for _ in range(10):
            step(ddp)
        copied, stored = copy.deepcopy(ddp), io.BytesIO()
        torch.save(ddp, stored)
        before = watch.summary()
        watch.close()
        watch.trace(f"{folder}/trace.json")
        watch.report(f"{folder}/page.html")
        texts = {path.name: path.read_text() for path in Path(folder).iterdir()}
    for _ in range(3):
        step(ddp)
        copied(models.inputs(copied)).sum().backward()
    return texts, before, watch.summary(), watch.profile() is not None, lines, len(ddp._forward_pre_hooks) - hooks


class WrittenTest(unittest.TestCase):
    def test_a_program_that_ends_early_is_told_of_at_its_close(self):
        for rank, (texts, before, summary, has_profile, lines, hooks_left) in enumerate(with_ranks(2, written)):
            with self.subTest(rank=rank):
                self.assertEqual((before, hooks_left, has_profile), ({}, 0, True))
                if rank:
                    self.assertEqual((texts, summary, lines), ({}, {}, []))
                    continue
                self.assertEqual(set(texts), {"trace.json", "page.html"})
                events = json.loads(texts["trace.json"])["traceEvents"]
                self.assertEqual({event["pid"] for event in events}, {0, 1})
                self.assertLessEqual({*PHASES, "bucket 0"}, {event["name"] for event in events})
                self.assertTrue(all(event["dur"] >= 0 for event in events))
                self.assertIn("communication not hidden", texts["page.html"])
                self.assertGreater(summary["best_cap"]["high_s"], summary["best_cap"]["low_s"])
                self.assertIn("predicted best: bucket_cap_mb=", lines[0][1])


def seen_by_durations(rank):
    """As on a GPU: durations of every tenth pass, which PyTorch takes on CPUs as well."""
    ddp = ENGINES["stock"](Net())
    ddp.register_comm_hook(None, late_hook)
    with logged():
        watch = _watch.Watch(ddp, _watch._StockOnGpu(ddp), EVERY, 0, None, None)
        step = models.plain(ddp)
        for _ in range(45):
            step(ddp)
        watch.close()
    return watch.summary()


class DurationsFull(unittest.TestCase):
    def test_show_communication_without_phases_or_buckets(self):
        summary = with_ranks(2, seen_by_durations)[0]
        self.assertIn("communication", summary["causes"])  # beside other tests a rank may be slow as well
        self.assertEqual((summary["phases"], summary["bucket_bytes"]), (["forward and backward"], []))
        self.assertEqual(summary["gain_at_most_s"], summary["exposed_s"])


def tuned_after(rank):
    """How often firkin.tune steps, with nothing, with the watch of this model, and with that of another one."""
    net, calls = Net(), []
    ddp = ENGINES["stock"](net)
    with logged(), firkin.watch(ddp, warmup=WARMUP) as watch:
        step = models.plain(ddp)
        for _ in range(12):
            step(ddp)
    with logged(), firkin.watch(ENGINES["stock"](models.layers(2))) as other:
        pass
    for watched in (None, watch, other):
        count = [0]

        def counting(model, count=count):
            count[0] += 1
            model(torch.ones(4, models.WIDTH)).sum().backward()

        result = firkin.tune(net, counting, watched=watched, restore=False, **models.QUICK)
        calls.append((count[0], any("seen by firkin.watch" in note for note in result.notes), len(result.profile)))
    return calls


class TunedTest(unittest.TestCase):
    def test_a_watch_of_the_model_replaces_the_profile(self):
        for (without, _, tensors), (with_watch, seen, same), (_, of_another, _) in with_ranks(2, tuned_after):
            self.assertLess(with_watch, without)
            self.assertEqual((seen, of_another, same), (True, False, tensors))


def refusals(rank):
    ddp, ours = ENGINES["stock"](Net()), ENGINES["firkin"](Net())
    table = firkin.AllReduceTable([firkin.AllReduceRow(4, 3, 1e-4)])
    said = [models.raised(call) for call in (
        lambda: firkin.watch(Net()), lambda: firkin.watch(ddp, every=0), lambda: firkin.watch(ddp, table=table),
        lambda: firkin.watch(ours, table=table), lambda: [firkin.watch(ddp) for _ in range(2)])]  # fmt: skip
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        said.append(models.raised(lambda: firkin.watch(ENGINES["stock"](Net()))))
    return said


class RefusedTest(unittest.TestCase):
    def test_in_one_line(self):
        expected = ("Net neither is nor contains a DistributedDataParallel", "every 0, warmup 20", "a table with 2 ranks", "a table with Firkin's engine",
                    "watched already", "python_reducer")  # fmt: skip
        for (kind, said), text in zip(with_ranks(2, refusals)[0], expected, strict=True):
            self.assertEqual(kind, "InputError")
            self.assertIn(text, said)
            self.assertNotIn("\n", said)


# ---- Programs as people write them, watched and not: each is given the wrapped model and a batch.


def plain(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def accumulating(model, optimizer, x):
    optimizer.zero_grad()
    with model.no_sync():
        model(x).square().mean().backward()
    model(x + 1).square().mean().backward()
    optimizer.step()


def with_closure(model, optimizer, x):
    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


def evaluating(model, optimizer, x):
    plain(model, optimizer, x)
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
    "plain": (Net, plain, None), "accumulation": (Net, accumulating, None), "closure": (Net, with_closure, None), "evaluation": (Net, evaluating, None),
    "hooks": (lambda: hooked(Net()), plain, None), "buffers": (lambda: with_norm(Net()), plain, None), "checkpointing": (Checkpointed, plain, None),
}  # fmt: skip
COMPILED = {
    "compile(ddp)": (Net, plain, lambda ddp: torch.compile(ddp, backend="aot_eager")),
    "compile(module)": (lambda: torch.compile(Net(), backend="aot_eager"), plain, None),
}


WRAPS = ENGINES | {"default": DistributedDataParallel}  # PyTorch compiles for no smaller cap than 1 MiB


def trained(rank, program, engine, watched):
    """All gradients and the parameters at the end."""
    torch.manual_seed(0)
    make, step, then = program
    ddp = WRAPS[engine](make())
    model = ddp if then is None else then(ddp)
    other = WRAPS[engine](Net())  # a second model
    watches = [firkin.watch(each, every=8, warmup=2) for each in ((model, other) if watched else ())]
    optimizer = torch.optim.SGD([*ddp.parameters(), *other.parameters()], lr=0.1, momentum=0.9)
    generator, kept = torch.Generator().manual_seed(rank), []
    for _ in range(24):
        step(model, optimizer, torch.randn(8, models.WIDTH, generator=generator))
        other(torch.randn(8, models.WIDTH, generator=generator)).sum().backward()
        kept += [p.grad.clone() for p in ddp.parameters()]
    for watch in watches:
        watch.close()
    told = [bool(watch.summary()) for watch in watches]
    return [*kept, *models.parameters_of(ddp)], told


def compared(rank, programs, engines=tuple(ENGINES)):
    """Tensors that differ between three trainings, the second watched; and whether something was told."""
    found = {}
    with logged():
        for name in programs:
            for engine in engines:
                program = (PROGRAMS | COMPILED)[name]
                (first, _), (watched, told), (again, _) = (trained(rank, program, engine, on) for on in (False, True, False))
                differ = sum(not torch.equal(a, b) or not torch.equal(a, c) for a, b, c in zip(first, watched, again, strict=True))
                found[name, engine] = (differ, told)
    return found


class ProgramsTest(unittest.TestCase):
    def check(self, *arguments, size=2):
        for rank, found in enumerate(with_ranks(size, compared, *arguments)):
            for program, (differ, told) in found.items():
                with self.subTest(rank=rank, program=program):
                    self.assertEqual(differ, 0)
                    self.assertEqual(told, [rank == 0] * 2)

    def test_change_no_bit(self):
        self.check(tuple(PROGRAMS))


class ProgramsFull(ProgramsTest):
    def test_change_no_bit(self):
        self.check(tuple(PROGRAMS), size=3)

    def test_compiled_ones_neither(self):
        self.check(tuple(COMPILED), ("default",))


if __name__ == "__main__":
    unittest.main()
