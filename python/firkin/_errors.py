"""Errors of the engine."""

from __future__ import annotations

__all__ = ["GroupError", "StepError"]


class StepError(RuntimeError):
    """A step failed on some rank, and is told to every rank: nobody has a gradient of it, and none may step its optimiser.

    rank: the first that failed. step: counted from 0; failed steps count. reason: on that rank.
    """

    def __init__(self, message: str, rank: int, step: int, reason: str) -> None:
        super().__init__(message)
        self.rank = rank
        self.step = step
        self.reason = reason

    def __reduce__(self) -> tuple[type[StepError], tuple[str, int, int, str]]:
        return StepError, (str(self), self.rank, self.step, self.reason)


class GroupError(RuntimeError):
    """A collective failed, and with it the process group: it and everything made with it must be made anew. Names the missing ranks."""
