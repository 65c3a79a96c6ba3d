"""When gradients are ready in backward: what hooks see, by events on a GPU, against what Kineto recorded of the same step; and what hooks cost.

Without a GPU the hooks take the host's clock, and Kineto's operators stand for its kernels.
"""

import argparse
import json
import pathlib
import tempfile
import time
from statistics import median

import torch
from stepping import Job
from torch.profiler import ProfilerActivity, profile, record_function

LEAST_PAIRS = 5


def hooked(job, inside):
    """Hooks on every parameter that call inside(name) when its gradient is there."""

    def hook_of(name):
        def hook(_):
            inside(name)

        return hook

    return [parameter.register_post_accumulate_grad_hook(hook_of(name)) for name, parameter in job.parameters.items()]


def perturbation(job, seconds):
    """What hooks that record a mark add to backward, as a fraction: from pairs of steps in turns."""
    ratios, until = [], time.monotonic() + seconds
    while len(ratios) < LEAST_PAIRS or time.monotonic() < until:
        times = {}
        for with_hooks in (False, True) if len(ratios) % 2 else (True, False):
            hooks = hooked(job, lambda _: job.mark()) if with_hooks else []
            times[with_hooks] = job.step(job.model).backward_s
            for hook in hooks:
                hook.remove()
        ratios.append(times[True] / times[False])
    return median(ratios) - 1


def recorded_step(job):
    """One step with hooks under Kineto: seconds by parameter as the hooks saw them, and Kineto's events."""
    marks = {}

    def inside(name):
        with record_function(f"ready {name}"):
            marks[name] = job.mark()

    hooks = hooked(job, inside)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * job.on_gpu
    with profile(activities=activities) as recorded:
        began = job.step(job.model).began
    for hook in hooks:
        hook.remove()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return {name: job.seconds(began, mark) for name, mark in marks.items()}, events


def kinetos_ready_times(job, events):
    """Microseconds by parameter: the end of the last kernel that had been launched when the hook was called."""
    kernels = {}
    if job.on_gpu:
        ends = {e["args"]["correlation"]: e["ts"] + e["dur"] for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")}
        launches = [(e["ts"], ends[e["args"]["correlation"]]) for e in events
                    if e.get("cat") in ("cuda_runtime", "cuda_driver") and e.get("args", {}).get("correlation") in ends]  # fmt: skip
    else:
        launches = [(e["ts"] + e["dur"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "cpu_op"]
    launches.sort()
    hooks = sorted((e["ts"], e["name"].removeprefix("ready ")) for e in events
                   if e.get("cat") == "user_annotation" and e["name"].startswith("ready "))  # fmt: skip
    latest, position = 0.0, 0
    for called, name in hooks:
        while position < len(launches) and launches[position][0] <= called:
            latest, position = launches[position][1], position + 1
        kernels[name] = latest
    return kernels


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--out", type=pathlib.Path, default="ready_times.json")
    arguments = parser.parse_args()
    job = Job(arguments.device)
    for _ in range(3):
        job.step(job.model)
    added = perturbation(job, arguments.seconds)
    recorded_step(job)  # the profiler's first use takes long
    by_marks, events = recorded_step(job)
    by_kineto = kinetos_ready_times(job, events)
    order = sorted(by_marks, key=by_marks.get)
    times = [by_kineto[name] for name in order]
    # Both clocks have an offset of their own: that of the first gradient.
    apart = [abs((by_marks[name] - by_marks[order[0]]) * 1e6 - (by_kineto[name] - by_kineto[order[0]])) for name in order]
    arguments.out.write_text(json.dumps({
        "perturbation": added,
        "tensors": len(job.parameters),
        "same_order": len(order) == len(job.parameters) and times == sorted(times),
        "apart_us": median(apart),
        "apart_most_us": max(apart),
        "by_marks_s": by_marks,
        "by_kineto_us": by_kineto,
        "torch": torch.__version__,
    }, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
