"""What tests share that start programs and end them."""

import os
import pathlib
import select
import shutil
import subprocess
import time
import unittest

DEADLINE_S = 300  # a hang; a busy machine takes minutes for what takes seconds
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMIX_", "SLURM_", "TORCHELASTIC_")  # how their names start


def environment_without(*starts):
    """This process's variables but for a launcher's, and those whose names start like these."""
    return {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES + starts)}


def mpirun():
    """Open MPI's. Skips the test where there is none."""
    found = shutil.which("mpirun")
    if not found or "Open MPI" not in subprocess.run([found, "--version"], capture_output=True, text=True).stdout:
        raise unittest.SkipTest("no mpirun of Open MPI on this machine")
    return found


def children_of(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"  # nobody may have collected it yet
    except OSError:
        return False


def wait_until(condition, within_s=DEADLINE_S):
    """The first true value of condition(), which is polled: nothing tells of it."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"not within {within_s} s")
        time.sleep(0.01)
    return value


def ends(pid, within_s=30):
    """Whether it ends in this time: a kill is asynchronous, and a busy kernel takes its time."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(process):
        return bool(select.select([process], [], [], within_s)[0])
