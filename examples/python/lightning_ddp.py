"""Tuned buckets in Lightning: DDPStrategy(**result.ddp_kwargs()).

  torchrun --nproc-per-node 2 examples/python/lightning_ddp.py

A small transformer learns the bytes of a text. DDPStrategy hands its arguments on to DistributedDataParallel as they are: a cap, or a list of
them for buckets of unequal size. Tune the LightningModule itself, so that parameters have the same names in both.
"""

import argparse
import os
from typing import Any, cast

import firkin
import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from small_models import DEVICE, Transformer, next_bytes
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


class Language(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = Transformer()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.transformer(x), y)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss: torch.Tensor = self(*batch)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class KeepDDP(L.Callback):
    """Lightning unwraps the module when fit() ends."""

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.ddp = cast(DDP, trainer.strategy.model)


def tune(seconds: float) -> firkin.TuneResult:
    """On a module of its own: the one that is trained starts afresh."""
    module = Language().to(DEVICE)
    optimizer = module.configure_optimizers()
    batches = next_bytes(seed=dist.get_rank())

    def step(module: torch.nn.Module) -> None:
        optimizer.zero_grad()
        module(*(part.to(DEVICE) for part in next(batches))).backward()
        optimizer.step()

    return firkin.tune(module, step, time_budget_s=seconds)


def train(steps: int, **ddp_kwargs: Any) -> DDP:
    data = TensorDataset(*next(next_bytes(seed=0, batch=2 * steps * dist.get_world_size())))
    ranks, keep = int(os.environ["LOCAL_WORLD_SIZE"]), KeepDDP()  # torchrun says how many are on this machine
    trainer = L.Trainer(
        strategy=DDPStrategy(**ddp_kwargs), devices=ranks, num_nodes=dist.get_world_size() // ranks, max_steps=steps, callbacks=[keep],
        accelerator="gpu" if DEVICE.type == "cuda" else "cpu",
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Language(), DataLoader(data, batch_size=2))
    return keep.ddp


def main() -> tuple[firkin.TuneResult, DDP]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="for tuning; your own model: 150 (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="of training; the check needs 3 (default: %(default)s)")
    arguments = parser.parse_args()

    dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")  # Lightning takes the one that is there
    result = tune(arguments.seconds)
    ddp = train(arguments.steps, **result.ddp_kwargs())
    result.check(ddp)
    if dist.get_rank() == 0:
        sizes = ", ".join(f"{size / 2**20:.2f}" for size in result.plan.bucket_bytes)
        print(f"{result}\nLightning's DistributedDataParallel has these buckets, in MiB: {sizes}")
    return result, ddp


if __name__ == "__main__":
    main()
    dist.barrier()  # an exit while Gloo's threads still hold the last tensors can abort (PyTorch issue 190489)
    dist.destroy_process_group()
