#!/usr/bin/env python3
"""Where bucket size matters: predictions on published all-reduces, the charts, the page docs/where_it_matters.md, and the map that
`tune` and `predict` place a result on.

  .venv/bin/python studies/worth/worth.py build/firkin      every cell of the map, the published sweeps, results.csv, results.json, page
  .venv/bin/python studies/worth/worth.py --page            charts and page anew from results.json

A step is forward and backward with its communication, without the optimiser. All times are what `firkin predict` says.
"""

import argparse
import concurrent.futures
import csv
import json
import pathlib
import time

import chart
import clusters
import models
import page
import published
import rules
from predict import MIB, predict, without_needs

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BATCHES = (0.25, 4)  # of the local batch


def baselines(result):
    return {row["name"]: row["backward_s"] for row in result["baselines"] if row["name"] in rules.TITLES}


def cell(firkin, cluster, ranks, model):
    """One cell of the map; seconds of a step."""
    step_s = models.step_s(model, cluster.gpu)
    profile = models.profile(model, step_s)
    tensors, allreduce, caps = profile.csv(), cluster.allreduce_csv(ranks), rules.caps(cluster, ranks, model.hidden)
    steps = {}
    for closing, named in caps.items():
        main = closing == "close-when-full"
        needed, forward_s = (tensors, profile.forward_s) if main else (without_needs(tensors), None)
        result = predict(firkin, needed, allreduce, ranks, named.values(), closing, forward_s)
        steps |= dict(zip(named, (row["backward_s"] for row in result["curve"]), strict=True))
        if main:
            best, plan, ordered, sharded = (result[name] for name in ("best_uniform", "best_plan", "ordered", "sharded"))
            steps |= baselines(result)
    gains = {}
    for factor in BATCHES:  # the same cell with another local batch: times scale, bytes do not
        other = models.profile(model, step_s * factor)
        result = predict(firkin, without_needs(other.csv()), allreduce, ranks)
        gains[str(factor)] = 1 - (other.forward_s + result["best_uniform"]["backward_s"]) / (other.forward_s + baselines(result)["pytorch"])
    return {
        "cluster": cluster.title, "ranks": ranks, "gpu": cluster.gpu, "model": model.title, "gradient_mib": model.elements * models.BYTES / MIB,
        "forward_s": profile.forward_s, "backward_s": profile.backward_s, "best_cap_mib": best["cap_mib"], "best_buckets": best["buckets"],
        "best_s": profile.forward_s + best["backward_s"], "plan_s": profile.forward_s + plan["backward_s"],
        "ordered_s": ordered["period_s"], "bound_s": ordered["bound_s"], "sharded_s": sharded["period_s"],
        "sharded_memory": sharded["sharded_memory"]["total_bytes"] / sharded["plain_memory"]["total_bytes"],
        "rules_s": {name: profile.forward_s + steps[name] for name in rules.TITLES}, "gain_at_batch": gains,
    }  # fmt: skip


def network(firkin, cluster, ranks):
    """All-reduces of a cluster as latency and bandwidth, fitted as `predict` fits a result's own."""
    fit = predict(firkin, "name,bytes,ready_s\nw,1048576,1\n", cluster.allreduce_csv(ranks), ranks)["alpha_beta"]
    return {"cluster": cluster.title, "ranks": ranks, "alpha_s": fit["alpha_s"], "beta_s_per_byte": fit["beta_s_per_byte"]}


def write_csv(path, cells):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        plain = [name for name in cells[0] if name not in ("rules_s", "gain_at_batch")]
        writer.writerow([*plain, *(f"{name}_s" for name in rules.TITLES)])
        for row in cells:
            values = [*(row[name] for name in plain), *row["rules_s"].values()]
            writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in values])


def rounded(value):
    """Times to a billionth; a cap is exact, because a byte more may make other buckets."""
    if isinstance(value, dict):
        return {name: part if name.endswith("_mib") else rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def write_json(path, result):
    """A row a line, so that a change of one shows as one."""
    parts = [f'"{name}": [\n' + ",\n".join(json.dumps(rounded(row)) for row in rows) + "\n]" for name, rows in result.items()]
    path.write_text("{" + ",\n".join(parts) + "}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("firkin", nargs="?", default="build/firkin", help="the binary (default: build/firkin)")
    parser.add_argument("--page", action="store_true", help="charts and page from results.json alone")
    parser.add_argument("--jobs", type=int, default=2, help="predictions at once (default: 2)")
    flags = parser.parse_args()
    kept = HERE / "results.json"
    if not flags.page:
        start = time.monotonic()
        wanted = [(flags.firkin, cluster, ranks, model) for cluster in clusters.all_clusters() for ranks in cluster.table for model in models.all_models()]
        with concurrent.futures.ThreadPoolExecutor(flags.jobs) as pool:
            cells = list(pool.map(lambda one: cell(*one), wanted))
            networks = list(pool.map(lambda one: network(flags.firkin, *one), ((c, ranks) for c in clusters.all_clusters() for ranks in c.table)))
            sweeps = list(pool.map(lambda sweep: published.judge(flags.firkin, sweep), published.sweeps()))
        write_csv(HERE / "results.csv", cells)
        write_json(kept, {"cells": cells, "networks": networks, "published": sweeps})
        print(f"{len(cells)} cells and {len(sweeps)} published sweeps in {time.monotonic() - start:.0f} s")
    result = json.loads(kept.read_text())
    chart.write(result["cells"], ROOT / "docs" / "images")
    (ROOT / "docs" / "where_it_matters.md").write_text(page.text(result))


if __name__ == "__main__":
    main()
