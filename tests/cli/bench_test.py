"""bench allreduce, chunks and layers as a user meets them: exit codes, messages, and the files that are left."""

import csv
import json
import math
import os
import statistics
import subprocess

import pytest
from program import DEADLINE_S, FIRKIN, TINY_MODEL, InFolder, launched


class Bench(InFolder):
    def bench(self, *words):
        return self.assert_succeeds("bench", *words, "--out", self.out)

    def rows(self, name):
        with open(self.out / name, newline="") as file:
            return list(csv.DictReader(file))


class Surroundings(Bench):
    def test_a_shell_inside_a_job_without_standard_error(self):
        """As a daemon or `srun --pty bash` may start it: new connections do not take the number of standard error, and --ranks counts."""
        variables = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}
        words = ["bench", "allreduce", "--ranks", "2", "-e", "64", "--time", "200ms", "--out", str(self.out)]
        result = subprocess.run(["sh", "-c", 'exec "$0" "$@" <&- 2>&-', FIRKIN, *words], stdout=subprocess.PIPE, text=True,
                                timeout=DEADLINE_S, env=os.environ | variables)
        self.assertEqual(result.returncode, 0)
        self.assertEqual({row["world_size"] for row in self.rows("allreduce.csv")}, {"2"})

    def test_ranks_of_different_commands_say_so(self):
        with launched(["bench", "allreduce", "--out", self.out], ["trace", "--out", self.out]) as ranks:
            for rank in ranks:
                errors = rank.communicate(timeout=DEADLINE_S)[1]
                self.assertEqual(rank.returncode, 2, errors)
                self.assertIn("rank 1 runs trace, but rank 0 bench-allreduce; expected one command", errors)

    def test_without_loopback_ranks_are_refused_at_once(self):
        apart = ["unshare", "--user", "--map-root-user", "--net"]
        if subprocess.run([*apart, "true"], capture_output=True).returncode != 0:
            self.skipTest("this process may not make a network namespace")
        words = [FIRKIN, "bench", "allreduce", "--ranks", "2", "--out", self.out]
        result = subprocess.run([*apart, *words], capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual((result.returncode, result.stderr), (1, "firkin: --ranks: cannot connect to loopback: Network is unreachable\n"))


class BadInput(Bench):
    def test_exits_2_with_one_line_before_any_rank_starts(self):
        blocked = self.folder / "file"
        blocked.write_text("in the way")
        for words, mentions in [
            (["allreduce", "-b", "0"], "--begin 0: expected a size in bytes"),
            (["allreduce", "--begin=-4"], "--begin -4: expected a size in bytes"),
            (["allreduce", "-b", "6"], "--begin 6: expected a multiple of 4"),
            (["allreduce", "-b", "1M", "-e", "1K"], "--begin 1 MiB: expected at most --end 1 KiB"),
            (["allreduce", "-f", "1"], "--factor: 1: expected a whole number from"),
            (["allreduce", "--ranks", "two"], "--ranks: two: expected a whole number from 1 to"),
            (["allreduce", "--time", "0s"], "--time: 0s: expected 100ms"),
            (["allreduce", "--out", blocked / "out"], f"{blocked} is not a folder"),
            (["chunks", "--elements", "0"], "--elements: 0: expected a whole number from"),
            (["chunks", "-b", "4"], "60000000 calls; expected at most 1000000"),
            (["collectives", "--ranks", "1"], "--ranks 1: expected 2 or more"),
            (["pairs", "--ranks", "1"], "--ranks 1: expected 2 or more, because one has no pair"),
            (["pairs", "--link", "1gbit"], "--link 1gbit: expected it left out"),
            (["pairs", "--bytes", "0"], "--bytes 0: expected a size in bytes"),
            (["layers", "--steps", "3"], "--steps"),
        ]:
            self.assert_refused("bench", *words, mentions=mentions)


class AllReduce(Bench):
    def test_measures_the_sizes_of_nccl_tests_flags(self):
        answer = json.loads(self.bench("allreduce", "-b", "4", "-e", "4K", "-f", "32", "--time", "0.5s", "--json").stdout)
        self.assertEqual([(row["bytes"], row["count"]) for row in answer["allreduce"]], [(4, 1), (128, 32), (4096, 1024)])
        for row, samples in zip(answer["allreduce"], answer["samples"]["isolated_s"]):
            self.assertEqual(row["wrong"], 0)
            self.assertEqual(row["samples"], len(samples))
            self.assertLessEqual(row["median_s"], row["p99_s"])
            self.assertAlmostEqual(row["busbw_bytes_per_s"], row["bytes"] / row["median_s"])  # 2 (n - 1) / n is 1 for two ranks
        self.assertEqual(self.results(), answer)
        self.assertEqual([row["bytes"] for row in self.rows("allreduce.csv")], ["4", "128", "4096"])
        self.assert_read_whole("allreduce")


class Chunks(Bench):
    def test_writes_points_with_intervals(self):
        flags = ["--elements", "4096", "-b", "1K", "-e", "64K", "-f", "4", "--time", "1s"]
        answer = json.loads(self.bench("chunks", *flags, "--json").stdout)
        self.assertEqual([(p["chunk_bytes"], p["calls"]) for p in answer["chunks"]], [(1024, 16), (4096, 4), (16384, 1)])
        for point, samples in zip(answer["chunks"], answer["samples"]["total_s"]):
            self.assertGreaterEqual(len(samples), 4)
            low, high = point["total_ci_s"]["low"], point["total_ci_s"]["high"]
            self.assertLessEqual(low, point["total_s"])
            self.assertLessEqual(point["total_s"], math.inf if high is None else high)  # a busy machine takes too few samples for a bound
            self.assertEqual(point["wrong"], 0)
        self.assertEqual(sorted(f.name for f in self.out.iterdir() if not f.name.startswith(".")), ["report.html", "results.json"])
        self.assertEqual([row["chunk_elements"] for row in answer["chunks"]], [256, 1024, 4096])
        self.assert_read_whole("chunks")


COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather"]


class Collectives(Bench):
    def test_of_every_size_are_beside_each_other_and_right(self):
        answer = json.loads(self.bench("collectives", "-b", "4", "-e", "64K", "-f", "128", "--time", "0.5s", "--json").stdout)
        rows = answer["collectives"]
        self.assertEqual([(r["bytes"], r["collective"]) for r in rows], [(b, c) for b in (8, 512, 65536) for c in COLLECTIVES])
        for row, samples in zip(rows, answer["samples"]["seconds"]):
            self.assertEqual((row["wrong"], row["samples"]), (0, len(samples)))
            self.assertAlmostEqual(row["seconds"], statistics.median(samples))
            self.assertEqual("ratio_to_allreduce" in row, row["collective"] != "all_reduce")
        self.assertEqual(self.results(), answer)
        self.assertIn("reduce_scatter", (self.out / "report.html").read_text())
        self.assert_read_whole()

    def test_a_size_beyond_the_memory_is_refused(self):
        self.assert_refused("bench", "collectives", "--end", "4TiB", mentions="a third of the memory of a rank")


class Pairs(Bench):
    def test_ranks_of_one_host_are_all_paired(self):
        answer = json.loads(self.bench("pairs", "--ranks", "3", "--bytes", "64K", "--time", "0.5s", "--json").stdout)
        self.assertEqual([(pair["rank"], pair["other"]) for pair in answer["pairs"]], [(0, 1), (0, 2), (1, 2)])
        for pair, samples in zip(answer["pairs"], answer["samples"]["seconds"]):
            self.assertEqual((pair["samples"], pair["seconds"], pair["bytes"]), (len(samples), min(samples), 65536))
            self.assertGreaterEqual(len(samples), 2)
            self.assertAlmostEqual(pair["bytes_per_s"], 65536 / pair["seconds"])
        self.assertEqual([link["rank"] for link in answer["links"]], [0, 1, 2])
        self.assertEqual(max(link["share"] for link in answer["links"]), 1)
        self.assertEqual(self.results(), answer)
        self.assert_read_whole()


class Layers(Bench):
    def test_writes_a_profile_that_predict_reads(self):
        self.bench("layers", "--ranks", "2", "--steps", "6", *TINY_MODEL)
        self.assert_read_whole()
        tensors = self.rows("tensors.csv")
        self.assertEqual(len(tensors), 2 * 9 + 3)
        self.assertEqual(tensors[-1]["name"], "token_embeddings.weight")
        costs = self.folder / "allreduce.csv"
        costs.write_text("bytes,world_size,median_s\n4,2,0.0001\n65536,2,0.0002\n")
        self.assert_succeeds("predict", "--tensors", self.out / "tensors.csv", "--allreduce", costs, "--out", self.folder / "predicted")


class LostRank(Bench):
    def survivor_of_rank_0(self, **variables: str) -> str:
        """What rank 1 writes when rank 0 is killed, and with it the store at which they met."""
        words = ["bench", "allreduce", "--time", "1000s", "--out", self.out]
        with launched(words, words, **variables) as (first, second):
            next(line for line in first.stderr if "measuring" in line)  # the group stands
            first.kill()
            first.communicate(timeout=DEADLINE_S)
            _, errors = second.communicate(timeout=DEADLINE_S)
        self.assertEqual(second.returncode, 1, errors)
        return errors

    def test_a_survivor_says_one_line_without_backtraces(self):
        errors = self.survivor_of_rank_0()
        self.assertEqual(len(errors.splitlines()), 1, errors)
        self.assertIn("rank 0", errors)

    @pytest.mark.full
    def test_who_asks_for_libtorchs_log_gets_it(self):
        self.assertIn("TCPStore.cpp", self.survivor_of_rank_0(TORCH_CPP_LOG_LEVEL="WARNING"))
