"""Ranks for tests: processes of this machine that meet over Gloo on the loopback interface.

    @on_ranks(2)                        a test that each rank runs as a whole; it fails where one fails or hangs
    @on_ranks(2, full=3)                in the second tier on three as well
    with_ranks(2, worker, argument)     runs worker(rank, argument) on each, and returns what each returned

The processes live on and run the next test, in a new group: importing torch takes seconds, and starting a process longer than most tests. They
are forked from this one, with all that it has imported.
"""

import functools
import gc
import importlib
import inspect
import multiprocessing
import multiprocessing.connection
import os
import threading
import traceback

import pytest
import torch
import torch.distributed as dist
from ports import reserved_port


def release(held):
    """Of a list or a dict: what it holds goes beside what comes next. Gloo takes tens of milliseconds to close connections."""
    threading.Thread(target=held.clear).start()


def _run(variables, worker, arguments):
    os.environ.update(variables)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    value = worker(int(variables["RANK"]), *arguments)
    gc.collect()  # wrapped modules in cycles, whose group goes now
    if dist.is_initialized():  # the worker may have taken the group away
        dist.barrier()
        groups = [dist.group.WORLD]
        dist.destroy_process_group()
        release(groups)
    return value


def _serve(jobs, ours):
    for each in ours:
        each.close()  # it would outlive the process that gives it jobs
    torch.set_num_threads(1)
    gc.freeze()  # what the imports have made: with it a collection, of which firkin.tune does many, takes 0.1 s
    try:
        while True:
            job = jobs.recv()
            try:
                jobs.send((True, _run(*job)))
            except BaseException:
                jobs.send((False, traceback.format_exc()))
    except EOFError:
        os._exit(0)  # a thread of Gloo that still has a tensor to let go of would abort an interpreter that ends


class _Ranks:
    def __init__(self, start):
        self._context, self._processes, self._jobs = multiprocessing.get_context(start), [], []
        self._inherits = start == "fork"

    def run(self, size, worker, arguments):
        while len(self._processes) < size:
            ours, theirs = self._context.Pipe()
            self._jobs.append(ours)
            process = self._context.Process(target=_serve, args=(theirs, self._jobs if self._inherits else ()), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
        with reserved_port() as port:
            return self._run_at(str(port), size, worker, arguments)

    def _run_at(self, port, size, worker, arguments):
        for rank in range(size):
            variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                         "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
            self._jobs[rank].send((variables, worker, arguments))
        returned = {}
        while len(returned) < size:
            waiting = {self._jobs[rank]: rank for rank in range(size) if rank not in returned}
            for jobs in multiprocessing.connection.wait(waiting):  # pytest-timeout ends this
                try:
                    good, value = jobs.recv()
                except EOFError:
                    raise AssertionError(f"rank {waiting[jobs]}'s process ended") from None
                if not good:
                    raise AssertionError(f"rank {waiting[jobs]}:\n{value}")
                returned[waiting[jobs]] = value
        return [returned[rank] for rank in range(size)]

    def end(self):
        for process in self._processes:
            process.kill()
        self._processes, self._jobs = [], []


_living = None


def with_ranks(size, worker, *arguments, start="fork"):
    """start="spawn": new processes, which import torch anew with the environment of now, and end with this call."""
    global _living
    if start == "fork" and _living is None:
        importlib.import_module("torch._dynamo")  # which an optimiser's first step imports
        _living = _Ranks(start)
    ranks = _living if start == "fork" else _Ranks(start)
    try:
        returned = ranks.run(size, worker, arguments)
    except BaseException:
        ranks.end()  # the others may still wait for one that failed
        raise
    if ranks is not _living:
        ranks.end()
    return returned


def on_ranks(size, full=None):
    """The test is a function, whose arguments travel to the ranks, or a method of a unittest.TestCase, whose class may have `ranks` for size."""

    def decorate(test):
        @functools.wraps(test)
        def run(*case, ranks=size, **arguments):
            owner = type(case[0]) if case else None
            module = owner.__module__ if owner else test.__module__
            with_ranks(getattr(owner, "ranks", ranks), _run_test, module, owner and owner.__name__, test.__name__, arguments)

        if full is None:
            return run
        before = inspect.signature(test)
        run.__signature__ = before.replace(parameters=[*before.parameters.values(), inspect.Parameter("ranks", inspect.Parameter.KEYWORD_ONLY)])
        return pytest.mark.parametrize("ranks", (size, pytest.param(full, marks=pytest.mark.full)), ids="on {}".format)(run)

    return decorate


def _run_test(rank, module, owner, name, arguments):
    module = importlib.import_module(module)
    if owner is None:
        return getattr(module, name).__wrapped__(**arguments)
    case = getattr(module, owner)(name)
    try:
        getattr(type(case), name).__wrapped__(case)
    finally:
        case.doCleanups()


def of_all(value):
    """What each rank has."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
