#!/usr/bin/env python3
"""Step times over a modelled link beside those over a real one of the same rate, for several caps.

  sudo benchmarks/link/compare_with_real.py build/firkin --rate 1gbit

The real link joins two network namespaces of this machine, each with one rank: a veth pair, each end limited by a token bucket (tc tbf).
Its burst must be several packets of TCP's segmentation offload (64 KB): with one, it loses packets and most of its rate.
Needs root, ip and tc. Rounds alternate between the two links; a cap's ratio is that of the medians over all rounds.
"""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HOSTS = ["firkin-link0", "firkin-link1"]


def sh(command):
    subprocess.run(command.split(), check=True)


@contextlib.contextmanager
def real_link(rate, burst):
    try:
        for host in HOSTS:
            sh(f"ip netns add {host}")
        sh(f"ip link add veth0 netns {HOSTS[0]} type veth peer name veth1 netns {HOSTS[1]}")
        for i, host in enumerate(HOSTS):
            sh(f"ip -n {host} addr add 10.98.0.{i + 1}/24 dev veth{i}")
            sh(f"ip -n {host} link set veth{i} up")
            sh(f"ip -n {host} link set lo up")
            sh(f"tc -n {host} qdisc add dev veth{i} root tbf rate {rate} burst {burst} latency 100ms")
        yield
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", host], stderr=subprocess.DEVNULL)


def steps(out):
    """strategy and cap -> the step times of one run."""
    result = json.loads((out / "results.json").read_text())
    configuration = result["configurations"][0]
    names = [(s["strategy"], s.get("cap_mib")) for s in configuration["strategies"]]
    return dict(zip(names, configuration["samples"]["step_s"]))


def run_real(command, port, scratch):
    ranks = []
    for rank, host in enumerate(HOSTS):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2", MASTER_ADDR="10.98.0.1",
                           MASTER_PORT=str(port), GLOO_SOCKET_IFNAME=f"veth{rank}")
        words = ["ip", "netns", "exec", host, *command, "--out", str(scratch / f"real{rank}")]
        ranks.append(subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    if any([rank.wait() for rank in ranks]):
        sys.exit("a rank over the real link failed")
    return steps(scratch / "real0")


def run_modelled(command, rate, scratch):
    words = [*command, "--ranks", "2", "--link", rate, "--out", str(scratch / "modelled")]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return steps(scratch / "modelled")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("firkin")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--burst", default="256kb", help="of the token bucket: so much passes an idle real link at once, as it would no wire")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--blocks", default="4")
    parser.add_argument("--batch", default="1")
    parser.add_argument("--strategies", default="bucketed")
    parser.add_argument("--cap-mib", nargs="+", default=["0.7", "2", "5", "25"])
    flags = parser.parse_args()
    command = [flags.firkin, "bench", "step", "--strategies", *flags.strategies.split(","), "--cap-mib", *flags.cap_mib, "--batch",
               flags.batch, "--sequence", "128", "--blocks", flags.blocks, "--threads", "1"]
    samples = {"real": {}, "modelled": {}}
    with tempfile.TemporaryDirectory() as folder, real_link(flags.rate, flags.burst):
        scratch = pathlib.Path(folder)
        for turn in range(flags.rounds):
            for link in ("real", "modelled"):
                times = run_real(command, 29600 + turn, scratch) if link == "real" else run_modelled(command, flags.rate, scratch)
                for name, values in times.items():
                    samples[link].setdefault(name, []).extend(values)
            print(f"round {turn + 1} of {flags.rounds}", file=sys.stderr)
    print(f"{flags.rate}: median step, ms (lowest)      real             modelled   modelled / real")
    for name, real in samples["real"].items():
        modelled = samples["modelled"][name]
        medians = [statistics.median(values) * 1e3 for values in (real, modelled)]
        lowest = [min(values) * 1e3 for values in (real, modelled)]
        print(f"{name[0]:12} {name[1] or '-':>8} MiB {medians[0]:12.1f} ({lowest[0]:.1f}) {medians[1]:12.1f} ({lowest[1]:.1f})"
              f" {medians[1] / medians[0]:12.3f} ({lowest[1] / lowest[0]:.3f})")


if __name__ == "__main__":
    main()
