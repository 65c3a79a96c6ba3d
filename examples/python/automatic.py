"""Trains a transformer with firkin.DataParallel, which looks for faster gradient buckets while it trains: nothing is tuned beforehand.

  torchrun --nproc-per-node 2 examples/python/automatic.py

Needs the engine, which `make python` builds (docs/install.md). On CPUs, over Gloo.
"""

import argparse
import logging
import sys

import firkin
import torch
import torch.distributed as dist
from small_models import Transformer, next_bytes
from torch.nn.functional import cross_entropy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of training; buckets are settled after about 110 (default: %(default)s)")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stdout)  # one line says what was chosen, and why

    dist.init_process_group("gloo")
    model = firkin.DataParallel(Transformer(), buckets="automatic")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = next_bytes(seed=dist.get_rank())
    for _ in range(arguments.steps):
        x, y = next(batches)
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        stats = model.stats()
        phase = stats.automatic.name.lower()
        print(f"trained {stats.steps} steps: loss {loss.item():.2f}; buckets: {len(stats.buckets)}, {phase}")


if __name__ == "__main__":
    main()
    dist.barrier()  # an exit while Gloo's threads still hold the last tensors can abort (PyTorch issue 190489)
    dist.destroy_process_group()
