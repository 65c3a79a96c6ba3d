"""The step time of firkin.DataParallel over that of PyTorch's DistributedDataParallel, in one process on every rank.

    torchrun --nproc-per-node 2 studies/python/engine_against_ddp.py [--caps-mib 1,4,25] [--blocks 60]
    torchrun --nproc-per-node 2 studies/python/engine_against_ddp.py --tensors 5000     of 1 KiB each, which hardly compute: what a tensor costs

Both have a copy of the same model, a transformer, and the same bucket cap; every block steps both, in an order that changes from block to block. Printed
per cap: the medians (of the slowest rank, milliseconds), and the ratio of the two in a block: its median, with a 95 % interval from order
statistics (Conover, Practical Nonparametric Statistics, 3.2: no assumption on the distribution).
"""

import argparse
import copy
import os
import statistics
import time

import firkin
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformer import Transformer, median_and_interval, slowest, training_loss


class Tensors(torch.nn.Module):
    def __init__(self, count):
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.ones(256) for _ in range(count))

    def forward(self):
        return sum(part.sum() for part in self.parts)


def stepper(model, loss_of):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        dist.barrier()
        started = time.perf_counter()
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        return time.perf_counter() - started

    return step


def measure(base, loss_of, cap_mib, blocks):
    ours = stepper(firkin.DataParallel(copy.deepcopy(base), cap_mib=cap_mib), loss_of)
    theirs = stepper(DistributedDataParallel(copy.deepcopy(base), bucket_cap_mb=cap_mib), loss_of)
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
    parser.add_argument("--tensors", type=int, help="that many small parameters instead of a transformer")
    chosen = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    base = Tensors(chosen.tensors) if chosen.tensors else Transformer(chosen.width, chosen.layers)
    tokens = torch.randint(0, 256, (2, 129))
    loss_of = (lambda model: model()) if chosen.tensors else lambda model: training_loss(model, tokens)
    say = print if dist.get_rank() == 0 else lambda *_: None
    size = sum(p.numel() * p.element_size() for p in base.parameters()) / (1 << 20)
    say(f"gradients {size:.1f} MiB, {dist.get_world_size()} ranks, {chosen.blocks} blocks, load {os.getloadavg()[0]:.1f}")
    say(f"{'cap MiB':>8} {'firkin ms':>10} {'PyTorch ms':>11} {'ratio':>6}  95 % interval")
    for cap in (float(text) for text in chosen.caps_mib.split(",")):
        ours, theirs = measure(base, loss_of, cap, chosen.blocks)
        ratio, low, high = median_and_interval([a / b for a, b in zip(ours, theirs)])
        say(f"{cap:>8g} {1e3 * statistics.median(ours):>10.1f} {1e3 * statistics.median(theirs):>11.1f} {ratio:>6.3f}  [{low:.3f}, {high:.3f}]")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
