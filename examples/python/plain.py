"""Tunes the gradient buckets of a model, trains with them through PyTorch's DistributedDataParallel, and checks that they are in use.

  torchrun --nproc-per-node 2 examples/python/plain.py
  torchrun --nproc-per-node 2 examples/python/plain.py --model resnet --seconds 60 --report resnet.html

transformer() and resnet() return a model and its step, so they are targets of the command as well:

  torchrun --nproc-per-node 2 -m firkin.tune examples/python/plain.py:resnet
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import firkin
import torch
import torch.distributed as dist
from small_models import DEVICE, ResNet, Transformer, next_bytes, noisy_images
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

Step = Callable[[torch.nn.Module], float]


def with_step(model: torch.nn.Module, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.nn.Module, Step]:
    model.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(model: torch.nn.Module) -> float:  # gets the model, wrapped or not
        x, y = (part.to(DEVICE) for part in next(batches))
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return model, step


def transformer() -> tuple[torch.nn.Module, Step]:
    return with_step(Transformer(), next_bytes(seed=dist.get_rank()))


def resnet() -> tuple[torch.nn.Module, Step]:
    return with_step(ResNet(), noisy_images(seed=dist.get_rank()))


def train(model: torch.nn.Module, step: Step, steps: int, **ddp_kwargs: Any) -> DDP:
    ddp = DDP(model, **ddp_kwargs)
    for _ in range(steps):
        loss = step(ddp)
    if dist.get_rank() == 0:
        print(f"trained {steps} steps: loss {loss:.2f}")
    return ddp


def main() -> tuple[firkin.TuneResult, DDP]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["transformer", "resnet"], default="transformer", help="what to train (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for tuning; your own model: 150 (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="of training; the check needs 3 (default: %(default)s)")
    parser.add_argument("--report", help="a page to write, such as report.html: what was measured, predicted and chosen")
    arguments = parser.parse_args()

    dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    model, step = transformer() if arguments.model == "transformer" else resnet()
    result = firkin.tune(model, step, time_budget_s=arguments.seconds)
    ddp = train(model, step, arguments.steps, **result.ddp_kwargs())
    result.check(ddp)
    if dist.get_rank() == 0:
        sizes = ", ".join(f"{size / 2**20:.2f}" for size in result.plan.bucket_bytes)
        print(f"{result}\nDistributedDataParallel has these buckets, in MiB: {sizes}")
        if arguments.report:
            result.report(arguments.report)
    return result, ddp


if __name__ == "__main__":
    main()
    dist.barrier()  # an exit while Gloo's threads still hold the last tensors can abort (PyTorch issue 190489)
    dist.destroy_process_group()
