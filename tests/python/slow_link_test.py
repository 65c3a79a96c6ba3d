"""firkin.init_modelled_link: one process as one rank of many, with PyTorch's own DistributedDataParallel."""

import contextlib
import json
import os
import pathlib
import sys
import tempfile
import time
from unittest import mock

import firkin
import torch
import torch.distributed as dist
from firkin._native import load_engine
from models import QUICK, Layers, TestCase, inputs, raised, refusals, same, seeded, step_of
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel as DDP

ALONE_S, GAP_S = 0.004, 0.002  # of every size on the link
SIZES = (4, 1 << 10, 1 << 16)


def write_table(folder):
    file = pathlib.Path(folder) / "slow.csv"
    rows = [f"{size},{world},{ALONE_S},{GAP_S}" for world in (16, 64) for size in (4, 1 << 20)]
    file.write_text("\n".join(["bytes,world_size,median_s,gap_s", *rows, ""]))
    return str(file)


def least_step_s(wrapped, step, steps=2):
    step(wrapped)  # in the first, PyTorch makes one bucket, whatever the cap
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        step(wrapped)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


@contextlib.contextmanager
def linked(link="", world=16):
    """In the place of the group of a living rank, which makes way; ranks.py takes the link away. Otherwise the link of write_table()."""
    dist.destroy_process_group()
    with tempfile.TemporaryDirectory() as folder:
        firkin.init_modelled_link(link or write_table(folder), world=world)
        yield folder


def made():
    model = seeded(Layers, [64] * 5).float()
    return model, step_of(model)


class Link(TestCase):
    @on_ranks(1)
    def test_steps_take_the_links_time(self):
        with linked():
            model, step = made()
            self.assertGreaterEqual(least_step_s(DDP(model), step), ALONE_S)
            self.assertGreaterEqual(least_step_s(DDP(model, bucket_cap_mb=0.001), step), ALONE_S + GAP_S)  # a bucket a layer
            self.assertGreaterEqual(least_step_s(DDP(model, process_group=dist.new_group([0])), step), ALONE_S)
            self.assertGreaterEqual(least_step_s(firkin.DistributedDataParallel(made()[0]), step), ALONE_S)
        with linked("100mbit,100us", world=64):  # another one after the first is gone
            self.assertGreaterEqual(least_step_s(DDP(model), step), 2 * 63 * 1e-4)  # the latencies of a ring

    @on_ranks(1)
    def test_gradients_and_collectives_are_those_of_one_rank(self):
        with linked():
            model, _ = made()
            x, gradients = inputs(model), []
            for wrapped in (DDP(model), model):
                model.zero_grad()
                wrapped(x).square().mean().backward()
                gradients.append([p.grad.clone() for p in model.parameters()])
            self.assertTrue(same(*gradients))

            tensor, everyone = torch.full((3,), 5.0), [torch.zeros(3)]
            dist.all_reduce(tensor)
            dist.broadcast(tensor, 0)
            dist.all_gather(everyone, tensor)
            dist.barrier()
            self.assertEqual((everyone[0].tolist(), dist.get_world_size()), ([5.0] * 3, 1))
            self.assertIn("does not support reduce_scatter", raised(lambda: dist.reduce_scatter(torch.zeros(3), [tensor]))[1])

    @on_ranks(1)
    def test_the_table_measured_is_the_links(self):
        with linked():
            rows = firkin.measure_all_reduce(sizes=SIZES, time_budget_s=0.5).rows
        self.assertEqual([(row.bytes, row.world_size, row.wrong) for row in rows], [(size, 16, 0) for size in SIZES])
        for row in rows:
            self.assertGreaterEqual(row.median_s, ALONE_S)
            self.assertGreater(row.gap_s, 0)

    @on_ranks(1)
    def test_tune_chooses_for_all_ranks_and_says_that_the_link_is_modelled(self):
        with linked() as folder:
            model, step = made()
            result = firkin.tune(model, step, **QUICK)
            result.save(folder)
            with mock.patch("firkin._result._log.warning") as warned:
                result.wrap(model)
            again = firkin.load(folder)
        warned.assert_not_called()
        self.assertIn(result.choice, ("cap", "torch default"))
        self.assertEqual((result.world_size, {row.world_size for row in result.curve.rows}), (16, {16}))
        self.assertRegex(json.loads(again.results_json)["environment"]["link"], r"slow\.csv, 16 ranks$")
        for text in (str(again), again.summary()):
            self.assertRegex(text, r"(?i)modelled link \(.*slow\.csv, 16 ranks\)")

    @on_ranks(1)
    def test_watch_sees_the_exposed_link(self):
        with linked():
            model, step = made()
            ddp = DDP(model)
            watch = firkin.watch(ddp, every=3, warmup=1)
            for _ in range(8):
                step(ddp)
            watch.close()
        self.assertEqual(watch.summary()["ranks"], 1)
        self.assertGreater(watch.summary()["exposed_s"], 0)

    @on_ranks(1)
    def test_an_engine_without_cuda_models_links_of_cpus_beside_a_gpu(self):
        a_gpu = mock.patch.multiple("torch.cuda", is_available=lambda: True, current_device=lambda: 0)
        without_cuda = mock.patch.object(load_engine(), "has_cuda", False)
        with a_gpu, without_cuda, self.assertLogs("firkin", "WARNING") as logs, linked():
            model, step = made()
            self.assertGreaterEqual(least_step_s(DDP(model), step), ALONE_S)
            self.assertEqual(firkin.measure_all_reduce(sizes=SIZES[:1], time_budget_s=0.1).rows[0].world_size, 16)
        self.assertIn("built without CUDA: the link carries tensors of the CPU alone", logs.output[0])

    @on_ranks(1)
    def test_wrong_input_is_one_line_and_leaves_no_group(self):
        def link(link, world=16, **launched):
            with mock.patch.dict(os.environ, launched):
                firkin.init_modelled_link(link, world)

        self.assert_refused(refusals({
            "there is a process group already; expected none, or destroy_process_group() first": lambda: link("1gbit"),
        }))  # fmt: skip
        dist.destroy_process_group()
        with tempfile.TemporaryDirectory() as folder:
            table = write_table(folder)
            self.assert_refused(refusals({
                "world 1; expected the number of ranks that the link is modelled for, at least 2": lambda: link(table, 1),
                "world None; expected the number": lambda: link(table, None),
                "none.csv": lambda: link(f"{folder}/none.csv"),
                "slow.csv: no all-reduce was measured at world size 17; expected one of 16, 64": lambda: link(table, 17),
                "a modelled link with sms=2 on the CPU; expected a GPU": lambda: link("1gbit,sms=2"),
                "init_modelled_link: fast: expected RATE[,LATENCY]": lambda: link("fast"),
                "a launcher started 2 ranks; expected one process, which stands for one of 16": lambda: link(table, WORLD_SIZE="2"),
            }))  # fmt: skip
        self.assertFalse(dist.is_initialized())

    def test_an_engine_that_is_not_built_is_said(self):
        line = f"without its C++ engine; expected it to be built for torch {torch.__version__}: FIRKIN_PYTHON_ENGINE=1"
        with mock.patch.dict(sys.modules, {"firkin._engine_torch": None}):
            for name in ("DistributedDataParallel", "OverlappedOptimizer", "ShardedOptimizer", "init_modelled_link"):
                self.assert_refused(refusals({line: lambda: firkin.__getattr__(name)}))
