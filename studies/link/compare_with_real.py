#!/usr/bin/env python3
"""Step times over a modelled link beside those over a real one of the same rate, for several caps.

  studies/link/compare_with_real.py build/firkin --rate 1gbit

The real link is that of lab/run, between two hosts with one rank each (docs/emulated_links.md). Rounds alternate between the two links; a cap's ratio is
that of the medians over all rounds.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

LAB = pathlib.Path(__file__).resolve().parents[2] / "lab" / "run"


def steps(out):
    """strategy and cap -> the step times of one run."""
    result = json.loads((out / "results.json").read_text())
    configuration = result["configurations"][0]
    names = [(s["strategy"], s.get("cap_mib")) for s in configuration["strategies"]]
    return dict(zip(names, configuration["samples"]["step_s"]))


def run_on_lab(command, rate, burst, scratch):
    words = [LAB, "--rate", rate, "--burst", burst, "--", *command, "--out", str(scratch / "real")]
    ended = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if ended.returncode != 0:
        sys.exit(f"the run over the real link failed:\n{ended.stderr}")
    return steps(scratch / "real")


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
    parser.add_argument("--cap", nargs="+", default=["0.7MiB", "2MiB", "5MiB", "25MiB"])
    flags = parser.parse_args()
    command = [flags.firkin, "bench", "step", "--strategies", *flags.strategies.split(","), "--cap", *flags.cap, "--batch",
               flags.batch, "--sequence", "128", "--blocks", flags.blocks, "--threads", "1"]
    samples = {"real": {}, "modelled": {}}
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        for turn in range(flags.rounds):
            for link in ("real", "modelled"):
                if link == "real":
                    times = run_on_lab(command, flags.rate, flags.burst, scratch)
                else:
                    times = run_modelled(command, flags.rate, scratch)
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
