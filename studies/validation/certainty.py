#!/usr/bin/env python3
"""How often what `firkin predict` says of its own certainty held, against caps that were measured.

  studies/validation/certainty.py build/firkin              the figures of docs/performance_model.md
  studies/validation/certainty.py build/firkin --cases      a line for each configuration as well

Each case is a profile and an all-reduce table as `tune` measured them, without its calibration, and the steps of several caps and of PyTorch's default:

  first, second, third   54 configurations of three earlier validation studies (earlier.json.gz, from this repository's history; each names its commit)
  newest                 18 of docs/validation.md (data/)
  GPU                    three modelled links of one H200 (studies/gpu/h200)
  published              nine sweeps of others on two GPUs (data/gpu_sweeps, by studies/worth/published.py): whole steps, one time for each cap

`first` and `second` are what the errors of possible_inputs() (plan/uncertainty.h) were fitted to; the others are tests. Everything is backward with its
communication: a step less what a step without communication takes beyond bare backward. Caps are compared within blocks, by the median of paired
ratios (Hodges and Lehmann).

A cap's time over the best's has a standard error of 1 to 3 %. So each cap counts as within 5 % of the best by the probability that its measurement gives
this: a normal distribution around the measured ratio, with the standard error of resampled blocks, cut off where the cap would be better than the best.
"""

import argparse
import concurrent.futures
import dataclasses
import gzip
import itertools
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "worth"))

import published
from paired import paired_ratio

MIB = 1 << 20
NEAR = 0.05
FITTED = ("first", "second")
NEAR_BINS = (0, 0.2, 0.7, 1.001)  # near_best_of() of plan/prediction.h: unlikely, may be, likely
REGRET_BINS = (0, 0.02, 0.05, 0.1, math.inf)  # the last is said as "10 % or more"


@dataclasses.dataclass(frozen=True)
class Case:
    study: str
    name: str
    tensors: str  # tensors.csv
    allreduce: str  # allreduce.csv
    caps_mib: list
    backward_s: list  # measured with its communication, [cap][block]
    default_s: list | None  # under PyTorch's default
    rule: str = "close-when-full"


@dataclasses.dataclass(frozen=True)
class Said:
    """Of one cap: what was said of it, and what was measured."""

    study: str
    near: float
    regret: float
    held_near: float  # probability, by the measurement
    held_regret: float


def csv_of(rows, columns):
    lines = [",".join("" if row.get(column) is None else f"{row[column]}" for column in columns) for row in rows]
    return "\n".join([",".join(columns), *lines]) + "\n"


def case_of(study, name, tensors, allreduce, caps_mib, bare_backward_s, none_s, caps_s, default_s):
    rest_s = max(0.0, statistics.median(none_s) - bare_backward_s)
    columns = ("bytes", "world_size", "median_s", "gap_s", "mean_s", "stdev_s", "min_s", "max_s", "samples", "stderr_s", "gap_stderr_s")
    blocks = min(map(len, caps_s))
    return Case(study, name, csv_of(tensors, ("name", "bytes", "ready_s")), csv_of(allreduce, columns), caps_mib,
                [[step - rest_s for step in series[:blocks]] for series in caps_s],
                [step - rest_s for step in default_s[:blocks]] if default_s else None)  # fmt: skip


def earlier_cases():
    for kept in json.loads(gzip.decompress((HERE / "earlier.json.gz").read_bytes())):
        tensors = [{"name": f"t{i}", "bytes": size, "ready_s": ready} for i, (size, ready) in enumerate(zip(kept["bytes"], kept["ready_s"], strict=True))]
        steps = kept["step_s"]
        yield case_of(kept["study"], kept["name"], tensors, kept["allreduce"], kept["caps_mib"], kept["bare_backward_s"], steps["none"], steps["caps"],
                      steps["torch default"])  # fmt: skip


def kept_cases(study, paths):
    for path in paths:
        result = json.loads(gzip.decompress(path.read_bytes()))
        series = dict(zip(result["samples"]["settings"], result["samples"]["step_s"]))
        yield case_of(study, path.parent.name if study == "newest" else path.name.split(".")[0], result["profile"]["tensors"], result["allreduce"],
                      [row["cap_mib"] for row in result["curve"]], result["profile"]["bare_backward_s"], series["none"],
                      result["samples"]["step_s"][-len(result["curve"]):], series.get("torch default") if study == "newest" else None)  # fmt: skip


def all_cases(studies=()):
    cases = [*earlier_cases(), *kept_cases("newest", sorted((HERE / "data").glob("*/results.json.gz"))),
             *kept_cases("GPU", [HERE.parent / f"gpu/h200/{name}.json.gz" for name in ("tune-nvlink", "tune-alps", "compare-tcp")])]  # fmt: skip
    return [case for case in cases if not studies or case.study in studies]


def predict(firkin, case):
    with tempfile.TemporaryDirectory() as folder:
        tensors, allreduce = pathlib.Path(folder) / "tensors.csv", pathlib.Path(folder) / "allreduce.csv"
        tensors.write_text(case.tensors)
        allreduce.write_text(case.allreduce)
        caps = ",".join(f"{round(cap * MIB)}B" for cap in case.caps_mib)
        command = [firkin, "predict", "--tensors", tensors, "--allreduce", allreduce, "--rule", case.rule, "--cap", caps, "--json"]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def measured_beside(case):
    """Of each cap: the logarithm of its time over the best's, and the standard error of its own, by resampled blocks."""
    logs = [[math.log(max(seconds, 1e-9)) for seconds in series] for series in case.backward_s]
    common = [statistics.fmean(column) for column in zip(*logs)]
    apart = [[value - shared for value, shared in zip(series, common, strict=True)] for series in logs]
    ratios = [math.log(paired_ratio([math.exp(value) for value in series], [1] * len(series))[0]) for series in apart]
    generator = random.Random(0)
    errors = [statistics.pstdev(statistics.median(generator.choices(series, k=len(series))) for _ in range(60)) for series in apart]
    return [ratio - min(ratios) for ratio in ratios], errors


def normal_below(z):
    return 0.5 * math.erfc(-z / math.sqrt(2))


def probability_near(regret, error):
    """That a true regret of at least 0, measured as this, is at most 5 %."""
    if error == 0:
        return float(regret <= NEAR)
    above = 1 - normal_below(-regret / error)
    return (normal_below((NEAR - regret) / error) - normal_below(-regret / error)) / above


def judge(firkin, case):
    """What was said of each measured cap, of the one next to that which predict names, and of the gain: (caps, named, gain)."""
    result = predict(firkin, case)
    regrets, errors = measured_beside(case)
    best = regrets.index(min(regrets))
    caps = [Said(case.study, row["near_best"], row["expected_regret"], probability_near(regret, math.hypot(error, errors[best])), math.expm1(regret))
            for row, regret, error in zip(result["curve"], regrets, errors, strict=True)]  # fmt: skip
    named = min(range(len(caps)), key=lambda cap: abs(math.log(case.caps_mib[cap] / result["best_uniform"]["cap_mib"])))
    held = [row["low_s"] <= statistics.median(series) <= row["high_s"] for row, series in zip(result["curve"], case.backward_s, strict=True)]
    gain = None
    if case.default_s:
        told = result["over_default"]
        measured = 1 - paired_ratio(case.backward_s[named], case.default_s)[0]
        gain = (case.study, told, measured)
    return case, caps, caps[named], held, gain, case.caps_mib[named], result["best_uniform"]["cap_mib"]


def percent(value):
    return f"{100 * value:.1f} %"


def rows_of(said, value, bins, fields):
    for low, high in itertools.pairwise(bins):
        these = [one for one in said if low <= value(one) < high]
        if these:
            upper = "more" if high == math.inf else f"{100 * min(high, 1):.0f}"
            yield (f"{100 * low:.0f} to {upper} %", len(these), *(percent(statistics.fmean(field(one) for one in these)) for field in fields))


def table(columns, rows):
    return "\n".join(["| " + " | ".join(map(str, cells)) + " |" for cells in (columns, ["---:"] * len(columns), *rows)])


def print_bins(title, said):
    print(f"\n{title}: within 5 % of the best\n")
    print(table(("said", "caps", "said, mean", "held"), rows_of(said, lambda one: one.near, NEAR_BINS, (lambda one: one.near, lambda one: one.held_near))))
    print(f"\n{title}: expected regret\n")
    print(table(("said", "caps", "said, mean", "measured, mean"), rows_of(said, lambda one: one.regret, REGRET_BINS, (lambda one: one.regret, lambda one: one.held_regret))))


def is_likely(told):
    """answer_of() of plan/prediction.h."""
    return told["expected"] >= 0.03 and told["low"] > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("firkin", help="the program, such as build/firkin")
    parser.add_argument("--cases", action="store_true", help="a line for each configuration as well")
    parser.add_argument("--jobs", type=int, default=2, help="predictions at once (default: 2)")
    flags = parser.parse_args()
    with concurrent.futures.ThreadPoolExecutor(flags.jobs) as pool:
        judged = list(pool.map(lambda case: judge(str(pathlib.Path(flags.firkin).resolve()), case), all_cases()))
        sweeps = list(pool.map(lambda sweep: published.judge(str(pathlib.Path(flags.firkin).resolve()), sweep), published.sweeps()))
    if flags.cases:
        for case, _, named, _, gain, cap, best in judged:
            told = "" if gain is None else f", gain said {percent(gain[1]['low'])} to {percent(gain[1]['high'])}, measured {percent(gain[2])}"
            print(f"{case.study:7} {case.name:24} named {best:8.3f} MiB, next measured {cap:8.3f}: near said {percent(named.near)}, held "
                  f"{percent(named.held_near)}; regret said {percent(named.regret)}, measured {percent(named.held_regret)}{told}")  # fmt: skip
    for title, wanted in (("Fitted to", lambda study: study in FITTED), ("Tests", lambda study: study not in FITTED)):
        print_bins(title, [one for case, caps, *_ in judged if wanted(case.study) for one in caps])
    print("\nThe measured cap next to the one that predict names\n")
    rows = []
    for study in dict.fromkeys(case.study for case, *_ in judged):
        named = [one for case, _, one, *_ in judged if case.study == study]
        held = [inside for case, _, _, inside, *_ in judged if case.study == study for inside in inside]
        gains = [gain for case, _, _, _, gain, *_ in judged if case.study == study and gain]
        likely = [gain for gain in gains if is_likely(gain[1])]
        inside = sum(told["low"] <= measured <= told["high"] for _, told, measured in gains)
        rows.append((study, len(named), *(percent(statistics.fmean(field(one) for one in named)) for field in (
            lambda one: one.near, lambda one: one.held_near, lambda one: one.regret, lambda one: one.held_regret)),
            f"{percent(sum(held) / len(held))} of {len(held)}", f"{inside} of {len(gains)}", f"{sum(gain[2] > 0 for gain in likely)} of {len(likely)}"))  # fmt: skip
    rows.append(("published", len(sweeps), *(percent(statistics.fmean(values)) for values in (
        [sweep["near_best"] for sweep in sweeps], [sweep["regret"] <= NEAR for sweep in sweeps], [sweep["expected_regret"] for sweep in sweeps],
        [sweep["regret"] for sweep in sweeps])), "-", "-", "-"))  # fmt: skip
    print(table(("study", "cases", "within 5 %: said", "held", "regret: said", "measured", "times within 95 %", "gains within range", "likely gains that were"), rows))


if __name__ == "__main__":
    main()
