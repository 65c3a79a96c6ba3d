"""`firkin import` and `firkin predict` as a user meets them, on CMSC 828G's measurements of gpt2-large on 8 A100 GPUs.

Neither command needs LibTorch.
"""

import csv
import json
import pathlib
import re

from program import InFolder

DATA = pathlib.Path(__file__).resolve().parents[2] / "data" / "cmsc828g"
SIZES = DATA / "layer-sizes-gpt2_large-bs4.csv"
TIMES = DATA / "layer-times-gpt2_large-bs4.csv"
ALLREDUCE = DATA / "allreduce-times.csv"
TIED_BYTES = 4 * 64_328_960
MIB = 1 << 20


class OfGpt2Large(InFolder):
    def import_gpt2_large(self):
        return self.assert_succeeds("import", TIMES, ALLREDUCE, SIZES, "--out", self.out, "--json")

    def inputs(self):
        return ["--tensors", self.out / "tensors.csv", "--allreduce", self.out / "allreduce.csv"]


class NamedModelOnAPublishedCluster(InFolder):
    """Without a measurement: the map's own cells, by the program."""

    def predicted(self, *arguments):
        return json.loads(self.assert_succeeds("predict", *arguments, "--json").stdout)

    def test_flags_reach_the_assumption(self):
        one = self.predicted("--model", "small", "--gpu", "h100", "--cluster", "azure-nd-a100", "--world", "64", "--batch", "4", "--sequence", "256")
        half = self.predicted("--model", "small", "--gpu", "h100", "--cluster", "azure-nd-a100-64", "--batch", "4", "--sequence", "256", "--utilization", "0.2")
        self.assertAlmostEqual(half["model"]["backward_s"] / one["model"]["backward_s"], 2, delta=1e-6)

    def test_a_gain_that_hangs_on_assumed_computing_is_not_told_apart(self):
        """The course measured 829 ms of backward, where the default is best."""
        words = ["--model", "gpt2-large", "--batch", "4", "--cluster", "zaratan"]
        result = self.predicted(*words)
        self.assertTrue(result["model"]["compute_assumed"])
        self.assertLessEqual(result["over_default"]["low"], 0)
        said = " ".join(self.assert_succeeds("predict", *words).stdout.split())
        self.assertIn("Keep PyTorch's default until steps are measured", said)
        self.assertIn("Computing times are assumed: measured ones (`firkin import`) narrow this.", said)

    def test_a_log_may_stand_beside_a_named_model(self):
        result = self.predicted("--model", "gpt2", "--gpu", "a100", "--allreduce", ALLREDUCE)
        self.assertEqual(result["model"]["tensors"], 148)
        self.assertIn("nothing was measured of gpt2", " ".join(result["notes"]))

    def test_what_is_missing_or_unknown_is_one_line(self):
        for arguments, expected in [
            (["--model", "gpt2"], "expected --allreduce or --cluster"),
            (["--cluster", "zaratan"], "expected --tensors or --model"),
            (["--model", "gpt2", "--allreduce", ALLREDUCE], "expected --gpu too"),
            (["--model", "gpt2", "--cluster", "mine"], "unknown cluster 'mine'; expected one of alps-gh200"),
            (["--model", "gpt5", "--cluster", "zaratan"], "unknown model 'gpt5'"),
            (["--model", "gpt2", "--cluster", "zaratan", "--sequence", "2048"], "context_length 1024"),
            (["--model", "gpt2", "--cluster", "azure-nd-a100"], "several world sizes"),
            (["--model", "gpt2", "--cluster", "aws-p4de-16", "--world", "32"], "names 16 ranks"),
            (["--model", "gpt2", "--gpu", "abacus", "--cluster", "zaratan"], "abacus"),
            (["--model", "gpt2", "--tensors", "t.csv", "--cluster", "zaratan"], "excludes"),
            (["--batch", "4", "--tensors", "t.csv", "--cluster", "zaratan"], "requires --model"),
        ]:
            self.assert_refused("predict", *arguments, mentions=expected)


class SuspiciousTables(InFolder):
    def test_get_one_warning_in_words(self):
        """Legal, but unable to say what is asked of them."""
        several = "1024,8,0.001\n1048576,8,0.002\n"
        for tensors, allreduce, said in [
            ("a,1048576,0.1\n", "1048576,8,0.002\n", "has one size for 8 ranks, 1 MiB"),
            ("a,1048576,0.1\n", "1048576,8,0.002\n4194304,8,0.007\n", "the smallest all-reduce of 8 ranks is 1 MiB: the table does not show"),
            ("a,1048576,0.1\n", "1024,8,0.001\n1048576,8,3000\n", "an all-reduce of 1 MiB among 8 ranks takes 3000 seconds"),
            ("a,1048576,100\n", several, "backward takes 100 seconds by ready_s: is that column in milliseconds?"),
            ("a,1048576,0.1\n", several, None),  # nothing is wrong
        ]:
            (self.folder / "t.csv").write_text("name,bytes,ready_s\n" + tensors)
            (self.folder / "a.csv").write_text("bytes,world_size,median_s\n" + allreduce)
            result = self.assert_succeeds("predict", "--tensors", self.folder / "t.csv", "--allreduce", self.folder / "a.csv")
            text = " ".join(result.stdout.split())
            self.assertIn(said, text) if said else self.assertNotIn("Note:", text)


class Import(OfGpt2Large):
    def test_cmsc828g_counts_the_tied_weight_once_and_says_so(self):
        result = self.import_gpt2_large()
        answer = json.loads(result.stdout)
        self.assertEqual((answer["tensors"], answer["gradient_bytes"], answer["measurements"]), (436, 4 * 774_030_080, 19))
        self.assertIn("'Token embedding' and 'LM head'", result.stderr)
        self.assertEqual(sorted(f.name for f in self.out.iterdir()), ["allreduce.csv", "tensors.csv"])
        self.assertIn(f"\ntoken_embeddings.weight,{TIED_BYTES},", (self.out / "tensors.csv").read_text())

    def test_nccl_tests_table(self):
        self.out.mkdir()
        log = self.out / "log.txt"
        log.write_text("# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
                       "1024 256 float sum -1 20.0 0.05 0.09 0 25.0 0.04 0.07 0\n")
        said = ["--world", 8, "--collective", "all_reduce"]
        for flags, expected in ([], 20e-6), (["--in-place"], 25e-6):
            result = self.assert_succeeds("import", log, *said, "--out", self.out, "--json", *flags)
            self.assertEqual(json.loads(result.stdout)["world_sizes"], [8])
            with open(self.out / "allreduce.csv", newline="") as file:
                self.assertAlmostEqual(float(next(csv.DictReader(file))["median_s"]), expected, places=12)
        self.assert_refused("import", log, "--world", 8, mentions="log.txt:1: which collective was timed is not stated; "
                                                                  "expected --collective all_reduce if it is that")
        self.assert_refused("import", log, "--collective", "all_gather", mentions="all_gather not in {all_reduce}")
        self.assert_refused("import", log, "--world", 1, mentions="--world: 1: expected a whole number from 2 to 65536")


class Predict(OfGpt2Large):
    def setUp(self):
        super().setUp()
        self.import_gpt2_large()

    def predict(self, *words):
        return json.loads(self.assert_succeeds("predict", *self.inputs(), "--json", *words).stdout)

    def text(self, *words):
        """What is printed, which fits a terminal of 80 columns."""
        result = self.assert_succeeds("predict", *self.inputs(), *words)
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 80)
        return result.stdout

    def test_what_import_reads_is_taken_as_it_is(self):
        log = self.out / "all_reduce.log"
        log.write_text("".join(f"[1,0]<stdout>:{line}\n" for line in (
            "#   Rank  0 Pid 1 on node device  0 [0x07] A100", "#   Rank  1 Pid 2 on node device  1 [0x0f] A100",
            "# size count type redop time algbw busbw error time algbw busbw error",
            "1000000 250000 float sum 100.00 10.00 10.00 2e-07 100.00 10.00 10.00 2e-07",
            "node:1:1 [0] NCCL INFO Launch mode Parallel",
            "4000000 1000000 float sum 200.00 20.00 20.00 2e-07 200.00 20.00 20.00 2e-07",
            "4000000 1000000 float max 200.00 20.00 20.00 2e-07 200.00 20.00 20.00 2e-07")))
        words = ["predict", "--tensors", self.out / "tensors.csv", "--allreduce", log, "--json"]
        self.assert_refused(*words, mentions="all_reduce.log:3: which collective was timed is not stated")
        answer = json.loads(self.assert_succeeds(*words, "--collective", "all_reduce").stdout)
        self.assertEqual(answer["model"]["world_size"], 2)
        self.assertTrue(any("skipped 1 rows of the operation 'max'" in note for note in answer["notes"]), answer["notes"])

    def test_options_reach_the_model(self):
        answer = self.predict("--rule", "at-most", "--first-cap", "1MiB", "--overhead", "20us",
                              "--compute-slowdown", "1.1", "--max-bucket", "64MiB", "--cap", "1MiB,5MiB")
        model = answer["model"]
        self.assertEqual((model["rule"], model["first_cap_mib"]), ("at-most", 1))
        self.assertEqual(model["compute_slowdown"], 1.1)
        self.assertAlmostEqual(model["overhead_s"], 20e-6)
        self.assertFalse(answer["best_plan"]["exact"])
        for bucket in answer["best_plan"]["buckets"]:
            self.assertTrue(bucket["bytes"] <= 64 * MIB or len(bucket["tensors"]) == 1)
        self.assertEqual([point["cap_mib"] for point in answer["curve"]], [1, 5])
        self.assertEqual([b["name"] for b in answer["baselines"]], ["pytorch", "horovod", "one_bucket", "one_per_tensor", "mg_wfbp"])
        self.assertGreater(answer["best_plan"]["backward_s"], self.predict()["best_plan"]["backward_s"])

    def test_sensitivity_moves_every_input_both_ways_and_says_what_keeping_the_cap_costs(self):
        folder = self.out / "study"
        points = self.predict("--sensitivity", "--out", folder)["sensitivity"]["points"]
        self.assertEqual({point["influence"] for point in points}, {"total bytes", "latency", "bandwidth", "backward time"})
        self.assertEqual(sorted(f.name for f in folder.iterdir() if not f.name.startswith(".")), ["report.html", "results.json"])
        self.assertIn('id="chart-predicted"', (folder / "report.html").read_text())
        self.text("--sensitivity")

    def test_the_best_plan_is_shown_and_can_be_pasted_into_pytorch(self):
        plan = self.predict()["best_plan"]
        text = self.text("--out", self.out / "run")
        page = (self.out / "run/report.html").read_text()
        shown = page[page.index("bucket_cap_mb_list=["):]
        shown = shown[:shown.index("]") + 1].removeprefix("bucket_cap_mb_list=")
        self.assertEqual(json.loads(shown), plan["bucket_cap_mb_list"])
        rows = [line.split() for line in text.splitlines()]
        for number in (1, len(plan["buckets"])):
            self.assertTrue(any(row[:1] == [str(number)] for row in rows), text)

    def test_a_plan_of_many_buckets_shows_the_first_and_the_last(self):
        text = self.text("--max-bucket", "16MiB")
        count = len(self.predict("--max-bucket", "16MiB")["best_plan"]["buckets"])
        self.assertGreater(count, 12)
        table = text[re.search(r"^bucket +tensors", text, re.MULTILINE).start():].splitlines()
        self.assertEqual([row.split()[0] for row in table[1:12]],
                         ["1", "2", "3", "4", "5", "6", "...", *[str(count - back) for back in (3, 2, 1, 0)]])

    def test_an_unmeasured_world_is_said_to_be_extrapolated(self):
        rows = [f"{size},{world},{1e-6 * world + size * 1e-10}\n" for world in (16, 64) for size in (1024, MIB, 1024 * MIB)]
        (self.out / "allreduce.csv").write_text("bytes,world_size,median_s\n" + "".join(rows))
        self.assertEqual(self.predict("--world", "1024")["model"]["extrapolated_from"], 64)
        self.assertIn("EXTRAPOLATED: 1024 ranks were not measured", self.text("--world", 1024))
        self.assert_refused("predict", *self.inputs(), mentions="expected --world with one of 16, 64")

    def test_a_profile_that_knows_forward_says_what_ordered_and_sharded_gain(self):
        """Forward needs the tensors in reverse and takes half as long as backward."""
        tensors = self.out / "tensors.csv"
        self.assertTrue({"ordered", "sharded"}.isdisjoint(self.predict()))
        for flags in (["--sharded"], ["--forward", "3ms"]):
            self.assert_refused("predict", *self.inputs(), *flags, mentions=f"{tensors} has no column needed_s")
        with open(tensors, newline="") as file:
            rows = list(csv.DictReader(file))
        forward_s = float(rows[-1]["ready_s"]) / 2
        lines = [f"{row['name']},{row['bytes']},{row['ready_s']},{forward_s - float(row['ready_s']) / 2}\n" for row in rows]
        tensors.write_text("name,bytes,ready_s,needed_s\n" + "".join(lines))
        self.assert_refused("predict", *self.inputs(), "--forward", "3ms", mentions="expected at least the largest needed_s")
        found = self.predict("--sharded", "--forward", f"{forward_s}s")
        self.assertAlmostEqual(found["ordered"]["bucketed_period_s"], found["best_uniform"]["backward_s"] + forward_s)
        self.assertEqual(found["sharded"]["sharded_memory"]["optimizer_bytes"] * 8, found["sharded"]["plain_memory"]["optimizer_bytes"])
        text = " ".join(self.text("--sharded", "--out", self.out / "run").split())
        for said in ("With the strategy ordered, which also overlaps the next forward pass, a step takes", "With the strategy sharded and buckets of",
                     "With AdamW a rank then keeps", "taken as half an all-reduce each"):  # fmt: skip
            self.assertIn(said, text)

    def test_it_writes_only_when_asked_also_where_it_reads(self):
        self.predict()
        self.assertFalse((self.out / "results.json").exists())
        (self.out / "results.json").write_text("earlier")
        for _ in range(2):
            answer = self.predict("--out", self.out)
            self.assertEqual(self.results(), answer)
            self.assertTrue((self.out / "tensors.csv").exists())
        self.assertEqual((self.out / "results.1.json").read_text(), "earlier")

    def test_its_results_have_the_head_of_all_results_and_report_makes_the_same_page_of_them(self):
        answer = self.predict("--out", self.out)
        self.assertEqual((answer["schema"], answer["command"], answer["command_line"][:2]), ("firkin.results/1", "predict", ["firkin", "predict"]))
        self.assertRegex(answer["started"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertTrue(answer["environment"]["firkin"])
        self.assertNotIn("seed", answer)
        self.assert_read_whole("predicted")
        self.assertEqual((self.folder / "again/report.html").read_text(), (self.out / "report.html").read_text())

    def test_bad_flags_and_files_exit_2_with_one_line(self):
        bad = self.out / "bad.csv"
        bad.write_text("name,bytes,ready_s\na,1,0.1\na,1,0.2\n")
        for words, mentions in [
            (["predict"], "--"),
            (["predict", "--tensors", bad, "--allreduce", ALLREDUCE], "bad.csv:3: tensor 'a' appears twice"),
            (["predict", *self.inputs(), "--world", "-3"], "--world: -3: expected a whole number from 2 to 65536"),
            (["predict", *self.inputs(), "--compute-slowdown", "0.5"], "slowdown"),
            (["predict", *self.inputs(), "--overhead", "nan"], "--overhead nan: expected a time"),
            (["import"], "no file to import; expected"),
            (["predict", *self.inputs(), "--seed", "1"], "--seed"),  # nothing is random
            (["import", "log.txt", "--world", "8", "--seed", "1"], "--seed"),
        ]:
            self.assert_refused(*words, mentions=mentions)
