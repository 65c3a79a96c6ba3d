"""A tuned bucket size in Accelerate: DistributedDataParallelKwargs(bucket_cap_mb=...).

  torchrun --nproc-per-node 2 examples/python/accelerate_ddp.py

A small residual network learns patterns under noise. DistributedDataParallelKwargs drops what equals its defaults: bucket_cap_mb=25 is the
same as not given.
"""

import argparse
from typing import Any

import firkin
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, PartialState
from small_models import DEVICE, ResNet, noisy_images
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP


def tune(state: PartialState, seconds: float) -> firkin.TuneResult:
    """On a model of its own: the one that is trained starts afresh."""
    model = ResNet().to(state.device)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = noisy_images(seed=state.process_index)

    def step(model: torch.nn.Module) -> None:
        images, labels = (part.to(state.device) for part in next(batches))
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()

    return firkin.tune(model, step, time_budget_s=seconds)


def train(steps: int, **ddp_kwargs: Any) -> DDP:
    accelerator = Accelerator(cpu=DEVICE.type == "cpu", kwargs_handlers=[DistributedDataParallelKwargs(**ddp_kwargs)])
    model = ResNet()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    for _, (images, labels) in zip(range(steps), noisy_images(seed=accelerator.process_index)):
        optimizer.zero_grad()
        loss = cross_entropy(model(images.to(accelerator.device)), labels.to(accelerator.device))
        accelerator.backward(loss)
        optimizer.step()
    accelerator.print(f"trained {steps} steps: loss {loss.item():.2f}")
    return model


def main() -> tuple[firkin.TuneResult, DDP]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="for tuning; your own model: 150 (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="of training; the check needs 3 (default: %(default)s)")
    arguments = parser.parse_args()

    state = PartialState(cpu=DEVICE.type == "cpu")  # makes the process group
    result = tune(state, arguments.seconds)
    ddp = train(arguments.steps, **result.ddp_kwargs())
    result.check(ddp)
    sizes = ", ".join(f"{size / 2**20:.2f}" for size in result.plan.bucket_bytes)
    state.print(f"{result}\nAccelerate's DistributedDataParallel has these buckets, in MiB: {sizes}")
    return result, ddp


if __name__ == "__main__":
    main()
    PartialState().wait_for_everyone()  # an exit while Gloo's threads still hold the last tensors can abort (PyTorch issue 190489)
    PartialState().destroy_process_group()
