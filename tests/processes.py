"""Which processes run, for tests of what ends with what."""

import os
import pathlib
import select


def children_of(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"  # nobody may have collected it yet
    except OSError:
        return False


def ends(pid, within_s=30):
    """Whether it ends in this time: a kill is asynchronous, and a busy kernel takes its time."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(process):
        return bool(select.select([process], [], [], within_s)[0])
