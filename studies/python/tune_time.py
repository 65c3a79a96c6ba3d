"""How long firkin.tune takes for steps of a given length, against its time_budget_s.

    torchrun --nproc-per-node 2 studies/python/tune_time.py --step-s 0.01 0.1 0.5 2 --budget-s 60

A step waits on each rank, and then trains a small stack of layers. Rank 0 prints a line for each length.
"""

import argparse
import time

import firkin
import torch
import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-s", type=float, nargs="+", default=[0.01, 0.1, 0.5, 2.0])
    parser.add_argument("--budget-s", type=float, default=60.0)
    parser.add_argument("--width", type=int, default=256, help="of 8 layers: 2 MiB of gradients by default")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(arguments.width, arguments.width) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step_s in arguments.step_s:

        def step(ddp, step_s=step_s):
            time.sleep(step_s)
            optimizer.zero_grad()
            ddp(torch.ones(4, arguments.width)).sum().backward()
            optimizer.step()

        dist.barrier()
        started = time.perf_counter()
        result = firkin.tune(model, step, time_budget_s=arguments.budget_s, progress=False)
        if dist.get_rank() == 0:
            took_s = time.perf_counter() - started
            calls = next(note for note in result.notes if note.startswith("step was called")).split()[3]
            print(f"steps of {step_s:g} s, {arguments.budget_s:g} s: took {took_s:.1f} s, {calls} steps; speedup {result.speedup:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
