"""The one-line examples of the documentation's pages, run as they stand there on two ranks.

A span of code that calls the package needs a line in EXAMPLES: what its names are. One that is not there fails the test.
"""

import contextlib
import functools
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import unittest
from unittest import mock

import firkin
import torch
import torch.distributed as dist
from folders import folder_until
from models import QUICK, layers, step_of
from ranks import of_all, on_ranks
from torch.nn.parallel import DistributedDataParallel

ROOT = pathlib.Path(os.environ.get("FIRKIN_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
PAGES = ["README.md", "docs/*.md", "examples/*/README.md"]

MODEL = "model = layers(); step = step_of(model)"
WRAPPED = "model = DistributedDataParallel(layers())"
RESULT = f"{MODEL}; result = firkin.tune(model, step)"
WATCHED = "net = layers(); step = step_of(net); model = DistributedDataParallel(net); watch = firkin.watch(model); steps(model, step)"
ENGINE = "net = model = layers()"
EXAMPLES = {  # what stands on a page, and what comes before
    "firkin.watch(model)": WRAPPED,
    "table=firkin.measure_all_reduce()": "",
    "firkin.measure_all_reduce(group)": "group = dist.group.WORLD",
    "firkin.predict(profile, table, world_size=512)": f"{RESULT}; profile, table = result.profile, result.curve",
    "result = firkin.tune(model, step)": MODEL,
    "firkin.tune(model, step, also=[bank])": f"{MODEL}; bank = torch.zeros(3)",
    "firkin.tune(net, step, watched=watch)": f"{WATCHED}; watch.close(); del model",
    "watch.trace(path)": f"{WATCHED}; path = folder / 'trace.json'",
    "watch.report(path)": f"{WATCHED}; path = folder / 'watch.html'",
    "watch.summary()": WATCHED,
    "watch.close()": WATCHED,
    "firkin.read_trace(paths)": f"{WATCHED}; watch.trace(folder / 'trace.json'); dist.barrier(); paths = [folder / 'trace.json']",
    "result.at(2048)": RESULT,
    'result.save("tune")': RESULT,
    'firkin.load("tune").wrap(model)': f"{RESULT}; result.save('tune')",
    "result.for_(tool)": f"{RESULT}; tool = 'deepspeed'",
    "firkin.DistributedDataParallel(net, cap_mib=4)": ENGINE,
    'firkin.DataParallel(model, buckets="automatic")': ENGINE,
    "firkin.ShardedOptimizer(model, torch.optim.AdamW, lr=1e-3)": "model = firkin.DataParallel(layers(), strategy='sharded')",
}
# Those that need another package are lines of scripts that integrations_test.py runs.
OF_FRAMEWORKS = {
    "trainer.add_callback(firkin.integrations.for_transformers(trainer))": "firkin.integrations.for_transformers(trainer",
    "Trainer(callbacks=[firkin.integrations.for_lightning()])": "firkin.integrations.for_lightning(",
    'TrainingArguments(**result.for_("transformers"))': 'TrainingArguments(**result.for_("transformers"))',
    'DistributedDataParallelKwargs(**result.for_("accelerate"))': 'DistributedDataParallelKwargs(**result.for_("accelerate"))',
    'DDPStrategy(**result.for_("lightning"))': 'DDPStrategy(**result.for_("lightning"))',
    "DDPStrategy(**result.ddp_kwargs())": "DDPStrategy(**ddp_kwargs)",
    "prepare_model(model, parallel_strategy_kwargs=result.ddp_kwargs())": None,  # Ray, which the page says was not run
}
CALLS_THE_PACKAGE = re.compile(r"\bfirkin\.(?!watch`)\w+[\w.]*\(|\b(?:result|watch)\.\w+\(")


def examples() -> dict[str, str]:
    """Spans that call the package, and the page of each."""
    found = {}
    for page in sorted({page for pattern in PAGES for page in ROOT.glob(pattern)}):
        prose = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
        for span in re.findall(r"`([^`]+)`", prose):
            if CALLS_THE_PACKAGE.search(span):
                found[" ".join(span.split())] = str(page.relative_to(ROOT))
    return found


def steps(model: torch.nn.Module, step) -> None:
    for _ in range(30):
        step(model)


class Pages(unittest.TestCase):
    def test_every_example_is_run_by_a_test(self):
        found = examples()
        self.assertGreater(len(found), 15)
        self.assertEqual({span: page for span, page in found.items() if span not in EXAMPLES and span not in OF_FRAMEWORKS}, {})
        scripts = [*ROOT.glob("examples/python/*.py"), *ROOT.glob("tests/python/integrations_*.py")]
        text = "\n".join(script.read_text() for script in scripts)
        self.assertEqual({line for line in OF_FRAMEWORKS.values() if line and line not in text}, set(), "in no script")

    @on_ranks(2)
    def test_they_run_as_they_stand_there(self):
        ours = folder_until(self.addCleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(ours)  # where "tune" is saved
        names = {"firkin": firkin, "torch": torch, "dist": dist, "DistributedDataParallel": DistributedDataParallel, "layers": layers,
                 "step_of": step_of, "steps": steps, "folder": pathlib.Path(of_all(str(ours))[0])}  # fmt: skip
        shorter = {"firkin.tune": functools.partial(firkin.tune, **QUICK), "firkin.watch": functools.partial(firkin.watch, every=10, warmup=3),
                   "firkin.measure_all_reduce": functools.partial(firkin.measure_all_reduce, sizes=[1024, 65536], time_budget_s=0.1)}  # fmt: skip
        has_engine = importlib.util.find_spec("firkin._engine") is not None
        with contextlib.ExitStack() as patches:
            for name, function in shorter.items():
                patches.enter_context(mock.patch(name, function))
            for example, before in EXAMPLES.items():
                if not has_engine and re.search(r"firkin\.\w*DataParallel\(|Sharded", example):
                    continue
                with self.subTest(example):
                    scope = dict(names)
                    exec(before, scope)
                    exec(example, scope)
                    dist.barrier()

    def test_the_callbacks_need_no_import_of_their_own(self):
        code = "import firkin; assert callable(firkin.integrations.for_transformers); assert 'integrations' in dir(firkin)"
        subprocess.run([sys.executable, "-c", code], check=True)

