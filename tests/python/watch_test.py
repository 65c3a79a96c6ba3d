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
from unittest import mock

import firkin
import models
import pytest
import torch
import torch.distributed as dist
from firkin import _watch
from firkin._ranks import Ranks
from folders import InAFolder
from launched import torchrun
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

EVERY, WARMUP = 10, 3
STEPS = WARMUP + EVERY + 10  # rank 0 looks at the store every tenth step; the second window does not end
SLOW_S = (0.02, 0.25, 1.0)  # a longer delay is tried where other programs of these cores hide the first
PHASES = ("before forward", "forward", "loss and backward")


class Delayed(torch.autograd.Function):
    """Backward takes `seconds` longer."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


class Net(torch.nn.Module):
    """Layers that sleep where they are told to."""

    def __init__(self, slow_in="", slow_s=0.0):
        super().__init__()
        self.slow_in, self.slow_s = slow_in, slow_s
        self.layers = torch.nn.ModuleList(torch.nn.Linear(models.WIDTH, models.WIDTH) for _ in range(4))

    def forward(self, x):
        if self.slow_in == "forward":
            time.sleep(self.slow_s)
        for i, layer in enumerate(self.layers):
            x = torch.tanh(layer(Delayed.apply(x, self.slow_s) if i == 1 and self.slow_in == "loss and backward" else x))
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


def late_hook(seconds, bucket):
    """Its result comes that long after its sum."""

    def late(future):
        time.sleep(seconds)
        return future.value()[0]

    return dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future().then(late)


ENGINES = {
    "stock": lambda net: DistributedDataParallel(net, bucket_cap_mb=0.005),
    "firkin": lambda net: firkin.DistributedDataParallel(net, cap_mib=0.005),
}


def watched_run(engine, slow_in):
    """With rank 1 slow: the summary, what was logged, and what the writer got."""
    is_slow = dist.get_rank() == 1
    for slow_s in SLOW_S:
        values = []
        ddp = ENGINES[engine](Net(slow_in if is_slow else "", slow_s))
        with logged() as lines:
            watch = firkin.watch(ddp, every=EVERY, warmup=WARMUP, writer=lambda *each, values=values: values.append(each))
            step = models.step_of(ddp)
            for _ in range(STEPS):
                if slow_in == "before forward" and is_slow:
                    time.sleep(slow_s)
                step(ddp)
            watch.close()
        summary = dict(watch.summary())
        if Ranks(None).on_rank_0(lambda summary=summary: summary["causes"][:1] == ["slow rank"]):
            break
    return summary, lines, values


class NamedTest(unittest.TestCase):
    cases = (*(("stock", where) for where in PHASES), ("firkin", "loss and backward"))

    @on_ranks(2)
    def test_a_slow_rank_and_its_phase(self):
        for engine, where in self.cases:
            summary, lines, values = watched_run(engine, where)
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


class LastFirst(Net):
    """Its first gradient is that of the layer which it registered first, so PyTorch's first buckets are in the opposite order."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(models.WIDTH, models.WIDTH) for _ in range(60))

    def forward(self, x):
        for layer in reversed(self.layers):
            x = torch.tanh(layer(x))
        return x


def slow_link(wrap, how=models.plain, net=Net):
    """The summary of a program each of whose all-reduces takes long enough to be what its steps wait for."""
    for slow_s in SLOW_S:
        ddp = wrap(net())
        ddp.register_comm_hook(slow_s, late_hook)
        with logged() as lines, firkin.watch(ddp, warmup=WARMUP) as watch:
            step = models.step_of(ddp, how)
            for _ in range(12):
                step(ddp)
        if Ranks(None).on_rank_0(lambda watch=watch: "communication" in watch.summary()["causes"]):
            break
    if dist.get_rank() == 0:
        assert all(f"  why: {each}" in lines[0][1] for each in watch.summary()["reasons"]), lines
        assert "communication not hidden" in lines[0][1]
    return watch.summary()


def accumulating_in_all(model, optimizer, x):
    """As people do who leave no_sync() out, or put only backward into it."""
    optimizer.zero_grad()
    for micro in range(3):
        model(x + micro).square().mean().backward()
    optimizer.step()


class WhyTest(unittest.TestCase):
    @on_ranks(2)
    def test_what_keeps_communication_from_being_hidden(self):
        small = ENGINES["stock"]
        for what, wrap, how, net, expected in (
            ("one bucket", DistributedDataParallel, models.plain, Net, ["all gradients are in one bucket of 16.5 KiB, sent after the last of them"]),
            ("several", small, models.plain, Net, []),
            ("buckets that were rebuilt", lambda net: DistributedDataParallel(net, bucket_cap_mb=0.1), models.plain, LastFirst, []),
            ("buckets that never are", lambda net: DistributedDataParallel(net, bucket_cap_mb=0.1, find_unused_parameters=True), models.plain,
             LastFirst, ["all 3 buckets are sent after the last gradient; with find_unused_parameters=True PyTorch does not rebuild"]),
            ("no_sync() as it should be", small, models.accumulating, Net, []),
            ("no_sync() left out", small, accumulating_in_all, Net, ["parameters changed after"]),
        ):  # fmt: skip
            summary = slow_link(wrap, how, net)
            if dist.get_rank():
                self.assertEqual(summary, {})
                continue
            found = summary["reasons"]
            self.assertIn("communication", summary["causes"], what)  # beside other tests a rank may be slow as well
            self.assertGreater(summary["exposed_s"], SLOW_S[0] / 2, what)
            self.assertEqual(len(found), len(expected), (what, found))
            self.assertTrue(all(each.startswith(start) for each, start in zip(found, expected)), (what, found))
        if dist.get_rank() == 0:
            averaged, updated = reversed([int(word) for word in found[0].split() if word.isdigit()])
            self.assertAlmostEqual(averaged / updated, 3, delta=0.5)


@pytest.mark.full
class NamedUnderFirkin(NamedTest):
    cases = tuple(("firkin", where) for where in PHASES[:2])


@pytest.mark.full
class CommunicationOnAGpu(unittest.TestCase):
    @on_ranks(2)
    def test_without_phases_or_buckets(self):
        """As on a GPU: durations of every tenth pass, which PyTorch takes on CPUs as well."""
        ddp = ENGINES["stock"](Net())
        ddp.register_comm_hook(SLOW_S[1], late_hook)
        with logged():
            watch = _watch.Watch(ddp, _watch._StockOnGpu(ddp), 20, 0, None, None)
            step = models.step_of(ddp)
            for _ in range(55):
                step(ddp)
            watch.close()
        if dist.get_rank() == 0:
            summary = watch.summary()
            self.assertIn("communication", summary["causes"])  # beside other tests a rank may be slow as well
            self.assertEqual((summary["phases"], summary["bucket_bytes"]), (["forward and backward"], []))
            self.assertEqual(summary["gain_at_most_s"], summary["exposed_s"])


class RunsTest(unittest.TestCase):
    @on_ranks(2)
    def test_after_the_first_window_five_steps_of_twenty_are_read_and_the_lines_say_so(self):
        for engine, wrap in ENGINES.items():
            summaries = []
            ddp = wrap(Net())
            with logged() as lines, firkin.watch(ddp, every=40, warmup=WARMUP, writer=lambda *each, summaries=summaries: summaries.append(watch.summary())) as watch:
                step = models.step_of(ddp)
                for _ in range(140):
                    step(ddp)
            if dist.get_rank():
                continue
            self.assertEqual([each["steps"] for each in summaries], [40, 13 if engine == "stock" else 11, 10], engine)  # the second begins before its run
            self.assertRegex(lines[2][1], r"^firkin.watch, 10 of the steps \d+ to \d+, 2 ranks: ")
            self.assertEqual(summaries[2]["last_step"] - summaries[2]["first_step"], 24)


class WrittenTest(unittest.TestCase):
    def test_no_span_begins_before_its_step(self):
        watch = object.__new__(_watch.Watch)
        row = {"step": 1, "phases_s": [0.013, 0.085, 0.076], "exposed_s": 0.026, "sent_s": []}  # their sum rounds
        watch._reported, watch._summary = [json.dumps({"steps": [row]})], {"last_step": 1, "phases": PHASES, "bucket_bytes": []}
        self.assertEqual(min(start for _, _, _, start, _ in watch._spans()), 0)

    @on_ranks(2)
    def test_an_exception_in_its_block_waits_for_nobody(self):
        ddp = ENGINES["stock"](Net())
        with logged() as lines, contextlib.suppress(ArithmeticError), firkin.watch(ddp, warmup=WARMUP):
            step = models.step_of(ddp)
            for _ in range(10):
                step(ddp)
            if dist.get_rank() == 0:
                raise ArithmeticError
            dist.barrier()  # rank 1 tells its steps only afterwards
        if dist.get_rank() == 0:
            self.assertIn("rank 1 told nothing within 0 s", lines[-1][1])
            dist.barrier()

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
            read = firkin.read_trace(f"{folder}/trace.json") if texts else None
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
        self.assertEqual(sorted(read.bytes), sorted(watch.profile().bytes))
        self.assertAlmostEqual(read.backward_s, watch.profile().backward_s, delta=0.2 * read.backward_s)
        self.assertIn("communication not hidden", texts["page.html"])
        self.assertIn("2 ranks", texts["page.html"])
        self.assertGreater(summary["best_cap"]["high_s"], summary["best_cap"]["low_s"])
        self.assertIn("predicted best: bucket_cap_mb=", lines[0][1])


SHORT = """
import logging, sys, torch, torch.distributed as dist, firkin
from torch.nn.parallel import DistributedDataParallel

def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = firkin.watch(model)
    for _ in range(int(sys.argv[1])):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()

logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
main()
"""


class EndTest(InAFolder):
    def test_a_program_shorter_than_a_window_is_told_of_when_it_ends(self):
        """Without close(), with its model and its group gone by then."""
        script = self.folder / "short.py"
        script.write_text(SHORT)
        for steps, expected in ((100, r"^WARNING firkin.watch, steps 2\d to 9\d, 2 ranks: .* a step\n  communication not hidden"),
                                (130, r"^WARNING firkin.watch, steps 2\d to 12\d, 2 ranks: "),
                                (15, r"^WARNING firkin.watch ends after 15 steps; expected more than warmup=20 and 3\n$")):  # fmt: skip
            said = torchrun(script, steps)
            self.assertRegex(said, expected)
            self.assertEqual(said.count("firkin.watch"), 1, said)


def watched_steps(net):
    """The watch of some steps of `net`."""
    ddp = ENGINES["stock"](net)
    with logged(), firkin.watch(ddp, warmup=WARMUP) as watch:
        step = models.step_of(ddp)
        for _ in range(12):
            step(ddp)
    return watch


def tuned(net, watched, **arguments):
    """How often firkin.tune steps, and its result."""
    calls = []

    def counting(model):
        calls.append(1)
        model(torch.ones(4, models.WIDTH)).sum().backward()

    result = firkin.tune(net, counting, watched=watched, restore=False, **models.QUICK | arguments)
    return len(calls), result


def says(result, what):
    return any(what in note for note in result.notes)


class TunedTest(unittest.TestCase):
    @on_ranks(2)
    def test_a_watch_of_the_model_replaces_the_profile(self):
        net = Net()
        watch, of_another = watched_steps(net), watched_steps(models.layers(2))
        (_, plain), (_, unlike) = (tuned(net, each) for each in (None, of_another))
        with mock.patch("firkin._tune.measured_profile", side_effect=AssertionError("backward is profiled")):
            _, from_watch = tuned(net, watch)
        self.assertEqual([says(each, "seen by firkin.watch") for each in (plain, from_watch, unlike)], [False, True, False])
        self.assertEqual(len(from_watch.profile), len(plain.profile))


@pytest.mark.full
class TunedForLonger(unittest.TestCase):
    @on_ranks(2)
    def test_caps_do_not_race_where_the_watch_saw_nothing_to_gain(self):
        net = Net()
        watch = watched_steps(net)
        without, _ = tuned(net, None, time_budget_s=30)
        counts = []
        for gain, is_said in ((0.0, True), (0.5, False)):
            if dist.get_rank() == 0:
                watch.summary()["gain_at_most_s"] = gain * watch.summary()["step_s"]
            count, result = tuned(net, watch, time_budget_s=30)
            self.assertEqual(says(result, "no buckets could gain more than 0.0 %"), is_said)
            counts.append(count)
        self.assertLess(counts[0], counts[1])
        self.assertLess(counts[0], without - 23)


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
    reports = [bool(watch.summary()) for watch in watches]
    return [*kept, *models.parameters_of(ddp)], reports


class ProgramsTest(unittest.TestCase):
    ranks, programs = 2, tuple(zip(PROGRAMS, itertools.cycle(ENGINES)))

    @on_ranks(2)
    def test_change_no_bit(self):
        with logged():
            for name, engine in self.programs:
                (without, _), (watched, reports) = (trained((PROGRAMS | COMPILED)[name], engine, is_watched) for is_watched in (False, True))
                self.assertTrue(models.same(without, watched), (name, engine))
                self.assertEqual(reports, [dist.get_rank() == 0] * 2, (name, engine))


@pytest.mark.full
class ProgramsOnThreeRanks(ProgramsTest):
    ranks, programs = 3, (*itertools.product(PROGRAMS, ENGINES), *itertools.product(COMPILED, ["default"]))
