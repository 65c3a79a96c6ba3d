"""The best gradient bucket size for data-parallel training with PyTorch: measured, predicted, and checked with real steps.

    result = firkin.tune(model, step)              # collective, under torchrun; step(model) does forward, backward, optimiser
    model = result.wrap(model)                     # stock DistributedDataParallel with what was found
    result.check(model)                            # after a few steps: are these the buckets?
    result.save("tune")                            # tomorrow: firkin.load("tune").wrap(model)

One by one: profile() says when each gradient becomes ready, measure_all_reduce() what an all-reduce takes, predict() what follows from
both. predict() and assign_buckets() need no PyTorch. firkin.DistributedDataParallel is Firkin's own engine in the place of PyTorch's.
Everything wrong with the input is an InputError, a ValueError with one line, on every rank.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from firkin._core import (
    AllReduceRow,
    AllReduceTable,
    InputError,
    PredictedCap,
    PredictedPlan,
    Prediction,
    Profile,
    assign_buckets,
    predict,
)
from firkin._core import version as __version__

if TYPE_CHECKING:
    from firkin._allreduce import measure_all_reduce
    from firkin._data_parallel import DataParallel, DistributedDataParallel
    from firkin._errors import GroupError, StepError
    from firkin._ordered import OverlappedOptimizer
    from firkin._plan import Plan
    from firkin._profile import profile
    from firkin._result import TuneResult, load
    from firkin._tune import tune

__all__ = [
    "AllReduceRow",
    "AllReduceTable",
    "DataParallel",
    "DistributedDataParallel",
    "GroupError",
    "InputError",
    "OverlappedOptimizer",
    "Plan",
    "PredictedCap",
    "PredictedPlan",
    "Prediction",
    "Profile",
    "StepError",
    "TuneResult",
    "__version__",
    "assign_buckets",
    "load",
    "measure_all_reduce",
    "predict",
    "profile",
    "tune",
]

# What needs PyTorch is imported at its first use: planning alone works without.
_NEEDS_TORCH = {
    "DataParallel": "firkin._data_parallel",
    "DistributedDataParallel": "firkin._data_parallel",
    "GroupError": "firkin._errors",
    "OverlappedOptimizer": "firkin._ordered",
    "Plan": "firkin._plan",
    "StepError": "firkin._errors",
    "TuneResult": "firkin._result",
    "load": "firkin._result",
    "measure_all_reduce": "firkin._allreduce",
    "profile": "firkin._profile",
    "tune": "firkin._tune",
}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module 'firkin' has no attribute '{name}'")
    value = getattr(importlib.import_module(_NEEDS_TORCH[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
