"""lab/run as a user starts it, and a visible skip where this machine does not allow it."""

import pathlib
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = str(ROOT / "lab" / "run")
TRANSFER = str(ROOT / "lab" / "transfer")
DEADLINE_S = 240
PAYLOAD = 1448 / 1514  # of a full frame, as tc counts it


def words_of(options, command):
    return [RUN, *map(str, options), "--", *map(str, command)]


def lab(*options, command, prefix=(), **keywords):
    """Runs to its end; options are the lab's own."""
    return subprocess.run([*prefix, *words_of(options, command)], capture_output=True, text=True, timeout=DEADLINE_S, **keywords)


def start_lab(*options, command):
    return subprocess.Popen(words_of(options, command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def skip_without_hosts(*options):
    """Skips a module's tests where a lab with these options cannot be had."""
    tried = lab(*options, command=["true"])
    if tried.returncode == 2:
        raise unittest.SkipTest(tried.stderr.strip())
