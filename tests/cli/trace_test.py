"""firkin trace as a user meets it: the files of two real ranks, and bad input."""

import json
import pathlib

import pytest
from program import TINY_MODEL, InFolder

BACKWARD_OF_MILLISECONDS = ["--d-model", "128", "--d-ff", "512", "--num-layers", "2", "--batch", "4", "--sequence", "128"]
TENSORS = 2 * 9 + 3
AGREEMENT = 1  # of all ranks on a step


class Traced(InFolder):
    def trace(self, *words, model=TINY_MODEL):
        return self.assert_succeeds("trace", *words, *model, "--out", self.out)


class Trace(Traced):
    def test_shows_naive_after_backward_and_overlap_beside_it(self):
        steps = 3
        table = self.trace("--strategies", "naive,overlap", "--steps", steps, model=BACKWARD_OF_MILLISECONDS).stdout
        self.assertLess(max(map(len, table.splitlines()[:-1])), 80)
        self.assertIn("\nRank 0, medians over the recorded steps\n", table)
        for strategy in ["naive", "overlap"]:
            events = json.loads((self.out / f"trace-{strategy}.json").read_text())["traceEvents"]
            for rank in [0, 1]:
                ours = [event for event in events if event["pid"] == rank]
                backward = [event for event in ours if event["name"] == "backward"]
                taken_up = [event["ts"] for event in ours if event["ph"] == "b"]
                self.assertEqual(len(backward), steps)
                self.assertEqual(len(taken_up), steps * (TENSORS + AGREEMENT))
                within = [ts for ts in taken_up if any(b["ts"] <= ts < b["ts"] + b["dur"] for b in backward)]
                self.assertEqual(len(within) > 0, strategy == "overlap", (strategy, rank, within))

    def test_import_reads_the_ranks_and_buckets_back(self):
        self.trace("--strategies", "naive,flat,bucketed,torch", "--cap", "0.0625MiB", "--steps", 3)
        written = self.results()
        for one, buckets in zip(written["traces"], [TENSORS, 1, 2, 2], strict=True):
            imported = self.folder / one["strategy"]
            self.assert_succeeds("import", self.out / one["file"], "--out", imported)
            traced = json.loads((imported / "results.json").read_text())["traced"]
            self.assertEqual(len(traced["buckets"]), buckets, one["name"])
            self.assertEqual(traced["gradient_bytes"], written["model"]["gradient_bytes"])
            self.assertEqual([rank["rank"] for rank in traced["ranks"]], [0, 1])
            self.assertEqual(traced["steps"], 3)
            self.assertGreater(max(one["ranks"][0]["samples"]["step_s"]), traced["ranks"][0]["backward_s"])

    def test_results_json_has_figures_of_every_rank_and_the_page_a_timeline(self):
        answer = json.loads(self.trace("--strategies", "none,bucketed,torch", "--cap", "0.01MiB,4MiB", "--json").stdout)
        self.assertEqual(self.results(), answer)
        names = ["none", "bucketed 0.01 MiB", "bucketed 4 MiB", "torch 0.01 MiB", "torch 4 MiB"]
        self.assertEqual([one["name"] for one in answer["traces"]], names)
        for one in answer["traces"]:
            self.assertTrue((self.out / one["file"]).exists())
            self.assertEqual(len(one["ranks"]), 2)
            for rank in one["ranks"]:
                self.assertEqual(len(rank["samples"]["step_s"]), 3)
                self.assertLessEqual(rank["overlapped_s"], rank["communication_s"])
                self.assertLess(rank["compute_s"], rank["step_s"])
                self.assertEqual(rank["communication_s"] > 0, one["strategy"] != "none")
        self.assert_read_whole("timeline")

    def test_a_replay_under_ordered_shows_forward_waits_and_the_optimiser(self):
        """Four tensors that take longer on the link than anything else: forward must wait."""
        tensors = self.folder / "tensors.csv"
        rows = [f"layer{k}.weight,65536,{0.002 * (4 - k)},{0.001 * k}" for k in reversed(range(4))]
        tensors.write_text("name,bytes,ready_s,needed_s\n" + "\n".join(rows) + "\n")
        words = ["--replay", tensors, "--strategies", "ordered", "--cap", "0.0625MiB", "--link", "50mbit"]
        answer = json.loads(self.trace(*words, "--json", model=[]).stdout)
        self.assertEqual(answer["model"]["name"], "replay of tensors.csv")
        self.assertEqual(answer["model"]["gradient_bytes"], 4 * 65536)
        one = answer["traces"][0]
        waits = [period for period in one["timeline"] if period["activity"] == "forward waits"]
        self.assertGreater(sum(period["end_s"] - period["start_s"] for period in waits), 0.01)
        self.assertIn("optimiser", [period["activity"] for period in one["timeline"]])
        self.assert_refused("trace", "--replay", tensors, "--model", "demo", mentions="--replay")

    def test_bad_input_exits_2_with_one_line(self):
        for words, mentions in [
            (["--strategies", "planned"], "planned"),
            (["--steps", "0"], "--steps"),
            (["--replay", "no.csv"], "no.csv"),
            (["--scale-time", "2"], "--replay"),
        ]:
            self.assert_refused("trace", *words, "--out", self.out, mentions=mentions)
            self.assertFalse(self.out.exists())

    @pytest.mark.full
    def test_sharded_shows_reduce_scatters_under_backward_and_gathers_under_the_next_forward(self):
        steps = 3
        words = ["--strategies", "sharded", "--cap", "0.25MiB", "--steps", steps, "--link", "1gbit", "--json"]
        answer = json.loads(self.trace(*words, model=BACKWARD_OF_MILLISECONDS).stdout)
        events = json.loads((self.out / "trace-sharded-0.25MiB.json").read_text())["traceEvents"]
        for rank in [0, 1]:
            ours = [event for event in events if event["pid"] == rank]
            ends = {event["id"]: event["ts"] for event in ours if event["ph"] == "e"}
            phases = {name: [(e["ts"], e["ts"] + e["dur"]) for e in ours if e["ph"] == "X" and e["name"] == name]
                      for name in ["forward", "backward", "optimiser", "forward waits"]}  # fmt: skip
            sent = {name: [(e["ts"], ends[e["id"]]) for e in ours if e["ph"] == "b" and e["name"] == name]
                    for name in ["gloo:all_to_all", "gloo:all_gather"]}  # fmt: skip

            def within(start, name):
                return any(first <= start < last for first, last in phases[name])

            self.assertEqual(len(phases["backward"]), steps)
            self.assertGreater(len(sent["gloo:all_to_all"]), 2 * steps)
            self.assertEqual(len(sent["gloo:all_gather"]), len(sent["gloo:all_to_all"]))
            self.assertGreater(sum(within(start, "backward") for start, _ in sent["gloo:all_to_all"]), steps)
            self.assertTrue(all(within(start, "optimiser") for start, _ in sent["gloo:all_gather"]))
            self.assertTrue(any(within(end, "forward") for _, end in sent["gloo:all_gather"]))
            self.assertTrue(phases["forward waits"])
        one = answer["traces"][0]
        self.assertLessEqual({"compute", "communication", "forward waits", "optimiser"}, {period["activity"] for period in one["timeline"]})

    @pytest.mark.full
    def test_collectives_that_outlast_the_last_step_do_no_harm(self):
        """Recording ends when they have; it used to end before, and five runs in six crashed."""
        data = pathlib.Path(__file__).resolve().parents[2] / "data/cmsc828g"
        files = [data / name for name in ("layer-sizes-gpt2_large-bs4.csv", "layer-times-gpt2_large-bs4.csv", "allreduce-times.csv")]
        self.assert_succeeds("import", *files, "--out", self.folder)
        replay = ["--replay", self.folder / "tensors.csv", "--scale-bytes", "0.0078125", "--scale-time", "0.125", "--link", "1gbit"]
        for _ in range(2):
            self.assert_succeeds("trace", *replay, "--strategies", "ordered", "--out", self.out)
