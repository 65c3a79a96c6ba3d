"""read_trace(): a profile from torch.profiler's traces, without PyTorch."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from firkin import _core
from firkin._core import Profile

_log = logging.getLogger("firkin")


def read_trace(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, parameters: Sequence[tuple[str, int]] | None = None
) -> Profile:
    """The profile of a run from its traces: when each gradient is ready, in seconds from the start of backward.

    paths: Chrome traces of torch.profiler, zipped or not: of one rank, or of several ranks of the same run. Times are
    medians over the traces' steps, of the slowest rank. Findings about the run are logged (logger "firkin", level INFO).
    parameters: for traces without record_shapes=True, the name and bytes of each parameter that gets a gradient, in order
    of registration: [(n, p.nbytes) for n, p in model.named_parameters()]. The trace's all-reduces must confirm them.

    Raises InputError for a file that cannot be read, is cut off or is no such trace, for a trace without two whole
    steps of a data-parallel run, and for traces of different runs. Safe to call from several threads.
    """
    files = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    profile, findings = _core.read_traces([os.fspath(file) for file in files], None if parameters is None else list(parameters))
    for finding in findings:
        _log.info("firkin.read_trace: %s", finding)
    return profile
