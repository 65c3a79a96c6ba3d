"""The step time of firkin.DataParallel over that of PyTorch's DistributedDataParallel, in one process on every rank.

    torchrun --nproc-per-node 2 benchmarks/python/engine_against_ddp.py [--caps-mib 1,4,25] [--blocks 60]

Both have a copy of the same transformer and the same bucket cap; every block steps both, in an order that changes from block to block. Printed
per cap: the medians (of the slowest rank, milliseconds), and the ratio of the two in a block: its median, with a 95 % interval from order
statistics (Conover, Practical Nonparametric Statistics, 3.2: no assumption on the distribution).
"""

import argparse
import copy
import math
import os
import statistics
import time

import firkin
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Transformer(nn.Module):
    def __init__(self, width, layers, vocabulary=256):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        block = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)))


def stepper(model, tokens):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        dist.barrier()
        started = time.perf_counter()
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        return time.perf_counter() - started

    return step


def slowest(times):
    tensor = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.tolist()


def median_and_interval(values):
    """With a 95 % interval: order statistics around the median, as far apart as the binomial distribution asks."""
    ordered, n = sorted(values), len(values)
    tail = 0.0
    for k in range(n):
        tail += math.comb(n, k) / 2**n
        if tail > 0.025:
            break
    k = max(k, 1)
    return statistics.median(ordered), ordered[k - 1], ordered[n - k]


def measure(base, tokens, cap_mib, blocks):
    ours = stepper(firkin.DataParallel(copy.deepcopy(base), cap_mib=cap_mib), tokens)
    theirs = stepper(DistributedDataParallel(copy.deepcopy(base), bucket_cap_mb=cap_mib), tokens)
    for _ in range(5):
        ours(), theirs()
    times = {ours: [], theirs: []}
    for block in range(blocks):
        for step in (ours, theirs) if block % 2 == 0 else (theirs, ours):
            times[step].append(step())
    return slowest(times[ours]), slowest(times[theirs])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caps-mib", default="1,4,25", help="bucket caps (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=60, help="each one step of both (default: %(default)s)")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    chosen = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    base = Transformer(chosen.width, chosen.layers)
    tokens = torch.randint(0, 256, (2, 129))
    say = print if dist.get_rank() == 0 else lambda *_: None
    size = sum(p.numel() * p.element_size() for p in base.parameters()) / (1 << 20)
    say(f"gradients {size:.1f} MiB, {dist.get_world_size()} ranks, {chosen.blocks} blocks, load {os.getloadavg()[0]:.1f}")
    say(f"{'cap MiB':>8} {'firkin ms':>10} {'PyTorch ms':>11} {'ratio':>6}  95 % interval")
    for cap in (float(text) for text in chosen.caps_mib.split(",")):
        ours, theirs = measure(base, tokens, cap, chosen.blocks)
        ratio, low, high = median_and_interval([a / b for a, b in zip(ours, theirs)])
        say(f"{cap:>8g} {1e3 * statistics.median(ours):>10.1f} {1e3 * statistics.median(theirs):>11.1f} {ratio:>6.3f}  [{low:.3f}, {high:.3f}]")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
