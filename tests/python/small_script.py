"""A script whose model is tuned in tune_test.py."""

import atexit

import torch
import torch.distributed as dist
from models import Layers, training_step


def build():
    model = Layers([64] * 5)
    return model, training_step(model)


def build_and_communicate_at_the_end():
    group = dist.group.WORLD
    atexit.register(lambda: [group.allreduce([torch.ones(1)]) for _ in range(1000)])
    return build()
