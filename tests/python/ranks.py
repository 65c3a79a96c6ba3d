"""Ranks for tests: processes of this machine that meet over Gloo on the loopback interface.

    with_ranks(2, worker, argument)     runs worker(rank, argument) on each, returns what each returned, and fails where one raised or hung
"""

import os
import socket
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT_S = 600  # a busy machine takes minutes for what takes seconds
PRELOADED = ["torch", "torch._dynamo", "torch.nn.parallel", "firkin"]  # torch._dynamo: an optimiser's first step imports it


def _free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _rank(rank, size, port, worker, arguments, results):
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo"
    )
    try:
        dist.init_process_group("gloo")
        results.put((rank, True, worker(rank, *arguments)))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        results.put((rank, False, traceback.format_exc()))
        raise
    results.close()
    results.join_thread()
    os._exit(0)  # a thread of Gloo that still has a tensor to let go of would abort an interpreter that ends


def with_ranks(size, worker, *arguments, start="forkserver"):
    """Every rank is a new process. Importing torch takes seconds, so a server does it once; start="spawn": each, with the environment of now."""
    context = mp.get_context(start)
    if start == "forkserver":
        context.set_forkserver_preload(PRELOADED)
    results = context.Queue()
    port = _free_port()
    processes = [
        context.Process(target=_rank, args=(rank, size, port, worker, arguments, results), daemon=True) for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        returned = {}
        for _ in range(size):
            rank, good, value = results.get(timeout=TIMEOUT_S)
            if not good:
                raise AssertionError(f"rank {rank}:\n{value}")
            returned[rank] = value
        for process in processes:
            process.join(TIMEOUT_S)
            if process.exitcode != 0:
                raise AssertionError(f"a rank ended with {process.exitcode}")
        return [returned[rank] for rank in range(size)]
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
