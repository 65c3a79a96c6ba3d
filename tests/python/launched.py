"""Two ranks that torchrun starts."""

import os
import subprocess
import sys

DEADLINE_S = 600  # a hang; a busy machine takes minutes for what takes seconds


def torchrun(*words):
    """What they print, once they have succeeded."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    if done.returncode != 0:
        raise AssertionError(f"{words}\n{done.stdout}\n{done.stderr}")
    return done.stdout
