"""`ordered` beside a prototype without safety net, on two hosts with a limited link.

    PYTHONPATH=build/python .venv/bin/python studies/ordered/compare.py --rate 1gbit --batch 1 --cap-mib 0.5

The prototype is what a person would write for one model: hooks that launch buckets in a fixed order, waits and plain SGD in forward pre-hooks; no
agreement, no audit, no errors. It is run with ready times multiplied by each of --late, since no single factor is right on every machine. Rounds of
two runs each, in turn: one process a host with the prototype and firkin.DataParallel on the same model; `firkin bench step` in C++. Steps of all
settings within a run take turns in blocks. Printed: medians over all blocks, milliseconds, and ratios, that to one's own bucketed with its 95 %
interval over blocks. Needs root, as lab/run does.

Steps are timed from the end of one to the end of another, with nothing between them, so that all that a step sends counts. With a barrier before the
first, what was on its way is there when the clock starts, and what the last step leaves on its way counts for nobody: the column "barrier" shows what
that pretends. The prototype's barrier waits for its buckets, as they share a group; the engine's buckets have connections of their own.
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "studies" / "python"))
MODEL = {"vocab_size": 256, "context_length": 128, "d_model": 256, "d_ff": 704, "num_layers": 6, "num_heads": 4}  # firkin's demo model
MIB = 2**20
BLOCK_STEPS, WARMUP_STEPS = 4, 3


class Prototype:
    """Buckets over the reversed parameters, their all-reduces in a fixed order, and SGD on a bucket when forward first needs it."""

    def __init__(self, net, cap_bytes, rate=0.01):
        self.rate, self.buckets, filled = rate, [[]], 0
        for parameter in reversed(list(net.parameters())):
            if filled >= cap_bytes:
                self.buckets.append([])
                filled = 0
            self.buckets[-1].append(parameter)
            filled += 4 * parameter.numel()
        self.flat = [torch.zeros(sum(p.numel() for p in bucket)) for bucket in self.buckets]
        self.place = {}
        for k, bucket in enumerate(self.buckets):
            views = self.flat[k].split([p.numel() for p in bucket])
            self.place |= {p: (k, view.view_as(p)) for p, view in zip(bucket, views)}
        self.need, self.first_need = {}, [len(self.place)] * len(self.buckets)
        owners = [m for m in net.modules() if list(m.parameters(recurse=False))]
        for turn, module in enumerate(owners):
            for parameter in module.parameters(recurse=False):
                k = self.place[parameter][0]
                self.need.setdefault(module, []).append(k)
                self.first_need[k] = min(self.first_need[k], turn)
            module.register_forward_pre_hook(self.before_forward)
        for parameter in self.place:
            parameter.register_post_accumulate_grad_hook(self.on_gradient)
        self.works, self.order, self.lazy, self.ready_s = {}, list(range(len(self.buckets))), False, {}

    def begin_backward(self):
        self.missing, self.next, self.started = [len(bucket) for bucket in self.buckets], 0, time.perf_counter()

    def on_gradient(self, parameter):
        k, view = self.place[parameter]
        view.copy_(parameter.grad).div_(dist.get_world_size())
        parameter.grad = None
        self.missing[k] -= 1
        if self.missing[k] == 0:
            self.ready_s[k] = time.perf_counter() - self.started
        while self.next < len(self.order) and self.missing[self.order[self.next]] == 0:
            k = self.order[self.next]
            self.works[k] = dist.all_reduce(self.flat[k], async_op=True)
            self.next += 1

    def before_forward(self, module, _):
        if self.lazy:
            self.update(self.need[module])

    def update(self, buckets):
        for k in sorted(set(buckets)):
            if k in self.works:
                self.works.pop(k).wait()
                with torch.no_grad():
                    for parameter in self.buckets[k]:
                        parameter.add_(self.place[parameter][1], alpha=-self.rate)

    def end_step(self):
        if not self.lazy:
            self.update(list(self.works))

    def use_order(self, late, bytes_per_s):
        """Of what is ready, what forward needs first, for ready times that are `late` times as late; None: as they become ready."""
        self.lazy, left, self.order, now = late is not None, set(range(len(self.buckets))), [], 0.0
        ready = torch.tensor([self.ready_s[k] for k in sorted(left)], dtype=torch.float64)
        dist.all_reduce(ready)
        ready = (ready / dist.get_world_size() * (late or 0)).tolist()
        while left:
            if late is None:
                k = min(left)
            else:
                now = max(now, min(ready[k] for k in left))
                k = min((k for k in left if ready[k] <= now), key=lambda k: (self.first_need[k], k))
                now += 4 * self.flat[k].numel() / bytes_per_s
            left.remove(k)
            self.order.append(k)


def run_rank(args):
    """Every setting's steps in blocks, in turn; rank 0 writes the blocks' times per step."""
    import firkin
    from language_model import LanguageModel

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(dist.get_rank())

    def loss_of(model):
        tokens = torch.randint(256, (args.batch, 129), generator=generator)
        return torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def network():
        torch.manual_seed(0)
        return LanguageModel(**MODEL)

    def engine(strategy):
        net = network()
        model = firkin.DataParallel(net, strategy=strategy, cap_mib=args.cap_mib)
        plain = torch.optim.SGD(net.parameters(), lr=0.01)
        optimizer = firkin.OverlappedOptimizer(model, plain) if strategy == "ordered" else plain

        def step():
            plain.zero_grad()
            loss_of(model).backward()
            optimizer.step()

        return step, lambda: None, model.drain

    net = network()
    prototype = Prototype(net, args.cap_mib * MIB)

    def prototype_step():
        loss = loss_of(net)
        prototype.begin_backward()
        loss.backward()
        prototype.end_step()

    for _ in range(4):
        prototype_step()
    probe = torch.ones(MIB)
    dist.barrier()
    started = time.perf_counter()
    for _ in range(3):
        dist.all_reduce(probe)
    bytes_per_s = torch.tensor(3 * 4 * MIB / (time.perf_counter() - started))
    dist.all_reduce(bytes_per_s)
    bytes_per_s = bytes_per_s.item() / dist.get_world_size()

    def of_prototype(late):
        return prototype_step, lambda: prototype.use_order(late, bytes_per_s), lambda: prototype.update(list(prototype.works))

    settings = {"prototype, as ready": of_prototype(None)} | {f"prototype, late {late:g}": of_prototype(late) for late in args.late}
    settings |= {f"Python {strategy}": engine(strategy) for strategy in ("bucketed", "ordered")}
    for _ in range(10):
        for name in ("Python bucketed", "Python ordered"):
            settings[name][0]()
    settings["Python ordered"][2]()
    times = {name: [] for name in settings}
    behind_barrier = {name: [] for name in settings}

    def timed(step):
        started = time.perf_counter()
        for _ in range(BLOCK_STEPS):
            step()
        return (time.perf_counter() - started) / BLOCK_STEPS

    for _ in range(args.blocks):
        for name, (step, prepare, finish) in settings.items():
            prepare()
            for _ in range(WARMUP_STEPS):
                step()
            times[name].append(timed(step))
            dist.barrier()
            behind_barrier[name].append(timed(step))
            finish()
    if dist.get_rank() == 0:
        alone = 4 * sum(flat.numel() for flat in prototype.flat) / bytes_per_s
        pathlib.Path(args.result).write_text(json.dumps({"times": times, "behind_barrier": behind_barrier, "communication_s": alone}))
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads may still let go of tensors


def in_lab(args, command):
    subprocess.run([ROOT / "lab" / "run", "--rate", args.rate, "--", *map(str, command)], check=True, stdout=subprocess.DEVNULL)


def compare(args):
    times, behind_barrier, alone = {}, {}, []
    with tempfile.TemporaryDirectory() as folder:
        for round_index in range(args.rounds):
            result = pathlib.Path(folder) / f"{round_index}.json"
            words = ["--batch", args.batch, "--cap-mib", args.cap_mib, "--blocks", args.blocks, "--late", *args.late, "--result", result]
            in_lab(args, [sys.executable, __file__, *words])
            measured = json.loads(result.read_text())
            alone.append(measured["communication_s"])
            for into, what in ((times, "times"), (behind_barrier, "behind_barrier")):
                for name, values in measured[what].items():
                    into.setdefault(name, []).extend(values)
            out = pathlib.Path(folder) / f"steps{round_index}"
            in_lab(args, [args.firkin, "bench", "step", "--strategies", "bucketed,ordered", "--cap", f"{args.cap_mib}MiB", "--batch", args.batch,
                          "--sequence", 128, "--blocks", args.blocks, "--out", out])
            (configuration,) = json.loads((out / "results.json").read_text())["configurations"]
            for row, samples in zip(configuration["strategies"], configuration["samples"]["step_s"], strict=True):
                if row["strategy"] != "none":
                    times.setdefault(f"C++ {row['strategy']}", []).extend(samples)
            print(f"round {round_index + 1} of {args.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    medians = {name: statistics.median(values) for name, values in times.items()}
    best = min((name for name in medians if name.startswith("prototype, late")), key=medians.get)
    communication = statistics.median(alone)
    print(f"{args.rate}, batch {args.batch}, cap {args.cap_mib} MiB; communication alone {1e3 * communication:.0f} ms; best prototype: {best}")
    print(f"{'':20} {'step':>8} {'barrier':>8} {'of best prototype':>18} {'of own bucketed':>24} {'of communication':>17}")
    for name, value in medians.items():
        own = times["C++ bucketed" if name.startswith("C++") else "Python bucketed" if name.startswith("Python") else "prototype, as ready"]
        ratio, low, high = median_and_interval([mine / theirs for mine, theirs in zip(times[name], own, strict=True)])
        behind = f"{1e3 * statistics.median(behind_barrier[name]):5.1f} ms" if name in behind_barrier else ""
        of_own = f"{ratio:.3f} [{low:.3f}, {high:.3f}]"
        print(f"{name:20} {1e3 * value:5.1f} ms {behind:>8} {value / medians[best]:18.3f} {of_own:>24} {value / communication:17.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit", help="of the link, as tc writes it")
    parser.add_argument("--batch", type=int, default=1, help="sequences of 128 tokens, each rank")
    parser.add_argument("--cap-mib", type=float, default=0.5)
    parser.add_argument("--blocks", type=int, default=8, help="of each run; a block is four timed steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--late", type=float, nargs="+", default=[1, 1.3, 1.7])
    parser.add_argument("--firkin", default=ROOT / "build" / "firkin")
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.result:
        run_rank(args)
    else:
        compare(args)


if __name__ == "__main__":
    if "RANK" in os.environ:
        import torch
        import torch.distributed as dist
    else:
        from transformer import median_and_interval
    main()
