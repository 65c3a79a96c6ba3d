#!/usr/bin/env python3
"""What the measured tables of CS336's answers say about themselves: figures of docs/experiments.md.

Usage: seed_facts.py DATA      the folder with gpu_sweeps/ and seed_step_times.csv

Two authors published theirs: damek and TianqGuo (data/README.md). Only results of one author are compared.
"""

import collections
import csv
import pathlib
import sys

CAPS = ["1", "10", "100", "1000"]
XL_BYTES = [1600 * 1600 * 4] * 192 + [1600 * 6400 * 4] * 144 + [10000 * 1600 * 4] * 2 + [1600 * 4] * 97


def rows_of(path: pathlib.Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def runs_of(rows: list[dict[str, str]], author: str) -> dict[tuple[str, str, str], list[float]]:
    """{(batch, sequence, strategy and cap): ms of every run}"""
    runs = collections.defaultdict(list)
    for row in rows:
        if row["source_repo"].startswith(author):
            runs[row["local_batch"], row["seq_len"], f"{row['strategy']} {row['bucket_mb']}".strip()].append(1e3 * float(row["step_time_s"]))
    return runs


def interpolated(table: list[tuple[float, float]], x: float) -> float:
    """Linear between the sizes that were measured, and beyond them."""
    i = max(1, next((k for k, (size, _) in enumerate(table) if size >= x), len(table) - 1))
    (x0, y0), (x1, y1) = table[i - 1], table[i]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def print_rows(title: str, header: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    print(title)
    for row in [header, *rows]:
        print("  " + "  ".join(text.rjust(width) for text, width in zip(row, widths)))
    print()


def print_reruns(rows: list[dict[str, str]]) -> None:
    lines = []
    for author in ("damek", "TianqGuo"):
        apart = collections.defaultdict(list)
        for (_, _, setting), times in runs_of(rows, author).items():
            if len(times) > 1:
                apart[setting.split()[0]].append(max(times) - min(times))
        lines += [[author, strategy, str(len(gaps)), f"{min(gaps):.1f} to {max(gaps):.1f} ms"] for strategy, gaps in apart.items()]
    print_rows("Runs of one setting, apart", ["author", "strategy", "settings", "apart"], lines)


def print_effects(rows: list[dict[str, str]]) -> None:
    runs = runs_of(rows, "damek")
    lines = []
    for batch, sequence in dict.fromkeys((batch, sequence) for batch, sequence, _ in runs):
        step = {setting: times[-1] for (b, s, setting), times in runs.items() if (b, s) == (batch, sequence)}
        best = min(CAPS, key=lambda cap: step[f"bucketed {cap}"])
        pairs = [("bucketed 1", "overlap"), ("bucketed 1", "bucketed 100"), ("bucketed 100", "bucketed 1000")]
        lines.append([batch, sequence, *(f"{step[a] - step[b]:+.1f} ms" for a, b in pairs), best])
    header = ["batch", "sequence", "1 MiB - overlap", "1 - 100 MiB", "100 - 1000 MiB", "best"]
    print_rows("Effects in one run (damek)", header, lines)


def print_communication(data: pathlib.Path) -> None:
    """How much of `naive` its all-reduces are, and what the timer says."""
    measured = rows_of(data / "gpu_sweeps/allreduce_damek_nccl.csv")
    table = [(float(row["MiB"]) * 2**20, float(row["time_s"])) for row in measured if row["ranks"] == "2"]
    alone_ms = 1e3 * sum(interpolated(table, size) for size in XL_BYTES)
    timers = {(row["local_batch"], row["seq_len"], row["strategy"], row["bucket_mib"]): row for row in rows_of(data / "seed_step_times.csv") if row["comm_s"]}
    lines = []
    for (batch, sequence, strategy, _), naive in timers.items():
        if strategy != "naive":
            continue
        overlap = timers[batch, sequence, "overlap", ""]
        saved = [f"{1e3 * (float(naive[name]) - float(overlap[name])):.0f} ms" for name in ("comm_s", "step_s")]
        step_ms, timer_ms = 1e3 * float(naive["step_s"]), 1e3 * float(naive["comm_s"])
        lines.append([batch, sequence, f"{step_ms:.0f} ms", f"{timer_ms / step_ms:.0%}", f"{alone_ms / step_ms:.0%}", *saved])
    header = ["batch", "sequence", "naive", "timer", "all-reduces", "timer saved", "step saved"]
    print_rows(f"Naive (damek): 435 all-reduces take {alone_ms:.0f} ms by that author's table. What overlap saves", header, lines)


def main() -> None:
    data = pathlib.Path(sys.argv[1])
    steps = rows_of(data / "gpu_sweeps/steps.csv")
    print_reruns(steps)
    print_effects(steps)
    print_communication(data)


if __name__ == "__main__":
    main()
