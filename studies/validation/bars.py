"""What was asked of the program before the study was run, and whether it holds."""

import dataclasses
import math
import statistics

from figures import median_error, worst_error
from words import percent

BLOCKS = 20  # what the bars are stated for


@dataclasses.dataclass(frozen=True)
class Bar:
    text: str
    asked: str  # the most, or a range
    measured: str
    verdict: str


def at_most(text, value, limit):
    """limit: infinity where nothing is asked."""
    if limit == math.inf:
        return Bar(text, "-", percent(value), "-")
    return Bar(text, percent(limit), percent(value), "no such configuration measured" if value is None else verdict(value - limit))


def verdict(excess):
    return "met" if excess <= 0 else "**missed**"


def count_at_most(text, names, limit, of):
    shown = f"{len(names)} of {of}" + (": " + ", ".join(names) if names else "")
    return Bar(text, str(limit), shown, verdict(len(names) - limit))


def error_bars(words, errors, median, worst):
    return [at_most(f"error of T(b), {words}: median", median_error(errors), median),
            at_most(f"error of T(b), {words}: worst", worst_error(errors), worst)]


def pooled(figures, errors, wanted):
    return [error for regime, these in figures if wanted(regime) for error in errors(these)]


def regret_bars(figures, of):
    regrets = [these.regrets[of].value for _, these in figures if of in these.regrets]
    return [at_most(f"regret of the {of}: median", statistics.median(regrets) if regrets else None, 0.005),
            at_most(f"regret of the {of}: worst", max(regrets, default=None), 0.02)]


def coverage_bar(figures):
    covered = [is_covered for _, these in figures for is_covered in these.covered]
    share = sum(covered) / len(covered) if covered else None
    return Bar("measured caps within the 95 % interval of their prediction", "90 to 99 %", f"{percent(share)} of {len(covered)}",
               verdict(max(0.9 - share, share - 0.99)) if covered else "no interval")


def all_bars(figures):
    """figures: pairs of a Regime and its Figures. As many bars, in the same order, for any."""
    def large(these):
        return these.large_errors

    bars = error_bars("replay over links, caps of 1 MiB and more", pooled(figures, large, lambda r: r.replay and not r.loopback), 0.01, 0.04)
    bars += error_bars("models over links, caps of 1 MiB and more", pooled(figures, large, lambda r: not r.replay and not r.loopback), 0.015, 0.05)
    bars += error_bars("no limit, caps of 1 MiB and more", pooled(figures, large, lambda r: r.loopback), 0.03, 0.08)
    bars += error_bars("caps below 1 MiB", pooled(figures, lambda these: these.small_errors, lambda r: True), 0.04, math.inf)
    of = len(figures)
    told = [r.name for r, these in figures if not these.chosen_in_set]
    bars.append(count_at_most("configurations whose chosen cap can be told from the measured best", told, 1, of))
    bars += regret_bars(figures, "chosen cap") + regret_bars(figures, "recommendation")
    unshown = [r.name for r, these in figures if these.outcome == "gain" and not (these.over_default and (these.over_default.high or 0) < 0)]
    bars.append(count_at_most("configurations with a gain that the blocks which did not choose do not show", unshown, 0, of))
    bars.append(coverage_bar(figures))
    shares = [these.measured_share for _, these in figures if these.measured_share is not None]
    bars.append(at_most("blocks of calibration, race and confirmation, of those of calibration and all settings: median", statistics.median(shares) if shares else None, 0.6))
    ordered = [abs(these.ordered_error) for _, these in figures if these.ordered_error is not None]
    bars.append(at_most("error of the predicted step of `ordered`: median", statistics.median(ordered) if ordered else None, 0.03))
    bars.append(at_most("error of the predicted step of `ordered`: worst", max(ordered, default=None), 0.08))
    return bars
