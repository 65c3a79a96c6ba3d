"""The scripts of examples/launch/, run as a cluster would run them."""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
LAUNCH = HERE.parents[1] / "examples" / "launch"
SCRIPTS = sorted(LAUNCH.glob("*.sh"))
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMIX_", "SLURM_", "TORCHELASTIC_")  # how their names start
ALLOCATION = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS_PER_NODE": "2"}
DEADLINE_S = 300


def launch(script, *words, **variables):
    """Runs a script with a fake Slurm and this Python's torchrun in front of PATH, and no launcher's variables but those given."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)}
    environment["PATH"] = f"{HERE / 'stubs'}:{pathlib.Path(sys.executable).parent}:{environment['PATH']}"
    command = ["bash", str(LAUNCH / script), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment | variables)
