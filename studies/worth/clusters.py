"""The clusters whose all-reduce was published (data/README.md names the sources), and TCP by a formula.

The GPU of CS336's PCIe link is not named; an A100 is assumed. TCP has an A40 a host. GH200, H100 and H200 count as H100.
"""

import csv
import dataclasses
import pathlib

DATA = pathlib.Path(__file__).resolve().parents[2] / "data"
ALPS_SETTING = "cross_nic-ofi1.9.2"
# A ring over TCP: 2 (n - 1) messages of x / n bytes one after another, each with the latency of a hop; 0.94 of the line rate is payload.
TCP_HOP_S, TCP_PAYLOAD = 50e-6, 0.94


@dataclasses.dataclass(frozen=True)
class Cluster:
    title: str
    gpu: str  # of models.GPUS
    ranks_per_node: int
    table: dict  # {ranks: [(bytes, seconds), ...]}
    nvlink: bool = True

    def allreduce_csv(self, ranks):
        return "bytes,world_size,median_s\n" + "".join(f"{size},{ranks},{seconds:.9g}\n" for size, seconds in self.table[ranks])


def rows_of(path):
    with open(DATA / path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def measured(path, ranks="ranks", size="bytes", time="time_us_ip", unit_s=1e-6, size_unit=1, where=lambda row: True):
    """In-place times, where there are both: DDP reduces a bucket in its place. Nothing is exchanged on one rank."""
    table = {}
    for row in filter(where, rows_of(path)):
        if int(row[ranks]) > 1 and float(row[size]) > 0:
            table.setdefault(int(row[ranks]), []).append((int(float(row[size]) * size_unit), float(row[time]) * unit_s))
    return dict(sorted(table.items()))


def tcp(gbit_s, worlds=(2, 8, 32)):
    rate = TCP_PAYLOAD * gbit_s * 1e9 / 8
    return {n: [(x, 2 * (n - 1) * (TCP_HOP_S + x / n / rate)) for x in (1 << k for k in range(10, 35, 2))] for n in worlds}


def all_clusters():
    course = {"ranks": "world_size", "size": "total_bytes", "time": "average_time", "unit_s": 1}
    return [
        Cluster("H200, NVLink", "H100", 8, measured("allreduce_8xH200.csv", time="time_us")),
        Cluster("A100, NVLink (SuperBench)", "A100", 8, measured("allreduce_superbench_8xA100_40GB.csv")),
        Cluster("PCIe (CS336), A100 assumed", "A100", 8, measured("gpu_sweeps/allreduce_damek_nccl.csv", size="MiB", time="time_s", unit_s=1,
                                                               size_unit=1 << 20), nvlink=False),
        Cluster("Azure, A100, InfiniBand", "A100", 8, measured("allreduce_azure_a100_1to128gpu.csv")),
        Cluster("AWS, A100, EFA", "A100", 8, measured("allreduce_aws_p4de_16xA100.csv")),
        Cluster("Zaratan, A100 (CMSC 828G)", "A100", 4, measured("cmsc828g/allreduce-times.csv", **course)),
        Cluster("Alps, GH200, Slingshot", "H100", 4, measured("allreduce_alps_gh200_4to2048gpu.csv", where=lambda row: row["config"] == ALPS_SETTING)),
        *[Cluster(f"TCP, {rate} Gbit/s, A40", "A40", 1, tcp(rate)) for rate in (25, 10, 1)],
    ]  # fmt: skip
