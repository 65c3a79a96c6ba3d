"""Chooses the gradient bucket size for data-parallel training with PyTorch, and checks it with real steps.

    result = firkin.tune(model, step)    # collective, under torchrun; step(model) does forward, backward, optimiser
    ddp = result.wrap(model)             # PyTorch's DistributedDataParallel with the chosen buckets
    result.check(ddp)                    # after a few steps: are these the buckets?
    result.save("tune")                  # later: firkin.load("tune").wrap(model)
    watch = firkin.watch(ddp)            # in any running program: what does communication cost?

Each part also works alone: profile() records when each gradient becomes ready, measure_all_reduce() times all-reduces,
read_trace() reads a profile from torch.profiler's traces, and predict() combines the two. predict(), read_trace() and
assign_buckets() need no PyTorch. firkin.DistributedDataParallel replaces PyTorch's engine with Firkin's, if that was
built for this PyTorch: without it, importing this class raises InputError. Wrong input raises InputError, a ValueError
with a one-line message, on every rank.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from firkin._core import (
    AllReduceRow, AllReduceTable, InputError, PredictedCap, PredictedPlan, Prediction, Profile, assign_buckets, predict,
)  # fmt: skip
from firkin._core import version as __version__
from firkin._trace import read_trace

if TYPE_CHECKING:
    from firkin import integrations as integrations
    from firkin._allreduce import measure_all_reduce
    from firkin._data_parallel import DataParallel, DistributedDataParallel
    from firkin._link import init_modelled_link
    from firkin._native import AuditError, GroupError, StepError
    from firkin._ordered import OverlappedOptimizer
    from firkin._plan import Plan
    from firkin._profile import profile
    from firkin._result import TuneResult, load
    from firkin._sharded import ShardedOptimizer
    from firkin._tune import tune
    from firkin._watch import watch

__all__ = [
    "AllReduceRow", "AllReduceTable", "AuditError", "DataParallel", "DistributedDataParallel", "GroupError", "InputError",
    "OverlappedOptimizer", "Plan", "PredictedCap", "PredictedPlan", "Prediction", "Profile", "ShardedOptimizer", "StepError", "TuneResult",
    "__version__", "assign_buckets", "init_modelled_link", "load", "measure_all_reduce", "predict", "profile", "read_trace", "tune", "watch",
]  # fmt: skip

# These modules need PyTorch, so they are imported at their first use: planning works without PyTorch.
_NEED_TORCH = ("_native", "_plan", "_profile", "_allreduce", "_result", "_tune", "_ordered", "_sharded", "_data_parallel", "_watch", "_link")
# These need the C++ engine as well: without it, importing one raises InputError.
_NEED_ENGINE = ("DataParallel", "DistributedDataParallel", "OverlappedOptimizer", "ShardedOptimizer", "init_modelled_link")


def __getattr__(name: str) -> Any:
    if name == "integrations":
        return importlib.import_module("firkin.integrations")
    if name in _NEED_ENGINE:
        importlib.import_module("firkin._native").load_engine()
    for module in _NEED_TORCH if name in __all__ else ():
        if (value := getattr(importlib.import_module(f"firkin.{module}"), name, None)) is not None:
            globals()[name] = value
            return value
    raise AttributeError(f"module 'firkin' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "integrations"])
