"""firkin.init_modelled_link: one process as one rank of many, with PyTorch's own DistributedDataParallel."""

import functools
import json
import os
import pathlib
import tempfile
import time
import unittest
from unittest import mock

import firkin
import torch
import torch.distributed as dist
from firkin._native import load_engine
from models import QUICK, Layers, inputs, raised, seeded, training_step
from ranks import with_ranks
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


def collectives_of_torch():
    """What a program calls besides its steps."""
    tensor, everyone = torch.full((3,), 5.0), [torch.zeros(3)]
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    dist.all_gather(everyone, tensor)
    dist.barrier()
    refused = raised(lambda: dist.reduce_scatter(torch.zeros(3), [tensor]))[1]
    return everyone[0].tolist(), dist.get_world_size(), "does not support reduce_scatter" in refused


def gradients_of(model, wrapped):
    torch.manual_seed(1)
    model.zero_grad()
    wrapped(inputs(model)).square().mean().backward()
    return [p.grad.clone() for p in model.parameters()]


def tuned(folder, model, step):
    result = firkin.tune(model, step, **QUICK)
    result.save(folder)
    with mock.patch("firkin._result._log.warning") as warned:
        result.wrap(model)
    again = firkin.load(folder)
    words = {"str": str(again), "summary": again.summary()}
    return result.choice, result.world_size, sorted(row.world_size for row in result.curve.rows), warned.call_count, words, again.results_json


def one_rank(rank, folder):
    """In the living process of a rank, whose group makes way for links; the last of these is left to ranks.py."""
    said = {"a group already": raised(lambda: firkin.init_modelled_link("1gbit", 16))}
    dist.destroy_process_group()
    table, model = write_table(folder), seeded(Layers, [64] * 5).float()
    step = training_step(model)
    for name, link, world in (
        ("one rank", table, 1), ("no number", table, None), ("no such file", f"{folder}/none.csv", 16), ("other ranks", table, 17),
        ("no link", "fast", 16),
    ):  # fmt: skip
        said[name] = raised(lambda link=link, world=world: firkin.init_modelled_link(link, world))
    with mock.patch.dict(os.environ, WORLD_SIZE="2"):
        said["a launcher"] = raised(lambda: firkin.init_modelled_link(table, 16))
    said["still no group"] = dist.is_initialized()

    firkin.init_modelled_link(table, world=16)
    said["collectives"] = collectives_of_torch()
    caps = {"one bucket": 25, "a bucket a layer": 0.001}
    said["step_s"] = {name: least_step_s(DDP(model, bucket_cap_mb=cap), step) for name, cap in caps.items()}
    said["same gradients"] = all(map(torch.equal, gradients_of(model, DDP(model)), gradients_of(model, model)))
    subgroup = DDP(model, process_group=dist.new_group([0]))
    said["step_s"]["a subgroup"] = least_step_s(subgroup, step)
    said["step_s"]["the engine"] = least_step_s(firkin.DistributedDataParallel(seeded(Layers, [64] * 5).float()), step)
    said["curve"] = [(r.bytes, r.world_size, r.median_s, r.gap_s, r.wrong) for r in firkin.measure_all_reduce(sizes=SIZES, time_budget_s=0.5).rows]
    said["tuned"] = tuned(f"{folder}/tuned", model, step)
    ddp = DDP(model)
    watch = firkin.watch(ddp, every=3, warmup=1)
    for _ in range(8):
        step(ddp)
    watch.close()
    said["watched"] = watch.summary()
    dist.destroy_process_group()

    firkin.init_modelled_link("100mbit,100us", world=64)
    said["another link"] = least_step_s(DDP(model), step)
    return said


@functools.cache
def said():
    with tempfile.TemporaryDirectory() as folder:
        (returned,) = with_ranks(1, one_rank, folder)
    return returned


class Link(unittest.TestCase):
    def test_steps_of_stock_ddp_take_the_links_time(self):
        least = {"one bucket": ALONE_S, "a bucket a layer": ALONE_S + GAP_S, "a subgroup": ALONE_S, "the engine": ALONE_S}
        for name, least_s in least.items():
            with self.subTest(name):
                self.assertGreaterEqual(said()["step_s"][name], least_s)

    def test_another_link_after_the_first_is_gone(self):
        self.assertGreaterEqual(said()["another link"], 2 * 63 * 1e-4)  # the latencies of a ring

    def test_gradients_and_collectives_are_those_of_one_rank(self):
        self.assertTrue(said()["same gradients"])
        self.assertEqual(said()["collectives"], ([5.0] * 3, 1, True))

    def test_the_table_measured_is_the_links(self):
        self.assertEqual([row[:2] for row in said()["curve"]], [(size, 16) for size in SIZES])
        for _, _, median_s, gap_s, wrong in said()["curve"]:
            self.assertGreaterEqual(median_s, ALONE_S)
            self.assertGreater(gap_s, 0)
            self.assertEqual(wrong, 0)

    def test_tune_chooses_for_all_ranks_and_says_that_the_link_is_modelled(self):
        choice, world, worlds, warnings, words, results = said()["tuned"]
        self.assertIn(choice, ("cap", "torch default"))
        self.assertEqual((world, set(worlds), warnings), (16, {16}, 0))
        self.assertRegex(json.loads(results)["environment"]["link"], r"slow\.csv, 16 ranks$")
        for where, text in words.items():
            with self.subTest(where):
                self.assertRegex(text, r"(?i)modelled link \(.*slow\.csv, 16 ranks\)")

    def test_watch_sees_the_exposed_link(self):
        self.assertEqual(said()["watched"]["ranks"], 1)
        self.assertGreater(said()["watched"]["exposed_s"], 0)

    def test_wrong_input_is_one_line_and_leaves_no_group(self):
        expected = {
            "a group already": "there is a process group already; expected none, or destroy_process_group() first",
            "one rank": "world 1; expected the number of ranks that the link is modelled for, at least 2",
            "no number": "world None; expected the number",
            "no such file": "none.csv",
            "other ranks": "slow.csv: no all-reduce was measured at world size 17; expected one of 16, 64",
            "no link": "init_modelled_link: fast: expected RATE[,LATENCY]",
            "a launcher": "a launcher started 2 ranks; expected one process, which stands for one of 16",
        }
        for name, words in expected.items():
            with self.subTest(name):
                kind, message = said()[name]
                self.assertEqual(kind, "InputError", message)
                self.assertIn(words, message)
                self.assertNotIn("\n", message)
        self.assertFalse(said()["still no group"])

    def test_an_engine_that_is_not_built_is_said(self):
        with mock.patch("importlib.import_module", side_effect=ImportError):
            kind, message = raised(load_engine)
        self.assertEqual(kind, "InputError")
        self.assertIn("installed without its C++ engine; expected it to be built: FIRKIN_PYTHON_ENGINE=1", message)


if __name__ == "__main__":
    unittest.main()
