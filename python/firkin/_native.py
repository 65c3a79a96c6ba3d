"""Loads the extension with the C++ engine, if it was built for this PyTorch; defines the errors of the engine."""

from __future__ import annotations

import importlib
from typing import Any

from firkin._core import InputError
from firkin._torch import torch

_HOW = "FIRKIN_PYTHON_ENGINE=1 pip install . in Firkin's sources, or make python"


class StepError(RuntimeError):
    """A step failed on some rank: every rank raises this error, has no gradient, and must not step its optimiser.

    rank: the first that failed. step: its number, from 0, failed steps included. reason: what failed on that rank.
    """

    def __init__(self, message: str, rank: int, step: int, reason: str) -> None:
        super().__init__(message, rank, step, reason)
        self.rank, self.step, self.reason = rank, step, reason

    def __str__(self) -> str:
        return str(self.args[0])


class GroupError(RuntimeError):
    """A collective failed and the process group is lost. The message names the missing ranks.

    End the process then: its launcher has to start all ranks anew.
    """


class AuditError(RuntimeError):
    """Raised on every rank if parameters or audited optimiser states differ, or optimisers have stepped differently often.

    It names the first tensor that differs.
    """


def check_built_for(built_for: str) -> None:
    """Raises InputError unless the engine was built for this version of PyTorch; +cpu or +cu126 makes no difference."""
    if built_for.split("+")[0] != torch.__version__.split("+")[0]:
        raise InputError(f"the C++ engine of firkin was built for torch {built_for}, but this is {torch.__version__}; expected a new build: {_HOW}")


def load_engine() -> Any:
    """The module firkin._engine. Raises InputError if it is missing."""
    try:
        built_for = importlib.import_module("firkin._engine_torch").VERSION
    except ImportError:
        expected = f"expected it to be built for torch {torch.__version__}"
        raise InputError(f"this firkin was installed without its C++ engine; {expected}: {_HOW}") from None
    check_built_for(built_for)
    return importlib.import_module("firkin._engine")
