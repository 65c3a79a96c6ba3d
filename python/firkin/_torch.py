"""Imports PyTorch, or raises an error of one line that says why that is not possible."""

from __future__ import annotations

from firkin._core import InputError

__all__ = ["dist", "torch"]

try:
    import torch
except ImportError as error:
    raise InputError(f"torch cannot be imported ({error}); expected PyTorch 2.6 or later") from None
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
    raise InputError(f"torch {torch.__version__} is installed; expected 2.6 or later")
import torch.distributed as dist

if not dist.is_available():
    raise InputError(f"torch {torch.__version__} was built without torch.distributed; expected a build with it")
