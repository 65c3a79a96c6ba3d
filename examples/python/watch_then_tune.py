"""Watches a training under PyTorch's DistributedDataParallel, tunes its gradient buckets, and trains on with these.

  torchrun --nproc-per-node 2 examples/python/watch_then_tune.py
  lab/run --rate 1gbit -- torchrun --nproc-per-node 1 examples/python/watch_then_tune.py   # two hosts, a slow link
"""

import logging
import os
import sys

import firkin
import torch
import torch.distributed as dist
from small_models import DEVICE, Transformer, next_bytes
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)  # what firkin.watch says
dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
model = Transformer(width=256, layers=6, length=128).to(DEVICE)  # 18.6 MiB of gradients
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = next_bytes(seed=dist.get_rank(), batch=4, length=128)


def step(model):
    x, y = (part.to(DEVICE) for part in next(batches))
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()


ddp = DistributedDataParallel(model)
watch = firkin.watch(ddp)  # what does communication cost, and what could be gained?
for _ in range(130):
    step(ddp)
watch.close()

result = firkin.tune(model, step, time_budget_s=float(os.environ.get("SECONDS", "60")))
ddp = result.wrap(model)  # PyTorch's DistributedDataParallel, with the buckets that were found
for _ in range(20):
    step(ddp)
result.check(ddp)
if dist.get_rank() == 0:
    print(result)
dist.destroy_process_group()
