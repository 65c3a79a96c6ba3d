"""One process per host: started with a launcher's variables, watched until all have ended."""

import dataclasses
import os
import selectors
import signal
import socket
import subprocess
import sys
import time

from hosts import INTERFACE
from namespaces import CLONE_NEWNET, CLONE_NEWUTS, ENDING_SIGNALS, LabError, call

PORT = "29500"  # the network is the lab's own, so nobody else has it
GRACE_S = 5  # from the signal that ends a process to SIGKILL


def environment_of(host, hosts, threads):
    """What torchrun would set for one rank per node; torchrun itself takes PET_... for the flags that it was not given."""
    count, index = str(len(hosts)), str(host.index)
    variables = {
        "RANK": index, "WORLD_SIZE": count, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": index,
        "MASTER_ADDR": hosts[0].address, "MASTER_PORT": PORT,
        "PET_NNODES": count, "PET_NODE_RANK": index, "PET_MASTER_ADDR": hosts[0].address, "PET_MASTER_PORT": PORT,
        "GLOO_SOCKET_IFNAME": INTERFACE, "NCCL_SOCKET_IFNAME": INTERFACE,
    }
    return {"OMP_NUM_THREADS": str(threads)} | dict(os.environ) | variables


def share_cores(hosts, cores):
    """The CPUs of each host, its own where this process may use enough; otherwise all share all, and a line says so."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < cores * hosts:
        print(f"lab/run: only {len(usable)} cores for {hosts} hosts, which share them", file=sys.stderr, flush=True)
        return [usable] * hosts
    return [usable[index * cores:(index + 1) * cores] for index in range(hosts)]


@dataclasses.dataclass
class Rank:
    host: object
    process: subprocess.Popen
    pending: bytes = b""  # of an output line that is not complete yet

    def signal(self, number):
        """To all of its process group: a shell would keep it from what it runs."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, number)


def start_rank(host, hosts, command, cpus, threads):
    def enter():
        call("setns", host.network, CLONE_NEWNET)
        call("unshare", CLONE_NEWUTS)
        socket.sethostname(host.name)
        os.sched_setaffinity(0, cpus)
        os.setpgrp()

    output = {} if host.index == 0 else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        environment = environment_of(host, hosts, threads)
        return Rank(host, subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, preexec_fn=enter, **output))  # noqa: PLW1509 - of one thread
    except OSError as error:
        raise LabError(f"{command[0]}: cannot be started: {error.strerror}") from error


def forward(rank):
    """Prints the lines that have arrived. False at the end of the output."""
    data = os.read(rank.process.stdout.fileno(), 1 << 16)
    *lines, rank.pending = (rank.pending + data).split(b"\n")
    if not data and rank.pending:
        lines, rank.pending = [rank.pending], b""
    for line in lines:
        sys.stderr.buffer.write(f"[{rank.host.name}] ".encode() + line + b"\n")
    sys.stderr.buffer.flush()
    return bool(data)


def describe_end(code):
    return f"failed with exit code {code}" if code > 0 else f"was ended by signal {-code} ({signal.strsignal(-code)})"


class Watch:
    """The ranks from their start to their end. The first that fails, or a signal to this process, ends all."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.exit_code = 0
        self.kill_at = None
        self.selector = selectors.DefaultSelector()
        for rank in ranks:
            if rank.process.stdout:
                self.selector.register(rank.process.stdout, selectors.EVENT_READ, rank)

    def running(self):
        return [rank for rank in self.ranks if rank.process.returncode is None]

    def end(self, number, code):
        if self.kill_at is None:
            self.exit_code = code
            self.kill_at = time.monotonic() + GRACE_S
            for rank in self.running():
                rank.signal(number)

    def reap(self):
        for rank in self.running():
            code = rank.process.poll()
            if not code or self.kill_at is not None:
                continue
            consequence = "; ending the others" if self.running() else ""
            print(f"lab/run: {rank.host.name} {describe_end(code)}{consequence}", file=sys.stderr)
            self.end(signal.SIGTERM, code if code > 0 else 1)

    def kill_if_late(self):
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            for rank in self.running():
                rank.signal(signal.SIGKILL)

    def forward_output(self, timeout):
        """What is there; waits for it, for a signal, or for the timeout. False when nothing was there."""
        events = [key for key, _ in self.selector.select(timeout)]
        for key in events:
            if key.data and not forward(key.data):
                self.selector.unregister(key.fileobj)
        return any(key.data for key in events)

    def run(self, signals):
        """signals: a socket that gets a byte for every signal to this process."""
        self.selector.register(signals, selectors.EVENT_READ)
        while self.running():
            self.forward_output(None if self.kill_at is None else max(0, self.kill_at - time.monotonic()) + 0.01)
            for number in received(signals):
                if number in ENDING_SIGNALS:
                    print(f"\nlab/run: {signal.strsignal(number)}; ending all hosts", file=sys.stderr)
                    self.end(number, 128 + number)
            self.reap()
            self.kill_if_late()
        self.selector.unregister(signals)
        while self.forward_output(0):  # a process that a rank left behind may hold its output open: not waited for
            pass
        return self.exit_code


def received(signals):
    try:
        return signals.recv(4096)
    except BlockingIOError:
        return b""


def run_ranks(hosts, command, cores):
    """Runs the command once on every host and returns the exit code: 0, that of the first that failed, or 128 and the signal that ended the lab.

    Standard output and error of host 0 are this process's; the lines of the others go to standard error as "[host1] ...".
    """
    signals, wakeup = socket.socketpair()
    signals.setblocking(False)
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.fileno())
    for number in (*ENDING_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # Python writes the number to the socket
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    cpus = share_cores(len(hosts), cores)
    threads = min(cores, max(1, len(os.sched_getaffinity(0)) // len(hosts)))
    return Watch([start_rank(host, hosts, command, cpus[host.index], threads) for host in hosts]).run(signals)
