"""What was asked of the program before the study was run, and whether it holds."""

import dataclasses
import statistics

from figures import median_error, worst_error
from words import percent

BLOCKS = 20  # what the bars are stated for


@dataclasses.dataclass(frozen=True)
class Bar:
    text: str
    asked: str
    measured: str
    verdict: str


def at_most(text, value, limit):
    if value is None:
        return Bar(text, f"at most {percent(limit)}", "-", "no such configuration measured")
    verdict = "met" if value <= limit else f"**missed** by {percent(value - limit)}"
    return Bar(text, f"at most {percent(limit)}", percent(value), verdict)


def count_at_most(text, names, limit, of):
    shown = f"{len(names)} of {of}" + (": " + ", ".join(names) if names else "")
    return Bar(text, f"at most {limit}", shown, "met" if len(names) <= limit else f"**missed** by {len(names) - limit}")


def error_bars(words, errors, median, worst):
    bars = [at_most(f"error of T(b), {words}: median", median_error(errors), median)]
    if worst is not None:
        bars.append(at_most(f"error of T(b), {words}: worst", worst_error(errors), worst))
    return bars


def pooled(figures, errors, wanted):
    return [error for regime, these in figures if wanted(regime) for error in errors(these)]


def all_bars(figures):
    """figures: pairs of a Regime and its Figures."""
    def large(these):
        return these.large_errors

    bars = error_bars("replay over links, caps of 1 MiB and more", pooled(figures, large, lambda r: r.replay and not r.loopback), 0.01, 0.04)
    bars += error_bars("models over links, caps of 1 MiB and more", pooled(figures, large, lambda r: not r.replay and not r.loopback), 0.015, 0.05)
    bars += error_bars("no limit, caps of 1 MiB and more", pooled(figures, large, lambda r: r.loopback), 0.03, 0.08)
    bars += error_bars("caps below 1 MiB", pooled(figures, lambda these: these.small_errors, lambda r: True), 0.04, None)
    of = len(figures)
    told = [r.name for r, these in figures if not these.chosen_in_set]
    bars.append(count_at_most("configurations whose chosen cap can be told from the measured best", told, 1, of))
    regrets = [these.regrets["chosen cap"].value for _, these in figures]
    bars.append(at_most("regret of the chosen cap: median", statistics.median(regrets), 0.005))
    bars.append(at_most("regret of the chosen cap: worst", max(regrets), 0.02))
    slower = [r.name for r, these in figures if (planned := these.regrets.get("`planned`")) and (planned.low or 0) > 0]
    bars.append(count_at_most("configurations where `planned` is slower than the best cap, beyond its interval", slower, 0, of))
    faster = sum(these.planned_over_default is not None and these.planned_over_default.value <= -0.10 for _, these in figures)
    needed = (of + 1) // 2
    bars.append(Bar("configurations where `planned` is faster than PyTorch's default by 10 % or more", f"at least {needed} of {of}", str(faster),
                    "met" if faster >= needed else f"**missed** by {needed - faster}"))
    wide = [r.name for r, these in figures if these.too_wide]
    bars.append(count_at_most("configurations with intervals wider than the range of their samples", wide, 0, of))
    return bars
