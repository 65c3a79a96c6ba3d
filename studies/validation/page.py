"""docs/validation.md and docs/validation/REGIME/report.md, from what is kept in studies/validation/data/."""

import pathlib
import statistics
import sys

from bars import BLOCKS, all_bars
from figures import STEADY, Broken, median_error, read_figures, worst_error
from measure import write_atomically
from regimes import ALPS, ALPS_RANKS, ALPS_SETTING
from section import report
from words import cap_text, percent, reflowed, share_text, signed, table

RULES = ["chosen cap", "recommendation", "predicted best", "PyTorch's default", "MG-WFBP", "one bucket"]

INTRODUCTION = """# Does the prediction hold? The validation study

`firkin tune` predicts the step time T(b) of every bucket cap b. This page shows how far predictions miss, what the chosen caps cost, and which of
Firkin's own bars are missed, in {count} configurations: four workloads over each of four links, one over four hosts, and one as one of
{ranks} GPUs over a modelled link. `studies/validation/study.py build/firkin` writes it and a report per configuration in about
{minutes:.0f} minutes on two idle cores (`--page`: from the kept results).

**Read the gains with care.** The links are kernel-limited and join hosts on one machine. The workloads are small: PyTorch's default of
1 MiB and then 25 MiB is nearly one bucket on them, so gains over it say little about a cluster ([map](where_it_matters.md)).

{machine}

- **Error**: predicted over measured step, less 1. **Regret**: a step over the step of the cap measured best, less 1, paired within
  blocks. Intervals are 95 %, a prediction's by earlier studies' errors.
- **Workloads**: the demo model with batch 4 (`compute`) and 1 (`communication`), sequences of 128; 24 narrow layers
  (`small-tensors`); gpt2-large with an A100's ready times, [replayed](emulated_links.md#replay-a-profile) and scaled to steps of
  tenths of a second.
- **Links**: [`lab/run`](emulated_links.md#lab-a-network-on-one-machine) joins two hosts, one core and one rank each; "no limit" is as
  fast as the cores. Hosts of replays [get two cores](emulated_links.md#small-messages-on-a-single-core), shared on a machine of two. The
  modelled link has the all-reduce times of {ranks} GH200s of Alps (`{alps}`, {setting}).
- **Rules**: `tune` names the chosen cap after racing the best predicted ones; other blocks then measure it beside a grid of caps. The
  recommendation is that cap, or PyTorch's default where `tune` says to keep it. PyTorch's default runs in its own engine, c10d::Reducer.
  MG-WFBP (Shi, Chu, Li: INFOCOM 2019) is the calibrated model's prediction where its buckets were not measured. Every timed step of every rank is in `studies/validation/data/`."""

DEFINITION = """A **bar** is what was asked of a figure before the study was run; "missed by 0.6 points" means 0.6 percentage points beyond it. Errors are
absolute, pooled over the caps of all configurations of a kind; verdicts are on all configurations. Where nothing is asked (-), a bar was dropped:
work on the model over three studies did not move it. Over replayed links errors are largest where the link is about as fast as the host's own
work on a bucket, hooks and copies, which the model only fits (512 GPUs, 10 Gbit/s). Without a limit the cores that compute also carry the bytes,
which the model knows only as a constant slowdown. Caps below 1 MiB never had a bar for the worst."""


def machine_text(figures):
    environment = figures[0][1].result["environment"]
    host = environment["hosts"][0]
    runs = [these.run for _, these in figures]
    blocks = sorted({run["blocks"] for run in runs})
    others = [run["busy_cores_of_others"] for run in runs]
    loads = [run["load_before"] for run in runs]
    few = f" **The bars are stated for {BLOCKS} blocks or more: figures from fewer show that the program runs, and nothing else.**"
    return (f"Machine: {host['cpu']}, {host['cores']} cores, LibTorch {environment['libtorch']}; one thread per rank, {' or '.join(map(str, blocks))} blocks "
            f"per setting. The load average at the start was {min(loads):.1f} to {max(loads):.1f}, of which up to 2 stem from the previous configuration; "
            f"other processes used {min(others):.2f} to {max(others):.2f} cores.{few if blocks[0] < BLOCKS else ''}")


def bars_text(figures):
    steady = all_bars([(regime, these) for regime, these in figures if these.is_steady])
    rows = [(bar.text, bar.asked, bar.measured, alone.measured, verdict_text(bar, alone)) for bar, alone in zip(all_bars(figures), steady, strict=True)]
    parts = ["## Bars, met and missed", DEFINITION, table(("what", "asked", "all", "steady", "verdict"), rows), unsteady_text(figures),
             "`ctest -L stats` checks on recorded noise how often intervals hold the true value; "
             "[the model's page](performance_model.md#where-predictions-miss) says why bars are missed."]
    return "\n\n".join(filter(None, parts))


def verdict_text(bar, alone):
    return f"{bar.verdict}; steady: met" if alone.verdict == "met" != bar.verdict else bar.verdict


def unsteady_text(figures):
    """Which are not steady, what the change alone would do, and what was measured."""
    unsteady = [(regime, these) for regime, these in figures if not these.is_steady]
    if not unsteady:
        return ""
    rows = [(regime.name, signed(these.level - 1), signed(1 / these.level - 1), signed(these.median_signed_error), f"{sum(these.covered)} of {len(these.covered)}") for regime, these in unsteady]
    which = "configuration" if len(unsteady) == 1 else f"{len(unsteady)} configurations"
    return (f"**Steady**: without the {which} in which a step without communication changed by more than "
            f"{percent(STEADY - 1, 0)} between calibration and measurement, as `tune` notes. Predicted times may be off by up to about that much there, and how "
            "much of an error is the machine's cannot be told. The column shows what is left without them. It was added after the measurement; "
            "the bars make no such exception. Comparisons within blocks are not affected.\n\n"
            + table(("not steady", "change of that step", "errors, were they the change alone", "measured errors: median", "caps within their interval"), rows))


def link_to(regime):
    return f"[{regime.name}](validation/{regime.name}/report.md)"


def error_row(regime, figures):
    errors = [percent(of(errors)) for errors in (figures.large_errors, figures.small_errors) for of in (median_error, worst_error)]
    return (link_to(regime), *errors, signed(figures.ordered_predicted), share_text(figures.ordered_measured))


def choice_row(regime, figures):
    chosen, best = (cap_text(cap) for cap in (figures.chosen["cap_mib"], figures.result["best_measured"]["cap_mib"]))
    measured = [share_text(share) for share in (figures.regrets["chosen cap"], figures.regrets.get("recommendation"), figures.over_default)]
    return (link_to(regime), chosen if figures.chosen_in_set else f"**{chosen}**", best, *measured, figures.outcome)


def regret_summary(figures):
    """Median and worst of each rule over the regimes that have it, predicted ones among them."""
    values = [[these.regrets[rule].value for _, these in figures if rule in these.regrets] for rule in RULES]
    return [(f"**{name}**", *(signed(of(regrets)) if regrets else "-" for regrets in values))
            for name, of in (("median", statistics.median), ("worst", max))]


def overview_text(figures):
    errors = ("configuration", "error: median", "worst", "small caps: median", "worst", "`ordered`, predicted", "measured")
    choices = ("configuration", "chosen", "best", "regret", "advised", "over default", "answer")
    told = any(not these.chosen_in_set for _, these in figures)
    parts = ["## All configurations", "Regret of each rule over the configurations; in "
             f"{sum(these.keeps_default for _, these in figures)} of {len(figures)} `tune` recommends PyTorch's default:", table(("regret", *RULES), regret_summary(figures)),
             "**Errors**: absolute errors of T(b), for caps of 1 MiB and more and for smaller ones; then the step of `ordered` over the chosen cap's. The linked "
             "reports have every cap, interval and rule.", table(errors, [error_row(regime, these) for regime, these in figures]),
             "**Choices**: the cap that `tune` chose and the one measured best, in MiB "
             f"({'bold where the measurement tells them apart' if told else 'the measurement tells them apart in none'}); the regret of the chosen cap and of the "
             "recommendation (advised); the chosen cap's step over PyTorch's default; and [the answer](performance_model.md#the-decision) of `tune`.",
             table(choices, [choice_row(regime, these) for regime, these in figures])]  # fmt: skip
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
    introduction = INTRODUCTION.format(count=f"{len(found)} of {len(regimes)}" if missing else len(found), ranks=ALPS_RANKS, machine=machine_text(found), alps=ALPS,
                                       setting=ALPS_SETTING, minutes=sum(regime.expected_s for regime in regimes) / 60)
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
