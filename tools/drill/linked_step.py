"""Whether the model of a step's time holds on this device: stock DistributedDataParallel on one rank, under a communication hook that takes as
long as a cluster's link would, against what a profile of backward predicts. It needs nothing of Firkin's.

The link: bucket k ends at max(ready_k + a(bytes_k), end_{k-1} + g(bytes_k)). Here a = g = latency + bytes / bandwidth. On a GPU a stream waits for
that moment: `spin`, a thread on the global timer; `host`, a function of the host in the stream, which takes no multiprocessor, but whose lateness
adds up. Deadlines are absolute, because a kernel of one thread may have to wait for a whole matrix product before it starts.
"""

import argparse
import ctypes
import gc
import itertools
import json
import math
import os
import pathlib
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from stepping import Job
from torch.nn.parallel import DistributedDataParallel

ONE_BUCKET_MIB = 1e5
MOST_BUCKETS = 2048
PR_SET_TIMERSLACK = 29
WAITS = r"""
#include <cuda_runtime.h>
#include <ctime>
typedef unsigned long long u64;
__device__ u64 now() { u64 t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
// times[2 k]: when bucket k was ready. times[2 k + 1]: when it is to end. Nanoseconds of the global timer.
__global__ void stamp(volatile u64* times, u64 k) { times[2 * k] = now(); }
__global__ void hold(volatile u64* times, u64 k, u64 alone, u64 queued) {
  const u64 end = max(times[2 * k] + alone, k ? times[2 * k - 1] + queued : 0);
  const u64 limit = now() + 2000000000ull;
  times[2 * k + 1] = end;
  for (u64 t = now(); t < end && t < limit; t = now()) __nanosleep(100);
}
static u64 host_now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static void CUDART_CB rest(void* nanoseconds) {  // without a gap if it follows another within 50 microseconds
  static u64 due = 0;
  const u64 start = host_now();
  due = (start < due + 50000 ? due : start) + (u64)nanoseconds;
  while (host_now() < due) {}
}
extern "C" int ready(cudaStream_t stream, u64* times, u64 k, u64, u64) { stamp<<<1, 1, 0, stream>>>(times, k); return cudaGetLastError(); }
extern "C" int host(cudaStream_t stream, u64*, u64, u64 alone, u64) { return cudaLaunchHostFunc(stream, rest, (void*)alone); }
extern "C" int spin(cudaStream_t stream, u64* times, u64 k, u64 alone, u64 queued) {
  // With the carveout that large matrix products have, so that they can share a multiprocessor with it.
  static const int error = cudaFuncSetAttribute(hold, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  hold<<<1, 1, 0, stream>>>(times, k, alone, queued);
  return error ? error : cudaGetLastError();
}
"""


class Link(NamedTuple):
    latency_s: float
    bytes_per_s: float

    def time_s(self, size):
        return self.latency_s + size / self.bytes_per_s


class Wire:
    """The link under DistributedDataParallel: hook() ends a bucket's future when the link has carried it, without a link at once."""

    def __init__(self, job, wait):
        self.job, self.wait, self.link = job, wait, None
        self.buckets, self.spans = [], {}  # of the last step: (tensors, bytes); marks of start and end
        self.host_s, self.due = [], -math.inf
        if job.on_gpu:
            from torch.utils.cpp_extension import load_inline

            built = load_inline("firkin_drill_waits", "", WAITS, build_directory=tempfile.mkdtemp(), is_python_module=False, no_implicit_headers=True)
            self.waits = ctypes.CDLL(built)
            self.stream = torch.cuda.Stream(job.device, priority=-1)
            self.times = torch.zeros(2 * MOST_BUCKETS, dtype=torch.int64, device=job.device)
        else:
            wake_in_time = (PR_SET_TIMERSLACK, 1, 0, 0, 0)
            self.thread = ThreadPoolExecutor(1, initializer=lambda: ctypes.CDLL(None).prctl(*wake_in_time))

    def hook(self, _, bucket):
        began, k, buffer = time.perf_counter(), bucket.index(), bucket.buffer()
        self.buckets = (self.buckets if k else []) + [(len(bucket.parameters()), buffer.nbytes)]
        future = torch.futures.Future(devices=[self.job.device] if self.job.on_gpu else None)
        if self.link is None:
            future.set_result(buffer)
        elif self.job.on_gpu:
            self.occupy(k, self.link.time_s(buffer.nbytes))
            with torch.cuda.stream(self.stream):  # whose event, recorded now, is what DistributedDataParallel's own stream waits for
                future.set_result(buffer)
        else:
            self.thread.submit(self.carry, future, buffer, k, self.job.mark(), self.link.time_s(buffer.nbytes))
        self.host_s.append(time.perf_counter() - began)
        return future

    def occupy(self, k, seconds):
        if self.wait == "spin":
            self.call("ready", k, seconds)  # in the stream that computes
        ready = self.job.mark()
        self.stream.wait_event(ready)
        with torch.cuda.stream(self.stream):
            self.call(self.wait, k, seconds)
            self.spans[k] = ready, self.job.mark()

    def call(self, name, k, seconds):
        nanoseconds = round(seconds * 1e9)
        words = (torch.cuda.current_stream().cuda_stream, self.times.data_ptr(), k, nanoseconds, nanoseconds)
        if error := getattr(self.waits, name)(*map(ctypes.c_uint64, words)):
            raise RuntimeError(f"{name}: CUDA error {error}")

    def carry(self, future, buffer, k, ready, seconds):
        self.due = max(ready, self.due) + seconds
        time.sleep(max(0.0, self.due - time.perf_counter()))
        self.spans[k] = ready, self.job.mark()
        future.set_result(buffer)

    def wrap(self, cap_mib, link):
        """The model under DistributedDataParallel, after the two steps in which it lays out its buckets; cap None: its default."""
        gc.collect()
        net = DistributedDataParallel(self.job.model, bucket_cap_mb=cap_mib)
        net.register_comm_hook(None, self.hook)
        self.link = link
        self.job.step(net)
        self.job.step(net)
        return net

    def lateness_s(self):
        """How much later than the link says the last step's buckets ended, at most."""
        began = self.spans[0][0]
        due, late = -math.inf, []
        for k, (_, size) in enumerate(self.buckets):
            ready_s, ended_s = (self.job.seconds(began, mark) for mark in self.spans[k])
            due = max(ready_s, due) + self.link.time_s(size)
            late.append(ended_s - due)
        return max(late, key=abs)


class Profile(NamedTuple):
    sizes: list  # bytes of gradients, in the order in which they are ready
    ready_s: list  # since backward began
    copy_s_per_byte: float  # back from the bucket, when it has arrived
    overhead_s: float  # of the host, for a bucket
    slowdown: float  # of computation while the link is busy
    step_s: float
    backward_s: float


def measure_profile(job, wire, rounds):
    """From steps in turns: bare, with hooks that record when gradients are ready and, on a GPU, with a link that is busy all the time."""
    kinds, times, rows = ["bare", "hooked"] + ["busy"] * job.on_gpu, {}, []
    net = wire.wrap(ONE_BUCKET_MIB, None)
    for kind in ["bare"] + [kind for _ in range(rounds) for kind in random.sample(kinds, len(kinds))]:
        marks, hooks = {}, []
        if kind == "hooked":
            hooks = [parameter.register_post_accumulate_grad_hook(lambda _, name=name: marks.update({name: job.mark()}))
                     for name, parameter in job.parameters.items()]  # fmt: skip
        occupied = (lambda: wire.occupy(0, 1.5 * times["bare"][0].step_s)) if kind == "busy" else (lambda: None)
        step = job.step(net, occupied)
        for hook in hooks:
            hook.remove()
        times.setdefault(kind, []).append(step)
        if marks:
            rows.append({name: job.seconds(step.began, mark) for name, mark in marks.items()})
    bare_s = median(step.backward_s for step in times["bare"])
    hooked, busy = (median(step.backward_s for step in times.get(kind, times["bare"])) / bare_s for kind in ("hooked", "busy"))
    order = list(rows[-1])
    ready_s = list(itertools.accumulate((median(row[name] for row in rows) / max(1.0, hooked) for name in order), max))
    sizes = [job.parameters[name].nbytes for name in order]
    return Profile(sizes, ready_s, max(0.0, bare_s - ready_s[-1]) / sum(sizes), 0.0 if job.on_gpu else median(wire.host_s), max(1.0, busy),
                   median(step.step_s for step in times["bare"]), bare_s)  # fmt: skip


def backward_s(profile, counts, link, level=1.0):
    """Predicted, with its communication. counts: tensors of each bucket, in ready order. level: of computation's times in the profile."""
    now, done, end, ends = 0.0, 0.0, -math.inf, []
    for last, count in zip(itertools.accumulate(counts), counts):
        ready, size = level * profile.ready_s[last - 1], sum(profile.sizes[last - count : last])
        work, done, busy = ready - done, ready, max(0.0, end - now)
        now += profile.overhead_s + min(work * profile.slowdown, work + busy * (1 - 1 / profile.slowdown))
        end = max(now, end) + link.time_s(size)
        ends.append((end, size))
    for end, size in ends:  # buckets are copied back in order
        now = max(now, end) + level * size * profile.copy_s_per_byte
    return now


def measure_settings(job, wire, links, caps, seconds):
    """Blocks of every link with every cap, and of steps without communication, in random order, until the time is over."""
    samples, counts, queued, late, began, blocks = {}, {}, {}, [], time.monotonic(), 0
    settings = [(name, cap) for name in links for cap in caps] + [("none", ONE_BUCKET_MIB)] * 2
    while blocks < 2 or (time.monotonic() - began) * (1 + 1 / blocks) < seconds:
        for name, cap in random.sample(settings, len(settings)):
            net = wire.wrap(cap, links.get(name))
            steps = [job.step(net) for _ in range(3)]
            samples.setdefault((name, cap), []).extend(step.step_s for step in steps)
            queued.setdefault((name, cap), []).extend(step.queued_s for step in steps)
            counts[name, cap] = [count for count, _ in wire.buckets]
            if name in links:
                late.append(wire.lateness_s())
        blocks += 1
    return samples, counts, queued, late


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--wait", choices=("spin", "host"), default="spin", help="how a GPU's stream waits")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the steps that are compared")
    parser.add_argument("--caps", type=int, default=6, help="how many, beside the default")
    parser.add_argument("--out", type=pathlib.Path, default="linked_step.json")
    arguments = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    job = Job(arguments.device)
    store = dist.TCPStore("127.0.0.1", 0, 1, True)
    dist.init_process_group("nccl" if job.on_gpu else "gloo", store=store, rank=0, world_size=1)
    wire = Wire(job, arguments.wait)
    profile = measure_profile(job, wire, rounds=12 if job.on_gpu else 6)
    whole, bytes_of_all = backward_s(profile, [len(profile.sizes)], Link(0.0, math.inf)), sum(profile.sizes)
    # Links that carry all gradients in half of backward, in all of it, and in one and a half.
    links = {name: Link(whole / calls, bytes_of_all / share / whole) for name, calls, share in (("half", 300, 0.5), ("equal", 300, 1.0), ("slow", 150, 1.5))}
    smallest, largest = bytes_of_all / 2**28, bytes_of_all / 2**20
    caps = [None] + [smallest * (largest / smallest) ** (i / (arguments.caps - 1)) for i in range(arguments.caps)]
    samples, counts, queued, late = measure_settings(job, wire, links, caps, arguments.seconds)
    level = median(samples["none", ONE_BUCKET_MIB]) / profile.step_s
    rows, regrets = [], []
    for name, link in links.items():
        points = []
        for cap in caps:
            outside = profile.step_s - whole
            predicted = {at: outside * at + backward_s(profile, counts[name, cap], link, at) for at in (1.0, level)}
            measured = median(samples[name, cap])
            points.append((predicted[1.0], measured))
            rows.append({"link": name, "cap_mib": cap, "buckets": len(counts[name, cap]), "predicted_s": predicted[1.0], "measured_s": measured,
                         "error": predicted[level] / measured - 1, "samples_s": samples[name, cap],
                         "queued_s": median(queued[name, cap])})  # fmt: skip
        regrets.append(min(points)[1] / min(measured for _, measured in points) - 1)
    errors = [abs(row["error"]) for row in rows]
    found = {
        "median_error": median(errors),
        "worst_error": max(errors),
        "regret": max(regrets),
        "level": level,
        "latest_s": max(late, key=abs),
        "hook_s": median(wire.host_s),  # of the host, for a bucket
        "wait": arguments.wait if job.on_gpu else "sleep",
        "passed": median(errors) < 0.05 and max(errors) < 0.1 and max(regrets) <= 0.03,
        "profile": profile._asdict(),
        "links": {name: link._asdict() for name, link in links.items()},
        "rows": rows,
        "torch": torch.__version__,
    }
    arguments.out.write_text(json.dumps(found, indent=1))
    for row in rows:
        cap = "default" if row["cap_mib"] is None else f"{row['cap_mib']:.3g}"
        print(f"{row['link']:6} {cap:>8} MiB {row['buckets']:4} buckets  {row['predicted_s'] * 1e3:8.2f} ms predicted {row['measured_s'] * 1e3:8.2f} measured"
              f"  {row['error']:+.1%}")  # fmt: skip
    sys.stdout.flush()
    os._exit(0)  # a thread of Gloo that still has a tensor to let go of would abort an interpreter that ends


if __name__ == "__main__":
    main()
