"""What the page says of one regime, computed from its kept result and nothing else. Seconds, bytes, fractions.

A regret is a step's time over that of the cap that was measured best, less 1; below 0 the step is faster than under any cap.
"""

import dataclasses
import gzip
import json
import math
import pathlib
import re
import statistics

from measure import MEASURED
from paired import paired_ratio

LARGE_MIB = 1  # caps from here on have bars of their own
STEADY = 1.1  # where the machine's speed changed by more between calibration and measurement, errors are shown apart
TAKES_CAP = ("gain", "gain not shown", "default not measured")  # where keeps_default() of plan/decision.h is false


class Broken(Exception):
    """One line: which file, and what is wrong with it."""


@dataclasses.dataclass(frozen=True)
class Share:
    """A fraction with its interval of 95 % (None: too few blocks, or predicted)."""

    value: float
    low: float | None = None
    high: float | None = None
    predicted: bool = False


@dataclasses.dataclass(frozen=True)
class Figures:
    run: dict
    result: dict
    chosen: dict  # row of the curve: the cap that the decision names
    large_errors: list  # of T(b): (cap in MiB, error), caps of 1 MiB and more
    small_errors: list
    covered: list  # per cap with an error: whether it was measured within the interval of its prediction
    chosen_in_set: bool
    outcome: str  # of the decision, as results.json names it
    regrets: dict  # name -> Share
    over_default: Share | None  # the chosen cap, less 1
    measured_share: float | None  # of the blocks that a grid of all compared settings takes, those of tune without --compare
    ordered_error: float | None  # predicted over measured step, less 1
    ordered_predicted: float | None  # over the chosen cap, less 1
    ordered_measured: Share | None
    level: float | None  # a step without communication, measured over calibrated

    @property
    def is_steady(self):
        return self.level is None or 1 / STEADY <= self.level <= STEADY

    @property
    def keeps_default(self):
        return keeps_default(self.outcome)


def read_json(path):
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return json.loads(data)
    except OSError as error:
        raise Broken(f"{path}: cannot be read: {error.strerror or error}") from error
    except (EOFError, ValueError) as error:
        raise Broken(f"{path}: no JSON: {error}") from error


def share(ratio):
    """Of {"ratio", "ratio_ci"} as a result has it; an open end is null there."""
    if ratio is None:
        return None
    low, high = ratio["ratio_ci"]["low"], ratio["ratio_ci"]["high"]
    return Share(ratio["ratio"] - 1, None, None) if high is None else Share(ratio["ratio"] - 1, low - 1, high - 1)


def median_error(errors):
    return statistics.median(abs(error) for _, error in errors) if errors else None


def worst_error(errors):
    return max((abs(error) for _, error in errors), default=None)


def samples_by_setting(result):
    return dict(zip(result["samples"]["settings"], result["samples"]["step_s"]))


def cap_samples(result):
    """[row of the curve][block]: the caps are the last settings, in the curve's order."""
    return result["samples"]["step_s"][-len(result["curve"]):]


def samples_of_cap(result, cap_mib):
    return cap_samples(result)[[row["cap_mib"] for row in result["curve"]].index(cap_mib)]


def over_best(result, series):
    ratio, low, high = paired_ratio(series, samples_of_cap(result, result["best_measured"]["cap_mib"]))
    return Share(ratio - 1, None if low is None else low - 1, None if high is None else high - 1)


def keeps_default(outcome):
    return outcome not in TAKES_CAP


def chosen_row(result):
    """The curve has the chosen cap's buckets, if not under the same cap."""
    decision = result["decision"]
    lowest = decision.get("lowest_cap_mib", decision["cap_mib"])
    highest = decision.get("highest_cap_mib", math.inf if "lowest_cap_mib" in decision else decision["cap_mib"])  # none: no cap is too large
    return next(row for row in result["curve"] if lowest * (1 - 1e-9) <= row["cap_mib"] <= highest * (1 + 1e-9))


def tested_rows(result):
    """The curve without caps whose buckets tune had to calibrate on, as it says in a note: these are no test."""
    found = [re.search(r"calibrated on the buckets of (.*?), (?:so their|for want)", note) for note in result.get("notes", [])]
    known = ["bucketed " + match[1] for match in found if match]
    names = result["samples"]["settings"][-len(result["curve"]):]
    return [row for row, name in zip(result["curve"], names) if name not in known]


def covered(rows):
    """Per row that has an interval of its prediction: whether it holds what was measured."""
    return [row["predicted_range_s"]["low"] <= row["measured_s"] <= row["predicted_range_s"]["high"] for row in rows if "predicted_range_s" in row]


def measured_share(result):
    """Blocks of one setting: the calibration's, the race's, and those of none, PyTorch's default and the chosen cap, over the calibration's and a grid's."""
    samples = result["samples"]
    if "race_step_s" not in samples:
        return None
    calibration = sum(map(len, samples["calibration_step_s"]))
    grid = sum(map(len, samples["step_s"]))
    return (calibration + sum(map(len, samples["race_step_s"])) + 3 * len(samples["step_s"][0])) / (calibration + grid)


def one_bucket_series(result):
    for row, series in zip(result["curve"], cap_samples(result)):
        if row["buckets"] == 1:
            return series
    return None


def mg_wfbp_regret(result, prediction):
    """Measured where its buckets were, else by the calibrated model: a step changes by what its backward pass does."""
    series = samples_by_setting(result)
    rule = next(row for row in prediction["baselines"] if row["name"] == "mg_wfbp")
    if "mg_wfbp" in series:
        return over_best(result, series["mg_wfbp"])
    if rule["buckets"] == 1 and one_bucket_series(result):
        return over_best(result, one_bucket_series(result))
    if rule["buckets"] == len(result["profile"]["tensors"]):
        return over_best(result, series["overlap"])
    chosen = chosen_row(result)
    backward_s = nearest_row(prediction["curve"], chosen["cap_mib"])["backward_s"]
    return Share((rule["backward_s"] - backward_s) / chosen["predicted_s"], predicted=True)


def nearest_row(curve, cap_mib):
    """A cap passes through bytes, so it may differ in its last digits."""
    return min(curve, key=lambda row: abs(math.log(row["cap_mib"] / cap_mib)))


def regrets_of(result, prediction):
    series = samples_by_setting(result)
    chosen = samples_of_cap(result, chosen_row(result)["cap_mib"])
    predicted = samples_of_cap(result, result["best_predicted"]["cap_mib"])
    rules = [("chosen cap", chosen), ("predicted best", predicted), ("PyTorch's default", series.get("torch default")), ("one bucket", one_bucket_series(result))]
    regrets = {name: over_best(result, values) for name, values in rules if values}
    regrets["MG-WFBP"] = mg_wfbp_regret(result, prediction)
    recommended = "PyTorch's default" if keeps_default(result["decision"]["outcome"]) else "chosen cap"
    if recommended in regrets:
        regrets["recommendation"] = regrets[recommended]
    return regrets


def figures_of(run, result, prediction):
    tested = tested_rows(result)
    errors = [(row["cap_mib"], row["error"]) for row in tested]
    strategies = {row["strategy"]: row for row in result["strategies"]}
    chosen = chosen_row(result)
    ordered = strategies.get("ordered")
    return Figures(
        run=run, result=result, chosen=chosen,
        large_errors=[pair for pair in errors if pair[0] >= LARGE_MIB], small_errors=[pair for pair in errors if pair[0] < LARGE_MIB],
        covered=covered(tested), chosen_in_set=chosen["cap_mib"] in result["indifference_set"], outcome=result["decision"]["outcome"],
        regrets=regrets_of(result, prediction), over_default=share(result.get("over_default")), measured_share=measured_share(result),
        ordered_error=ordered["predicted_s"] / ordered["measured_s"] - 1 if ordered else None,
        ordered_predicted=ordered["predicted_s"] / chosen["predicted_s"] - 1 if ordered else None,
        ordered_measured=share(result.get("ordered_over_best_cap")), level=result["decision"].get("level"))


def read_figures(folder, name):
    """Raises Broken where there is no result, or one that lacks what the page needs."""
    kept = pathlib.Path(folder) / name
    if not (kept / "run.json").exists():
        raise Broken("not measured")
    run = read_json(kept / "run.json")
    if run.get("status") != MEASURED:
        raise Broken(run.get("status", f"{kept / 'run.json'}: no status; expected '{MEASURED}' or why not"))
    result = read_json(kept / "results.json.gz")
    if result.get("complete") is not True:
        raise Broken(f"{kept / 'results.json.gz'}: not complete; expected the result of a run that ended")
    try:
        return figures_of(run, result, read_json(kept / "prediction.json.gz"))
    except (KeyError, IndexError, TypeError, ValueError, StopIteration) as error:
        raise Broken(f"{kept / 'results.json.gz'}: not a result of firkin tune: {type(error).__name__} {error}") from error
