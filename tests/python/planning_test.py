"""firkin.predict and firkin.assign_buckets, without PyTorch: the same figures as the program's, and errors of one line."""

import json
import pathlib
import subprocess
import sys
import unittest

import firkin
from firkin._core import Results, tune_steps
from folders import InAFolder

MIB = 1 << 20


def small_profile():
    return firkin.Profile(["head", "middle", "first"], [4 * MIB, 2 * MIB, 2 * MIB], [0.01, 0.02, 0.03], backward_s=0.04)


def small_curve(world_size=2):
    return firkin.AllReduceTable([firkin.AllReduceRow(MIB, world_size, 0.002), firkin.AllReduceRow(4 * MIB, world_size, 0.005)])


class AssignBuckets(unittest.TestCase):
    def test_arguments_reach_the_rule(self):
        self.assertEqual(firkin.assign_buckets([MIB, MIB, MIB, MIB], cap_mib=1.5), [[0, 1], [2, 3]])
        self.assertEqual(firkin.assign_buckets([MIB] * 4, cap_mib=2, first_cap_mib=1, rule="at-most"), [[0], [1, 2], [3]])


class Traces(unittest.TestCase):
    CORPUS = pathlib.Path(__file__).resolve().parents[1] / "fuzz/corpus/trace"  # gradients of 1000 and 50 elements at 90 and 190 us

    def test_the_profile_of_a_trace_is_what_predict_takes(self):
        for paths in (self.CORPUS / "cpu", [str(self.CORPUS / "cpu")]):
            with self.assertLogs("firkin", "INFO") as said:
                profile = firkin.read_trace(paths)
            self.assertEqual(profile.bytes, [4000, 200])
            self.assertAlmostEqual(profile.ready_s[1], 190e-6, places=9)
            self.assertIn("All gradients travel in one all-reduce", said.output[0])
            self.assertGreater(firkin.predict(profile, small_curve()).backward_s, 0)

    def test_parameters_say_names_and_must_be_those_of_the_run(self):
        with self.assertRaisesRegex(firkin.InputError, r"record_shapes=True"):
            firkin.read_trace(self.CORPUS / "gpu_no_shapes")
        parameters = [("first", 200), ("head", 4000)]
        self.assertEqual(firkin.read_trace(self.CORPUS / "gpu_no_shapes", parameters=parameters).names, ["head", "first"])
        with self.assertRaisesRegex(firkin.InputError, r"expected the 1 of parameters$"):
            firkin.read_trace(self.CORPUS / "gpu_no_shapes", parameters=parameters[:1])


class BadInput(unittest.TestCase):
    def test_is_one_line(self):
        for says, call in {
            "cap_mib: 0 is not a size; expected MiB": lambda: firkin.assign_buckets([1], 0),
            "rule 'tight'; expected close-when-full or at-most": lambda: firkin.assign_buckets([1], 1, "tight"),
            "1 names, 2 sizes and 1 ready times": lambda: firkin.Profile(["a"], [1, 2], [0]),
            "an all-reduce of 0 bytes": lambda: firkin.AllReduceRow(0, 2, 0.1),
            "an all-reduce takes -0.1 s": lambda: firkin.AllReduceRow(4, 2, -0.1),
            "no/such/file.csv: cannot be read": lambda: firkin.Profile.read_csv("no/such/file.csv"),
        }.items():
            with self.subTest(says):
                with self.assertRaises(ValueError) as caught:
                    call()
                self.assertIs(type(caught.exception), firkin.InputError)
                self.assertIn(says, str(caught.exception))
                self.assertNotIn("\n", str(caught.exception))


class FrontEnds(InAFolder):
    """The program and Python, of the same measurements."""

    def test_decide_alike(self):
        if not (pathlib.Path(firkin.__file__).parent / "bin/firkin").resolve().with_name("firkin-measure").exists():
            self.skipTest("this program was built without LibTorch")
        words = ["tune", "--ranks", "2", "--d-model", "32", "--d-ff", "64", "--num-layers", "3", "--batch", "1", "--sequence", "16"]
        words += ["--profile-steps", "6", "--allreduce-time", "0.2s", "--blocks", "6", "--rule", "close-when-full", "--out", self.out]
        ran = subprocess.run([sys.executable, "-m", "firkin", *words, "--json"], capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        said = json.loads(ran.stdout)
        tensors = said["profile"]["tensors"]
        profile = firkin.Profile(
            *([tensor[name] for tensor in tensors] for name in ("name", "bytes", "ready_s")),
            backward_s=said["profile"]["backward_s"], bare_backward_s=said["profile"]["bare_backward_s"],
        )  # fmt: skip
        rows = [firkin.AllReduceRow(row["bytes"], 2, row["median_s"], row.get("gap_s")) for row in said["allreduce"]]
        samples, asked = said["samples"], []
        gain = dict(zip(samples["settings"], samples["step_s"], strict=True))
        phases = [samples["calibration_step_s"], samples["race_step_s"], [gain[name] for name in ("none", "torch default", "chosen cap")]]

        def measure(what, settings, fewest, most, seconds, is_enough):
            asked.append([kwargs for _, kwargs in settings])
            return phases[len(asked) - 1]

        recommended, results = tune_steps(
            profile, firkin.AllReduceTable(rows), 2, measure, lambda: 0.0, lambda values: values, lambda setting, options: options
        )
        said_caps = [*(row["cap_mib"] for row in said["curve"]), said["decision"]["cap_mib"]]
        caps = [kwargs["bucket_cap_mb"] for kwargs in (*asked[1], asked[2][2])]
        self.assertEqual([round(MIB * cap) for cap in caps], [round(MIB * cap) for cap in said_caps])
        self.assertEqual(asked[2][:2], [{"static_graph": False}, {}])
        self.assertEqual(recommended, {"torch default": 1, "chosen cap": 2}[said["decision"]["recommended"]])
        ours = json.loads(results.to_json())
        # What the program measured beside them, ordered, says of a block as well; and it was told how many blocks to measure.
        others = {"measured_s": 0, "next_step": ""}
        self.assertEqual(ours["decision"] | others, said["decision"] | others)
        for section in ("curve", "over_default", "best_predicted", "best_measured"):
            self.assertEqual(ours[section], said[section], section)
        both = (results, Results.parse(json.dumps(said)))
        headings = [[line for line in str(each).splitlines() if line.startswith(("Set ", "Try ", "Keep "))] for each in both]
        self.assertEqual(headings[0], headings[1])
        self.assertEqual(len(headings[0]), 1)


class Predict(InAFolder):
    def test_says_what_the_program_says(self):
        profile, curve = small_profile(), small_curve()
        tensors, allreduce = self.folder / "tensors.csv", self.folder / "allreduce.csv"
        profile.write_csv(tensors)
        curve.write_csv(allreduce)
        words = [sys.executable, "-m", "firkin", "predict", "--json", "--tensors", tensors, "--allreduce", allreduce]
        said = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
        prediction = firkin.predict(firkin.Profile.read_csv(tensors), curve)
        ours = json.loads(prediction.to_json())
        for section in ("curve", "best_uniform", "best_plan", "baselines"):
            self.assertEqual(ours[section], said[section])
        self.assertEqual((prediction.world_size, prediction.notes), (2, said["notes"]))
        plan = said["best_plan"]
        self.assertEqual([list(bucket) for bucket in prediction.best_plan.buckets], [bucket["tensors"] for bucket in plan["buckets"]])
        self.assertEqual(prediction.best_plan.bucket_cap_mb_list, plan["bucket_cap_mb_list"])
        prediction.report(self.folder / "report.html")
        self.assertIn("<html", (self.folder / "report.html").read_text()[:500])

    def test_the_curve_has_the_wanted_caps(self):
        prediction = firkin.predict(small_profile(), small_curve(), caps_mib=[1, 8])
        self.assertEqual([(point.cap_mib, point.buckets) for point in prediction.curve], [(1, 3), (8, 1)])

    def test_a_table_of_several_worlds_needs_a_choice(self):
        rows = small_curve(2).rows + small_curve(4).rows
        with self.assertRaisesRegex(firkin.InputError, "curve: several world sizes; expected world_size with one of 2, 4"):
            firkin.predict(small_profile(), firkin.AllReduceTable(rows))
        self.assertEqual(firkin.predict(small_profile(), firkin.AllReduceTable(rows), world_size=4).world_size, 4)


class WithoutPyTorch(unittest.TestCase):
    def test_importing_firkin_does_not_import_torch(self):
        code = "import sys, firkin; firkin.assign_buckets([1]); sys.exit('torch' in sys.modules)"
        self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)

    def test_what_needs_torch_says_so_in_one_line_as_where_it_is_old(self):
        for torch, says in {
            "None": r"torch cannot be imported \(.*\); expected PyTorch 2.6 or later",
            "types.SimpleNamespace(__version__='2.4.1')": "torch 2.4.1 is installed; expected 2.6 or later",
        }.items():
            code = f"import sys, types; sys.modules['torch'] = {torch}\nimport firkin\ntry:\n    firkin.tune\nexcept firkin.InputError as e:\n    print(e)"
            said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
            self.assertRegex(said, f"^{says}\n$")


class Typing(unittest.TestCase):
    def test_stubs_and_marker_are_installed(self):
        folder = pathlib.Path(firkin.__file__).parent
        self.assertTrue((folder / "py.typed").exists())
        stub = (folder / "_core.pyi").read_text()
        for name in ("class Profile", "class AllReduceTable", "class Prediction", "def predict(", "def assign_buckets("):
            self.assertIn(name, stub)
