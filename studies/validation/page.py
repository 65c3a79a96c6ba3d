"""docs/validation.md and docs/validation/REGIME/report.md, from what is kept in studies/validation/data/."""

import pathlib
import statistics
import sys

from bars import BLOCKS, all_bars
from figures import STEADY, Broken, median_error, read_figures, worst_error
from measure import write_atomically
from regimes import ALPS_RANKS
from section import report
from words import cap_text, percent, reflowed, share_text, signed, table

RULES = ["chosen cap", "recommendation", "predicted best", "PyTorch's default", "MG-WFBP", "one bucket"]

INTRODUCTION = """# Does the prediction hold? The validation study

`firkin tune` predicts the step time T(b) by bucket cap b, then races the best few. This page shows how far predictions missed, and what following
`tune` cost, in {count} configurations: four workloads over each of four links, one over four hosts, one over a modelled link of {ranks} GPUs. Over the
best of the {caps} measured caps the chosen one cost {median} in the median and {worst} at worst, PyTorch's default {default_median} and {default_worst}.

`studies/validation/study.py build/firkin` measures them, and writes this page and the reports (`--page` writes only). The runs took {minutes:.0f} minutes on
{machine}.

**Read the gains with care.** The hosts are emulated on this one machine. The workloads are small: PyTorch's default makes {default_buckets} buckets of
them, so gains over it say little about a cluster ([map](where_it_matters.md)).{few}

- **Error**: predicted over measured step, less 1. **Regret**: a step over that of the cap measured best, less 1, paired within blocks.
- **Workloads**: the demo model with batch 4 (`compute`) and 1 (`communication`); 24 narrow layers (`small-tensors`); gpt2-large with an A100's ready
  times, scaled down and [replayed](emulated_links.md#replay-a-profile).
- **Links**: [`lab/run`](emulated_links.md#lab-a-network-on-one-machine) joins hosts of one rank and one core; hosts of replays share two cores.
  `loopback` has no limit. The modelled link has the all-reduce times of {ranks} GH200s of Alps.
- **Rules**: the recommendation is the chosen cap, or PyTorch's default where `tune` says to keep it. The default runs in c10d::Reducer. MG-WFBP (Shi, Chu,
  Li: INFOCOM 2019) is predicted in {predicted} configurations, whose runs did not measure its buckets."""

DEFINITION = """The limits were set before these runs. Errors are absolute, pooled over the caps of all configurations of a
kind. [The model's page](performance_model.md#where-predictions-miss) names what predictions leave out."""


def machine_text(figures):
    environment = figures[0][1].result["environment"]
    host = environment["hosts"][0]
    return f"{host['cores']} cores of an {host['cpu']}, with LibTorch {environment['libtorch']}"


def default_buckets_text(figures):
    """Of PyTorch's default, where it was measured."""
    counts = sorted({row["buckets"] for _, these in figures for row in these.result["strategies"] if row["strategy"] == "torch default"})
    return " or ".join(map(str, counts)) or "few"


def caps_text(figures):
    counts = [len(these.result["curve"]) for _, these in figures]
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def few_text(figures):
    few = min(these.run["blocks"] for _, these in figures) < BLOCKS
    return f" **The limits are stated for {BLOCKS} blocks per setting or more: figures from fewer show that the program runs, and nothing else.**" if few else ""


def bars_text(figures):
    rows = []
    for bar in all_bars(figures):
        cells = (bar.text, bar.asked, bar.measured, bar.verdict)
        if bar.text.endswith(": worst"):  # beside its median
            cells = (f"{rows[-1][0]}, worst", *(median if median == worst and median not in ("met", "**missed**") else f"{median}; {worst}" for median, worst in zip(rows.pop()[1:], cells[1:], strict=True)))
        rows.append(cells)
    parts = ["## What was asked, and what was measured", DEFINITION, table(("what", "asked: at most", "measured", "verdict"), rows), unsteady_text(figures)]
    return "\n\n".join(filter(None, parts))


def unsteady_text(figures):
    """Where the machine changed within a configuration, and the worst errors without those."""
    unsteady = [(regime, these) for regime, these in figures if not these.is_steady]
    if not unsteady:
        return ""
    changes = ", ".join(f"{regime.name} ({signed(these.level - 1)})" for regime, these in unsteady)
    steady = all_bars([(regime, these) for regime, these in figures if these.is_steady])
    worst = [f"{alone.text} {alone.measured}" for bar, alone in zip(all_bars(figures), steady, strict=True)
             if bar.text.endswith("worst") and bar.measured != alone.measured]
    return (f"Between calibration and measurement a step without communication changed by more than {percent(STEADY - 1, 0)} in {changes}."
            + (f" Without {'it' if len(unsteady) == 1 else 'them'}: {'; '.join(worst)}." if worst else ""))


def link_to(regime):
    return f"[{regime.name}](validation/{regime.name}/report.md)"


def row_of(regime, figures):
    errors = [percent(of(errors)).removesuffix(" %") for errors, of in ((figures.large_errors, median_error), (figures.large_errors, worst_error), (figures.small_errors, worst_error))]
    chosen, best = (cap_text(cap) for cap in (figures.chosen["cap_mib"], figures.result["best_measured"]["cap_mib"]))
    measured = [share_text(share).removesuffix(" %") for share in (figures.regrets["chosen cap"], figures.over_default)]
    return (link_to(regime), *errors, chosen if figures.chosen_in_set else f"**{chosen}**", best, *measured, figures.outcome)


def regret_summary(figures):
    """Median and worst of each rule over the regimes that have it, predicted ones among them."""
    values = [[these.regrets[rule].value for _, these in figures if rule in these.regrets] for rule in RULES]
    return [(f"**{name}**", *(signed(of(regrets)) if regrets else "-" for regrets in values))
            for name, of in (("median", statistics.median), ("worst", max))]


def overview_text(figures):
    columns = ("configuration", "error: median", "worst", "below 1 MiB", "chosen", "best", "regret", "over default", "answer")
    told = any(not these.chosen_in_set for _, these in figures)
    parts = ["## All configurations", ("Regret of each rule over the configurations; in "
             f"{sum(these.keeps_default for _, these in figures)} of {len(figures)} `tune` recommends PyTorch's default:"), table(("regret", *RULES), regret_summary(figures)),
             ("Of each configuration: errors of T(b) for caps of 1 MiB and more, and the worst of smaller ones, in per cent; the cap that `tune` chose and the one "
              f"measured best, in MiB ({'bold where the measurement tells them apart' if told else 'the measurement tells them apart in none'}); the chosen cap's "
              "regret, and its step over PyTorch's default, in per cent; and [the answer](performance_model.md#the-decision)."),
             table(columns, [row_of(regime, these) for regime, these in figures])]  # fmt: skip
    return "\n\n".join(parts)


def missing_text(missing):
    if not missing:
        return ""
    names = {}
    for regime, reason in missing:
        names.setdefault(reason, []).append(regime.name)
    return "**Not here:** " + "; ".join(f"{', '.join(regimes)} ({reason})" for reason, regimes in names.items()) + "."


def read_all(regimes, folder):
    """Those with a result, and those without, each with one line that says why."""
    found, missing = [], []
    for regime in regimes:
        try:
            found.append((regime, read_figures(folder, regime.name)))
        except Broken as broken:
            missing.append((regime, str(broken)))
    return found, missing


def page_text(regimes, found, missing):
    regret, default = ([percent(of([max(0.0, these.regrets[rule].value) for _, these in found])) for of in (statistics.median, max)]
                       for rule in ("chosen cap", "PyTorch's default"))  # fmt: skip
    introduction = INTRODUCTION.format(count=f"{len(found)} of {len(regimes)}" if missing else len(found), ranks=ALPS_RANKS, machine=machine_text(found), few=few_text(found), default_buckets=default_buckets_text(found),
                                       minutes=sum(these.run["seconds"] for _, these in found) / 60,
                                       caps=caps_text(found), predicted=sum(these.regrets["MG-WFBP"].predicted for _, these in found), median=regret[0], worst=regret[1], default_median=default[0], default_worst=default[1])  # fmt: skip
    return reflowed("\n\n".join(filter(None, [introduction, missing_text(missing), bars_text(found), overview_text(found)])))


def write_page(regimes, docs, data):
    """DOCS/validation.md and a report for each regime, from DATA. Regimes without a result are named there and on standard error. False: there is none at all."""
    folder = pathlib.Path(docs) / "validation"
    found, missing = read_all(regimes, data)
    for regime, reason in missing:
        print(f"study: {regime.name}: {reason}", file=sys.stderr)
    if not found:
        print(f"study: {data}: no results; expected those of at least one regime", file=sys.stderr)
        return False
    page = folder.with_suffix(".md")
    write_atomically(page, page_text(regimes, found, missing))
    for regime, figures in found:
        write_atomically(folder / regime.name / "report.md", report(regime, figures))
    print(f"wrote {page}: {len(found)} of {len(regimes)} regimes", file=sys.stderr)
    return True
