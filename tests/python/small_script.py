"""A script whose model is tuned in tune_result_test.py."""

import argparse
import atexit

import torch
import torch.distributed as dist
from models import Layers, step_of


def build():
    model = Layers([64] * 5)
    return model, step_of(model)


def build_as_programs_do():
    """With the program's own flags, and a process group of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, required=True)
    layers = parser.parse_args().layers
    dist.init_process_group("gloo")
    print(f"{layers} layers on {dist.get_world_size()} ranks")
    model = Layers([64] * (layers + 1))
    return model, step_of(model)


def build_and_communicate_at_the_end():
    group = dist.group.WORLD
    atexit.register(lambda: [group.allreduce([torch.ones(1)]) for _ in range(1000)])
    return build()
