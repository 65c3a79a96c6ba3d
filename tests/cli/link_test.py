"""--link as a user meets it: steps over a link that is not there, and bad input.

FIRKIN names the binary.
"""

import csv
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

FIRKIN = os.environ["FIRKIN"]
DEADLINE_S = 120
TINY_MODEL = ["--d-model", "32", "--d-ff", "64", "--num-layers", "2", "--batch", "1", "--sequence", "16"]
LATENCY_S = 0.02


def firkin(*words, environment=None):
    return subprocess.run([FIRKIN, *map(str, words)], capture_output=True, text=True, timeout=DEADLINE_S, env=environment)


class Link(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name) / "out"
        self.table = pathlib.Path(folder.name) / "allreduce.csv"
        self.table.write_text("bytes,world_size,median_s,gap_s\n1000,2048,0.05,0.05\n")

    def refused(self, *words, environment=None):
        result = firkin("bench", "allreduce", *words, "--out", self.out, environment=environment)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1)
        self.assertFalse(self.out.exists())
        return result.stderr

    def measured(self, *words):
        result = firkin("bench", "allreduce", "-b", 8, "-e", 8, "--time", 0.1, *words, "--out", self.out)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.out / "allreduce.csv") as file:
            return next(csv.DictReader(file))

    def test_all_reduces_take_their_time_on_a_link(self):
        row = self.measured("--link", "1mbit,20ms")
        self.assertGreaterEqual(float(row["min_s"]), 2 * LATENCY_S)
        self.assertGreaterEqual(float(row["gap_s"]), 0.9 * LATENCY_S)

    def test_one_rank_takes_the_time_of_a_rank_of_2048(self):
        row = self.measured("--link", self.table, "--world", 2048)
        self.assertGreaterEqual(float(row["min_s"]), 0.05)

    def test_a_trace_shows_collectives_until_the_link_has_carried_them(self):
        result = firkin("trace", "--strategies", "bucketed,torch", "--cap", "0.01MiB", *TINY_MODEL, "--link", "10gbit,20ms", "--out", self.out)
        self.assertEqual(result.returncode, 0, result.stderr)
        traces = sorted(self.out.glob("trace-*.json"))
        self.assertEqual(len(traces), 2)
        for trace in traces:
            events = json.loads(trace.read_text())["traceEvents"]
            begins = {event["id"]: event["ts"] for event in events if event["ph"] == "b"}
            ends = {event["id"]: event["ts"] for event in events if event["ph"] == "e"}
            self.assertGreater(len(begins), 2)
            for collective, begin in begins.items():
                self.assertGreaterEqual(ends[collective] - begin, LATENCY_S * 1e6)

    def test_bad_links_are_refused_before_any_rank_starts(self):
        self.assertIn("--link 1gbti: expected RATE[,LATENCY] such as 1gbit or 200mbit,1ms, or an allreduce.csv", self.refused("--link", "1gbti"))
        self.assertIn("expected RATE", self.refused("--link", ""))
        self.assertIn("--world 4: expected --link as well", self.refused("--world", 4))
        self.assertIn("--world 1: expected at least the number of ranks, 2", self.refused("--ranks", 2, "--link", "1gbit", "--world", 1))
        self.assertIn("world size 2", self.refused("--link", self.table))
        self.assertIn("none.csv", self.refused("--link", "none.csv"))
        self.assertIn("--world -1", self.refused("--link", "1gbit", "--world", -1))

    def test_a_launchers_ranks_count(self):
        environment = dict(os.environ, RANK="0", WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
        self.assertIn("number of ranks, 3", self.refused("--link", "1gbit", "--world", 2, environment=environment))


if __name__ == "__main__":
    unittest.main()
