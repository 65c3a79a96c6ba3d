"""Tokens per second of `firkin train` over those of the same training in eager PyTorch: on one rank, and on two hosts beside stock DDP.

    python3 studies/python/train_against_torch.py [--blocks 10] [--steps 60] [--rate 1gbit]

The same model, batch, sequence, text, AdamW and clipping. A block runs both, each in processes of its own, in an order that changes from block to block;
of each run the first steps are left out, and the median step counts (rank 0's, from the reading of samples to the optimiser). Printed: the medians over
the blocks, and the ratio of the two in a block: its median, with a 95 % interval from order statistics. Two hosts are those of lab/run, a core each,
with a link of --rate between them; that part needs what the lab needs (docs/emulated_links.md), and DDP has its default buckets. Before anything is timed,
PyTorch gets the weights that Firkin began with, and must have the same loss on the held part of the text.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from language_model import LanguageModel, adamw, load_safetensors, loss_of
from transformer import median_and_interval

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = ROOT / "data" / "text" / "cooperage.txt"
HELD_SHARE = 0.1
SIZES = ("vocab_size", "context_length", "d_model", "d_ff", "num_layers", "num_heads")


class Settings:
    """What both sides are told."""

    def __init__(self, chosen, clip, folder):
        self.chosen, self.clip, self.folder = chosen, clip, folder

    def firkin(self, *more):
        """The command, and where it writes."""
        c = self.chosen
        out = tempfile.mkdtemp(dir=self.folder)
        words = [c.firkin, "train", "--global-batch", c.batch, "--sequence", c.sequence, "--steps", c.steps, "--clip", self.clip, "--out", out]
        words += ["--evaluate-every", 0, "--checkpoint-every", 0, "--print-every", c.steps, "--held-share", HELD_SHARE]
        return [str(word) for word in [*words, *more]], pathlib.Path(out)

    def torch(self, sizes):
        file = pathlib.Path(self.folder) / "sizes.json"
        file.write_text(json.dumps(sizes))
        c = self.chosen
        words = [sys.executable, __file__, "--worker", file, "--batch", c.batch, "--sequence", c.sequence, "--steps", c.steps, "--clip", self.clip]
        return [str(word) for word in words]


def run(command, threads=None):
    environment = dict(os.environ) if threads is None else os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed with exit code {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def step_of(seconds, chosen):
    return statistics.median(seconds[chosen.skip :])


def firkin_step(command, out, chosen, threads=None):
    run(command, threads)
    return step_of([json.loads(line)["step_s"] for line in (out / "metrics.jsonl").read_text().splitlines()], chosen)


def torch_step(command, chosen, threads=None):
    return step_of(json.loads(run(command, threads).splitlines()[-1]), chosen)


def compare(name, ours, theirs, chosen, tokens):
    steps = {ours: [], theirs: []}
    for block in range(chosen.blocks):
        for side in (ours, theirs) if block % 2 == 0 else (theirs, ours):
            steps[side].append(side())
    speeds = {side: [tokens / step_s for step_s in seconds] for side, seconds in steps.items()}
    ratio, low, high = median_and_interval([a / b for a, b in zip(speeds[ours], speeds[theirs], strict=True)])
    print(f"{name:<32} {statistics.median(speeds[ours]):>9.0f} {statistics.median(speeds[theirs]):>9.0f} {ratio:>7.3f}  [{low:.3f}, {high:.3f}]", flush=True)


def held_windows(text, sequence, most):
    windows = min((int(len(text) * HELD_SHARE) - 1) // sequence, most)
    first = len(text) - (int(len(text) * HELD_SHARE) - 1) // sequence * sequence - 1
    return torch.stack([torch.tensor(list(text[first + k * sequence :][: sequence + 1])) for k in range(windows)])


def sizes_of_the_same_model(settings):
    """Of Firkin's model, whose weights PyTorch's must have the same loss with."""
    weights = pathlib.Path(settings.folder) / "first.safetensors"
    command, out = settings.firkin("--ranks", 1, "--steps", 1, "--learning-rate", 0, "--export", weights, "--evaluate-windows", 16)
    at = command.index("--steps")
    run(command[:at] + command[at + 2 :])
    results = json.loads((out / "results.json").read_text())
    sizes = {name: results["model"][name] for name in SIZES}
    model = LanguageModel(**sizes)
    model.load_state_dict(load_safetensors(weights))
    with torch.no_grad():
        theirs = loss_of(model, held_windows(TEXT.read_bytes(), settings.chosen.sequence, 16)).item()
    ours = results["training"]["last_held_loss"]
    if abs(ours - theirs) > 1e-4:
        sys.exit(f"not the same model: held loss {ours}, in PyTorch {theirs}")
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters; held loss of the same weights {ours:.6f}, in PyTorch {theirs:.6f}")
    return sizes


def work(chosen):
    """One rank of the training in PyTorch; prints the seconds of its steps."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(0)
    module = LanguageModel(**json.loads(chosen.worker.read_text()))
    if world > 1:
        dist.init_process_group("gloo")
        module = torch.nn.parallel.DistributedDataParallel(module)
    optimizer = adamw(module, 1e-3)
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8)
    rank = int(os.environ.get("RANK", "0"))
    draw = torch.Generator().manual_seed(rank)
    seconds = []
    for _ in range(chosen.steps):
        started = time.perf_counter()
        starts = torch.randint(len(text) - chosen.sequence, (chosen.batch // world,), generator=draw)
        windows = torch.stack([text[start : start + chosen.sequence + 1] for start in starts.tolist()]).long()
        optimizer.zero_grad()
        loss = loss_of(module, windows)
        loss.backward()
        loss.item()
        if chosen.clip > 0:
            torch.nn.utils.clip_grad_norm_(module.parameters(), chosen.clip)
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    if rank == 0:
        print(json.dumps(seconds))
    if world > 1:
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10, help="each one run of both (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="of a run (default: %(default)s)")
    parser.add_argument("--skip", type=int, default=10, help="steps that are left out (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step, of all ranks (default: %(default)s)")
    parser.add_argument("--sequence", type=int, default=128, help="(default: %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the one rank (default: all cores)")
    parser.add_argument("--rate", default="1gbit", help="of the link between two hosts (default: %(default)s)")
    parser.add_argument("--ranks", type=int, choices=(1, 2), help="only this part")
    parser.add_argument("--two", default="--strategy ordered --cap 1MiB", help="flags of firkin train on two hosts (default: %(default)s)")
    parser.add_argument("--clip", type=float, default=0, help="on two hosts, of both; clipping leaves ordered nothing to overlap (default: never)")
    parser.add_argument("--firkin", default=str(ROOT / "build" / "firkin"), help="(default: %(default)s)")
    parser.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        return work(chosen)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(chosen, 1, folder)
        sizes = sizes_of_the_same_model(settings)
        tokens = chosen.batch * chosen.sequence
        print(f"batch {chosen.batch}, sequence {chosen.sequence}, {chosen.blocks} blocks of {chosen.steps} steps, load {os.getloadavg()[0]:.1f}")
        print(f"{'tokens/s':<32} {'firkin':>9} {'PyTorch':>9} {'ratio':>7}  95 % interval")
        if chosen.ranks != 2:
            compare(f"1 rank, {chosen.threads} threads", lambda: firkin_step(*settings.firkin("--ranks", 1, "--threads", chosen.threads), chosen, chosen.threads),
                    lambda: torch_step(settings.torch(sizes), chosen, chosen.threads), chosen, tokens)  # fmt: skip
        if chosen.ranks != 1:
            lab = [str(ROOT / "lab" / "run"), "--rate", chosen.rate, "--"]
            two = Settings(chosen, chosen.clip, folder)

            def ours():
                command, out = two.firkin(*chosen.two.split())
                return firkin_step(lab + command, out, chosen)

            compare(f"2 hosts, {chosen.rate}, DDP's default", ours, lambda: torch_step(lab + two.torch(sizes), chosen), chosen, tokens)


if __name__ == "__main__":
    main()
