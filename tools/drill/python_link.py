"""The Python package as one rank of many: firkin.tune on PyTorch's own DistributedDataParallel over a modelled link, in one process."""

import argparse
import json
import os
import pathlib
import sys

import firkin
import torch
from stepping import Job


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--link", required=True, help="RATE,LATENCY, or a table of all-reduces")
    parser.add_argument("--world", type=int, required=True, help="ranks that the link is modelled for")
    parser.add_argument("--seconds", type=float, default=12.0, help="firkin.tune's")
    parser.add_argument("--out", type=pathlib.Path, default="python_link.json")
    arguments = parser.parse_args()
    job = Job(arguments.device)
    firkin.init_modelled_link(arguments.link, world=arguments.world)
    result = firkin.tune(job.model, job.step, time_budget_s=arguments.seconds, progress=False)
    found = {name: getattr(result, name) for name in ("world_size", "choice", "cap_mib", "step_s", "predicted_s", "speedup", "speedup_ci", "notes")}
    arguments.out.write_text(json.dumps(found | {"results": json.loads(result.results_json), "torch": torch.__version__}, indent=1))
    print(result.summary())
    sys.stdout.flush()
    os._exit(0)  # a thread of Gloo that still has a tensor to let go of would abort an interpreter that ends


if __name__ == "__main__":
    main()
