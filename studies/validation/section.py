"""The report of one regime: its picture, the curve and the strategies as tables, the sentences, and the rules."""

import textwrap

from words import cap_text, interval, milliseconds, reflowed, share_with_interval, signed, table


def mark_of(figures, cap_mib):
    """What a cap is, beside being measured."""
    result = figures.result
    marks = []
    if cap_mib == figures.chosen["cap_mib"]:
        marks.append("chosen")
    if cap_mib == result["best_measured"]["cap_mib"]:
        marks.append("measured best")
    elif cap_mib in result["indifference_set"]:
        marks.append("not told apart")
    return ", ".join(marks)


def curve_table(figures):
    rows = []
    for row in figures.result["curve"]:
        ends, predicted = row["measured_ci_s"], row.get("predicted_range_s", {"low": None, "high": None})
        rows.append((cap_text(row["cap_mib"]), row["buckets"], milliseconds(row["predicted_s"]),
                     interval(predicted["low"], predicted["high"]), milliseconds(row["measured_s"]), interval(ends["low"], ends["high"]), signed(row["error"]), mark_of(figures, row["cap_mib"])))
    return table(("cap, MiB", "buckets", "predicted", "interval", "measured", "interval", "error", ""), rows)


def choice_sentence(figures):
    chosen, best = figures.chosen, figures.result["best_measured"]
    regret = share_with_interval(figures.regrets["chosen cap"])
    predicted = share_with_interval(figures.regrets["predicted best"])
    if chosen["cap_mib"] == best["cap_mib"]:
        return f"The chosen cap, {cap_text(chosen['cap_mib'])} MiB, is the one that was measured best. Regret of the best predicted cap: {predicted}."
    told = "the measurement cannot tell them apart" if figures.chosen_in_set else "**the measurement tells them apart**"
    return (f"The chosen cap is {cap_text(chosen['cap_mib'])} MiB, the measured best {cap_text(best['cap_mib'])} MiB: {told}. "
            f"Its regret is {regret}; that of the best predicted cap, {predicted}.")


def default_sentence(figures):
    if figures.over_default is None:
        return ""
    return f"The chosen cap over PyTorch's default: {share_with_interval(figures.over_default)}; the answer of `tune`: {figures.outcome}."


def ordered_sentence(figures):
    if figures.ordered_measured is None or figures.ordered_predicted is None:
        return ""
    return f"`ordered` over the chosen cap: predicted {signed(figures.ordered_predicted)}, measured {share_with_interval(figures.ordered_measured)}."


def other_rules_sentence(figures):
    names = ["PyTorch's default", "MG-WFBP", "one bucket"]
    regrets = [f"{name} {share_with_interval(figures.regrets[name])}" for name in names if name in figures.regrets]
    return f"Regret of others: {'; '.join(regrets)}."


def strategies_table(figures):
    rows = [(row["strategy"], row["buckets"] or "-", milliseconds(row["measured_s"]), milliseconds(row["exposed_s"])) for row in figures.result["strategies"]]
    return table(("strategy", "buckets", "measured", "exposed"), rows)


def report(regime, figures):
    model, run = figures.result["model"], figures.run
    first = regime.link[0].upper() + regime.link[1:]
    facts = (f"[The study](../../validation.md). {first}; {regime.workload}: {model['tensors']} tensors, {model['gradient_bytes'] / 2**20:.1f} MiB "
             f"of gradients. A step without communication takes {milliseconds(figures.result['strategies'][0]['measured_s'])}.")
    sentences = [choice_sentence(figures), default_sentence(figures), ordered_sentence(figures), other_rules_sentence(figures)]
    notes = ["- " + note.split(": all predicted times")[0] for note in figures.result.get("notes", [])]  # what was said of them does not hold
    origin = (f"{run['seconds']:.0f} s, load average {run['load_before']:.1f} at the start and {run['load_after']:.1f} at the "
              f"end; other processes used {run['busy_cores_of_others']:.2f} cores.")
    parts = [f"# {regime.name}", facts, "![Step time over bucket cap, predicted and measured](curve.svg)", curve_table(figures),
             strategies_table(figures), "\n\n".join(filter(None, sentences)), regime.remark, "\n".join(notes),
             "```text\n" + " \\\n    ".join(textwrap.wrap(run["command"], 82, break_on_hyphens=False)) + "\n```", origin]
    return reflowed("\n\n".join(filter(None, parts)))
