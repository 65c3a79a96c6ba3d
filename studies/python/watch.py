"""Whether firkin.watch names what is there, what it costs, and whether its bound holds.

    lab/run --rate 1gbit -- .venv/bin/python studies/python/watch.py named             20 runs each: a slow rank, communication, neither
    chrt --rr 1 lab/run --rate 1gbit --hosts 3 -- ... named                            the same on three ranks, before other programs of these cores
    lab/run --rate 1gbit -- .venv/bin/python studies/python/watch.py bound             gain_at_most_s of six caps against the best of them
        ... named --runs 1 --page watch.html                                           also writes the page of the case `communication`, and what
                                                                                       ranks told each other (watched.jsonl is one)
    .venv/bin/torchrun --nproc-per-node 2 studies/python/watch.py cost [stock|firkin]  a step of 20 ms: time in the hooks, and watched less not
    lab/run --rate 1gbit -- .venv/bin/python studies/python/watch.py tune --runs 5     how often firkin.tune steps, with a watch and without

Computation is sleep, so that ranks leave each other the cores. `named` times every step itself as well, with a hook on each parameter and around
backward(), and says how far the watch is from that.
"""

import argparse
import logging
import os
import pathlib
import random
import statistics
import time

import firkin
import torch
import torch.distributed as dist
from firkin import _watch
from torch.nn.parallel import DistributedDataParallel

SLOW_S = STEP_S = 0.02
FIRST, BLOCK = 110, 20  # steps until the first window has been told; those after which the watch reads again as before
PHASES = ("before forward", "forward", "loss and backward")


class Slow(torch.autograd.Function):
    """Backward takes `seconds`."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


class Net(torch.nn.Module):
    """Layers of width^2; each takes backward_s in backward before its gradient is ready."""

    def __init__(self, layers, width, backward_s, forward_s=0.0):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))
        self.backward_s, self.forward_s = backward_s, forward_s

    def forward(self, x):
        time.sleep(self.forward_s)
        for layer in self.layers:
            x = Slow.apply(torch.relu(layer(x)), self.backward_s)
        return x


class Outside:
    """What a step's work and its exposed communication took, by clocks of our own."""

    def __init__(self, ddp):
        self.last = self.end = time.perf_counter()
        self.steps = []  # work, exposed
        for parameter in ddp.parameters():
            parameter.register_post_accumulate_grad_hook(self.ready)

    def ready(self, _):
        self.last = time.perf_counter()

    def backward(self, loss):
        loss.backward()
        now = time.perf_counter()
        self.steps.append((self.last - self.end, now - self.last))
        self.end = now


def watched(net, cap_mib, steps, slow_in=None, slow_rank=None, page=None):
    """The summary of one program, the times from outside by step, on rank 0; None on the others."""
    ddp = DistributedDataParallel(net, bucket_cap_mb=cap_mib)
    outside, slow = Outside(ddp), dist.get_rank() == slow_rank
    x = torch.randn(8, net.layers[0].in_features)
    with firkin.watch(ddp, every=steps, warmup=3) as watch:
        for _ in range(steps + 10):  # rank 0 looks every tenth step
            if slow and slow_in == "before forward":
                time.sleep(SLOW_S)
            if slow and slow_in == "forward":
                net.forward_s += SLOW_S
            y = ddp(x)
            if slow and slow_in == "forward":
                net.forward_s -= SLOW_S
            loss = Slow.apply(y, SLOW_S if slow and slow_in == "loss and backward" else 0.0).square().mean()
            ddp.zero_grad()
            outside.backward(loss)
    if page is not None:
        watch.report(page)
        if dist.get_rank() == 0:
            pathlib.Path(page).with_suffix(".jsonl").write_text("\n".join(watch._reported) + "\n")  # a line per rank
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, outside.steps)
    if dist.get_rank():
        return None
    summary = watch.summary()
    works, exposed = [], []
    for step in range(summary["first_step"], summary["last_step"] + 1):  # iterations count from 1
        rows = [steps[step - 1] for steps in everyone]
        last = max(range(len(rows)), key=lambda rank: rows[rank][0])
        works.append([rows[last][0] - row[0] for row in rows])
        exposed.append(rows[last][1])
    return summary, statistics.median(exposed), [statistics.mean(column) for column in zip(*works)]


def named(runs, page):
    size, chosen = dist.get_world_size(), random.Random(0)
    for case in ("slow rank", "communication", "neither"):
        right, off_ms, wait_off_ms = 0, [], []
        for run in range(runs):
            where, rank = chosen.choice(PHASES), chosen.randrange(size)
            if case == "slow rank":
                found = watched(Net(4, 64, 0.004, 0.004), 0.01, 12, where, rank)
            elif case == "communication":
                found = watched(Net(2, 1024, 0.004, 0.004), 1000, 12, page=page)  # one bucket of 8 MiB, behind backward
            else:
                found = watched(Net(4, 128, 0.03, 0.03), 0.05, 12)
            if found is None:
                continue
            summary, exposed_s, waited_s = found
            good = summary["causes"][:1] == ([] if case == "neither" else [case])
            if case == "slow rank":
                good &= (summary["last_rank"], summary["last_in"]) == (rank, where)
            right += good
            off_ms.append(1e3 * abs(summary["exposed_s"] - exposed_s))
            wait_off_ms += [1e3 * abs(ours - theirs) for ours, theirs in zip(summary["waited_s"], waited_s)]
            if not good:
                print(f"  {case}, run {run}" + (f", {where} on rank {rank}" if case == "slow rank" else "") + f":\n{summary['lines']}", flush=True)
        if off_ms:
            print(f"{size} ranks, {case}: named rightly in {right} of {runs}; off from outside by {statistics.median(off_ms):.3f} ms of exposed"
                  f" communication (at most {max(off_ms):.3f}) and {statistics.median(wait_off_ms):.3f} ms of a rank's waiting (at most"
                  f" {max(wait_off_ms):.3f}). The last run:\n{summary['lines']}", flush=True)  # fmt: skip


def bound():
    """Eight layers of 1 MiB whose gradients come 5 ms apart, under six caps, each twice."""
    summaries = {}
    for cap in (1, 2, 3, 4, 6, 25) * 2:
        found = watched(Net(8, 512, 0.005), cap, 20)
        if found is not None:
            summaries.setdefault(cap, []).append(found[0])
    if summaries:
        best_of = {cap: min(both, key=lambda summary: summary["step_s"]) for cap, both in summaries.items()}
        least_s = min(summary["step_s"] for summary in best_of.values())
        for cap, summary in best_of.items():
            ms = {name: 1e3 * summary[name] for name in ("step_s", "exposed_s", "gain_at_most_s")}
            gained = 1e3 * (summary["step_s"] - least_s)
            print(f"cap {cap:3} MiB: step {ms['step_s']:6.2f} ms, exposed {ms['exposed_s']:6.2f}, could gain at most {ms['gain_at_most_s']:6.2f},"
                  f" the best cap gains {gained:6.2f}: {'holds' if gained <= ms['gain_at_most_s'] + 0.02 * ms['step_s'] else 'DOES NOT HOLD'}",
                  flush=True)  # fmt: skip


class Spent:
    """The time inside the watch's own hooks."""

    def __init__(self):
        self.wall = self.cpu = 0.0

    def around(self, hook):
        def timed(*arguments):
            wall, cpu = time.perf_counter(), time.thread_time()
            hook(*arguments)
            self.wall += time.perf_counter() - wall
            self.cpu += time.thread_time() - cpu

        return timed


def cost(engine, pairs):
    """Pairs of blocks of steps of 20 ms, watched and not, in turn, on a core of each rank's own; most of a step is sleep."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[dist.get_rank() % len(cores)]})
    net = Net(8, 256, 0.0)
    ddp = DistributedDataParallel(net, bucket_cap_mb=1) if engine == "stock" else firkin.DistributedDataParallel(net, cap_mib=1)
    optimizer, x = torch.optim.SGD(ddp.parameters(), lr=1e-4), torch.randn(32, 256)
    logging.getLogger("firkin").setLevel(logging.ERROR)

    def block(steps=BLOCK):
        """Seconds of a step: wall time, and CPU time of all threads of this process."""
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            optimizer.zero_grad()
            ddp(x).square().mean().backward()
            optimizer.step()
        return (time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps

    block()
    sleep_s = torch.tensor(max(0.0, STEP_S - block(50)[0]) / len(net.layers) / dist.get_world_size())
    dist.all_reduce(sleep_s)
    net.backward_s = sleep_s.item()
    hooks, first, spent, blocks = (_watch._before_forward, _watch._after_forward), Spent(), Spent(), []
    _watch._before_forward, _watch._after_forward = map(first.around, hooks)
    watch = firkin.watch(ddp, warmup=0)
    block(FIRST)  # it reads each of these steps
    watch._take_off(ddp)
    _watch._before_forward, _watch._after_forward = map(spent.around, hooks)
    for pair in range(pairs):
        both = {}
        for watched in ((False, True) if pair % 2 else (True, False)):
            if watched:
                watch._put_on(ddp)
            both[watched] = block()
            if watched:
                watch._take_off(ddp)
        blocks.append((both[False], both[True]))
    if dist.get_rank():
        return
    step_s = statistics.median(off[0] for off, _ in blocks)
    print(f"{engine}, {dist.get_world_size()} ranks on {len(cores)} cores, step of {1e3 * step_s:.2f} ms, {pairs} pairs of blocks", flush=True)
    for when, meter, steps in (("in the first window", first, FIRST), ("after it", spent, BLOCK * pairs)):
        for what, seconds in (("wall time", meter.wall), ("CPU time", meter.cpu)):
            each_s = seconds / steps
            print(f"  {when}, in the watch's hooks, {what}: {1e6 * each_s:.1f} us a step, {100 * each_s / step_s:.3f} %", flush=True)
    for k, what in enumerate(("wall time", "CPU time of all threads")):
        more = sorted(on[k] - off[k] for off, on in blocks)
        half = round(0.98 * len(more) ** 0.5)  # ranks around the median that hold the true one in 95 of 100
        low, middle, high = more[max(0, len(more) // 2 - half)], statistics.median(more), more[min(len(more) - 1, len(more) // 2 + half)]
        print(f"  watched less not, {what}: {1e6 * middle:+.1f} us a step (95 %: {1e6 * low:+.1f} to {1e6 * high:+.1f}),"
              f" {100 * middle / step_s:+.3f} % (to {100 * high / step_s:+.3f} %)", flush=True)  # fmt: skip


def tune(runs):
    """Two programs: over 1 Gbit/s the first leaves communication to gain, the second hides nearly all of it."""
    for what, layers, width, backward_s in (("much to gain", 8, 512, 0.003), ("nothing to gain", 4, 128, 0.01)):
        counts, notes = {False: [], True: []}, []
        for _ in range(runs):
            for with_watch in (False, True):
                net, calls = Net(layers, width, backward_s), [0]
                x = torch.randn(8, width)

                def step(model, calls=calls, x=x):
                    calls[0] += 1
                    model.zero_grad()
                    model(x).square().mean().backward()

                watch = None
                if with_watch:
                    ddp = DistributedDataParallel(net)
                    with firkin.watch(ddp, every=40, warmup=5) as watch:
                        for _ in range(60):
                            step(ddp)
                    calls[0] = 0
                    del ddp
                result = firkin.tune(net, step, time_budget_s=60, progress=False, restore=False, watched=watch)
                counts[with_watch].append(calls[0])
                notes = result.notes if with_watch else notes
        if dist.get_rank() == 0:
            print(f"{what}: firkin.tune called step {sorted(counts[False])} times, with a watch {sorted(counts[True])} times: {notes}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("named", "bound", "cost", "tune"))
    parser.add_argument("engine", nargs="?", default="stock", choices=("stock", "firkin"))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=250, help="of blocks of steps")
    parser.add_argument("--page")
    chosen = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    logging.getLogger("firkin").setLevel(logging.ERROR if chosen.what == "named" else logging.WARNING)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    {"named": lambda: named(chosen.runs, chosen.page), "bound": bound, "cost": lambda: cost(chosen.engine, chosen.pairs), "tune": lambda: tune(chosen.runs)}[chosen.what]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
