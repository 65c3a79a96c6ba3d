"""--link as a user meets it: steps over a link that is not there, and bad input."""

import json
import os

from program import TINY_MODEL, InFolder

LATENCY_S = 0.005


class Link(InFolder):
    def setUp(self):
        super().setUp()
        self.table = self.folder / "allreduce.csv"
        self.table.write_text("bytes,world_size,median_s,gap_s\n1000,2048,0.02,0.02\n")

    def refused(self, mentions, *words, **options):
        self.assert_refused("bench", "allreduce", *words, "--out", self.out, mentions=mentions, **options)
        self.assertFalse(self.out.exists())

    def test_one_rank_takes_the_time_of_a_rank_of_2048(self):
        self.assert_succeeds("bench", "allreduce", "-b", 8, "-e", 8, "--time", "1s", "--link", self.table, "--world", 2048, "--out", self.out)
        self.assertGreaterEqual(self.results()["allreduce"][0]["min_s"], 0.02)

    def test_a_trace_shows_collectives_until_the_link_has_carried_them(self):
        words = ["--strategies", "bucketed,torch", "--cap", "0.01MiB", *TINY_MODEL, "--link", "10gbit,5ms"]
        self.assert_succeeds("trace", *words, "--out", self.out)
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
        self.refused("--link 1gbti: expected RATE[,LATENCY] such as 1gbit or 200mbit,1ms, or an allreduce.csv", "--link", "1gbti")
        self.refused("expected RATE", "--link", "")
        self.refused("--world 4: expected --link as well", "--world", 4)
        self.refused("--world 1: expected at least the number of ranks, 2", "--ranks", 2, "--link", "1gbit", "--world", 1)
        self.refused("world size 2", "--link", self.table)
        self.refused("none.csv", "--link", "none.csv")
        self.refused("a modelled link with sms=16 on the CPU; expected a GPU", "--device", "cpu", "--link", "1gbit,sms=16")
        self.refused("--world -1", "--link", "1gbit", "--world", -1)

    def test_a_launchers_ranks_count(self):
        environment = dict(os.environ, RANK="0", WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
        self.refused("number of ranks, 3", "--link", "1gbit", "--world", 2, env=environment)
