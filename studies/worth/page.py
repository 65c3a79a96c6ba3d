"""docs/where_it_matters.md, from the kept results: page.md with every figure filled in."""

import pathlib
import statistics
import sys
from collections.abc import Iterable

import clusters
import models
import rules
from chart import gain, ordered_gain
from published import CAPS_MIB

VALIDATION = pathlib.Path(__file__).resolve().parents[1] / "validation"
sys.path.insert(0, str(VALIDATION))
from figures import read_figures
from words import percent, reflowed, table

MIB = 1 << 20
FAST = ("one NVLink machine", "2 x 8 A100, InfiniBand, EFA", "InfiniBand, 32 to 128")
TCP = ("TCP, 10 and 25 Gbit/s", "TCP, 1 Gbit/s")
ALPS = "Alps, 32 to 2,048"
TEXT = (pathlib.Path(__file__).with_name("page.md")).read_text(encoding="utf-8")


def group(cell):
    title, ranks = cell["cluster"], cell["ranks"]
    if title.startswith("TCP"):
        return "TCP, 1 Gbit/s" if ", 1 Gbit/s" in title else "TCP, 10 and 25 Gbit/s"
    if title.startswith(("Zaratan", "PCIe")):
        return title.split(",")[0].split(" ")[0]
    if title.startswith("Alps") and ranks > 4:
        return "Alps, 8 and 16" if ranks < 32 else ALPS
    if ranks <= 8:
        return "one NVLink machine"
    return "2 x 8 A100, InfiniBand, EFA" if ranks == 16 else "InfiniBand, 32 to 128"


def spread(values, *of):
    return ", ".join(f"{100 * each(values):.1f}" for each in of).replace("-0.0", "0.0")


def ends(values, digits=1):
    values = list(values)
    return f"{percent(min(values), digits)} to {percent(max(values), digits)}".replace("-0.0", "0.0")


def buckets_at_most(sizes, cap):
    """The bucket is sent before it would hold more than the cap; a larger tensor travels alone."""
    buckets, held = 1, 0
    for size in sizes:
        if held and held + size > cap:
            buckets, held = buckets + 1, 0
        held += size
    return buckets


def sizes_of(model):
    return [size for _, size, _, _ in models.profile(model, 1).rows]


def one_bold(steps_s, mib):
    return ", ".join(f"**{1e3 * step_s:.0f}**" if cap == mib else f"{1e3 * step_s:.0f}" for cap, step_s in zip(CAPS_MIB, steps_s, strict=True))


def course_backward_s():
    rows = clusters.rows_of("cmsc828g/layer-times-gpt2_large-bs4.csv")
    return sum(float(row["median"]) for row in rows if row["Name"].endswith(" grad"))


def text(result):
    cells, published = result["cells"], result["published"]
    groups = {}
    for cell in cells:
        groups.setdefault(group(cell), []).append(cell)
    gains = [gain(cell) for cell in cells]

    def of(*names, model=None):
        return [cell for name in names for cell in groups[name] if model in (None, cell["model"])]

    tables = {cluster.title.split(" ")[0].strip(","): {ranks: dict(rows) for ranks, rows in cluster.table.items()} for cluster in clusters.all_clusters()}
    pcie_s = tables["PCIe"][2]
    ordered_errors = [abs(these.ordered_error) for these in (read_figures(VALIDATION / "data", folder.name) for folder in sorted((VALIDATION / "data").iterdir()))]
    zaratan_large = next(iter(of("Zaratan", model="gpt2-large")))
    single = [buckets_at_most(sizes_of(model), rules.deepspeed()) == 1 for model in models.all_models()]
    small = next(model for model in models.all_models() if model.title == "GPT-2 small")
    auto = rules.transformers_auto(small.hidden)
    h100 = [row for row in published if row["name"].startswith("TianqGuo")]
    errors = [error for row in published for error in row["errors"]]
    by_cap = list(zip(*(row["measured_s"] for row in h100), strict=True))

    def saved(values: Iterable[float]) -> str:
        return spread(list(values), min, statistics.median, max)

    columns = (lambda cell: cell["gain_at_batch"]["0.25"], gain, lambda cell: cell["gain_at_batch"]["4"], ordered_gain,
               lambda cell: 1 - cell["sharded_s"] / cell["best_s"])  # fmt: skip
    by_group = [[name, *(saved(map(value, mine)) for value in columns)] for name, mine in groups.items()]

    def extra(name, step_s):
        return spread([step_s(cell) / cell["best_s"] - 1 for cell in groups[name]], statistics.median, max)

    by_rule = [[title, *(extra(name, lambda cell, rule=rule: cell["rules_s"][rule]) for name in groups)] for rule, title in rules.TITLES.items()]
    by_rule.append(["best plan", *(extra(name, lambda cell: cell["plan_s"]) for name in groups)])
    return reflowed(TEXT.format(
        cells=len(cells), nothing=sum(value < 0.005 for value in gains), some=sum(value >= 0.05 for value in gains),
        much=sum(value >= 0.2 for value in gains), least=percent(min(gains)),
        fast=ends(map(gain, of(*FAST))), alps=ends(map(gain, of(ALPS))), alps_median=percent(statistics.median(map(gain, of(ALPS)))),
        zaratan=ends(map(gain, of("Zaratan"))), zaratan_start=f"{1e3 * tables['Zaratan'][8][4]:.1f} ms",
        tcp=ends(map(gain, of(*TCP))), lora_slow=ends(map(gain, of(TCP[1], model="7B, LoRA"))), lora_fast=ends(map(gain, of(TCP[0], model="7B, LoRA"))),
        ordered=ends(map(ordered_gain, cells)), ordered_median=percent(statistics.median(map(ordered_gain, cells))),
        ordered_error_median=percent(statistics.median(ordered_errors)), ordered_error_worst=percent(max(ordered_errors)),
        tokens=models.TOKENS, images=models.IMAGES,
        groups=table(["", "best cap: a quarter of the batch", "the map", "four times the batch", "`ordered`", "`sharded`"], by_group),
        rules=table(["", *groups], by_rule),
        single=sum(single), models=len(single), auto_mib=f"{auto / MIB:.2f}", auto_buckets=buckets_at_most(sizes_of(small), auto),
        xl=models.cs336_xl(1, 1, False).elements / 1e9, damek_rate=f"{max(size / time_s for size, time_s in pcie_s.items()) / 1e9:.1f}",
        published=table(["", "batch x sequence", "measured, **least**", "predicted, **named**", "regret"], [
            [row["name"], f"{row['batch']} x {row['sequence']}", one_bold(row["measured_s"], row["best_mib"]), one_bold(row["predicted_s"], row["named_mib"]),
             percent(row["regret"])] for row in published]),
        regret_median=percent(statistics.median(row["regret"] for row in published)), regret_worst=percent(max(row["regret"] for row in published)),
        error_median=percent(-statistics.median(errors), 0),
        low=percent(-max(errors), 0), high=percent(-min(errors), 0),
        h100_flat=percent(max(max(row["predicted_s"]) / min(row["predicted_s"]) - 1 for row in h100)),
        h100_noise=percent(max(max(times) / min(times) - 1 for times in by_cap)),
        a100=percent(models.PART["A100"], 0), h100=percent(models.PART["H100"], 0), a40=percent(models.PART["A40"], 0), images_s=models.RESNET_IMAGES_S,
        slower=f"{course_backward_s() / zaratan_large['backward_s']:.1f}", hop_us=1e6 * clusters.TCP_HOP_S, payload=percent(clusters.TCP_PAYLOAD, 0),
    ))  # fmt: skip
