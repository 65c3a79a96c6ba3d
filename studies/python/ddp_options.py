"""What the options of DistributedDataParallel that firkin.tune races change in a step: its time over that of a step without them.

    PYTHONPATH=examples/python torchrun --nproc-per-node 2 studies/python/ddp_options.py [--blocks 100]

The transformer and the ResNet of examples/python/plain.py, each option on a copy with PyTorch's default buckets. A block is five steps of every copy,
in an order that changes from block to block. Printed: the median of the ratio within a block, with a 95 % interval.
"""

import argparse
import random
import statistics
import time

import plain
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformer import median_and_interval, slowest

OPTIONS = ("nothing more", "gradient_as_bucket_view", "batched_grad_copy", "static_graph")  # the first again, for what noise does
STEPS = 5


def measure(make, blocks):
    wrapped = []
    for option in (None, *OPTIONS):
        torch.manual_seed(0)
        model, step = make()
        given = {} if option in (None, OPTIONS[0]) else {option: True}
        wrapped.append((DistributedDataParallel(model, **given), step))
    times = [[] for _ in wrapped]
    order = random.Random(0)
    for block in range(blocks + 1):
        for i in order.sample(range(len(wrapped)), len(wrapped)):
            model, step = wrapped[i]
            dist.barrier()
            started = time.perf_counter()
            for _ in range(STEPS):
                step(model)
            if block > 0:  # the first warms up
                times[i].append((time.perf_counter() - started) / STEPS)
    return [slowest(of_one) for of_one in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=100, help="(default: %(default)s)")
    blocks = parser.parse_args().blocks
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    say = print if dist.get_rank() == 0 else lambda *_: None
    for make in (plain.transformer, plain.resnet):
        without, *others = measure(make, blocks)
        say(f"{make.__name__}, {dist.get_world_size()} ranks: {1e3 * statistics.median(without):.2f} ms a step")
        for option, step_s in zip(OPTIONS, others, strict=True):
            ratio, low, high = median_and_interval([a / b for a, b in zip(step_s, without, strict=True)])
            say(f"  {option:<24} {ratio:.3f}  [{low:.3f}, {high:.3f}]")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
