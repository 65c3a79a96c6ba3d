"""The parts of `tools/gpu-drill run`, in the order of PARTS: one function for each, which returns a Finding."""

import concurrent.futures
import csv
import dataclasses
import json
import math
import os
import re
import shutil
import statistics
import sys
import time

from drill import ROOT, SCRIPTS, Failed, Finding, Refused, last_line

VERSIONS = """
import json, sys, torch
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else "none"
print(json.dumps({"python": sys.version.split()[0], "torch": torch.__version__, "cuda": torch.version.cuda, "nccl": nccl, "gpu": gpu}))
"""


TIMED_TESTS = "DeviceClock|AModelledLink"  # whose GPU must be idle


def versions_and_tests(drill):
    """Every test of cuda_test in a process of its own: what one leaves behind on the GPU is not the next one's."""
    drill.versions = json.loads(drill.run("versions", sys.executable, "-c", VERSIONS))
    drill.run("firkin version", drill.build / "firkin", "--version")
    if shutil.which("nvidia-smi") and not drill.dry:
        drill.run("nvidia-smi", "nvidia-smi")
    program, suite, names = drill.build / "tests" / "cuda_test", "", []
    for line in drill.run("list of tests", program, "--gtest_list_tests").splitlines():
        if line.startswith("  "):
            names.append(suite + line.split("#")[0].strip())
        elif re.fullmatch(r"\S+\.(\s.*)?", line):
            suite = line.split("#")[0].strip()

    def run(name):
        try:
            code, output = drill.finish(drill.start(name, program, f"--gtest_filter={name}"))
        except Failed as failure:
            return "failed", str(failure)
        return "skipped" if code == 77 or "[  SKIPPED ]" in output else "passed" if code == 0 else "failed", output

    alone = [name for name in names if re.search(TIMED_TESTS, name)]
    beside = [name for name in names if name not in alone]
    ended = {name: run(name) for name in alone}
    with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 3)) as pool:
        ended |= zip(beside, pool.map(run, beside))
    names_of = {end: [name for name in names if ended[name][0] == end] for end in ("passed", "failed", "skipped")}
    text = f"{len(names_of['passed'])} tests passed, {len(names_of['failed'])} failed, {len(names_of['skipped'])} skipped"
    no_gpu = [name for name in names if "needs 1 GPUs" in ended[name][1]]
    if no_gpu and not drill.dry:
        raise Failed(f"{text}; no GPU was seen")
    failed = f": {', '.join(names_of['failed'])}" if names_of["failed"] else ""
    return Finding(f"{text}{failed}; torch {drill.versions['torch']}, {drill.versions['gpu']}", right=not failed and bool(names))


def two_processes(drill):
    """NCCL between processes that share the GPU: sums, a training with audits, and the loss of a rank."""
    backend = ("--backend", "gloo" if drill.dry else "nccl")
    out = drill.folder / "sums"
    drill.run_ranks("sums", 2, drill.build / "firkin", "bench", "allreduce", *backend, "--device", drill.device, "--quiet", "-e", "16M",
                    "--time", "4s", "--out", out)  # fmt: skip
    wrong = sum(row["wrong"] for row in json.loads((out / "results.json").read_text())["allreduce"])
    ranks, device = drill.build / "tests" / "fault_ranks", ("--device", "cpu" if drill.dry else "cuda:0")
    trained = {}
    for name, words in (("cpu", ("--backend", "gloo", "--device", "cpu")), ("gpu", (*backend, *device))):
        outputs = drill.run_ranks(f"training {name}", 2, ranks, *words, "--timeout-s", 20, "--audit-every", 1)
        trained[name] = [float(re.search(r"^parameters (\S+)$", output, re.MULTILINE)[1]) for output in outputs]
    apart = abs(trained["gpu"][0] / trained["cpu"][0] - 1)
    equal = trained["gpu"][0] == trained["gpu"][1] and apart < 1e-5
    survivor, victim = drill.ranks("killed", 2, ranks, *backend, *device, "--timeout-s", 20, "--victim", 1, "--phase", "backward",
                                   "--signal", "KILL")  # fmt: skip
    drill.finish(victim)
    killed_s = time.monotonic()
    code, output = drill.finish(survivor)
    took_s, message = time.monotonic() - killed_s, last_line("\n".join(re.findall(r"fault_ranks: .*", output)))
    named = code == 1 and re.search(r"\brank 1\b", message.partition("rank 0: ")[2]) is not None
    text = (f"{wrong} wrong sums; parameters {'equal on both ranks, ' if equal else 'differ: '}{apart:.1e} from the CPU's; after kill -9 of rank 1 "
            f"the other ended in {took_s:.1f} s: {message}")  # fmt: skip
    return Finding(text, right=wrong == 0 and equal and named)


def ready_times(drill):
    found = drill.script("ready_times", "--seconds", 2 if drill.quick else 10)
    text = (f"hooks change backward by {found['perturbation']:+.2%}; {found['tensors']} tensors, by events and by Kineto in "
            f"{'the same order' if found['same_order'] else 'another order'}, apart by {found['apart_us']:.0f} us in the median")  # fmt: skip
    return Finding(text, right=found["same_order"], fast=abs(found["perturbation"]) < 0.02)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Whose all-reduces are modelled."""

    name: str
    world: int
    table: str = ""  # in data/
    link: str = ""


CLUSTERS = (
    Cluster("nvlink", 8, table="allreduce_8xH200.csv"),
    Cluster("alps", 128, table="allreduce_alps_gh200_4to2048gpu.csv"),
    Cluster("tcp", 8, link="100gbit,30us"),
)
CAPS = "1MiB,4MiB,8MiB,16MiB,25MiB,50MiB,100MiB,200MiB,400MiB,1000MiB"
MODEL = ("--model", "gpt2-medium", "--dtype", "bf16", "--batch", 8, "--sequence", 1024)
SMS_S = 20  # that trying another number of multiprocessors may take
PACKAGE_S = 40  # the longest that the first times which are judged wait for the package's build
QUICK_CAPS, DRY_MODEL = "1MiB,25MiB", ("--d-model", 128, "--d-ff", 512, "--num-layers", 2, "--batch", 1, "--sequence", 32)


def link_of(drill, cluster):
    """What --link takes: a table of the published times, the median where there are several of a size."""
    if cluster.link:
        return cluster.link
    times = {}
    lines = (line for line in (ROOT / "data" / cluster.table).open() if not line.startswith("#"))
    for row in csv.DictReader(lines):
        if int(row["ranks"]) == cluster.world:
            times.setdefault(int(row["bytes"]), []).append(float(row.get("time_us_oop") or row["time_us"]) * 1e-6)
    path = drill.folder / f"{cluster.name}.csv"
    rows = [f"{size},{cluster.world},{statistics.median(times[size]):.9f}" for size in sorted(times)]
    path.write_text("\n".join(["bytes,world_size,median_s", *rows]) + "\n")
    return path


def one_rank_of(drill, cluster, sms=0):
    """One rank here stands for one of the cluster's. sms: multiprocessors of a GPU that each of its collectives holds."""
    link = f"{link_of(drill, cluster)},sms={sms}" if sms and not drill.dry else link_of(drill, cluster)
    return "--ranks", 1, "--link", link, "--world", cluster.world


def tune(drill, cluster, seconds, *words):
    return drill.firkin(f"tune-{cluster.name}", "tune", *one_rank_of(drill, cluster), "--time", f"{seconds}s", "--profile-steps", 10,
                        "--allreduce-time", "2s", "--warmup", 1, *(DRY_MODEL if drill.dry else MODEL), *words)  # fmt: skip


def step_times(drill):
    """Stock DistributedDataParallel under a hook that models the link, then our own engine and model of time."""
    texts, right, fast = [], True, True
    if not drill.quick:
        drill.package.wait(PACKAGE_S)
    try:
        stock = drill.script("linked_step", *(("--seconds", 4, "--caps", 2) if drill.quick else ("--seconds", 25)))
        texts.append(f"stock DDP: error {stock['median_error']:.1%}, worst {stock['worst_error']:.1%}, regret {stock['regret']:.1%}")
        fast = stock["passed"]
    except Failed as failure:
        texts.append(str(failure))
        right = False
    try:
        for cluster in CLUSTERS[::2] if drill.quick else CLUSTERS:
            found = tune(drill, cluster, 6 if drill.quick else 20, "--compare", "--cap", QUICK_CAPS if drill.quick else CAPS)
            curve = found["curve"]
            errors = [abs(point["error"]) for point in curve]
            inside = [point["predicted_range_s"]["low"] <= point["measured_s"] <= point["predicted_range_s"]["high"] for point in curve]
            fast &= statistics.median(errors) <= 0.05 and found["regret"] <= 0.01 and sum(inside) >= 0.9 * len(inside)
            texts.append(f"{cluster.name}: error {statistics.median(errors):.1%}, worst {max(errors):.1%}, regret {found['regret']:.1%}, "
                         f"{sum(inside)} of {len(inside)} in the interval")  # fmt: skip
    except Refused as refusal:
        return Finding("; ".join(texts), right=right, fast=fast, refused=str(refusal))
    except Failed as failure:  # what was found until then is told
        return Finding("; ".join([*texts, str(failure)]), right=False)
    return Finding("; ".join(texts), right=right, fast=fast)


def ordered_and_sharded(drill):
    cluster = CLUSTERS[-1]  # whose link is busy longest
    found = tune(drill, cluster, 6 if drill.quick else 25, "--sharded")
    tuned = drill.folder / f"tune-{cluster.name}"
    out = drill.folder / "predict"
    drill.run("firkin predict", drill.build / "firkin", "predict", "--tensors", tuned / "tensors.csv", "--allreduce", tuned / "allreduce.csv",
              "--sharded", "--out", out)  # fmt: skip
    predicted = json.loads((out / "results.json").read_text())
    measured = {strategy["strategy"]: strategy["measured_s"] for strategy in found["strategies"]}
    texts, fast = [], True
    for name in ("ordered", "sharded"):
        if name not in measured:
            return Finding("; ".join(texts), refused=f"{name} was not measured")
        compared, bound_s = found[f"{name}_over_best_cap"], predicted[name]["bound_s"]
        fast &= (compared["ratio_ci"]["low"] or compared["ratio"]) <= 1 and measured[name] <= 1.05 * bound_s
        texts.append(f"{name} {compared['ratio']:.3f} of the best cap's step, {measured[name] / bound_s:.3f} of its bound")
    texts.append(told(replayed, drill, cluster, tuned, found))
    return Finding("; ".join(texts), fast=fast)


def told(function, *arguments):
    """What is not judged: a failure there is told, and costs the part nothing."""
    try:
        return function(*arguments)
    except Exception as failure:
        return str(failure)


def replayed(drill, cluster, tuned, found):
    """The chosen cap's step again, with waits of the stream in place of its computation."""
    chosen = found["decision"]
    steps = drill.firkin("replay", "bench", "step", *one_rank_of(drill, cluster), "--replay", tuned / "tensors.csv",
                         "--cap", f"{chosen['cap_mib']}MiB", "--strategies", "bucketed", "--blocks", 4)  # fmt: skip
    step_s = steps["configurations"][0]["strategies"][0]["measured_s"]
    return f"a replay's step {step_s * 1e3:.2f} ms, the model's {chosen['measured_s'] * 1e3:.2f}"


def engine_beside_torch(drill):
    cluster = CLUSTERS[0]
    world = one_rank_of(drill, cluster)
    model = DRY_MODEL if drill.dry else MODEL
    settings = ("--strategies", "none,bucketed,torch", "--cap", "1MiB" if drill.dry else "25MiB")
    times = drill.firkin("bench-step", "bench", "step", *world, *model, *settings, "--blocks", 6 if drill.quick else 16)
    bucketed = next(row for row in times["configurations"][0]["strategies"] if row["strategy"] == "bucketed")
    drill.firkin("trace", "trace", *world, *model, *settings, "--steps", 2)  # the profiler's first use takes long: of none
    idle, host = {}, {}
    for name in ("bucketed", "torch"):
        (trace,) = (drill.folder / "trace").glob(f"trace-{name}-*.json")
        events = json.loads(trace.read_text())["traceEvents"]
        idle[name], host[name] = 1 - busy_share(events, "operator"), busy_share(events, "host")
    ratio, interval = bucketed["ratio_to_torch"], bucketed["ratio_to_torch_ci"]
    low, high = (math.nan if interval[end] is None else interval[end] for end in ("low", "high"))  # too few blocks have none
    text = (f"step {bucketed['measured_s'] * 1e3:.2f} ms, {ratio:.4f} of torch's ({low:.4f} to {high:.4f}); "
            f"of the time the GPU is idle {idle['bucketed']:.1%}, under torch's engine {idle['torch']:.1%}; "
            f"the host is busy {host['bucketed']:.1%} and {host['torch']:.1%}; {told(contention, drill)}")  # fmt: skip
    return Finding(text, fast=low <= 1 and idle["bucketed"] <= idle["torch"] + 0.01)


def contention(drill):
    """How much longer a step takes while the link holds multiprocessors of the GPU. Not judged."""
    cluster, step_s = CLUSTERS[1], {}  # whose collectives run beside most of backward
    for sms in (0, 16) if drill.quick else (0, 1, 16):
        if drill.left_s() < SMS_S and not drill.quick:
            return "no time was left to hold multiprocessors"
        steps = drill.firkin(f"sms-{sms}", "bench", "step", *one_rank_of(drill, cluster, sms), *(DRY_MODEL if drill.dry else MODEL),
                             "--strategies", "bucketed", "--cap", "100MiB", "--blocks", 4 if drill.quick else 10)  # fmt: skip
        step_s[sms] = steps["configurations"][0]["strategies"][0]["measured_s"]
    longer = ", ".join(f"{step_s[sms] / step_s[0] - 1:+.1%} with {sms}" for sms in [*step_s][1:])
    return f"while the link to {cluster.name} holds multiprocessors, a step of {step_s[0] * 1e3:.2f} ms is longer by {longer}"


def busy_share(events, category):
    """The share of a trace in which something of that category runs."""
    whole = [(event["ts"], event["ts"] + event["dur"]) for event in events if event.get("ph") == "X"]
    until, last = min(whole)[0], max(end for _, end in whole)
    busy, first = 0.0, until
    for start, end in sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") == category and "dur" in event):
        busy, until = busy + max(0.0, end - max(start, until)), max(until, end)
    return busy / (last - first)


def python_package(drill):
    path = drill.package.folder()
    outs = [drill.folder / f"rank{rank}.json" for rank in range(2)]
    drill.run_ranks("python", 2, sys.executable, SCRIPTS / "python_ranks.py", "--device", drill.device, "--out", drill.folder,
                    "--seconds", 5 if drill.quick else 15, PYTHONPATH=path, OMP_NUM_THREADS=1)  # fmt: skip
    found = [json.loads(out.read_text()) for out in outs]
    checks = [(name, all(rank["checks"][name] for rank in found)) for name in found[0]["checks"]]
    wrong = [name for name, ok in checks if not ok]
    text = f"{'; '.join(found[0]['notes'])}; wrong: {', '.join(wrong) or 'nothing'} of {len(checks)} checks"
    cluster = CLUSTERS[1]  # where the cap matters
    try:
        tuned = drill.script("python_link", "--link", link_of(drill, cluster), "--world", cluster.world,
                             "--seconds", 3 if drill.quick else 12, PYTHONPATH=path, OMP_NUM_THREADS=1)  # fmt: skip
    except Failed as failure:  # what was found until then is told
        return Finding(f"{text}; {failure}", right=False)
    error = tuned["predicted_s"] / tuned["step_s"] - 1
    text += (f"; tune as one rank of {cluster.name}: {tuned['cap_mib']:g} MiB, {tuned['speedup']:.3f} times as fast as PyTorch's default, "
             f"predicted {error:+.1%} from measured")  # fmt: skip
    return Finding(text, right=not wrong and tuned["world_size"] == cluster.world, fast=abs(error) <= 0.05)


@dataclasses.dataclass(frozen=True)
class Part:
    function: object
    seconds: float

    @property
    def name(self):
        return self.function.__name__.replace("_", "-")


# Those that are judged by times come when the Python package is built.
PARTS = tuple(Part(function, seconds) for function, seconds in (
    (versions_and_tests, 40), (two_processes, 30), (ready_times, 35), (step_times, 275), (ordered_and_sharded, 60), (engine_beside_torch, 50),
    (python_package, 50),
))  # fmt: skip
