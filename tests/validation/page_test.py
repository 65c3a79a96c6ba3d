"""docs/validation.md says what the kept results say, and which regimes have none."""

import gzip
import json
import pathlib
import re
import statistics
import unittest

import recorded
from bars import all_bars
from figures import TAKES_CAP, Broken, cap_samples, chosen_row, read_figures
from folders import InAFolder
from paired import paired_ratio
from regimes import all_regimes

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPLAY = "1gbit-gpt2-large"  # stands for the recorded result, which is a replay's


def row_of(page, name):
    """The cells of the first table row that begins with the text."""
    line = next(line for line in page.splitlines() if line.startswith(f"| {name}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def slow_down_the_chosen_cap(result, factor):
    """Beside a cap that was measured best."""
    series = cap_samples(result)
    chosen = result["curve"].index(chosen_row(result))
    best = next(index for index in range(len(series)) if index != chosen)
    result["best_measured"] = result["curve"][best]
    series[chosen][:] = [seconds * factor for seconds in series[best]]


def change_the_machine(result):
    """Every prediction is far off, and so is the step without communication."""
    result["decision"]["level"] = 0.8
    for row in result["curve"]:
        row.update(error=0.51, predicted_range_s={"low": 8.0, "high": 9.0})


class Study(InAFolder):
    """Its folder is that of the pages."""

    def page(self, expected_code=0):
        ended = recorded.study("--page", "--docs", self.folder)
        self.assertEqual(ended.returncode, expected_code, ended.stderr)
        self.said = ended.stderr.splitlines()
        written = self.folder / "validation.md"
        return written.read_text() if written.exists() else None

    def report(self):
        self.page()
        return (self.folder / "validation" / REPLAY / "report.md").read_text()

    def figures(self, change=None):
        recorded.place(self.folder, REPLAY, change)
        return read_figures(self.folder / "validation", REPLAY)


class Page(Study):
    def test_errors_on_a_machine_that_changed_count_and_are_shown_apart(self):
        recorded.place(self.folder, REPLAY)
        recorded.place(self.folder, "1gbit-compute", change_the_machine)
        page = self.page()
        text = "error of T(b), models over links, caps of 1 MiB and more: "
        self.assertEqual(row_of(page, text)[2], "51.0 %")
        self.assertEqual(row_of(page, "measured caps within")[1:], ["90 to 99 %", "33.3 % of 6", "**missed**"])
        self.assertIn("changed by more than 10 % in 1gbit-compute (-20.0 %). Without it: ", " ".join(page.split()))
        self.assertIn(f"{text}worst -", " ".join(page.split()))

    def test_the_recommendation_is_the_default_where_tune_keeps_it(self):
        def keep_the_default(result):
            slow_down_the_chosen_cap(result, 1.01)
            series = dict(zip(result["samples"]["settings"], result["samples"]["step_s"]))
            best = next(index for index, row in enumerate(result["curve"]) if row is result["best_measured"])
            series["torch default"][:] = [1.04 * seconds for seconds in cap_samples(result)[best]]
            result["decision"]["outcome"] = "nothing to gain"

        recorded.place(self.folder, REPLAY, keep_the_default)
        page = self.page()
        self.assertIn("in 1 of 1 `tune` recommends PyTorch's default", " ".join(page.split()))
        self.assertEqual(row_of(page, "regret of the recommendation: ")[2:], ["4.0 %", "**missed**; **missed**"])
        self.assertEqual(row_of(page, "**worst**")[1:3], ["+1.0 %", "+4.0 %"])

    def test_regimes_without_a_result_and_results_of_few_blocks_are_named(self):
        recorded.place(self.folder, REPLAY)
        ended = self.folder / "validation" / "4gbit-compute"
        ended.mkdir()
        (ended / "run.json").write_text('{"status": "ended after its limit of 480 s"}')
        page = " ".join(self.page().split())
        for words in ("1 of 18 configurations", "loopback-compute, ", "512-gpus-gpt2-large (not measured)", "4gbit-compute (ended after its limit of 480 s)",
                      "The limits are stated for 20 blocks per setting"):  # fmt: skip
            self.assertIn(words, page)
        self.assertIn("study: 10gbit-compute: not measured", self.said)
        self.assertEqual(len(self.said), 18)  # the other 17, and what was written

    def test_no_result_at_all_is_a_line_and_no_page(self):
        self.assertIsNone(self.page(expected_code=1))
        self.assertIn("no results; expected those of at least one regime", self.said[-1])


class WordsOfTheProgram(unittest.TestCase):
    def test_what_intervals_held_is_what_the_kept_study_says(self):
        data = ROOT / "studies" / "validation" / "data"
        kept = [read_figures(data, regime.name) for regime in all_regimes()]
        held = [f"{100 * statistics.mean(held for these in figures for held in these.covered):.0f} %"
                for figures in (kept, [these for these in kept if these.is_steady])]
        said = re.search(r'kRangeHeld =\s*"(.*?)";', (ROOT / "src/report/words.h").read_text(), re.DOTALL)[1]
        said = re.sub(r'"\s*"', "", said)  # literals side by side are one
        self.assertIn("{} in the newest ({} where the machine kept its speed)".format(*held), said)

    def test_outcomes_have_its_names(self):
        source = (ROOT / "src/results/results.cpp").read_text()
        for name in TAKES_CAP:
            self.assertIn(f'"{name}"', source)


class BrokenResults(Study):
    def assert_broken(self, mentions):
        with self.assertRaises(Broken) as raised:
            read_figures(self.folder / "validation", REPLAY)
        self.assertIn(mentions, str(raised.exception))
        self.assertEqual(len(str(raised.exception).splitlines()), 1)

    def test_a_file_that_was_cut_off(self):
        file = recorded.place(self.folder, REPLAY) / "results.json.gz"
        file.write_bytes(file.read_bytes()[:1000])
        self.assert_broken("results.json.gz: no JSON")

    def test_a_file_that_is_not_there(self):
        (recorded.place(self.folder, REPLAY) / "prediction.json.gz").unlink()
        self.assert_broken("prediction.json.gz: cannot be read")

    def test_a_result_of_another_kind(self):
        recorded.place(self.folder, REPLAY, lambda result: result.pop("curve"))
        self.assert_broken("not a result of firkin tune: KeyError 'curve'")

    def test_a_run_that_was_interrupted(self):
        recorded.place(self.folder, REPLAY, lambda result: result.update(complete=False))
        self.assert_broken("not complete")

    def test_one_broken_result_costs_only_itself(self):
        recorded.place(self.folder, REPLAY)
        (recorded.place(self.folder, "1gbit-compute") / "results.json.gz").write_bytes(b"{")
        self.assertIn("1gbit-compute (", " ".join(self.page().split()))


class Figures(Study):
    def test_a_paired_ratio_is_the_programs_own(self):
        result = recorded.result()
        series = dict(zip(result["samples"]["settings"], result["samples"]["step_s"]))
        ratio, low, high = paired_ratio(series["bucketed 2 MiB"], series["torch default"])
        self.assertEqual(result["best_predicted"]["cap_mib"], 2)
        for ours, its in [(ratio, result["over_default"]["ratio"]), (low, result["over_default"]["ratio_ci"]["low"]),
                          (high, result["over_default"]["ratio_ci"]["high"])]:
            self.assertAlmostEqual(ours, its, places=12)

    def test_mg_wfbp_is_the_models_word_unless_its_buckets_were_measured(self):
        kept = recorded.place(self.folder, REPLAY)
        self.assertTrue(read_figures(self.folder / "validation", REPLAY).regrets["MG-WFBP"].predicted)
        prediction = json.loads(gzip.decompress((kept / "prediction.json.gz").read_bytes()))
        next(row for row in prediction["baselines"] if row["name"] == "mg_wfbp")["buckets"] = 1
        (kept / "prediction.json.gz").write_bytes(gzip.compress(json.dumps(prediction).encode()))
        regrets = read_figures(self.folder / "validation", REPLAY).regrets
        self.assertEqual(regrets["MG-WFBP"], regrets["one bucket"])

    def test_open_intervals_of_too_few_blocks_are_read(self):
        def cut(result):
            for row in result["curve"]:
                row["measured_ci_s"] = {"low": 0.0, "high": None}

        self.figures(cut)
        self.assertIn("too few blocks", self.report())


class Bars(Study):
    def verdicts(self, change=None):
        regime = next(regime for regime in all_regimes() if regime.name == REPLAY)
        return {bar.text: bar.verdict for bar in all_bars([(regime, self.figures(change))])}

    def test_a_chosen_cap_outside_of_the_set_may_happen_once(self):
        text = "configurations whose chosen cap can be told from the measured best"
        self.assertEqual(self.verdicts(lambda result: result.update(indifference_set=[4.0]))[text], "met")

    def test_a_gain_is_claimed_only_where_other_blocks_show_it(self):
        text = "configurations with a gain that the blocks which did not choose do not show"

        def claim(high):
            over_default = {"ratio": 0.98, "ratio_ci": {"low": 0.9, "high": high}}
            return lambda result: result.update(over_default=over_default, decision=result["decision"] | {"outcome": "gain"})

        self.assertEqual(self.verdicts(claim(0.99))[text], "met")
        self.folder /= "unshown"
        self.assertEqual(self.verdicts(claim(1.01))[text], "**missed**")

    def test_coverage_is_of_the_caps_that_the_model_was_not_calibrated_on(self):
        text = "measured caps within the 95 % interval of their prediction"

        def widen(result):
            for row in result["curve"]:
                row["predicted_range_s"] = {"low": 0.0, "high": 9.0}

        self.assertEqual(self.verdicts(widen)[text], "**missed**")  # all of them are more than 99 %

    def test_blocks_of_a_grid_that_tune_need_not_measure(self):
        samples, figures = recorded.result()["samples"], self.figures()
        calibration = len(samples["calibration_step_s"]) * len(samples["calibration_step_s"][0])
        race = len(samples["race_step_s"]) * len(samples["race_step_s"][0])
        self.assertAlmostEqual(figures.measured_share, (calibration + race + 3 * 8) / (calibration + len(samples["settings"]) * 8))

    def test_kinds_that_were_not_measured_say_so(self):
        self.assertEqual(self.verdicts()["error of T(b), models over links, caps of 1 MiB and more: worst"], "no such configuration measured")
