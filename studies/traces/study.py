#!/usr/bin/env python3
"""Does a trace of one ordinary run name the best cap? Predictions from traces against measured sweeps, in the lab.

  studies/traces/study.py build/firkin                      the next configuration that OUT lacks; repeat until it says "done"
  studies/traces/study.py build/firkin --only even,1gbit,2  this one
  studies/traces/study.py --table                           what was seen so far, as Markdown

A configuration (model, rate, ranks) takes minutes of a quiet machine: stock DistributedDataParallel is traced at its
default cap, `bench allreduce` measures the link, `predict --trace` names a cap, and the caps are measured in shuffled
blocks with the named one among them. Regret: the named cap's step over the best measured one's, less 1. The default is
measured twice, as two settings: what these differ by is noise.
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODELS, RATES, RANKS = ("even", "small", "tied", "convolutions"), ("200mbit", "1gbit", "4gbit", "10gbit"), ("2", "3")
CAPS = ["0.25", "0.5", "1", "2", "4", "8", "16", "default", "default again"]


def run(command: list[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[:6])} ...: exit code {done.returncode}")
    return done.stdout


def measured(firkin: str, model: str, rate: str, ranks: str, blocks: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        lab = [sys.executable, str(ROOT / "lab/run"), "--rate", rate, "--hosts", ranks, "--"]
        rank = [*lab, sys.executable, str(HERE / "train.py")]
        run([*rank, "trace", model, folder])
        table = f"{folder}/table/allreduce.csv"
        run([*lab, firkin, "bench", "allreduce", "--quiet", "-e", "64MiB", "--out", f"{folder}/table"])
        traces = sorted(map(str, pathlib.Path(folder).glob("trace_*.json.gz")))
        grid = ",".join(f"{cap}MiB" for cap in CAPS if cap[0].isdigit())
        predict = [firkin, "predict", *itertools.chain(*(("--trace", trace) for trace in traces)), "--allreduce", table, "--json"]
        prediction = json.loads(run([*predict, "--cap", grid]))
        default = json.loads(run([*predict, "--cap", "25MiB", "--first-cap", "1MiB"]))["curve"][0]
        run([firkin, "import", *traces, "--quiet", "--out", f"{folder}/imported"])
        traced = json.loads(pathlib.Path(folder, "imported/results.json").read_text())["traced"]
        named = prediction["best_uniform"]
        caps = [*CAPS, str(named["cap_mib"])] if str(named["cap_mib"]) not in CAPS else CAPS
        run([*rank, "sweep", model, folder, str(blocks), *caps])
        # The slowest rank's step without backward and its communication: forward and the optimiser.
        rest_s = max(each["step_s"] - each["backward_s"] - each["exposed_s"] for each in traced["ranks"])
        predicted = {f"{row['cap_mib']:g}": row["backward_s"] + rest_s for row in prediction["curve"]}
        predicted |= {str(named["cap_mib"]): named["backward_s"] + rest_s, "default": default["backward_s"] + rest_s}
        return {
            "model": model, "rate": rate, "ranks": ranks, "cores": os.cpu_count(), "named": str(named["cap_mib"]),
            "measured_s": json.loads(pathlib.Path(folder, "sweep.json").read_text()), "predicted_s": predicted,
            "profiler": json.loads(pathlib.Path(folder, "profiler.json").read_text()), "notes": prediction["notes"],
        }  # fmt: skip


def figures(row: dict) -> dict:
    steps = {cap: statistics.median(times) for cap, times in row["measured_s"].items()}
    best = min(steps, key=steps.__getitem__)
    errors = [abs(predicted / steps[cap] - 1) for cap, predicted in row["predicted_s"].items() if cap in steps]
    return {
        "named": row["named"], "best": best, "regret": steps[row["named"]] / steps[best] - 1,
        "default": steps["default"] / steps[best] - 1, "noise": abs(steps["default"] / steps["default again"] - 1),
        "error": statistics.median(errors),
        "profiler": statistics.median(row["profiler"]["with_s"]) / statistics.median(row["profiler"]["without_s"]) - 1,
    }  # fmt: skip


def table(rows: list[dict]) -> str:
    lines = ["| model | link | ranks | named | best | regret | default's | noise | prediction off by | profiler |", "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for row in rows:
        f = figures(row)
        shares = " | ".join(f"{100 * f[name]:.1f} %" for name in ("regret", "default", "noise", "error", "profiler"))
        lines.append(f"| {row['model']} | {row['rate']} | {row['ranks']} | {float(f['named']):.3g} | {f['best']} | {shares} |")
    if rows:
        all_figures = [figures(row) for row in rows]
        beyond = [max(0.0, f["regret"] - f["noise"]) for f in all_figures]
        lines.append("")
        lines.append(f"{len(rows)} configurations: regret beyond noise {100 * statistics.median(beyond):.1f} % in the median, "
                     f"{100 * max(beyond):.1f} % at worst; predictions off by {100 * statistics.median(f['error'] for f in all_figures):.1f} % "
                     "in the median.")  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("firkin", nargs="?", help="the program, of a build with LibTorch")
    parser.add_argument("--out", default=str(HERE / "results.jsonl"), help="a line for each configuration")
    parser.add_argument("--only", help="MODEL,RATE,RANKS")
    parser.add_argument("--blocks", type=int, default=8, help="how often each cap is measured")
    parser.add_argument("--table", action="store_true")
    flags = parser.parse_args()
    out = pathlib.Path(flags.out)
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    if flags.table:
        print(table(rows))
        return
    done = {(row["model"], row["rate"], row["ranks"]) for row in rows}
    wanted = [tuple(flags.only.split(","))] if flags.only else list(itertools.product(MODELS, RATES, RANKS))
    left = [each for each in wanted if each not in done]
    if not left:
        print("done")
        return
    if not flags.firkin:
        parser.error("expected the program firkin")
    row = measured(str(pathlib.Path(flags.firkin).resolve()), *left[0], flags.blocks)
    with out.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(table([row]))
    print(f"{len(left) - 1} left")


if __name__ == "__main__":
    main()
