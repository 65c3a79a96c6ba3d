"""The regimes of the validation study: a link, a workload, and how much is measured of it.

Links are those of lab/run (docs/emulated_links.md), one core per rank, on the unlimited link as well. One regime has a modelled link instead
(docs/emulated_links.md).
"""

import csv
import dataclasses
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
COURSE = "data/cmsc828g"
ALPS = "data/allreduce_alps_gh200_4to2048gpu.csv"
ALPS_SETTING = "cross_nic-ofi1.9.2"
ALPS_RANKS = 512
CAPS = "0.25MiB,0.5MiB,1MiB,2MiB,4MiB,8MiB,32MiB"
FEWER_CAPS = "0.5MiB,1MiB,2MiB,4MiB,32MiB"  # where steps are long
LARGER_CAPS = "0.25MiB,1MiB,2MiB,4MiB,8MiB,16MiB,64MiB"  # where gradients are


@dataclasses.dataclass(frozen=True)
class Regime:
    name: str
    link: str  # in words
    workload: str
    flags: tuple  # of firkin tune
    expected_s: float  # on two quiet cores with 20 blocks
    lab: tuple | None = ()  # flags of lab/run; None: not in the lab
    replay: bool = False
    loopback: bool = False
    remark: str = ""  # what is to be known of the result: what stays wrong, and why

    def command(self, firkin, blocks, lab_run=ROOT / "lab" / "run"):
        """The words to run in the folder where inputs/ is."""
        tune = [str(firkin), "tune", "--compare", *self.flags, "--blocks", str(blocks), "--out", self.name]
        return tune if self.lab is None else [str(lab_run), *self.lab, "--", *tune]

    def shown_command(self, blocks):
        return " ".join(self.command("build/firkin", blocks, "lab/run"))


LINKS = {  # name: words, flags of lab/run
    "loopback": ("no limit", ()),
    "10gbit": ("10 Gbit/s", ("--rate", "10gbit")),
    "4gbit": ("4 Gbit/s", ("--rate", "4gbit")),
    "1gbit": ("1 Gbit/s", ("--rate", "1gbit")),
}


def model(batch):
    return ("--model", "demo", "--batch", str(batch), "--sequence", "128")


def gpt2_large(scale_bytes, scale_time):
    return ("--replay", "inputs/gpt2_large.csv", "--scale-bytes", str(scale_bytes), "--scale-time", str(scale_time))


NARROW = ("--model", "demo", "--num-layers", "24", "--d-model", "96", "--d-ff", "256", "--num-heads", "4", "--batch", "1", "--sequence", "64")


def measured(caps, steps):
    return ("--cap", caps, "--steps-per-block", str(steps))


def workloads(link):
    """Per workload: its name, words, flags, expected seconds, and whether it is a replay."""
    slow = link == "1gbit"
    few, much = measured(FEWER_CAPS, 1), measured(CAPS, 2)
    return [
        ("compute", "demo model, batch 4", model(4) + (few if slow else measured(CAPS, 1)), 210 if slow else 175, False),
        ("communication", "demo model, batch 1", model(1) + (measured(CAPS, 1) if slow else much), 160 if slow else 130, False),
        ("small-tensors", "24 narrow layers of many small tensors, batch 1", NARROW + much, 175 if slow else 155, False),
        ("gpt2-large", "gpt2-large on A100s, replayed with 1/128 of its bytes and " + ("1/8" if slow else "1/16") + " of its times",
         gpt2_large(1 / 128, 1 / 8 if slow else 1 / 16) + measured(FEWER_CAPS if slow else CAPS, 1), 220 if slow else 115, True),
    ]


def all_regimes():
    regimes = []
    for link, (words, lab) in LINKS.items():
        for name, workload, flags, expected_s, replay in workloads(link):
            cores = ("--cores", "2") if replay else ()  # beside a GPU there are cores to spare for Gloo's threads
            regimes.append(Regime(f"{link}-{name}", f"two hosts, {words}", workload, flags, expected_s, cores + lab, replay, link == "loopback"))
    regimes.append(Regime("4-hosts-gpt2-large", "four hosts that share the cores, 1 Gbit/s",
                          "gpt2-large on A100s, replayed with 1/256 of its bytes and 1/8 of its times",
                          gpt2_large(1 / 256, 1 / 8) + measured(FEWER_CAPS, 1), 250, ("--hosts", "4", "--rate", "1gbit"), replay=True))
    modelled = ("--ranks", "1", "--threads", "1", "--link", "inputs/allreduce_512.csv", "--world", str(ALPS_RANKS))
    regimes.append(Regime("512-gpus-gpt2-large", "one of 512 GPUs over a modelled link, by times measured on Alps",
                          "gpt2-large on A100s, replayed with 1/64 of its bytes and 1/32 of its times",
                          modelled + gpt2_large(1 / 64, 1 / 32) + measured(LARGER_CAPS, 2), 140, lab=None, replay=True))
    return regimes


def alps_table():
    """allreduce.csv of 512 ranks, from the published times out of place."""
    with open(ROOT / ALPS, newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        times = [(row["bytes"], row["time_us_oop"]) for row in rows if row["config"] == ALPS_SETTING and int(row["ranks"]) == ALPS_RANKS]
    lines = [f"{size},{ALPS_RANKS},{float(time_us) * 1e-6:.9g}" for size, time_us in times]
    return "\n".join(["bytes,world_size,median_s", *lines]) + "\n"


def import_command(firkin, out):
    return [str(firkin), "import", f"{COURSE}/layer-sizes-gpt2_large-bs4.csv", f"{COURSE}/layer-times-gpt2_large-bs4.csv",
            f"{COURSE}/allreduce-times.csv", "--out", str(out)]
