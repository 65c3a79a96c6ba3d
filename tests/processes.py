"""Which processes run, for tests of what ends with what."""

import pathlib
import time


def children_of(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"  # nobody may have collected it yet
    except OSError:
        return False


def ends(pid, within_s=30):
    """Whether it ends in this time: a kill is asynchronous, and a busy kernel takes its time."""
    latest = time.monotonic() + within_s
    while is_running(pid) and time.monotonic() < latest:
        time.sleep(0.01)
    return not is_running(pid)
