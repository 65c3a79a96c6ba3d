"""The parts of `tools/gpu-drill run`: PARTS is the table of their commands, the most seconds they may take, and what judges each answer.

A judge takes what a command wrote, as results.json says it, and returns a Finding.
"""

import concurrent.futures
import dataclasses
import json
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable

from drill import CLUSTERS, ROOT, Drill, Failed, Finding, last_line

PACKAGE_S = 40  # the longest that the first times which are judged wait for the package's build
TIMED_TESTS = "DeviceClock|AModelledLink"  # whose GPU must be idle


@dataclasses.dataclass(frozen=True)
class Command:
    """One of the program's. judge gets the results of the part's commands so far by name, this one's last."""

    name: str
    words: str  # as Drill.words() reads them
    judge: Callable = lambda results: None
    is_judged: bool = True  # else a failure is told, and costs the part nothing
    is_quick: bool = True  # else a quick run leaves it out

    def __call__(self, drill: Drill, results: dict) -> Finding | None:
        if drill.quick and not self.is_quick:
            return None
        results[self.name] = drill.firkin(self.name, *drill.words(self.words))
        return self.judge(results)


def all_cuda_tests(drill, results):
    """Every test of cuda_test in a process of its own: what one leaves behind on the GPU is not the next one's."""
    program, listed = drill.build / "tests" / "cuda_test", drill.folder / "tests.json"
    drill.run("list of tests", program, "--gtest_list_tests", f"--gtest_output=json:{listed}")
    names = [f"{suite['name']}.{test['name']}" for suite in json.loads(listed.read_text())["testsuites"] for test in suite["testsuite"]]

    def run(name):
        try:
            code, output = drill.finish(drill.start(name.replace("/", "-"), program, f"--gtest_filter={name}"))
        except Failed as failure:
            return "failed", str(failure)
        return "skipped" if code == 77 or "[  SKIPPED ]" in output else "passed" if code == 0 else "failed", output

    alone = [name for name in names if re.search(TIMED_TESTS, name)]
    beside = [name for name in names if name not in alone]
    ended = {name: run(name) for name in alone}
    with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 3)) as pool:
        ended |= zip(beside, pool.map(run, beside))
    passed, failed, skipped = ([name for name in names if ended[name][0] == end] for end in ("passed", "failed", "skipped"))
    text = f"{len(passed)} tests passed, {len(failed)} failed, {len(skipped)} skipped"
    if not drill.dry and any("needs 1 GPUs" in output for _, output in ended.values()):
        raise Failed(f"{text}; no GPU was seen")
    return Finding(": ".join([text, *filter(None, [", ".join(failed)])]), right=not failed and bool(names))


def fault_ranks(drill, device="cuda:0"):
    device = "cpu" if drill.dry else device
    backend = "gloo" if device == "cpu" else "nccl"
    return drill.build / "tests" / "fault_ranks", "--backend", backend, "--device", device, "--timeout-s", 20


def sums(drill, results):
    backend = "gloo" if drill.dry else "nccl"
    words = ("bench", "allreduce", "--backend", backend, "--device", drill.device, "--quiet", "-e", "16M", "--time", "4s")
    drill.run_ranks("sums", 2, drill.build / "firkin", *words, "--out", drill.folder / "sums")
    wrong = sum(row["wrong"] for row in drill.results("sums")["allreduce"])
    return Finding(f"{wrong} wrong sums", right=wrong == 0)


def trained_as_on_the_cpu(drill, results):
    trained = {}
    for device in ("cpu", "cuda:0"):
        outputs = drill.run_ranks(f"training on {device}", 2, *fault_ranks(drill, device), "--audit-every", 1)
        trained[device] = [float(re.search(r"^parameters (\S+)$", output, re.MULTILINE)[1]) for output in outputs]
    apart, equal = abs(trained["cuda:0"][0] / trained["cpu"][0] - 1), trained["cuda:0"][0] == trained["cuda:0"][1]
    text = f"parameters {'equal' if equal else 'differ'} on both ranks, {apart:.1e} from the CPU's"
    return Finding(text, right=equal and apart < 1e-5)


def killed(drill, results):
    survivor, victim = drill.ranks("killed", 2, *fault_ranks(drill), "--victim", 1, "--phase", "backward", "--signal", "KILL")
    drill.finish(victim)
    killed_s = time.monotonic()
    code, output = drill.finish(survivor)
    took_s, message = time.monotonic() - killed_s, last_line("\n".join(re.findall(r"fault_ranks: .*", output)))
    named = code == 1 and re.search(r"\brank 1\b", message.partition("rank 0: ")[2]) is not None
    return Finding(f"after kill -9 of rank 1 the other ended in {took_s:.1f} s: {message}", right=named)


def hooks_are_light(results):
    profile = results["layers"]["profile"]
    return Finding(f"{len(profile['tensors'])} gradients; their hooks change a step by {profile['hook_perturbation']:+.2%}",
                   fast=abs(profile["hook_perturbation"]) < 0.02)  # fmt: skip


def wait_for_package(drill, results):
    if not drill.quick:
        drill.package.wait(PACKAGE_S)


def of_curve(name, result, least_regret):
    """How good the predictions of a tune were that measured them."""
    curve = [point for point in result["curve"] if point.get("error") is not None]
    errors, regret = [abs(point["error"]) for point in curve], result["regret"]
    inside = sum(point["predicted_range_s"]["low"] <= point["measured_s"] <= point["predicted_range_s"]["high"] for point in curve)
    text = (f"{name}: error {statistics.median(errors):.1%}, worst {max(errors):.1%}, regret {regret:.1%}, "
            f"{inside} of {len(curve)} in the interval")  # fmt: skip
    return Finding(text, fast=statistics.median(errors) <= 0.05 and regret <= least_regret and inside >= 0.9 * len(curve))


def predictions_hold(results):
    *_, (name, result) = results.items()
    return of_curve(name, result, 0.01)


def near_their_bounds(results):
    found, predicted = results["tune-tcp"], results["predict"]
    measured = {strategy["strategy"]: strategy["measured_s"] for strategy in found["strategies"]}
    texts, fast = [], True
    for name in ("ordered", "sharded"):
        if name not in measured:
            return Finding("; ".join(texts), refused=f"{name} was not measured")
        compared, bound_s = found[f"{name}_over_best_cap"], predicted[name]["bound_s"]
        fast &= (compared["ratio_ci"]["low"] or compared["ratio"]) <= 1 and measured[name] <= 1.05 * bound_s
        texts.append(f"{name} {compared['ratio']:.3f} of the best cap's step, {measured[name] / bound_s:.3f} of its bound")
    return Finding("; ".join(texts), fast=fast)


def strategy_of(result, name):
    return next(row for row in result["configurations"][0]["strategies"] if row["strategy"] == name)


def as_fast_as_torch(results):
    bucketed = strategy_of(results["bench-step"], "bucketed")
    interval = bucketed["ratio_to_torch_ci"]
    low, high = (math.nan if interval[end] is None else interval[end] for end in ("low", "high"))  # too few blocks have none
    return Finding(f"step {bucketed['ratio_to_torch']:.4f} of torch's ({low:.4f} to {high:.4f})", fast=low <= 1)


def idle_no_longer(results):
    idle = {trace["strategy"]: 1 - trace["ranks"][0]["compute_s"] / trace["ranks"][0]["step_s"] for trace in results["trace"]["traces"]}
    text = f"no kernel computes in {idle['bucketed']:.1%} of a step, under torch's engine in {idle['torch']:.1%}"
    return Finding(text, fast=idle["bucketed"] <= idle["torch"] + 0.01)


def longer_by_sms(results):
    steps = {name: strategy_of(result, "bucketed")["measured_s"] for name, result in results.items() if name.startswith("sms-")}
    *_, name = steps
    return Finding(f"with {name[4:]} multiprocessors held a step {steps[name] / steps['sms-0'] - 1:+.1%}") if name != "sms-0" else None


def run_package(drill, name, ranks, *words):
    """What package.py wrote on each rank."""
    drill.run_ranks(name, ranks, sys.executable, ROOT / "tools" / "drill" / "package.py", "--device", drill.device, "--out", drill.folder,
                    "--seconds", 5 if drill.quick else 15, *words, PYTHONPATH=drill.package.folder(), OMP_NUM_THREADS=1)  # fmt: skip
    return [json.loads((drill.folder / f"{name}{rank}.json").read_text()) for rank in range(ranks)]


def package_checks(drill, results):
    found = run_package(drill, "rank", 2)
    wrong = [name for name in found[0]["checks"] if not all(rank["checks"][name] for rank in found)]
    text = f"{'; '.join(found[0]['notes'])}; wrong: {', '.join(wrong) or 'nothing'} of {len(found[0]['checks'])} checks"
    return Finding(text, right=not wrong)


def package_on_a_link(drill, results):
    """The package as one rank of many, in one process: firkin.tune on PyTorch's own DistributedDataParallel."""
    world, _ = CLUSTERS["alps"]
    (found,) = run_package(drill, "link", 1, "--link", drill.link("alps"), "--world", world)
    curve = of_curve("PyTorch's engine as one rank of alps", found["results"], 0.03)
    orders = "one order" if found["same_order"] else "two orders"
    text = f"gradients by hooks and by Kineto in {orders}, {found['apart_us']:.0f} us apart; {curve.text}"
    return Finding(text, right=found["same_order"] and found["world_size"] == world, fast=curve.fast)


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    seconds: float
    commands: tuple  # run in turn, each with the drill and the part's results so far, until one fails


TUNE = "--time {20|6}s --profile-steps 10 --allreduce-time 2s --warmup 1 {model}"
CAPS = "--cap {1MiB,4MiB,8MiB,16MiB,25MiB,50MiB,100MiB,200MiB,400MiB,1000MiB|1MiB,25MiB}"
TUNED = "{folder}/tune-tcp"
ENGINES = "{nvlink} {model} --strategies none,bucketed,torch --cap 25MiB"
HELD = "bench step {alps} {model} --strategies bucketed --cap 100MiB --blocks {10|4}"

# The parts that are judged by times come when the Python package is built.
PARTS = (
    Part("versions-and-tests", 40, (all_cuda_tests,)),
    Part("two-processes", 30, (sums, trained_as_on_the_cpu, killed)),
    Part("ready-times", 20, (Command("layers", "bench layers {tcp} {model} --steps {20|5}", hooks_are_light),)),
    Part("step-times", 250, (
        wait_for_package,
        Command("tune-nvlink", f"tune {{nvlink}} {TUNE} --compare {CAPS}", predictions_hold),
        Command("tune-alps", f"tune {{alps}} {TUNE} --compare {CAPS}", predictions_hold, is_quick=False),
        Command("tune-tcp", f"tune {{tcp}} {TUNE} --compare {CAPS}", predictions_hold),
    )),
    Part("ordered-and-sharded", 60, (
        Command("tune-tcp", f"tune {{tcp}} {TUNE} --sharded"),
        Command("predict", f"predict --tensors {TUNED}/tensors.csv --allreduce {TUNED}/allreduce.csv --sharded", near_their_bounds),
    )),
    Part("engine-beside-torch", 60, (
        Command("bench-step", f"bench step {ENGINES} --blocks {{16|6}}", as_fast_as_torch),
        Command("trace", f"trace {ENGINES} --steps 2", idle_no_longer),
        Command("sms-0", HELD, longer_by_sms, is_judged=False),
        Command("sms-1", HELD.replace("{alps}", "{alps}{cuda:,sms=1}"), longer_by_sms, is_judged=False, is_quick=False),
        Command("sms-16", HELD.replace("{alps}", "{alps}{cuda:,sms=16}"), longer_by_sms, is_judged=False),
    )),
    Part("python-package", 70, (package_checks, package_on_a_link)),
)  # fmt: skip
