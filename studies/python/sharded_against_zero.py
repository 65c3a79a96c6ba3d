"""A sharded step in Python beside PyTorch's: firkin.ShardedOptimizer, ZeroRedundancyOptimizer over stock DDP, and what does not shard.

    lab/run --rate 1gbit -- .venv/bin/python studies/python/sharded_against_zero.py [--blocks 12]
    torchrun --nproc-per-node 2 studies/python/sharded_against_zero.py

The demo model, AdamW, caps of 1 MiB for Firkin and PyTorch's default for PyTorch. Each has a copy of the model. A block is four steps of each, one
setting after the other in an order that changes from block to block, until all its parameters are there. Printed: medians of the slowest rank
(milliseconds), the ratio to ZeroRedundancyOptimizer in a block with a 95 % interval, and the bytes of the optimiser's state on rank 0. Asked of
sharded: at most 0.75 of ZeroRedundancyOptimizer and 1.05 of ordered over 1 Gbit/s. --collectives: instead, the median of 20 calls on 4 MiB of
Gloo's all-reduce, of its reduce-scatter, and of the all-to-all and local sum that sharded uses.
"""

import argparse
import copy
import os
import statistics
import time

import firkin
import torch
import torch.distributed as dist
from language_model import LanguageModel, loss_of
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from transformer import median_and_interval, slowest

STEPS, WARM_UP = 4, 8  # ordered has its launch order after these


def settings(base, cap_mib):
    def ours(strategy):
        return firkin.DistributedDataParallel(copy.deepcopy(base), strategy=strategy, cap_mib=cap_mib)

    def adamw(model):
        return torch.optim.AdamW(model.parameters(), lr=1e-4)

    zero = DistributedDataParallel(copy.deepcopy(base))
    yield "zero", zero, ZeroRedundancyOptimizer(zero.parameters(), torch.optim.AdamW, lr=1e-4)
    stock = DistributedDataParallel(copy.deepcopy(base))
    yield "stock DDP", stock, adamw(stock)
    bucketed = ours("bucketed")
    yield "bucketed", bucketed, adamw(bucketed)
    ordered = ours("ordered")
    yield "ordered", ordered, firkin.OverlappedOptimizer(ordered, adamw(ordered))
    sharded = ours("sharded")
    yield "sharded", sharded, firkin.ShardedOptimizer(sharded, torch.optim.AdamW, lr=1e-4)


def train(model, optimizer, tokens, steps):
    """Seconds a step."""
    dist.barrier()
    started = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, tokens).backward()
        optimizer.step()
    if hasattr(model, "drain"):
        model.drain()
    return (time.perf_counter() - started) / steps


def time_collectives(bytes_sent=4 << 20, calls=20):
    world = dist.get_world_size()
    data = torch.ones(bytes_sent // 4)
    part, received = torch.empty(data.numel() // world), torch.empty_like(data)

    def all_to_all():
        dist.all_to_all_single(received, data)
        torch.sum(received.view(world, -1), 0, out=part)

    tried = {"all-reduce": lambda: dist.all_reduce(received), "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, data), "all-to-all, sum": all_to_all}
    times = {name: [] for name in tried}
    for call in range(calls + 2):
        for name, run in tried.items():
            dist.barrier()
            started = time.perf_counter()
            run()
            if call >= 2:
                times[name].append(time.perf_counter() - started)
    for name, seconds in times.items():
        median_s = statistics.median(slowest(seconds))
        if dist.get_rank() == 0:
            print(f"{name:16} {1e3 * median_s:6.1f} ms")


def state_bytes(optimizer):
    optimizer = getattr(optimizer, "optim", optimizer)  # of ZeroRedundancyOptimizer, this rank's own
    return sum(v.nbytes for state in optimizer.state.values() for v in state.values() if torch.is_tensor(v) and v.dim() > 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=12, help="each four steps of every setting (default: %(default)s)")
    parser.add_argument("--cap-mib", type=float, default=1, help="Firkin's bucket cap (default: %(default)s)")
    parser.add_argument("--collectives", action="store_true", help="time Gloo's collectives on 4 MiB instead")
    chosen = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    if chosen.collectives:
        time_collectives()
        return dist.destroy_process_group()
    torch.manual_seed(0)
    base = LanguageModel(256, 1024, 256, 704, 6, 4)
    tokens = torch.randint(0, 256, (1, 129))
    tried = list(settings(base, chosen.cap_mib))
    for _, model, optimizer in tried:
        train(model, optimizer, tokens, WARM_UP)
    times = {name: [] for name, *_ in tried}
    for block in range(chosen.blocks):
        first = block % len(tried)
        for name, model, optimizer in tried[first:] + tried[:first]:
            times[name].append(train(model, optimizer, tokens, STEPS))
    times = {name: slowest(seconds) for name, seconds in times.items()}
    bytes_kept = {name: state_bytes(optimizer) for name, _, optimizer in tried}
    if dist.get_rank() == 0:
        gradients = sum(p.nbytes for p in base.parameters()) / (1 << 20)
        print(f"gradients {gradients:.1f} MiB, {dist.get_world_size()} ranks, {chosen.blocks} blocks, load {os.getloadavg()[0]:.1f}")
        print(f"{'':10} {'step ms':>8} {'of zero':>8}  {'95 % interval':16} {'state MiB':>9}")
        for name, seconds in times.items():
            ratio, low, high = median_and_interval([a / b for a, b in zip(seconds, times["zero"])])
            interval = f"{low:.3f} to {high:.3f}"
            print(f"{name:10} {1e3 * statistics.median(seconds):8.1f} {ratio:8.3f}  {interval:16} {bytes_kept[name] / (1 << 20):9.1f}")
        ratio, low, high = median_and_interval([a / b for a, b in zip(times["sharded"], times["ordered"])])
        print(f"sharded {ratio:.3f} of ordered ({low:.3f} to {high:.3f})")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
