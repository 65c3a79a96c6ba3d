"""PyTorch, or one line that says why not."""

from __future__ import annotations

from firkin._core import InputError

__all__ = ["check_version", "dist", "torch"]

OLDEST_TORCH = (2, 6)


def check_version(version: str) -> None:
    """Raises InputError for a version that is too old."""
    series = tuple(int(part) for part in version.split(".")[:2])
    if series < OLDEST_TORCH:
        raise InputError(f"torch {version} is installed; expected 2.6 or later")


try:
    import torch
except ImportError as error:
    raise InputError(f"torch cannot be imported ({error}); expected PyTorch 2.6 or later") from None
check_version(torch.__version__)
import torch.distributed as dist  # noqa: E402

if not dist.is_available():
    raise InputError(f"torch {torch.__version__} was built without torch.distributed; expected a build with it")
