"""Does firkin.tune find what a sweep finds? And what does Firkin's own engine gain?

    lab/run --rate 1gbit -- .venv/bin/python studies/python/tune_against_sweep.py [--blocks 10]        # or under torchrun

firkin.tune chooses buckets for a transformer; then DistributedDataParallel is stepped with every cap of a sweep, with its default and with what was
chosen, and firkin.DataParallel with the best caps of the sweep, `bucketed` and `ordered`. A block steps each setting four times, in an order that
changes from block to block. Printed: the median step of the slowest rank, and its ratio to the chosen setting's in the same block (median, 95 %).
"""

import argparse
import copy
import os
import random
import statistics
import time

import firkin
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformer import Transformer, median_and_interval, slowest, training_loss

CAPS_MIB = (0.25, 0.5, 1, 2, 4, 8, 16, 32)
STEPS = 4  # of a visit: what reaches from one into the next is paid for


class Setting:
    """A copy of the model in a wrapper, with its optimiser."""

    def __init__(self, base, wrap, tokens):
        self.model = wrap(copy.deepcopy(base))
        self.tokens = tokens
        self.samples = []
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        if isinstance(self.model, firkin.DataParallel):
            self.optimizer = firkin.OverlappedOptimizer(self.model, self.optimizer)

    def visit(self, keep):
        dist.barrier()
        started = time.perf_counter()
        for _ in range(STEPS):
            self.optimizer.zero_grad()
            training_loss(self.model, self.tokens).backward()
            self.optimizer.step()
        if isinstance(self.model, firkin.DataParallel):
            self.model.drain()
        if keep:
            self.samples.append((time.perf_counter() - started) / STEPS)


def tuned(base, tokens, seconds):
    model = copy.deepcopy(base)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(wrapped):
        optimizer.zero_grad()
        training_loss(wrapped, tokens).backward()
        optimizer.step()

    return firkin.tune(model, step, time_budget_s=seconds)


def wrappers(result):
    """Name -> how it wraps a module."""
    made = {f"DDP {cap:g} MiB": lambda module, cap=cap: DistributedDataParallel(module, bucket_cap_mb=cap) for cap in CAPS_MIB}
    made["DDP default"] = DistributedDataParallel
    made["DDP as tuned"] = lambda module: DistributedDataParallel(module, **result.ddp_kwargs())
    for strategy in ("bucketed", "ordered"):
        for cap in (0.5, 1, 2):
            name = f"firkin {strategy} {cap:g} MiB"
            made[name] = lambda module, strategy=strategy, cap=cap: firkin.DataParallel(module, strategy=strategy, cap_mib=cap)
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=150, help="for firkin.tune (default: %(default)s)")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    chosen = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    say = print if dist.get_rank() == 0 else lambda *_, **__: None
    torch.manual_seed(0)
    base = Transformer(chosen.width, chosen.layers)
    tokens = torch.randint(0, 256, (1, 129))
    started = time.perf_counter()
    result = tuned(base, tokens, chosen.seconds)
    say(f"load {os.getloadavg()[0]:.1f}; tuned in {time.perf_counter() - started:.0f} s: {result.choice}, best cap {result.cap_mib:.3g} MiB,"
        f" {len(result.plan.buckets)} buckets", flush=True)  # fmt: skip
    settings = {name: Setting(base, wrap, tokens) for name, wrap in wrappers(result).items()}
    for setting in settings.values():
        setting.visit(keep=False)
    order = random.Random(0)
    for _ in range(chosen.blocks):
        for name in order.sample(list(settings), len(settings)):
            settings[name].visit(keep=True)
    times = {name: slowest(setting.samples) for name, setting in settings.items()}
    say(f"{'setting':<26} {'step ms':>8} {'/ tuned':>8}  95 % interval")
    for name, samples in times.items():
        ratio, low, high = median_and_interval([a / b for a, b in zip(samples, times["DDP as tuned"])])
        say(f"{name:<26} {1e3 * statistics.median(samples):>8.1f} {ratio:>8.3f}  [{low:.3f}, {high:.3f}]")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
