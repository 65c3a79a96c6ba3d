"""firkin and torchrun on two hosts.

FIRKIN names the binary. torchrun is the one beside this Python.
"""

import json
import os
import pathlib
import sys

from folders import InAFolder
from labs import ROOT, lab, skip_without_hosts

FIRKIN = os.environ["FIRKIN"]
LAUNCHER = ROOT / "examples" / "launch" / "torchrun.sh"
BY_FLAGS = 'exec torchrun --nnodes 2 --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" --no-python "$@"'


def setUpModule():  # unittest's name
    skip_without_hosts()


class TwoHosts(InAFolder):
    def measure(self, *launcher, options=(), size="8", **variables):
        """bench allreduce of one size: its results."""
        words = [*launcher, FIRKIN, "bench", "allreduce", "-b", size, "-e", size, "--time", "0.1s", "--out", self.out]
        path = {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
        result = lab("--rate", "100mbit", *options, command=words, env=os.environ | path | variables)
        self.assertEqual(result.returncode, 0, f"{result.stdout}\n{result.stderr}")
        return json.loads((self.out / "results.json").read_text())

    def assert_hosts(self, results, *ranks):
        """ranks: those of each host."""
        hosts = results["environment"]["hosts"]
        self.assertEqual([(host["host"], host["ranks"]) for host in hosts], [(f"host{i}", list(r)) for i, r in enumerate(ranks)])

    def test_one_rank_per_host_over_the_limited_link(self):
        results = self.measure(size="1M")
        self.assert_hosts(results, [0], [1])
        [row] = results["allreduce"]
        burst = 256 * 1024  # passes at once; a ring of two sends in all as much as it sums
        self.assertGreater(row["min_s"], 8 * (row["bytes"] - burst) / 100e6)

    def test_four_hosts(self):
        self.assert_hosts(self.measure(options=["--hosts", "4"]), [0], [1], [2], [3])

    def test_pairs_name_the_slow_host_of_three_and_of_four(self):
        for hosts, slow in ((3, 1), (4, 2)):
            rates = ",".join("30mbit" if host == slow else "100mbit" for host in range(hosts))
            words = [FIRKIN, "bench", "pairs", "--bytes", "1M", "--time", "10s", "--out", self.out]
            result = lab("--hosts", hosts, "--rate", rates, command=words)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertTrue(result.stdout.startswith(f"Slow link: host{slow} (rank {slow}), "), result.stdout)
            links = json.loads((self.out / "results.json").read_text())["links"]
            self.assertEqual([link["host"] for link in links if link["is_slow"]], [f"host{slow}"])

    def test_pairs_of_torchruns_ranks_are_of_the_first_of_each_host(self):
        words = ["torchrun", "--nproc-per-node", "2", "--no-python", FIRKIN, "bench", "pairs", "--bytes", "64K", "--time", "0.1s", "--out", self.out]
        path = {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
        result = lab("--rate", "100mbit", command=words, env=os.environ | path)
        self.assertEqual(result.returncode, 0, result.stderr)
        [pair] = json.loads((self.out / "results.json").read_text())["pairs"]
        self.assertEqual((pair["rank"], pair["host"], pair["other"], pair["other_host"]), (0, "host0", 2, "host1"))

    def test_torchrun_on_two_nodes_needs_no_flag_for_them(self):
        self.assert_hosts(self.measure("torchrun", "--nproc-per-node", "2", "--no-python"), [0, 1], [2, 3])

    def test_torchrun_on_two_nodes_with_its_flags(self):
        self.assert_hosts(self.measure("sh", "-c", BY_FLAGS, "sh"), [0], [1])

    def test_the_script_for_torchrun_on_two_nodes(self):
        results = self.measure("bash", str(LAUNCHER), NODES="2", HEAD="host0", RANKS_PER_NODE="1")
        self.assertEqual(sorted(host["host"] for host in results["environment"]["hosts"]), ["host0", "host1"])
