"""One rank of the Python package's part: firkin.tune, firkin.watch, and the engine's DistributedDataParallel beside PyTorch's.

The launcher's variables say which rank. Ranks share the device and talk over Gloo. Writes rankN.json with what was checked and what was seen.
"""

import argparse
import json
import os
import pathlib
import sys
import time

import firkin
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 5
WATCHED_STEPS = 100
WIDTH = 512


def make_model(device, synchronised_norm=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8))
    return (nn.SyncBatchNorm.convert_sync_batchnorm(model) if synchronised_norm else model).to(device)


def tensors_of(model):
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def equal_on_all_ranks(model):
    """As far as it is trained."""
    mine = torch.cat([parameter.detach().cpu().flatten() for parameter in model.parameters()])
    of_rank_0 = mine.clone()
    dist.broadcast(of_rank_0, 0)
    return torch.equal(mine, of_rank_0)


def most_apart(module, actual, expected):
    """Of parameters: after a step, each engine leaves each rank other statistics of batch norm."""
    return max(float((actual[name] - expected[name]).abs().max()) for name, _ in module.named_parameters())


def loss_of(net, device, step):
    torch.manual_seed(1000 * step + dist.get_rank())  # on the CPU: the same batches on every device
    return net(torch.randn(32, WIDTH).to(device)).square().mean()


def trained(net, module, device, make_optimizer):
    optimizer = make_optimizer(net)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, device, step).backward()
        optimizer.step()
    if hasattr(optimizer, "drain"):
        optimizer.drain()
    return tensors_of(module)


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


class Checks:
    """Checks by name. A check that raises has failed, on this rank."""

    def __init__(self):
        self.passed, self.notes = {}, []

    def add(self, name, check):
        try:
            self.passed[name] = bool(check())
        except Exception as error:
            self.passed[name] = False
            self.notes.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")


def check_tune(checks, device, seconds):
    model = make_model(device)
    before = tensors_of(model)
    numbers = iter(range(10**6))

    def step(net):
        optimizer.zero_grad()
        loss_of(net, device, next(numbers)).backward()
        optimizer.step()

    optimizer = sgd(model)
    result = firkin.tune(model, step, time_budget_s=seconds, progress=False)
    checks.add("tune puts the model back", lambda: equal(before, tensors_of(model)))
    wrapped = result.wrap(model)
    for number in range(STEPS):
        step(wrapped)
    checks.add("its choice can be wrapped", lambda: equal_on_all_ranks(model))
    checks.notes.append(f"tune: {result.cap_mib:g} MiB, {result.speedup:.3f} times as fast as PyTorch's default")


def check_watch(checks, device, make_net):
    """That a watched training has the bits of one that is not, and that the step's time is the clock's."""
    parameters, seconds = [], []
    for watched in (False, True):
        model = make_model(device)
        net = make_net(model)
        optimizer = sgd(net)
        watch = firkin.watch(net, every=20, warmup=20) if watched else None
        began = time.perf_counter()
        for step in range(WATCHED_STEPS):
            optimizer.zero_grad()
            loss_of(net, device, step).backward()
            optimizer.step()
        seconds.append((time.perf_counter() - began) / WATCHED_STEPS)
        if watch:
            watch.close()
            found = watch.summary()
        parameters.append(tensors_of(model))
    if dist.get_rank() == 0:
        checks.notes.append(f"watch: {found['step_s'] * 1e3:.2f} ms a step, by the clock {seconds[1] * 1e3:.2f}, "
                            f"not watched {seconds[0] * 1e3:.2f}; exposed {found['exposed_s'] * 1e3:.2f} ms")  # fmt: skip
    return equal(*parameters) and (dist.get_rank() != 0 or 0 < found["exposed_s"] < found["step_s"] < 2 * seconds[1])


def check_audit(checks, device):
    """That one weight which differs is found, and what an audit takes when all are equal."""
    width = 8192 if device == "cuda" else 1024
    module = nn.Linear(width, width, bias=False).to(device)
    net = firkin.DistributedDataParallel(module)
    seconds = []
    for _ in range(4):
        if device == "cuda":
            torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        net.audit()
        seconds.append(time.perf_counter() - began)
    checks.notes.append(f"an audit of {module.weight.nbytes >> 20} MiB takes {min(seconds[1:]) * 1e3:.2f} ms")
    if dist.get_rank() == 1:
        with torch.no_grad():
            module.weight[3, 5] += 1
    try:
        net.audit()
    except firkin.AuditError as error:
        return "weight differs" in str(error)
    return False


def check_engine(checks, device):
    ids = [0] if device == "cuda" else None
    reference = make_model(device)
    expected = trained(DistributedDataParallel(reference, device_ids=ids), reference, device, sgd)
    for strategy in ("bucketed", "ordered", "sharded"):

        def check(strategy=strategy):
            module = make_model(device)
            net = firkin.DistributedDataParallel(module, device_ids=ids, strategy=strategy, cap_mib=0.5, audit_every=2)
            make = {"ordered": lambda net: firkin.OverlappedOptimizer(net, sgd(net)),
                    "sharded": lambda net: firkin.ShardedOptimizer(net, torch.optim.SGD, lr=0.05, momentum=0.9)}.get(strategy, sgd)  # fmt: skip
            actual = trained(net, module, device, make)
            apart = most_apart(module, actual, expected)
            checks.notes.append(f"{strategy} {apart:.1e} from PyTorch's engine")
            return equal_on_all_ranks(module) and apart < 1e-4

        checks.add(strategy, check)

    def with_synchronised_norm():
        module, reference = make_model(device, True), make_model(device, True)
        expected = trained(DistributedDataParallel(reference, device_ids=ids), reference, device, sgd)
        actual = trained(firkin.DistributedDataParallel(module, device_ids=ids), module, device, sgd)
        return equal_on_all_ranks(module) and most_apart(module, actual, expected) < 1e-4

    checks.add("audit", lambda: check_audit(checks, device))
    if device == "cuda":  # PyTorch's SyncBatchNorm needs one
        checks.add("SyncBatchNorm", with_synchronised_norm)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=15.0, help="firkin.tune's")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="folder")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    checks = Checks()
    check_engine(checks, arguments.device)
    ids = [0] if arguments.device == "cuda" else None
    for name, make_net in (("watch", lambda model: DistributedDataParallel(model, device_ids=ids)),
                           ("watch of the engine", lambda model: firkin.DistributedDataParallel(model, device_ids=ids))):  # fmt: skip
        checks.add(name, lambda make_net=make_net: check_watch(checks, arguments.device, make_net))
    checks.add("tune", lambda: check_tune(checks, arguments.device, arguments.seconds) is None)
    path = arguments.out / f"rank{dist.get_rank()}.json"
    path.write_text(json.dumps({"checks": checks.passed, "notes": checks.notes, "firkin": firkin.__version__, "torch": torch.__version__}, indent=1))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # a thread of Gloo that still has a tensor to let go of would abort an interpreter that ends


if __name__ == "__main__":
    main()
