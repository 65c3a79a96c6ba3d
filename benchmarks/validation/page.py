"""docs/validation.md, from what is kept in docs/validation/."""

import pathlib
import statistics
import sys

from bars import BLOCKS, all_bars
from figures import Broken, median_error, read_figures, worst_error
from measure import write_atomically
from regimes import ALPS, ALPS_RANKS, ALPS_SETTING
from section import section
from words import cap_text, percent, share_text, signed, table

RULES = ["chosen cap", "`planned`", "PyTorch's default", "MG-WFBP", "one bucket"]

INTRODUCTION = """# Does the prediction hold? The validation study

`firkin tune` predicts the step time T(b) of every bucket cap b, chooses one, and then measures. Here it does so in {count} of {wanted} regimes: four
workloads over each of four links, once over four hosts, and once as one of {ranks} GPUs over a modelled link. This page is written by

```
benchmarks/validation/study.py build/firkin
```

It takes about {minutes:.0f} minutes on two cores that do nothing else, goes on where it was interrupted, and needs the right to make network
namespaces ([lab.md](lab.md)). `--list` shows the regimes, `--only NAME` runs one, and `--page` writes the page anew from what is kept.

**Raw data**, `docs/validation/REGIME/`: `results.json.gz`, the result of `firkin tune` with every timed step of every rank
([results.md](results.md)); `prediction.json.gz`, what the calibrated model says of rules that `tune` does not run; `run.json`, the command, how long
it took, and how busy the machine was. The files in `inputs/` are made by the study from `data/`.

**Machine.** {machine}

**Words.** Error: predicted over measured step, less 1. Chosen cap: the one that the prediction calls best. Regret: a step over the step with the cap
that was measured best, less 1, paired within blocks; below 0, faster than any cap. As good: in the measured indifference set. Intervals are of 95 %;
that of a prediction is for errors of the all-reduce times alone."""

SETTING = f"""**Workloads.** Two are the demo model (sequences of 128). One is a model of 24 narrow layers, whose tensors are small. The fourth is gpt2-large with
the ready times of an A100 (CMSC 828G; `firkin import cmsc828g`), [replayed](replay.md): computation is slept through, so that cores are free for
communication, as beside a GPU. Its 436 gradients are scaled so that a step takes tenths of a second. What is not scaled is PyTorch's default, 1 MiB
and then 25 MiB. On scaled gradients it is nearly one bucket, as on the demo model, and what `planned` gains over it says little of a cluster.

**Links.** `lab/run` joins two hosts, each with one core and one rank, through the kernel's TCP ([lab.md](lab.md)); "no limit" is as fast as the cores
are, which may be slower than 10 Gbit/s. Hosts of replays ask for two cores, which they share on a machine of two: beside a GPU there are cores to spare,
and on a single one Gloo's own threads keep each other waiting ([lab.md](lab.md#small-messages-on-a-single-core)). The modelled link has the all-reduce times of {ALPS_RANKS} GH200 of CSCS Alps (`{ALPS}`, setting
{ALPS_SETTING}); one rank runs, and its collectives take as long as that table says ([modelled_link.md](modelled_link.md)).

**Rules.** `planned` is the best plan of unequal buckets where its predicted gain over the best cap exceeds the error of the calibrated model, and the
buckets of that cap elsewhere. PyTorch's default is its own engine, c10d::Reducer. One bucket is a cap that holds
everything. MG-WFBP (Shi, Chu, Li: INFOCOM 2019) is not run: its regret, marked *p*, is what the calibrated model says, over the chosen cap. Where its
buckets are those of a setting that was measured, it is that setting's. `ordered` lets communication go on under the next forward pass."""


def machine_text(figures):
    environment = figures[0][1].result["environment"]
    host = environment["hosts"][0]
    runs = [these.run for _, these in figures]
    blocks = sorted({run["blocks"] for run in runs})
    others = [run["busy_cores_of_others"] for run in runs]
    loads = [run["load_before"] for run in runs]
    few = f" **The bars are stated for {BLOCKS} blocks or more: figures from fewer show that the program runs, and nothing else.**"
    return (f"{host['cpu']}, {host['cores']} cores, LibTorch {environment['libtorch']}; one thread per rank, {' or '.join(map(str, blocks))} blocks "
            f"per setting. The load average at the start of a regime was {min(loads):.1f} to {max(loads):.1f}, of which up to 2 are the regime before; "
            f"other processes computed on {min(others):.2f} to {max(others):.2f} cores meanwhile.{few if blocks[0] < BLOCKS else ''}")


def bars_text(figures):
    rows = [(bar.text, bar.asked, bar.measured, bar.verdict) for bar in all_bars(figures)]
    return ("## What was asked, and what came out\n\nErrors are pooled over the caps of all regimes of a kind, without their signs.\n\n"
            + table(("what", "asked", "measured", "verdict"), rows)
            + "\n\nElsewhere: how often intervals hold the true value on recorded noise is checked by `ctest -L stats`, extrapolation to more ranks\n"
              "(Alps, Azure) in [performance_model.md](performance_model.md).")


def link_to(regime):
    return f"[{regime.name}](#{regime.name})"


def error_row(regime, figures):
    errors = [percent(of(errors)) for errors in (figures.large_errors, figures.small_errors) for of in (median_error, worst_error)]
    caps = [cap_text(figures.result[point]["cap_mib"]) for point in ("best_predicted", "best_measured")]
    return (link_to(regime), *errors, *caps, "yes" if figures.chosen_in_set else "**no**", f"{figures.run['load_before']:.1f}")


def regret_row(regime, figures):
    regrets = [share_text(figures.regrets.get(rule)) for rule in RULES]
    ordered = (signed(figures.ordered_predicted), share_text(figures.ordered_measured))
    return (link_to(regime), *regrets, share_text(figures.planned_over_default), *ordered)


def regret_summary(figures):
    """Median and worst of each rule over the regimes that have it, predicted ones among them."""
    values = [[these.regrets[rule].value for _, these in figures if rule in these.regrets] for rule in RULES]
    return [(f"**{name}**", *(signed(of(regrets)) if regrets else "-" for regrets in values), "", "", "")
            for name, of in (("median", statistics.median), ("worst", max))]


def overview_text(figures):
    errors = [error_row(regime, these) for regime, these in figures]
    regrets = [regret_row(regime, these) for regime, these in figures] + regret_summary(figures)
    return ("## All regimes\n\nErrors of T(b) for caps of 1 MiB and more, and for smaller ones; caps in MiB; load average at the start.\n\n"
            + table(("regime", "median", "worst", "small: median", "worst", "chosen", "measured best", "as good", "load"), errors)
            + "\n\nRegrets; `planned` over PyTorch's default; `ordered` over the chosen cap, predicted and measured.\n\n"
            + table(("regime", *RULES, "`planned`, default", "`ordered`, predicted", "measured"), regrets))


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


def page_text(regimes, found, missing, images):
    introduction = INTRODUCTION.format(count=len(found), wanted=len(regimes), ranks=ALPS_RANKS, machine=machine_text(found),
                                       minutes=sum(regime.expected_s for regime in regimes) / 60)
    sections = [section(regime, figures, images) for regime, figures in found]
    parts = [introduction, SETTING, missing_text(missing), bars_text(found), overview_text(found), "## Each regime", *sections]
    return "\n\n".join(filter(None, parts)) + "\n"


def write_page(regimes, docs):
    """DOCS/validation.md from DOCS/validation/. Regimes without a result are named there and on standard error. False: there is none at all."""
    folder = pathlib.Path(docs) / "validation"
    found, missing = read_all(regimes, folder)
    for regime, reason in missing:
        print(f"study: {regime.name}: {reason}", file=sys.stderr)
    if not found:
        print(f"study: {folder}: no results; expected those of at least one regime", file=sys.stderr)
        return False
    page = folder.with_suffix(".md")
    write_atomically(page, page_text(regimes, found, missing, folder.name))
    print(f"wrote {page}: {len(found)} of {len(regimes)} regimes", file=sys.stderr)
    return True
