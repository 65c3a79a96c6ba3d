"""docs/where_it_matters.md, from the kept results: page.md with every figure filled in."""

import pathlib
import statistics
import sys
from collections.abc import Iterable

import clusters
import rules
from chart import gain, ordered_gain

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "validation"))
from words import percent, reflowed, table

MIB = 1 << 20
FAST = ("one NVLink machine", "2 x 8 A100, InfiniBand, EFA", "InfiniBand, 32 to 128")
COURSE_BACKWARD_S = 0.829  # docs/experiments.md
TEXT = (pathlib.Path(__file__).with_name("page.md")).read_text(encoding="utf-8")


def group(cell):
    title, ranks = cell["cluster"], cell["ranks"]
    if title.startswith("TCP"):
        return "TCP, 1 Gbit/s" if ", 1 Gbit/s" in title else "TCP, 10 and 25 Gbit/s"
    if title.startswith(("Zaratan", "PCIe")):
        return title.split(",")[0].split(" ")[0]
    if title.startswith("Alps") and ranks > 4:
        return "Alps, 8 and 16" if ranks < 32 else "Alps, 32 to 2,048"
    if ranks <= 8:
        return "one NVLink machine"
    return "2 x 8 A100, InfiniBand, EFA" if ranks == 16 else "InfiniBand, 32 to 128"


def spread(values, digits=1):
    return f"{100 * statistics.median(values):.{digits}f}, {100 * max(values):.{digits}f}".replace("-0.0", "0.0")


def text(result):
    cells, published = result["cells"], result["published"]
    groups = {}
    for cell in cells:
        groups.setdefault(group(cell), []).append(cell)
    gains = [gain(cell) for cell in cells]

    tables = {cluster.title: {ranks: dict(rows) for ranks, rows in cluster.table.items()} for cluster in clusters.all_clusters()}
    alps_s = next(table for title, table in tables.items() if title.startswith("Alps"))
    zaratan_s = next(table for title, table in tables.items() if title.startswith("Zaratan"))

    def most(name, value=gain):
        return percent(max(value(cell) for cell in groups[name]))

    def regrets(name, rule):
        return [cell["rules_s"][rule] / cell["best_s"] - 1 for cell in groups[name]]

    def share_of_rate(times_s, bytes_):
        return bytes_ / times_s[bytes_] / max(size / time_s for size, time_s in times_s.items())

    alps_rates = [share_of_rate(times_s, 32 * MIB) for ranks, times_s in alps_s.items() if ranks >= 32]
    grown = [statistics.median(regrets(name, rule)) for name in ("Zaratan", "Alps, 32 to 2,048") for rule in ("megatron", "inductor")]
    tcp = [cell for cell in cells if group(cell) == "TCP, 10 and 25 Gbit/s"]
    slow_lora = [cell for cell in groups["TCP, 1 Gbit/s"] if cell["model"] == "7B, LoRA"]
    large_alps = [cell for cell in groups["Alps, 32 to 2,048"] if cell["ranks"] >= 128]
    most_of_ordered = max(large_alps, key=ordered_gain)
    zaratan_large = next(cell for cell in groups["Zaratan"] if cell["model"] == "gpt2-large")
    h100 = [row for row in published if row["name"].startswith("TianqGuo")]
    errors = [error for row in published for error in row["errors"]]

    def apart(rows: Iterable[dict]) -> str:
        return f"{100 * max(max(row['errors']) - min(row['errors']) for row in rows):.1f}"

    by_cap = list(zip(*(row["measured_s"] for row in h100), strict=True))
    columns = (lambda cell: cell["gain_at_batch"]["0.25"], gain, lambda cell: cell["gain_at_batch"]["4"], lambda cell: cell["best_s"] / cell["bound_s"] - 1,
               lambda cell: cell["sharded_s"] / cell["best_s"] - 1, lambda cell: cell["sharded_s"] / cell["ordered_s"] - 1)  # fmt: skip
    by_group = [[name, *(spread([value(cell) for cell in mine]) for value in columns),
                 " to ".join(dict.fromkeys(percent(pick(cell["sharded_memory"] for cell in mine), 0) for pick in (max, min)))]
                for name, mine in groups.items()]  # fmt: skip
    plan = ["best plan", *(spread([cell["plan_s"] / cell["best_s"] - 1 for cell in mine]) for mine in groups.values())]
    return reflowed(TEXT.format(
        cells=len(cells), nothing=sum(value < 0.005 for value in gains), some=sum(value >= 0.05 for value in gains),
        much=sum(value >= 0.2 for value in gains),
        fast_most=percent(max(gain(cell) for name in FAST for cell in groups[name])),
        fast_quarter=percent(max(cell["gain_at_batch"]["0.25"] for name in FAST[1:] for cell in groups[name])),
        alps_median=percent(statistics.median(map(gain, groups["Alps, 32 to 2,048"])), 0), alps_most=percent(max(map(gain, groups["Alps, 32 to 2,048"])), 0), zaratan_most=most("Zaratan"),
        alps_rate=f"{percent(min(alps_rates), 0)} to {percent(max(alps_rates), 0)}", zaratan_start=f"{1e3 * zaratan_s[8][4]:.1f} ms",
        alps_large=percent(statistics.median(cell["gain_at_batch"]["4"] for cell in groups["Alps, 32 to 2,048"])),
        least=percent(min(gains)), tcp_most=percent(max(map(gain, tcp))), faster=f"{COURSE_BACKWARD_S / zaratan_large['backward_s']:.1f}",
        ordered_pcie=most("PCIe", ordered_gain), ordered_lora=percent(max(map(ordered_gain, slow_lora))),
        grown_least=percent(min(grown), 0), grown_most=percent(max(grown), 0),
        fixed_worst=f"{1 + max(regrets('Alps, 32 to 2,048', 'pytorch')):.1f}",
        lora_slow=f"{percent(min(map(gain, slow_lora)), 0)} to {percent(max(map(gain, slow_lora)), 0)}",
        ordered_slingshot=percent(statistics.median(map(ordered_gain, large_alps)), 0),
        ordered_most=f"{percent(ordered_gain(most_of_ordered))}, {most_of_ordered['model']} on {most_of_ordered['ranks']}",
        ordered_tcp=percent(statistics.median(map(ordered_gain, tcp)), 0),
        groups=table(["", "best cap saves: a quarter of the batch", "the map", "four times the batch", "above the bound", "`sharded`: over the best cap", "over `ordered`", "memory"], by_group),
        rules=table(["", *groups], [[title, *(spread(regrets(name, rule)) for name in groups)] for rule, title in rules.TITLES.items()] + [plan]),
        mg_wfbp_most=percent(max(max(regrets(name, "mg_wfbp")) for name in groups), 0),
        published=table(["", "batch x sequence", "measured", "predicted", "named", "measured best", "regret"], [
            [row["name"], f"{row['batch']} x {row['sequence']}", *(", ".join(f"{1e3 * value:.0f}" for value in row[key]) for key in ("measured_s", "predicted_s")),
             f"{row['named_mib']:g}", f"{row['best_mib']}", percent(row["regret"])] for row in published]),
        regret_median=percent(statistics.median(row["regret"] for row in published)), regret_worst=percent(max(row["regret"] for row in published)),
        error_median=percent(-statistics.median(errors), 0),
        low=percent(-max(errors), 0), high=percent(-min(errors), 0),
        pcie_apart=apart(row for row in published if row not in h100), h100_apart=apart(h100),
        h100_flat=percent(max(max(row["predicted_s"]) / min(row["predicted_s"]) - 1 for row in h100)),
        h100_noise=percent(max(max(times) / min(times) - 1 for times in by_cap)),
    ))  # fmt: skip
