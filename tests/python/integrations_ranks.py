"""One rank of integrations_test.py: runs an example as it is, then trains as it does with buckets that are known.

    integrations_ranks.py EXAMPLE FOLDER      writes FOLDER/RANK.json

"tuned", "logged": bytes of the buckets that were chosen, and of those that DistributedDataParallel logged. "given": for each of several
bucket arguments the buckets expected, those logged, and what check() says of a plan that is another one. Of the Trainer also what check()
says where it looks for unused parameters.
"""

import importlib
import json
import os
import pathlib
import sys

import without_vision_operators  # noqa: F401

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"
name, folder = sys.argv[1:]
sys.path.insert(0, str(EXAMPLES))
example = importlib.import_module(name)

import firkin
import torch
import torch.distributed as dist

STEPS = 4
# What docs/frameworks.md says to write.
LINES = {
    "hf_trainer": 'TrainingArguments(**result.for_("transformers"))',
    "accelerate_ddp": 'DistributedDataParallelKwargs(**result.for_("accelerate"))',
    "lightning_ddp": 'DDPStrategy(**result.for_("lightning"))',
}


def logged(ddp):
    return [int(size) for size in ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")]


def plan_of_cap(profile, cap_mib):
    return firkin.Plan.of_counts(profile, [len(bucket) for bucket in firkin.assign_buckets(profile.bytes, cap_mib)])


def given(result, takes_lists):
    """Bucket arguments, with the plan that each makes; the first two differ."""
    profile = result.profile
    known = [({"bucket_cap_mb": cap_mib}, plan_of_cap(profile, cap_mib)) for cap_mib in (0.3, 1000)]  # many buckets; one
    if takes_lists:
        plan = firkin.Plan.of_counts(profile, [1, 4, len(profile) - 5])
        known.append(({"bucket_cap_mb_list": firkin._core.caps_of_counts([1, 4, len(profile) - 5], profile.bytes)}, plan))
    return known


def said_by_check(plan, ddp):
    try:
        plan.check(ddp)
    except firkin.InputError as error:
        return str(error)
    return "nothing"


sys.argv = [name, "--seconds", "1", "--steps", str(STEPS)]
torch.manual_seed(0)
result, ddp = example.main()
eval(LINES[name], vars(example) | {"result": result})
found = {"choice": result.choice, "tuned": result.plan.bucket_bytes, "logged": logged(ddp), "given": []}
known = given(result, takes_lists=name == "lightning_ddp")
for i, (kwargs, plan) in enumerate(known):
    ddp = example.train(STEPS, **kwargs)
    plan.check(ddp)
    another = known[1 if i == 0 else 0][1]
    found["given"].append(
        {"kwargs": kwargs, "expected": plan.bucket_bytes, "logged": logged(ddp), "check_of_another_plan": said_by_check(another, ddp)}
    )
if name == "hf_trainer":  # None: what the Trainer does where nobody says
    found["check_of_the_trainers_default"] = said_by_check(known[0][1], example.train(STEPS, **known[0][0], find_unused_parameters=None))
(pathlib.Path(folder) / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # a thread of Gloo that still has a tensor to let go of would abort an interpreter that ends
