"""How others size their buckets, each by its own formula. Bytes; gradients of 4 bytes.

Only the size and the way of closing a bucket are theirs here: Megatron-LM, DeepSpeed and Inductor reduce-scatter the buckets that they
fill, Horovod sends what is there when its cycle ends, MLX fills them after backward. All are predicted as buckets of an
all-reduce that leaves when the last gradient is ready.
"""

import math

MIB = 1 << 20
ELEMENT = 4

# torch/_inductor/comm_analysis.py of torch 2.13, INTERCONNECT_PROFILES: GB/s, microseconds a ring step, microseconds to start, least bytes.
INDUCTOR = {
    "NVLINK_A100": (22, 45, 10, 0),
    "NVLINK_H100": (36, 40, 10, 0),
    "IB_HDR": (11, 14, 30, 75 * MIB),
    "IB_NDR": (22, 12, 30, 100 * MIB),
    "PCIE": (10, 60, 15, 0),
}
INDUCTOR_LEAST, INDUCTOR_MOST = 10 * MIB, 500 * MIB  # torch/_inductor/config.py, pre_bucketing_fsdp_collectives_{min,max}_bucket_cap_mb


def megatron(ranks):
    """megatron/core/distributed/distributed_data_parallel.py: closed once it holds so many elements."""
    return max(40_000_000, 1_000_000 * ranks) * ELEMENT


def deepspeed():
    """deepspeed/runtime/zero/config.py, reduce_bucket_size: sent before it would hold more."""
    return 500_000_000 * ELEMENT


def transformers_auto(hidden):
    """reduce_bucket_size "auto", transformers/integrations/deepspeed.py: the width squared, elements."""
    return hidden * hidden * ELEMENT


def inductor(ranks, interconnect):
    """What compute_pre_bucket_cap_mb of torch/_inductor/fx_passes/fsdp.py takes: the bytes at which an all-gather reaches 90 % of the
    bandwidth, within limits. torch knows no interconnect between hosts but InfiniBand."""
    rate_gb_s, step_us, start_us, least = INDUCTOR[interconnect]
    seconds = (start_us + (ranks - 1) * step_us) * 1e-6
    saturating = int(0.9 / (1 - 0.9) * seconds * rate_gb_s * 1e9)
    return min(max(saturating, least, INDUCTOR_LEAST), INDUCTOR_MOST)


def interconnect(gpu, ranks, ranks_per_node, nvlink=True):
    """detect_interconnect of torch/_inductor/comm_analysis.py."""
    hopper = gpu == "H100"
    if math.ceil(ranks / ranks_per_node) > 1:
        return "IB_NDR" if hopper else "IB_HDR"
    return ("NVLINK_H100" if hopper else "NVLINK_A100") if nvlink else "PCIE"


def mg_wfbp(ready_s, sizes, alpha_s, beta_s):
    """Shi, Chu, Li: MG-WFBP (INFOCOM 2019), all-reduces taken as alpha + beta x: sizes of the buckets, and when the last one has arrived.

    Gradients are merged while waiting for the next costs less than the start-up that this saves: the next is ready before
    start + min(alpha, alpha + beta x), where start is when the x bytes could leave: when they are ready and the link is free. (The second
    term is their code's first condition, github.com/HKBU-HPML/MG-WFBP, commit 507f409d, distributed_optimizer.py: what has arrived before
    the next gradient is ready is not merged with it. It decides only where beta is negative or a measured table takes the line's place.)
    """
    buckets, x, end_s = [], 0, float("-inf")
    for i, size in enumerate(sizes):
        x += size
        start_s, takes_s = max(ready_s[i], end_s), alpha_s + beta_s * x
        if i + 1 < len(sizes) and ready_s[i + 1] < start_s + min(alpha_s, takes_s):
            continue
        buckets.append(x)
        x, end_s = 0, start_s + takes_s
    return buckets, end_s


# PyTorch's default (25 MiB, first bucket 1 MiB), Horovod's 128 MiB (operations.cc since 0.21, 64 before) and MG-WFBP, on the measured table
# and with the alpha that is fitted to it, are baselines of firkin predict.
TITLES = {
    "pytorch": "PyTorch, 25 MiB",
    "mlx": "MLX, 32 MiB",
    "horovod": "Horovod, 128 MiB",
    "megatron": "Megatron-LM",
    "inductor": "Inductor",
    "transformers_auto": "DeepSpeed, `auto`",
    "deepspeed": "DeepSpeed",
    "mg_wfbp": "MG-WFBP",
}


def caps(cluster, ranks, hidden):
    """{rule of closing: {name: bytes}}"""
    link = interconnect(cluster.gpu, ranks, cluster.ranks_per_node, cluster.nvlink)
    return {
        # MLX: python/mlx/nn/utils.py, average_gradients: a group is closed when it has reached 32 MiB.
        "close-when-full": {"megatron": megatron(ranks), "mlx": 32 * MIB},
        "at-most": {"deepspeed": deepspeed(), "transformers_auto": transformers_auto(hidden), "inductor": inductor(ranks, link)},
    }  # fmt: skip
