"""One rank of integrations_test.py: trains with the callbacks of firkin.integrations or with firkin.tune, and without.

    integrations_callbacks.py [PROGRAM] FOLDER

Writes FOLDER/RANK.json: for each program, or for that one, how many parameters differ from those of the training that was not tuned, what
was chosen, and what check() says of the training's buckets.
"""

import json
import os
import pathlib
import sys
import tempfile

import without_vision_operators  # noqa: F401

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"))

import firkin.integrations
import lightning as L
import timm
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
import torchvision
from accelerate import Accelerator
from lightning.pytorch.strategies import DDPStrategy
from peft import LoraConfig, get_peft_model
from small_models import Transformer, next_bytes
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

QUICK = {"time_budget_s": 1.0, "progress": False}
WATCH = {"watch": True, "warmup": 0}
STEPS = 6


def transformers(tuned, adapt=lambda model: model, for_callback=QUICK, **options):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    model = adapt(GPT2LMHeadModel(config))  # with dropout
    rows, _ = next(next_bytes(seed=0, batch=16 * STEPS))
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, max_steps=STEPS, use_cpu=True, dataloader_pin_memory=False,
        save_strategy="no", report_to="none", disable_tqdm=True, ddp_find_unused_parameters=False, **options,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
    callback = firkin.integrations.for_transformers(trainer, **for_callback)
    if tuned:
        trainer.add_callback(callback)
    trainer.train()
    return model, callback.result, trainer.model_wrapped


class Language(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.transformer, self.dropout = Transformer(), torch.nn.Dropout(0.1)

    def training_step(self, batch, index):
        loss = cross_entropy(self.dropout(self.transformer(batch[0])), batch[1])
        self.log("loss", loss)
        return {"loss": loss}

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


class KeepDDP(L.Callback):
    def on_train_end(self, trainer, module):
        self.ddp = trainer.strategy.model


def lightning(tuned, arguments=QUICK, **options):
    torch.manual_seed(0)
    model, keep, callback = Language(), KeepDDP(), firkin.integrations.for_lightning(**arguments)
    trainer = L.Trainer(
        strategy=DDPStrategy(), devices=2, max_steps=STEPS, callbacks=[keep, callback] if tuned else [keep], accelerator="cpu",
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip
    trainer.fit(model, DataLoader(TensorDataset(*next(next_bytes(seed=0, batch=4 * STEPS))), batch_size=2, shuffle=True))
    return model, callback.result, keep.ddp


def accelerated(watched):
    torch.manual_seed(0)
    accelerator, net = Accelerator(cpu=True), Transformer()
    data = TensorDataset(*next(next_bytes(seed=0, batch=4 * STEPS)))
    model, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters()), DataLoader(data, batch_size=2))
    watch = firkin.watch(model, warmup=0, writer=accelerator.log) if watched else None
    for inputs, targets in loader:
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(inputs), targets))
        optimizer.step()
    if watch is not None:
        watch.close()
    return net, watch, model


class SyncedNorm(torch.nn.BatchNorm2d):
    """As SyncBatchNorm, which PyTorch refuses on a CPU: statistics of all ranks, by collectives within forward and backward."""

    def forward(self, x):
        def mean_of(values):
            return dist_nn.all_reduce(values.mean((0, 2, 3), keepdim=True)) / dist.get_world_size()

        centred = x - mean_of(x)
        scale = torch.rsqrt(mean_of(centred * centred) + self.eps) * self.weight[:, None, None]
        return centred * scale + self.bias[:, None, None]


def images(tuned, make, wrap=DDP):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(ddp):
        optimizer.zero_grad()
        cross_entropy(ddp(torch.randn(2, 3, 32, 32)), torch.randint(10, (2,))).backward()
        optimizer.step()

    result = firkin.tune(model, step, wrap=wrap, **QUICK) if tuned else None
    ddp = wrap(model, **(result.ddp_kwargs() if tuned else {}))
    for _ in range(STEPS):
        step(ddp)
    return model, result, ddp


PROGRAMS = {
    "torchvision, ResNet-50": lambda tuned: images(tuned, lambda: torchvision.models.resnet50(num_classes=10, width_per_group=16)),
    "torchvision, small ResNet, synchronised statistics": lambda tuned: images(
        tuned, lambda: torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1] * 4, num_classes=10, norm_layer=SyncedNorm)
    ),
    "timm, torch.compile": lambda tuned: images(
        tuned, lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1, num_classes=10),
        lambda model, **kwargs: torch.compile(DDP(model, **kwargs), backend="aot_eager"),
    ),
    "transformers": transformers,
    "transformers, bfloat16": lambda tuned: transformers(tuned, bf16=True),
    "transformers, checkpointing": lambda tuned: transformers(tuned, gradient_checkpointing=True),
    "transformers, accumulation": lambda tuned: transformers(tuned, gradient_accumulation_steps=2),
    "lightning": lightning,
    "lightning, bfloat16": lambda tuned: lightning(tuned, precision="bf16-mixed"),
    "transformers, LoRA": lambda tuned: transformers(tuned, lambda net: get_peft_model(net, LoraConfig(r=4, target_modules=["c_attn"]))),
    "transformers, watched": lambda tuned: transformers(tuned, for_callback=WATCH),
    "lightning, watched": lambda tuned: lightning(tuned, WATCH),
    "accelerate, watched": accelerated,
}

*chosen, folder = sys.argv[1:]
dist.init_process_group("gloo")
outcomes = {}
for name in chosen or PROGRAMS:
    program = PROGRAMS[name]
    without, _, _ = program(False)
    model, result, ddp = program(True)
    different = sum(not torch.equal(a, b) for a, b in zip(without.state_dict().values(), model.state_dict().values(), strict=True))
    if "watched" in name:
        outcomes[name] = {"different": different, "steps_watched": result.summary().get("steps", 0)}
    else:
        outcomes[name] = {"different": different, "choice": result.choice, "check": result.check(ddp)}
(pathlib.Path(folder) / f"{os.environ['RANK']}.json").write_text(json.dumps(outcomes))
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # a thread of Gloo that still has a tensor to let go of would abort an interpreter that ends
