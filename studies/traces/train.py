"""One rank of the study: trains a model under stock DistributedDataParallel. study.py starts it in the lab.

train.py trace MODEL OUT              writes OUT/trace_RANK.json.gz at the default cap, and OUT/profiler.json: steps with and without
train.py sweep MODEL OUT BLOCKS CAP.. writes OUT/sweep.json: for each cap (MiB; "default") the median step of each block
"""

import json
import pathlib
import random
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

WARMUP, STEPS, TRACED = 2, 4, 6


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v)
        return x + self.mlp(x)


class Tied(nn.Module):
    """A language model whose embedding is its output layer too: its largest gradient is ready last."""

    def __init__(self, words: int, width: int, blocks: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(blocks)])

    def forward(self, x):
        return self.blocks(self.embedding(x)) @ self.embedding.weight.T


def convolutions() -> nn.Sequential:
    layers, channels = [], 3
    for width in (32, 64, 128, 256, 512):
        layers += [nn.Conv2d(channels, width, 3, padding=1, stride=2), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


# The model, and a batch.
MODELS = {
    "even": lambda: (nn.Sequential(nn.Linear(64, 384), *[Block(384) for _ in range(6)], nn.Linear(384, 1000)), torch.randn(2, 48, 64)),
    "small": lambda: (nn.Sequential(*[layer for _ in range(120) for layer in (nn.Linear(160, 160), nn.Tanh())]), torch.randn(512, 160)),
    "tied": lambda: (Tied(12_000, 256, 4), torch.randint(12_000, (2, 64))),
    "convolutions": lambda: (convolutions(), torch.randn(8, 3, 64, 64)),
}


class Training:
    def __init__(self, name: str, cap: str) -> None:
        torch.manual_seed(0)
        model, self.batch = MODELS[name]()
        self.model = DistributedDataParallel(model, bucket_cap_mb=None if cap == "default" else float(cap))
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()

    def seconds(self, steps: int) -> list[float]:
        """Of each step, on the slowest rank."""
        times = []
        for _ in range(steps):
            dist.barrier()
            started = time.perf_counter()
            self.step()
            taken = torch.tensor(time.perf_counter() - started, dtype=torch.float64)
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            times.append(float(taken))
        return times


def write(path: pathlib.Path, value: object) -> None:
    if dist.get_rank() == 0:
        path.write_text(json.dumps(value))


def trace(name: str, out: pathlib.Path) -> None:
    training = Training(name, "default")
    training.seconds(WARMUP + 2)
    without = training.seconds(TRACED)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        traced = training.seconds(TRACED)
    profiler.export_chrome_trace(str(out / f"trace_{dist.get_rank()}.json.gz"))
    write(out / "profiler.json", {"without_s": without, "with_s": traced})


def sweep(name: str, out: pathlib.Path, blocks: int, caps: list[str]) -> None:
    times: dict[str, list[float]] = {cap: [] for cap in caps}
    shuffled = random.Random(1)
    for _ in range(blocks):
        order = list(times)
        shuffled.shuffle(order)
        for cap in order:
            training = Training(name, cap.removesuffix(" again"))
            training.seconds(WARMUP)
            times[cap].append(statistics.median(training.seconds(STEPS)))
    write(out / "sweep.json", times)


def main() -> None:
    what, name, out, *rest = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if what == "trace":
        trace(name, pathlib.Path(out))
    else:
        sweep(name, pathlib.Path(out), int(rest[0]), rest[1:])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
