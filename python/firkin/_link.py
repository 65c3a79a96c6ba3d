"""firkin.init_modelled_link: one process stands for one rank of a cluster that is not there."""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

from firkin._core import InputError
from firkin._native import load_engine
from firkin._torch import dist, torch

BACKEND = "firkin_link"  # the name that PyTorch knows our process groups by


class Link(NamedTuple):
    text: str  # as the caller gave it
    world: int
    name: str  # "alps.csv, 128 ranks"


_log = logging.getLogger("firkin")
_link: Link | None = None  # of the default group and its subgroups, while their backend is BACKEND


def link_of(group: dist.ProcessGroup | None) -> Link | None:
    """The modelled link of a process group; None if its link is real."""
    return _link if _link is not None and dist.get_backend(group) == BACKEND else None


def init_modelled_link(link: str | os.PathLike[str], world: int) -> None:
    """Makes this process one rank of `world` over a modelled link. Takes the place of init_process_group().

        firkin.init_modelled_link("alps.csv", world=128)    # one process, no launcher
        result = firkin.tune(model, step)                   # the cap for 128 ranks of that cluster

    PyTorch's own DistributedDataParallel, and every call of this package, then run in this one process, and each
    all-reduce, broadcast or all-gather takes the time of `world` ranks. Nothing is sent: sums are what this rank has,
    and other collectives are refused. destroy_process_group() ends it. docs/emulated_links.md says what is left out.

    link: an allreduce.csv with all-reduce times of `world` ranks, or "RATE[,LATENCY]" such as "10gbit,20us". A GPU's
    collectives wait on its streams; select the GPU before. (That was run on an H200 from C++, but not from Python.) Each
    holds one thread there, or with ",sms=16" behind the link 16 whole multiprocessors (not run yet). An engine that was
    built without CUDA carries tensors of the CPU alone, and warns where there is a GPU.

    Raises InputError for another link, for a world below 2, if there is a process group already, if a launcher has
    started several ranks, and without the C++ engine.
    """
    global _link
    engine, text = load_engine(), os.fspath(link)
    if not isinstance(world, int) or world < 2:
        raise InputError(f"init_modelled_link: world {world}; expected the number of ranks that the link is modelled for, at least 2")
    if dist.is_initialized():
        raise InputError("init_modelled_link: there is a process group already; expected none, or destroy_process_group() first")
    if (started := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise InputError(f"init_modelled_link: a launcher started {started} ranks; expected one process, which stands for one of {world}")
    has_gpu = torch.cuda.is_available()
    gpu = torch.cuda.current_device() if has_gpu and engine.has_cuda else None
    if has_gpu and gpu is None:
        _log.warning("init_modelled_link: the C++ engine was built without CUDA: the link carries tensors of the CPU alone")
    try:
        name = engine.describe_link(text, world, gpu)
    except InputError as error:
        raise InputError(str(error).replace("--link", "init_modelled_link:", 1)) from None
    devices = ["cpu"] if gpu is None else ["cpu", "cuda"]
    dist.Backend.register_backend(BACKEND, lambda store, rank, size, timeout: engine.linked_rank(text, world, store, timeout, gpu), devices=devices)
    dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)
    _link = Link(text, world, name)
