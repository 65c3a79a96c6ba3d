"""Published bucket sweeps on real GPUs against what `firkin predict` says of them from their own all-reduce table, without calibration.

The sweeps are data/gpu_sweeps: the xl of CS336 on two GPUs, caps of 1, 10, 100 and 1000 MiB. What a step takes without communication
was not published. It is the step of the strategy `naive` (every gradient by itself, after backward) less the all-reduces of all
gradients; a third of it is taken to be forward and optimiser, two thirds backward, shared out by floating-point operations.
"""

import dataclasses
import statistics

import clusters
import models
from predict import MIB, predict, without_needs

CAPS_MIB = (1, 10, 100, 1000)
BACKWARD_PART = 2 / 3


@dataclasses.dataclass(frozen=True)
class Sweep:
    name: str
    batch: int
    sequence: int
    measured_s: dict  # {MiB: seconds}
    naive_s: float
    buckets: dict  # {MiB: what they counted}
    allreduce: tuple  # (bytes, seconds)


def allreduce_of(source):
    rows = [row for row in clusters.rows_of("gpu_sweeps/allreduce.csv") if row["source_repo"] == source]
    return tuple((round(float(row["size_mib"]) * MIB), float(row["time_ms"]) * 1e-3) for row in rows
                 if row["world_size"] == "2")  # fmt: skip


def sweeps():
    rows = clusters.rows_of("gpu_sweeps/steps.csv")
    found = []
    for key in dict.fromkeys((row["source_repo"], row["local_batch"], row["seq_len"]) for row in rows if row["strategy"] == "bucketed"):
        mine = [row for row in rows if (row["source_repo"], row["local_batch"], row["seq_len"]) == key]
        naive = statistics.median(float(row["step_time_s"]) for row in mine if row["strategy"] == "naive")
        bucketed = [row for row in mine if row["strategy"] == "bucketed"]
        for run, first in enumerate(range(0, len(bucketed), len(CAPS_MIB)), 1):
            part = {float(row["bucket_mb"]): row for row in bucketed[first : first + len(CAPS_MIB)]}
            name = key[0].split("/")[0] + (f", run {run}" if len(bucketed) > len(CAPS_MIB) else "")
            found.append(Sweep(name, int(key[1]), int(key[2]), {cap: float(part[cap]["step_time_s"]) for cap in CAPS_MIB}, naive,
                               {cap: int(part[cap]["num_buckets"]) for cap in CAPS_MIB}, allreduce_of(key[0])))  # fmt: skip
    return found


def judge(firkin, sweep):
    """What predict says of each cap, and what following it costs."""
    allreduce = "bytes,world_size,median_s\n" + "".join(f"{size},2,{seconds:.9g}\n" for size, seconds in sweep.allreduce)
    # damek's blocks register both norms side by side: 386 buckets of at most 1 MiB, where TianqGuo's have 435.
    model = models.cs336_xl(sweep.batch * sweep.sequence, sweep.sequence, norms_last=sweep.buckets[1] < 435)

    def predicted(step_s):
        tensors = without_needs(models.profile(model, step_s).csv())
        return predict(firkin, tensors, allreduce, 2, [cap * MIB for cap in CAPS_MIB], "at-most")

    # With all gradients ready at once, one bucket for each takes what `naive` spends on communication.
    alone_s = next(row["backward_s"] for row in predicted(1e-9)["baselines"] if row["name"] == "one_per_tensor")
    compute_s = sweep.naive_s - alone_s
    backward_s = BACKWARD_PART * compute_s
    curve = predicted(compute_s)["curve"]
    steps = {cap: compute_s - backward_s + row["backward_s"] for cap, row in zip(CAPS_MIB, curve, strict=True)}
    # As predict chooses among all caps: of least expected regret, and of those as good the fewest buckets.
    least = min(row["expected_regret"] for row in curve)
    named, row = max((cap, row) for cap, row in zip(CAPS_MIB, curve, strict=True) if row["expected_regret"] <= least + 1e-3)
    best = min(sweep.measured_s, key=sweep.measured_s.get)
    return {
        "name": sweep.name, "batch": sweep.batch, "sequence": sweep.sequence, "naive_s": sweep.naive_s, "compute_s": compute_s,
        "named_mib": named, "best_mib": best, "expected_regret": row["expected_regret"], "near_best": row["near_best"],
        "regret": sweep.measured_s[named] / sweep.measured_s[best] - 1, "spread": max(sweep.measured_s.values()) / sweep.measured_s[best] - 1,
        "buckets_agree": {cap: row["buckets"] for cap, row in zip(CAPS_MIB, curve, strict=True)} == sweep.buckets,
        "measured_s": list(sweep.measured_s.values()), "predicted_s": list(steps.values()),
        "errors": [steps[cap] / sweep.measured_s[cap] - 1 for cap in CAPS_MIB],
    }  # fmt: skip
