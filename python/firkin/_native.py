"""The extension with the C++ engine, if it is there and was built for the PyTorch that is there."""

from __future__ import annotations

import importlib
from typing import Any

from firkin._core import InputError
from firkin._torch import torch

_HOW = "FIRKIN_PYTHON_ENGINE=1 pip install --no-build-isolation . in Firkin's sources, or make python"


def check_built_for(built_for: str) -> None:
    """Raises InputError unless the engine was built for this version of PyTorch, of which its C++ interfaces are; any build of it will do."""
    if built_for.split("+")[0] != torch.__version__.split("+")[0]:
        raise InputError(f"DataParallel: the engine was built for torch {built_for}, and this is {torch.__version__}; expected a new build: {_HOW}")


def load_engine() -> Any:
    """The module firkin._engine. Raises InputError where it cannot be had."""
    try:
        built_for = importlib.import_module("firkin._engine_torch").VERSION
    except ImportError:
        raise InputError(f"DataParallel: this firkin was installed without the engine; expected {_HOW}") from None
    check_built_for(built_for)
    return importlib.import_module("firkin._engine")
