"""What the drill looks at of the Python package, on PyTorch's own engine and on Firkin's.

    package.py               one of two ranks, as the launcher's variables say, which share the device and talk over Gloo: writes rankN.json
    package.py --link LINK   one process, which stands for one of --world ranks: writes link0.json
"""

import argparse
import json
import os
import pathlib
import statistics
import time

import firkin
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

STEPS, WATCHED_STEPS, TRACED_STEPS = 5, 60, 6


class Job:
    """A model, and a step of training that has the same batches on every device."""

    def __init__(self, device, width=512, layers=2, synchronised_norm=False):
        torch.manual_seed(0)
        self.device, self.device_ids, self.width = device, [0] if device == "cuda" else None, width
        model = nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())))
        self.model = (nn.SyncBatchNorm.convert_sync_batchnorm(model) if synchronised_norm else model).to(device)
        self.optimizer, self.steps = sgd(self.model), 0

    def wrap(self):
        return DistributedDataParallel(self.model, device_ids=self.device_ids)

    def step(self, net):
        torch.manual_seed(1000 * self.steps + dist.get_rank())
        self.steps += 1
        self.optimizer.zero_grad()
        net(torch.randn(max(32, self.width // 4), self.width).to(self.device)).square().mean().backward()
        self.optimizer.step()

    def train(self, net, steps=STEPS):
        for _ in range(steps):
            self.step(net)
        if hasattr(self.optimizer, "drain"):
            self.optimizer.drain()

    def trainable(self):
        """What is equal on all ranks: after a step, each has other statistics of batch norm."""
        return torch.cat([parameter.detach().cpu().flatten() for parameter in self.model.parameters()])

    def is_equal_on_all_ranks(self):
        of_rank_0 = self.trainable()
        dist.broadcast(of_rank_0, 0)
        return torch.equal(self.trainable(), of_rank_0)


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def trains_as_pytorch(notes, device, strategy="bucketed", synchronised_norm=False):
    reference, job = (Job(device, synchronised_norm=synchronised_norm) for _ in range(2))
    reference.train(reference.wrap())
    net = firkin.DistributedDataParallel(job.model, device_ids=job.device_ids, strategy=strategy, cap_mib=0.5, audit_every=2)
    if strategy == "ordered":
        job.optimizer = firkin.OverlappedOptimizer(net, job.optimizer)
    elif strategy == "sharded":
        job.optimizer = firkin.ShardedOptimizer(net, torch.optim.SGD, lr=0.05, momentum=0.9)
    job.train(net)
    apart = float((job.trainable() - reference.trainable()).abs().max())
    notes.append(f"{strategy} {apart:.1e} from PyTorch's engine")
    return job.is_equal_on_all_ranks() and apart < 1e-4


def audit_finds_one_weight(device):
    module = nn.Linear(1024, 1024, bias=False).to(device)
    net = firkin.DistributedDataParallel(module)
    net.audit()
    if dist.get_rank() == 1:
        with torch.no_grad():
            module.weight[3, 5] += 1
    try:
        net.audit()
    except firkin.AuditError as error:
        return "weight differs" in str(error)
    return False


def watch_changes_nothing(notes, device, wrap):
    """A watched training has the bits of one that is not, and its step's time is the clock's."""
    parameters = []
    for watched in (False, True):
        job = Job(device)
        net = wrap(job)
        watch = firkin.watch(net, every=20, warmup=20) if watched else None
        began = time.perf_counter()
        job.train(net, WATCHED_STEPS)
        parameters.append(job.trainable())
    seconds = (time.perf_counter() - began) / WATCHED_STEPS
    watch.close()
    found = watch.summary()
    if dist.get_rank() != 0:
        return torch.equal(*parameters)
    notes.append(f"watch: {found['step_s'] * 1e3:.2f} ms a step, by the clock {seconds * 1e3:.2f}")
    return torch.equal(*parameters) and 0 < found["exposed_s"] < found["step_s"] < 2 * seconds


def tune_puts_the_model_back(notes, device, seconds):
    job = Job(device)
    before = {name: tensor.clone() for name, tensor in job.model.state_dict().items()}
    result = firkin.tune(job.model, job.step, time_budget_s=seconds, progress=False)
    notes.append(f"tune: {result.cap_mib:g} MiB, {result.speedup:.3f} times as fast as PyTorch's default")
    is_back = all(torch.equal(before[name], tensor) for name, tensor in job.model.state_dict().items())
    job.train(result.wrap(job.model))
    return is_back and job.is_equal_on_all_ranks()


def check_as_rank(arguments):
    dist.init_process_group("gloo")
    device, notes, passed = arguments.device, [], {}
    checks = {name: lambda name=name: trains_as_pytorch(notes, device, name) for name in ("bucketed", "ordered", "sharded")}
    if device == "cuda":  # PyTorch's SyncBatchNorm needs one
        checks["SyncBatchNorm"] = lambda: trains_as_pytorch(notes, device, synchronised_norm=True)
    checks |= {
        "audit": lambda: audit_finds_one_weight(device),
        "watch": lambda: watch_changes_nothing(notes, device, Job.wrap),
        "watch of the engine": lambda: watch_changes_nothing(notes, device, lambda job: firkin.DistributedDataParallel(job.model)),
        "tune": lambda: tune_puts_the_model_back(notes, device, arguments.seconds),
    }
    for name, check in checks.items():
        try:
            passed[name] = bool(check())
        except Exception as error:  # a check that raises has failed, on this rank
            passed[name] = False
            notes.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")
    dist.barrier()
    return f"rank{dist.get_rank()}", {"checks": passed, "notes": notes}


def check_on_link(arguments):
    """firkin.tune, and when gradients are ready, by hooks and by what Kineto records of stock DistributedDataParallel."""
    firkin.init_modelled_link(arguments.link, world=arguments.world)
    job = Job(arguments.device, *((4096, 12) if arguments.device == "cuda" else (256, 4)))
    by_hooks = firkin.profile(job.model, job.step)
    net = DistributedDataParallel(job.model)
    job.train(net)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (arguments.device == "cuda")
    with profile(activities=activities, record_shapes=True) as recorded:
        job.train(net, TRACED_STEPS)
    recorded.export_chrome_trace(str(arguments.out / "kineto.json.gz"))
    by_kineto = firkin.read_trace(arguments.out / "kineto.json.gz")
    del net
    result = firkin.tune(job.model, job.step, time_budget_s=arguments.seconds, progress=False)
    return "link0", {
        "same_order": by_kineto.bytes == by_hooks.bytes,
        "apart_us": statistics.median(abs(one - other) * 1e6 for one, other in zip(by_hooks.ready_s, by_kineto.ready_s)),
        "world_size": result.world_size,
        "results": json.loads(result.results_json),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=15.0, help="firkin.tune's")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="folder")
    parser.add_argument("--link", help="RATE,LATENCY, or a table of all-reduces")
    parser.add_argument("--world", type=int, help="ranks that the link is modelled for")
    arguments = parser.parse_args()
    name, found = (check_on_link if arguments.link else check_as_rank)(arguments)
    (arguments.out / f"{name}.json").write_text(json.dumps(found | {"firkin": firkin.__version__, "torch": torch.__version__}, indent=1))
    os._exit(0)  # a thread of Gloo that still has a tensor to let go of would abort an interpreter that ends


if __name__ == "__main__":
    main()
