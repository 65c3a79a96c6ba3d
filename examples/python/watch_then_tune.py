"""Watches a training under PyTorch's DistributedDataParallel, tunes its gradient buckets, and trains on with the buckets found.

  torchrun --nproc-per-node 2 examples/python/watch_then_tune.py
  lab/run --rate 1gbit -- torchrun --nproc-per-node 1 examples/python/watch_then_tune.py     on two hosts with a slow link
"""

import logging
import sys

import firkin
import torch
import torch.distributed as dist
from small_models import DEVICE, Transformer, next_bytes
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)  # what firkin.watch says
dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
model = Transformer(width=256, layers=6, length=128).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = next_bytes(seed=dist.get_rank(), batch=2, length=128)


def step(model: torch.nn.Module) -> None:
    x, y = (part.to(DEVICE) for part in next(batches))
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()


ddp = DistributedDataParallel(model)
watch = firkin.watch(ddp)  # its lines: what does communication cost, and what could be gained?
for _ in range(40):
    step(ddp)
watch.close()

result = firkin.tune(model, step)  # 150 seconds; restores model and optimiser
ddp = result.wrap(model)
for _ in range(40):
    step(ddp)
result.check(ddp)  # are these the buckets?
if dist.get_rank() == 0:
    print(result)
dist.barrier()  # an exit while Gloo's threads still hold the last tensors can abort (PyTorch issue 190489)
dist.destroy_process_group()
