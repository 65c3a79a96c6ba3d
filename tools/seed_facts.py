#!/usr/bin/env python3
"""What the measured tables of the CS336 documents say about themselves: figures of docs/experiments.md.

Usage: seed_facts.py data/seed_step_times.csv

Only comparisons inside one document, or between documents of the same author and machine, are made.
"""

import csv
import sys

CAPS = ["1", "10", "100", "1000"]


def read_steps(path: str) -> dict[tuple[str, str], dict[str, dict[str, float]]]:
    """{(batch, sequence): {strategy and cap: {"step_s", "comm_s"}}}; the document that states neither batch nor sequence is ("", "")."""
    cells: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            if row["status"] != "ok":
                continue
            times = {name: float(row[name]) for name in ("step_s", "comm_s") if row[name]}
            cells.setdefault((row["local_batch"], row["seq_len"]), {})[f"{row['strategy']} {row['bucket_mib']}".strip()] = times
    return cells


def percent(a: float, b: float) -> str:
    return f"{100 * (a / b - 1):+.1f} %"


def print_rows(title: str, header: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    print(title)
    for row in [header, *rows]:
        print("  " + "  ".join(text.rjust(width) for text, width in zip(row, widths)))
    print()


def difference(a: float, b: float) -> str:
    return f"{1e3 * (a - b):+.1f} ms, {percent(a, b)}"


def print_reruns(cells: dict) -> None:
    rows = []
    for (batch, sequence), steps in cells.items():
        if not batch:
            continue
        step = {name: times["step_s"] for name, times in steps.items()}
        best = min(CAPS, key=lambda cap: step[f"bucketed {cap}"])
        effect = difference(step["bucketed 100"], step["bucketed 1000"])
        rows.append([batch, sequence, difference(step["bucketed 1"], step["overlap"]), effect, best])
    header = ["batch", "sequence", "1 MiB less overlap", "100 less 1000 MiB", "best cap"]
    print_rows("Step times: one bucket plan run twice, and the effect under discussion", header, rows)


def print_naive(cells: dict) -> None:
    naive = [(int(batch) * int(sequence), batch, sequence, steps["naive"]) for (batch, sequence), steps in cells.items() if batch and "naive" in steps]
    rows = [[str(tokens), batch, sequence, f"{1e3 * times['comm_s']:.0f}"] for tokens, batch, sequence, times in sorted(naive, key=lambda row: row[0])]
    print_rows("'All-reduce time' of naive, ms, which always sends the same bytes", ["tokens", "batch", "sequence", "timer"], rows)


def print_timers(cells: dict) -> None:
    rows = []
    for (batch, sequence), steps in cells.items():
        if "naive" not in steps or not batch:
            continue
        naive, overlap, bucketed = steps["naive"], steps["overlap"], steps["bucketed 100"]
        rest = [f"{1e3 * (times['step_s'] - times['comm_s']):.0f}" for times in (naive, overlap, bucketed)]
        saved = [f"{1e3 * (naive[name] - overlap[name]):.0f}" for name in ("comm_s", "step_s")]
        rows.append([batch, sequence, *rest, *saved])
    header = ["batch", "sequence", "naive", "overlap", "100 MiB", "timer saved", "step saved"]
    print_rows("Step less 'all-reduce time', ms, and what overlap saves against naive, ms", header, rows)


def print_two_documents(cells: dict) -> None:
    step = {name: times["step_s"] for name, times in cells[("", "")].items()}
    bucketed = [step[f"bucketed {cap}"] for cap in CAPS]
    print("The H100 document")
    print(f"  slowest cap against fastest: {percent(max(bucketed), min(bucketed))}")
    print(f"  1 MiB against overlap, the same bucket plan: {percent(step['bucketed 1'], step['overlap'])}")
    print(f"  naive against flat: {percent(step['naive'], step['flat'])}")


def main() -> None:
    cells = read_steps(sys.argv[1])
    print_reruns(cells)
    print_timers(cells)
    print_naive(cells)
    print_two_documents(cells)


if __name__ == "__main__":
    main()
