"""`firkin compare` as a user meets it, on runs whose true times are known."""

import json
import pathlib
import random
import tempfile
import unittest

from program import InFolder, firkin

TUNE = pathlib.Path(__file__).resolve().parents[1] / "report" / "data" / "tune.json"
BLOCKS = 20


def head(command, **environment):
    return {
        "schema": "firkin.results/1",
        "command": command,
        "command_line": ["firkin", *command.split("-")],
        "started": "2026-11-21T10:00:00Z",
        "seed": 0,
        "environment": {"device": "cpu", "cpu": "none: synthetic", "cores": 2, "world_size": 2} | environment,
    }


def blocks(noise, median_s):
    """Step times with 1 % noise."""
    return [median_s * noise.lognormvariate(0, 0.01) for _ in range(BLOCKS)]


def step_configuration(noise, batch, seconds):
    """A configuration of bench step; `seconds` maps (strategy, cap in MiB or None) to the true step time."""
    samples = [blocks(noise, median_s) for median_s in seconds.values()]
    rows = []
    for (strategy, cap_mib), times in zip(seconds, samples):
        middle = sorted(times)[BLOCKS // 2]
        row = {"strategy": strategy, "buckets": 3, "measured_s": middle, "measured_ci_s": {"low": 0.99 * middle, "high": 1.01 * middle}}
        rows.append(row | ({"cap_mib": cap_mib} if cap_mib else {}))
    model = {"name": "demo", "batch_size": batch, "sequence_length": 128, "dtype": "float32", "gradient_bytes": 4000}
    return {"model": model, "status": "measured", "strategies": rows, "samples": {"step_s": samples}}


def step_run(seed, seconds, **environment):
    noise = random.Random(seed)
    return head("bench-step", **environment) | {"configurations": [step_configuration(noise, batch, cells) for batch, cells in seconds.items()]}


def allreduce_run(seed, median_s, **row):
    noise = random.Random(seed)
    rows = [{"bytes": size, "world_size": 2, "median_s": median_s * noise.lognormvariate(0, 0.001)} | row for size in (4, 1024, 4096)]
    return head("bench-allreduce") | {"allreduce": rows}


class Compare(InFolder):
    def file(self, name, content):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    def compare(self, a, b, *words):
        paths = [self.file("a.json", a), self.file("b.json", b)]
        self.out = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        return firkin("compare", *paths, "--out", self.out, *words)

    def answer(self, a, b, *words):
        result = self.compare(a, b, "--json", *words)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(json.loads((self.out / "results.json").read_text()), json.loads(result.stdout))
        self.assertIn("<h1>", (self.out / "report.html").read_text())
        return json.loads(result.stdout)["comparison"]

    def text(self, a, b):
        """What is printed, which fits a terminal of 80 columns."""
        result = self.compare(a, b)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        for line in result.stdout.splitlines():
            self.assertTrue(len(line) <= 80 or str(self.folder) in line, line)
        return result.stdout

    def verdicts(self, answer):
        return {(row["configuration"], row["setting"]): row["verdict"] for row in answer["settings"]}

    def assert_rejected(self, a, b, mentions):
        result = self.compare(a, b)
        self.assertEqual((result.returncode, result.stdout), (2, ""), result)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertIn(mentions, result.stderr)


class Steps(Compare):
    def test_what_became_slower_and_faster_is_found_and_the_rest_is_the_same(self):
        before = {2: {("none", None): 0.10, ("bucketed", 25): 0.20}, 4: {("none", None): 0.30, ("bucketed", 25): 0.40}}
        after = {2: {("none", None): 0.10, ("bucketed", 25): 0.24}, 4: {("none", None): 0.30, ("bucketed", 25): 0.32}}
        answer = self.answer(step_run(1, before), step_run(2, after))
        self.assertEqual(
            self.verdicts(answer),
            {
                ("demo, batch 2, sequence 128, float32", "none"): "same",
                ("demo, batch 2, sequence 128, float32", "bucketed 25 MiB"): "slower",
                ("demo, batch 4, sequence 128, float32", "none"): "same",
                ("demo, batch 4, sequence 128, float32", "bucketed 25 MiB"): "faster",
            },
        )
        for row, truth in zip(answer["settings"], (1, 1.2, 1, 0.8)):
            self.assertLess(row["ratio_ci"]["low"], truth)
            self.assertGreater(row["ratio_ci"]["high"], truth)

    def test_two_runs_of_one_setting_are_the_same_for_at_least_nine_seeds_of_ten(self):
        same = 0
        for seed in range(3):
            cells = {batch: {("none", None): 0.1, ("flat", None): 0.2} for batch in range(1, 11)}
            same += list(self.verdicts(self.answer(step_run(2 * seed, cells), step_run(2 * seed + 1, cells))).values()).count("same")
        self.assertGreaterEqual(same, 54)  # of 60

    def test_settings_of_one_run_alone_are_listed(self):
        a = step_run(1, {2: {("none", None): 0.1, ("bucketed", 1): 0.1, ("bucketed", 25): 0.1}})
        b = step_run(2, {2: {("none", None): 0.1, ("bucketed", 25): 0.1}, 4: {("none", None): 0.2}})
        answer = self.answer(a, b)
        self.assertEqual(len(answer["settings"]), 2)
        self.assertEqual(answer["only_a"], ["demo, batch 2, sequence 128, float32: bucketed 1 MiB"])
        self.assertEqual(answer["only_b"], ["demo, batch 4, sequence 128, float32: none"])
        text = self.text(a, b)
        self.assertIn("Only in A: demo, batch 2, sequence 128, float32: bucketed 1 MiB", text)

    def test_a_configuration_that_did_not_fit_is_a_difference(self):
        a = step_run(1, {2: {("none", None): 0.1}})
        b = step_run(2, {2: {("none", None): 0.1}})
        b["configurations"][0] |= {"status": "out of memory", "strategies": [], "samples": {}}
        answer = self.answer(a, b)
        self.assertIn({"name": "demo, batch 2, sequence 128, float32", "a": "measured", "b": "out of memory"}, answer["different"])
        self.assertEqual(answer["only_a"], ["demo, batch 2, sequence 128, float32: none"])
        self.assertIn("The runs share no setting.", self.text(a, b))

    def test_three_blocks_decide_nothing(self):
        a, b = (step_run(seed, {2: {("none", None): seconds}}) for seed, seconds in ((1, 0.1), (2, 0.2)))
        a["configurations"][0]["samples"]["step_s"] = [[0.1, 0.1, 0.1]]
        row = self.answer(a, b)["settings"][0]
        self.assertEqual((row["verdict"], row["ratio_ci"]), ("unknown", {"low": 0, "high": None}))
        self.assertIn("1 with too few samples in one of the runs: no verdict.", self.text(a, b))


class FailIfSlower(Compare):
    """For CI: the comparison is printed and written as without the flag; the exit code judges."""

    BEFORE = {2: {("none", None): 0.1, ("bucketed", 1): 0.2, ("bucketed", 25): 0.2}}

    def judged(self, after, *words):
        return self.compare(step_run(1, self.BEFORE), step_run(2, after), "--fail-if-slower", *words)

    def test_what_is_slower_fails_and_the_result_is_there_all_the_same(self):
        after = {2: {("none", None): 0.1, ("bucketed", 1): 0.16, ("bucketed", 25): 0.24}}
        result = self.judged(after, "--json")
        self.assertEqual((result.returncode, result.stderr), (1, "firkin: --fail-if-slower: B is slower in 1 of 3 settings\n"))
        self.assertEqual(len(json.loads(result.stdout)["comparison"]["settings"]), 3)
        self.assertEqual(json.loads((self.out / "results.json").read_text()), json.loads(result.stdout))

    def test_what_is_faster_or_cannot_be_told_apart_passes(self):
        after = {2: {("none", None): 0.1, ("bucketed", 1): 0.16, ("bucketed", 25): 0.2}}
        result = self.judged(after)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_runs_without_a_common_setting_fail(self):
        result = self.judged({4: {("none", None): 0.1}})
        self.assertEqual((result.returncode, result.stderr), (1, "firkin: --fail-if-slower: no setting is in both runs; expected at least one\n"))


class Text(Compare):
    def test_only_what_differs_stands_out_and_what_is_the_same_is_said_once(self):
        cells = {2: {("none", None): 0.1}}
        text = self.text(step_run(1, cells), step_run(2, cells, cores=64, cpu="a processor whose name is long " * 4))
        self.assertEqual(text.count("cores"), 1)
        self.assertIn("  cores\n    A  2\n    B  64\n", text)
        self.assertIn("world size 2", " ".join(text.split("Different")[0].split()))
        self.assertNotIn("world size", text.split("Different")[1])
        self.assertIn("Runs at different times can differ by more", text)

    def test_the_same_file_twice_differs_in_nothing(self):
        run = json.loads(TUNE.read_text())
        text = self.text(run, run)
        self.assertIn("No recorded setting differs between the runs.", text)
        self.assertFalse([line for line in text.splitlines() if line.endswith(("  slower", "  faster"))], text)


class Tune(Compare):
    def test_strategies_and_caps_are_settings_and_use_the_samples(self):
        a, b = json.loads(TUNE.read_text()), json.loads(TUNE.read_text())
        slow = 6  # among the caps, which follow the four strategies
        b["samples"]["step_s"][slow] = [1.2 * seconds for seconds in b["samples"]["step_s"][slow]]
        answer = self.answer(a, b)
        self.assertEqual(len(answer["settings"]), len(a["strategies"]) + len(a["curve"]))
        self.assertEqual([row["verdict"] for row in answer["settings"]].count("slower"), 1)
        self.assertEqual(answer["settings"][slow]["setting"], f"cap {a['curve'][slow - 4]['cap_mib']:g} MiB")
        self.assertAlmostEqual(answer["settings"][slow]["ratio"], 1.2)


class AllReduce(Compare):
    def test_samples_decide_where_a_run_kept_them(self):
        noise = random.Random(3)
        a, b = allreduce_run(1, 1e-4), allreduce_run(2, 1.3e-4)
        for run, median_s in ((a, 1e-4), (b, 1.3e-4)):
            run["samples"] = {"isolated_s": [blocks(noise, median_s) for _ in run["allreduce"]]}
        answer = self.answer(a, b)
        self.assertEqual([row["setting"] for row in answer["settings"]], ["4 B", "1 KiB (1024 B)", "4 KiB (4096 B)"])
        self.assertEqual({row["verdict"] for row in answer["settings"]}, {"slower"})

    def test_medians_alone_give_ratios_without_a_verdict(self):
        row = self.answer(allreduce_run(1, 1e-4), allreduce_run(1, 2e-4))["settings"][0]
        self.assertEqual((row["verdict"], row.get("ratio_ci")), ("unknown", None))
        self.assertAlmostEqual(row["ratio"], 2)


class Rejects(Compare):
    def test_files_that_are_no_results(self):
        cells = {2: {("none", None): 0.1}}
        good, two_settings, twice = (step_run(1, cells) for _ in range(3))
        two_settings["configurations"][0]["samples"]["step_s"].append([1, 2, 3])
        twice["configurations"].append(twice["configurations"][0])
        for bad, mentions in [
            ("", "b.json:1: not JSON"),
            ("[1, 2", "b.json:1: not JSON"),
            ("[1, 2]", "b.json:1: results: [1,2]; expected an object"),
            ({"schema": "other/1", "command": "tune"}, 'b.json:1: results: schema: "other/1"'),
            (head("trace"), "expected those of tune, bench-step or bench-allreduce"),
            (head("bench-step"), "no settings"),
            (head("bench-allreduce") | {"allreduce": [{"bytes": 4, "world_size": 2, "median_s": -1}]}, "allreduce[0].median_s: -1"),
            (allreduce_run(1, 1e-4), "expected two results of one subcommand"),
            (two_settings, "samples of 2 settings; expected 1"),
            (twice, "'none' appears twice"),
        ]:
            with self.subTest(mentions=mentions):
                self.assert_rejected(good, bad, mentions)
        self.assert_refused("compare", TUNE, "missing.json", "--out", self.out, mentions="missing.json: cannot be read")



if __name__ == "__main__":
    unittest.main(verbosity=2)
