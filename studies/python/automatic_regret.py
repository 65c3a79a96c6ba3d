"""How far from the best cap do automatic buckets end, and what does finding them cost?

    lab/run --rate 1gbit -- .venv/bin/python studies/python/automatic_regret.py [--batch 1] [--blocks 20]        # or under torchrun

A transformer is trained with firkin.DataParallel(buckets="automatic") until its buckets are settled. Then that model, and copies of it with each cap of
a sweep, are stepped in blocks, in an order that changes from block to block. Printed: the choice; how many steps it took and how many seconds more
than as many settled steps; the median step of the slowest rank, and its ratio to the settled buckets' in the same block (median, 95 %). Regret is the
settled buckets' step over that of the cap with the least median, less 1.
"""

import argparse
import copy
import logging
import os
import random
import statistics
import sys
import time

import firkin
import torch
import torch.distributed as dist
from transformer import Transformer, median_and_interval, slowest, training_loss

CAPS_MIB = (0.25, 0.5, 1, 2, 4, 8, 16, 25)
AUTOMATIC = "automatic"
MOST_STEPS = 2000


class Setting:
    """A copy of the model with its buckets and its optimiser."""

    def __init__(self, base, tokens, strategy, **buckets):
        self.model = firkin.DataParallel(copy.deepcopy(base), strategy=strategy, **buckets)
        self.tokens = tokens
        self.samples = []
        self.optimizer = firkin.OverlappedOptimizer(self.model, torch.optim.SGD(self.model.parameters(), lr=1e-3))

    def step(self):
        self.optimizer.zero_grad()
        training_loss(self.model, self.tokens).backward()
        self.optimizer.step()

    def visit(self, steps, keep):
        dist.barrier()
        started = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.model.drain()  # all that the steps have sent counts
        if keep:
            self.samples.append((time.perf_counter() - started) / steps)


def settle(setting):
    """Trains until the buckets are settled: the number of steps, and the seconds that they took."""
    started = time.perf_counter()
    for steps in range(1, MOST_STEPS + 1):
        setting.step()
        if setting.model.stats().automatic.name == "SETTLED":
            return steps, time.perf_counter() - started
    raise SystemExit(f"automatic buckets were not settled after {MOST_STEPS} steps")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=20, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=4, help="of a visit (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--width", type=int, default=256, help="(default: %(default)s)")
    parser.add_argument("--layers", type=int, default=6, help="(default: %(default)s)")
    parser.add_argument("--strategy", choices=("bucketed", "ordered"), default="bucketed", help="(default: %(default)s)")
    chosen = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    dist.init_process_group("gloo")
    say = print if dist.get_rank() == 0 else lambda *_, **__: None
    torch.manual_seed(0)
    base = Transformer(chosen.width, chosen.layers)
    tokens = torch.randint(0, 256, (chosen.batch, 129))

    say(f"load {os.getloadavg()[0]:.1f}", flush=True)
    automatic = Setting(base, tokens, chosen.strategy, buckets="automatic", cap_mib=25)
    steps, seconds = settle(automatic)
    settings = {AUTOMATIC: automatic} | {f"{cap:g} MiB": Setting(base, tokens, chosen.strategy, cap_mib=cap) for cap in CAPS_MIB}
    for setting in settings.values():
        setting.visit(chosen.steps, keep=False)
    order = random.Random(0)
    for _ in range(chosen.blocks):
        for name in order.sample(list(settings), len(settings)):
            settings[name].visit(chosen.steps, keep=True)

    times = {name: slowest(setting.samples) for name, setting in settings.items()}
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    say(f"settled after {steps} steps in {seconds:.1f} s, {seconds - steps * medians[AUTOMATIC]:.1f} s more than as many settled steps")
    say(f"{'buckets':<12} {'step ms':>8} {'/ automatic':>11}  95 % interval")
    for name, samples in times.items():
        ratio, low, high = median_and_interval([a / b for a, b in zip(samples, times[AUTOMATIC])])
        say(f"{name:<12} {1e3 * medians[name]:>8.1f} {ratio:>11.3f}  [{low:.3f}, {high:.3f}]")
    best = min((name for name in times if name != AUTOMATIC), key=medians.get)
    ratio, low, high = median_and_interval([a / b for a, b in zip(times[AUTOMATIC], times[best])])
    say(f"regret against the best cap, {best}: {100 * (ratio - 1):+.1f} % [{100 * (low - 1):+.1f}, {100 * (high - 1):+.1f}]")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
