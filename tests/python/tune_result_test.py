"""What firkin.tune says: while it runs, on the command line, and in its result, which is kept, copied, looked at and taken to more ranks."""

import argparse
import atexit
import contextlib
import copy
import importlib
import io
import json
import os
import pathlib
import pickle
import runpy
import sys
import tempfile
import time
import unittest
from unittest import mock

import firkin
import pytest
import torch.distributed as dist
from firkin import _tune
from folders import InAFolder
from launched import torchrun
from models import QUICK, TestCase, layers, plain, refusals, step_of
from ports import reserved_port
from ranks import of_all, on_ranks

SCRIPT = pathlib.Path(__file__).resolve().parent / "small_script.py"


class Result(TestCase):
    @on_ranks(2)
    def test_is_kept_copied_looked_at_and_taken_to_frameworks_and_more_ranks(self):
        model = layers()
        step = step_of(model)
        options = {"process_group": dist.group.WORLD, "gradient_as_bucket_view": True}
        result = firkin.tune(model, step, ddp_kwargs=options, **QUICK)
        again = pickle.loads(pickle.dumps(result))
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):  # the first one gets a number
                result.save(folder)
            kept = sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).glob("tuned*.json"))
            found = firkin.load(folder)
            self.assert_refused(refusals({
                "none/tuned.json: No such file or directory; expected the folder of a saved result": lambda: firkin.load(folder + "/none"),
                "plan: made for another model": lambda: found.wrap(layers(2)),
                "for_: 'jax'; expected one of torch, transformers": lambda: found.for_("jax"),
            }))  # fmt: skip
        self.assertEqual(kept, ["tuned.1.json", "tuned.json"])
        for each in (again, found, copy.deepcopy(result)):
            self.assertEqual(each.to_dict(), result.to_dict())
        self.assertEqual(json.loads(json.dumps(result.to_dict()))["results"]["decision"], result.decision)
        self.assertIn(result.decision["certainty"], ("shown", "likely, not shown", "not told apart", "nothing to gain"))
        gained = result.to_dict()
        over_default = {"ratio": 0.8, "ratio_ci": {"low": 0.5, "high": 1.25}}
        gained["results"]["decision"] = {
            **{name: value for name, value in result.decision.items() if name not in ("options", "options_over_none", "all_over_default")},
            "outcome": "gain", "recommended": "chosen cap", "over_default": over_default,
        }  # fmt: skip
        gained = firkin.TuneResult.from_dict(gained)
        self.assertEqual((gained.choice, gained.speedup, gained.speedup_ci), ("cap", 1.25, (0.8, 2.0)))
        self.assertTrue(found.ddp_kwargs()["gradient_as_bucket_view"])
        self.assertNotIn("process_group", found.ddp_kwargs())

        ddp = found.wrap(model)
        self.assert_refused(refusals({"check: no rebuild of the buckets is logged yet": lambda: found.check(ddp)}))
        for _ in range(4):
            step(ddp)
        self.assertRegex(found.check(ddp), r"^check: \d+ buckets, as tuned: ")

        self.assertLess(len(repr(result)), 200)
        self.assertRegex(repr(result), r"[\d.]+ ms a step")
        self.assertTrue(result.speedup_ci[0] <= result.speedup <= result.speedup_ci[1])

        self.assertEqual(found.for_("transformers")["ddp_find_unused_parameters"], False)
        self.assertNotIn("bucket_cap_mb_list", found.for_("accelerate"))
        self.assertTrue(found.for_("accelerate")["gradient_as_bucket_view"])
        self.assertEqual(found.for_("torch"), found.for_("lightning"))
        size = round(result.cap_mib * 2**20)
        self.assertEqual(found.for_("deepspeed"), {"reduce_bucket_size": size // 4})
        self.assertEqual(found.for_("megatron-lm"), {"ddp_bucket_size": size // 4})
        self.assertEqual(found.for_("horovod"), {"HOROVOD_FUSION_THRESHOLD": size})

        scale = result.at(64)
        self.assertIn("EXTRAPOLATED: 64 ranks were not measured", str(scale).replace("\n", " "))
        self.assertGreater(scale.best_cap.cap_mib, 0)
        here = result.at(64, firkin.AllReduceTable([firkin.AllReduceRow(row.bytes, 64, row.median_s) for row in result.curve.rows]))
        self.assertNotIn("EXTRAPOLATED", str(here))


@pytest.mark.full
class SlowSteps(TestCase):
    @on_ranks(2)
    def test_slow_steps_are_fewer_and_what_they_cannot_tell_is_said(self):
        model, calls = layers(), [0]

        def slow(wrapped, optimizer, x):
            calls[0] += 1
            time.sleep(0.2)
            plain(wrapped, optimizer, x)

        result = firkin.tune(model, step_of(model, slow), time_budget_s=6.0, progress=False)
        self.assertLessEqual(calls[0] * 0.2, 1.25 * 6.0)
        for said in ("the prediction chose", "cannot show a gain"):
            self.assertTrue(any(said in note for note in result.notes), result.notes)
        self.assertRegex(result.summary(), r"(?s)^(Set|Keep) .*\n  paste   DistributedDataParallel\(model.*\)\n")


class Progress(unittest.TestCase):
    def test_a_line_says_how_far_it_is_and_the_time_left(self):
        with contextlib.redirect_stderr(io.StringIO()) as lines:
            progress = _tune.Progress(expected_s=100.0, shown=True)
            progress.at("profiling")
            progress.at("too soon for another line")
        self.assertEqual(lines.getvalue(), "firkin.tune   0% profiling, 100 s left\n")

    def test_a_budget_that_cannot_hold_is_a_warning_and_its_bar_is_longer(self):
        progress, notes = mock.Mock(), []
        job = _tune._Job(mock.Mock(rank=0), None, {}, [], 5.0, 0, True, progress)
        with self.assertLogs("firkin", "WARNING") as logged:
            job.effort(step_s=2.0, remaining_s=4.0, notes=notes)
        self.assertRegex(logged.output[0], r"tune: with steps of 2 s tuning takes about \d\d s, not 5$")
        self.assertGreater(progress.expected_s, 5.0)
        self.assertRegex(notes[0], "calibrated on only 2 settings")
        self.assertEqual(job.effort(step_s=0.01, remaining_s=4.0, notes=[]), _tune._THOROUGH)


def command(*words):
    """Its exit code, and what it says on standard error."""
    main = runpy.run_path(firkin.__path__[0] + "/tune.py")["main"]
    with mock.patch.object(sys, "argv", ["firkin.tune", *words]), contextlib.redirect_stderr(io.StringIO()) as lines:
        try:
            code = main()
        except SystemExit as ended:
            code = ended.code
    return code, lines.getvalue()


class CommandLine(InAFolder, TestCase):
    def test_ends_with_the_programs_code_whatever_became_of_its_streams(self):
        leave = runpy.run_path(firkin.__path__[0] + "/tune.py")["leave"]
        closed, full = io.StringIO(), mock.Mock(flush=mock.Mock(side_effect=OSError("full")))
        closed.close()
        for stream in (closed, None, full):
            with mock.patch.object(atexit, "_run_exitfuncs"), mock.patch.object(os, "_exit") as ended:
                with mock.patch.multiple(sys, stdout=stream, stderr=stream):
                    leave(2)
            ended.assert_called_once_with(2)

    @on_ranks(2)
    def test_a_scripts_own_flags_and_process_group(self):
        with tempfile.TemporaryDirectory() as folder, reserved_port() as reserved:
            out, port = of_all((folder + "/out", str(reserved)))[0]
            dist.destroy_process_group()
            words = ["--cap-mib", "0.02", "1", f"{SCRIPT}:build_as_programs_do", "--time-budget-s", "1", "--out", out]
            with mock.patch.dict(os.environ, MASTER_PORT=port), contextlib.redirect_stdout(io.StringIO()) as printed:
                code, said = command(*words, "--", "--layers", "6")
            self.assertEqual(code, 0, said)
            self.assertIn("6 layers on 2 ranks\n", printed.getvalue())
            if os.environ["RANK"] == "0":
                self.assertEqual(firkin.load(out).world_size, 2)
                self.assertRegex(said, r"firkin.tune +\d+% .* left|about to end")

    def test_the_gpu_of_this_rank_is_chosen_before_the_script_is_imported(self):
        script = self.folder / "json.py"  # it replaces no module that is in use
        script.write_text("import torch\ntorch.cuda.set_device('of the script')\ndef build(): pass\n")
        run = runpy.run_module("firkin.tune", run_name="command line")["run"]
        started = {"RANK": "3", "LOCAL_RANK": "1"}
        with mock.patch("torch.cuda.is_available", return_value=True), mock.patch("torch.cuda.set_device") as chosen:
            with mock.patch.dict(os.environ, started), mock.patch.object(dist, "init_process_group", side_effect=ConnectionError) as joined:
                with self.assertRaises(ConnectionError):
                    run(argparse.Namespace(target=f"{script}:build", link=None, world=None))
        self.assertEqual(chosen.mock_calls, [mock.call(1), mock.call("of the script")])
        joined.assert_called_once_with("nccl")
        self.assertTrue(sys.modules["json"].loads)

    def test_a_module_of_a_package_is_named_as_for_torchrun(self):
        package = self.folder / "some_package"
        package.mkdir()
        for name, text in {"__init__": "", "script": "from .steps import build", "steps": "def build(): return 'built'", "lacks": "import nothing_here"}.items():
            (package / f"{name}.py").write_text(text)
        load = runpy.run_path(firkin.__path__[0] + "/tune.py")["load_builder"]
        with mock.patch.object(sys, "path", [str(self.folder), *sys.path]):
            self.assertEqual(load("some_package.script:build")(), "built")
            self.assert_refused(refusals({
                "script.py: ImportError: attempted relative import with no known parent package; expected": lambda: load(f"{package}/script.py:build"),
                "some_package.script:build": lambda: load(os.path.relpath(package / "script.py") + ":build"),
                "'some_package.other:build': No module named 'some_package.other'; expected FILE.py": lambda: load("some_package.other:build"),
                "'a/b:build': expected FILE.py:FUNCTION, with an existing file, or MODULE:FUNCTION": lambda: load("a/b:build"),
            }))  # fmt: skip
            with self.assertRaisesRegex(ModuleNotFoundError, "nothing_here"):
                load("some_package.lacks:build")

    def test_a_wrong_target_and_variables_that_are_half_set_are_one_line_and_2(self):
        half = {"RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        for variables, function, said in (
            ({}, "nothing", r".*/small_script\.py: no function 'nothing'"),
            ({"RANK": "1"}, "nothing", r".*/small_script\.py: no function 'nothing'"),  # other ranks speak as well
            ({}, "build", "no ranks; expected a start by torchrun: .*"),
            (half, "build", ".* WORLD_SIZE expected, but not set; expected RANK, .* as torchrun sets them"),
            (half | {"WORLD_SIZE": "1"}, "build", "RANK is 1 and WORLD_SIZE 1; expected RANK, .* as torchrun sets them"),
        ):
            with self.subTest(said), mock.patch.dict(os.environ, variables):
                code, lines = command(f"{SCRIPT}:{function}")
                self.assertEqual(code, 2)
                self.assertRegex(lines, f"^firkin: {said}\n$")

    @on_ranks(2)
    def test_an_output_that_cannot_be_written_is_one_line_and_1(self):
        refused = "firkin: standard output cannot be written: [Errno 28] No space left on device\n"
        with mock.patch("firkin.tune", return_value=mock.Mock(results_json="{}")):
            with io.TextIOWrapper(open("/dev/full", "wb", buffering=0), write_through=True) as full, contextlib.redirect_stdout(full):
                self.assertEqual(command(f"{SCRIPT}:build", "--json"), (1, refused) if os.environ["RANK"] == "0" else (0, ""))

    @on_ranks(2)
    def test_an_output_whose_reader_has_gone_is_no_error(self):
        with mock.patch("firkin.tune", return_value=mock.Mock(results_json="{}")):
            reader, writer = os.pipe()
            os.close(reader)
            with io.TextIOWrapper(open(writer, "wb", buffering=0), write_through=True) as gone, contextlib.redirect_stdout(gone):
                self.assertEqual(command(f"{SCRIPT}:build", "--json"), (0, ""))

    @on_ranks(2)
    def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_tuned(self):
        with mock.patch("firkin.tune", side_effect=AssertionError("tuned")):
            said = command(f"{SCRIPT}:build", "--out", "/dev/null/out")
        self.assertEqual(said, (2, "firkin: rank 0: --out /dev/null/out: /dev/null is not a folder\n"))

    def test_the_name_stays_the_function(self):
        importlib.import_module("firkin.tune")
        self.assertEqual((firkin.tune.__name__, callable(firkin.tune)), ("tune", True))


@pytest.mark.full
class StartedByTorchrun(InAFolder):
    def test_a_process_group_that_the_script_makes_when_it_is_imported(self):
        script = self.folder / "json.py"  # it replaces no module that is in use
        script.write_text(f"import sys, torch.distributed as dist\nsys.path.append({str(SCRIPT.parent)!r})\n"
                          "dist.init_process_group('gloo')\nfrom small_script import build\n")  # fmt: skip
        torchrun("-m", "firkin.tune", f"{script}:build", "--time-budget-s", "1", "--out", self.folder / "out")

    def test_a_collective_under_way_at_the_end_is_no_failure(self):
        torchrun("-m", "firkin.tune", f"{SCRIPT}:build_and_communicate_at_the_end", "--time-budget-s", "1", "--out", self.folder)
