"""What the tests of installs share: commands in a folder that is not ours, without the variables that could help them to find something."""

import os
import pathlib
import subprocess

from processes import environment_without

SOURCE, BUILD = (pathlib.Path(os.environ[name]) for name in ("FIRKIN_SOURCE_DIR", "FIRKIN_BINARY_DIR"))
CMAKE = os.environ["CMAKE_COMMAND"]
BUILD_DEADLINE_S = 1000  # a hang, not a benchmark
RUN_DEADLINE_S = 300
OURS = ("FIRKIN_", "LD_LIBRARY_PATH", "PYTHON")  # how the names of variables start that could help a program to find something


def environment(**variables) -> dict[str, str]:
    """Ours without those, and with one thread for each rank: sums are then made in one order."""
    return environment_without(*OURS) | {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in variables.items()}


def run(*words, deadline_s: float = RUN_DEADLINE_S, cwd="/", **variables) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=deadline_s, cwd=cwd,
                          env=environment(**variables))  # fmt: skip


def checked(*words, **options) -> str:
    """Runs a command that has to succeed, as run() does. Returns its standard output."""
    result = run(*words, **options)
    if result.returncode != 0:
        raise AssertionError(f"{words[0]} exited with {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result.stdout
