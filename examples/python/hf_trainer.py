"""A tuned bucket size in the Trainer of Transformers: TrainingArguments(ddp_bucket_cap_mb=...).

  torchrun --nproc-per-node 2 examples/python/hf_trainer.py

A small GPT-2 with random weights learns the bytes of a text; nothing is downloaded. Unless it is told
ddp_find_unused_parameters=False, the Trainer lets DistributedDataParallel look for unused parameters (but for gradient checkpointing).
Buckets are then cut in another order, and every step searches the graph. Tune with what you train with.
"""

import argparse
import tempfile
from typing import Any

import firkin
import torch
import torch.distributed as dist
from small_models import DEVICE, next_bytes
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


def gpt2() -> GPT2LMHeadModel:
    config = GPT2Config(vocab_size=256, n_positions=32, n_embd=128, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config)


def tune(seconds: float) -> firkin.TuneResult:
    """On a model of its own: the one that is trained starts afresh."""
    model = gpt2().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = next_bytes(seed=dist.get_rank())

    def step(model: torch.nn.Module) -> None:
        x = next(batches)[0].to(DEVICE)
        optimizer.zero_grad()
        model(input_ids=x, labels=x).loss.backward()
        optimizer.step()

    return firkin.tune(model, step, time_budget_s=seconds)


def train(steps: int, **ddp_kwargs: Any) -> torch.nn.Module:
    rows, _ = next(next_bytes(seed=0, batch=8 * steps))
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        max_steps=steps,
        ddp_bucket_cap_mb=ddp_kwargs.get("bucket_cap_mb"),  # None: PyTorch's default; fractions work, but not on a command line
        ddp_find_unused_parameters=ddp_kwargs.get("find_unused_parameters", False),
        use_cpu=DEVICE.type == "cpu",
        dataloader_pin_memory=DEVICE.type != "cpu",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(gpt2(), arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
    trainer.train()
    return trainer.model_wrapped


def main() -> tuple[firkin.TuneResult, torch.nn.Module]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="for tuning; your own model: 150 (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="of training; the check needs 3 (default: %(default)s)")
    arguments = parser.parse_args()

    dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")  # the Trainer takes the one that is there
    result = tune(arguments.seconds)
    ddp = train(arguments.steps, **result.ddp_kwargs())
    result.check(ddp)
    if dist.get_rank() == 0:
        sizes = ", ".join(f"{size / 2**20:.2f}" for size in result.plan.bucket_bytes)
        print(f"{result}\nthe Trainer's DistributedDataParallel has these buckets, in MiB: {sizes}")
    return result, ddp


if __name__ == "__main__":
    main()
    dist.barrier()  # an exit while Gloo's threads still hold the last tensors can abort (PyTorch issue 190489)
    dist.destroy_process_group()
