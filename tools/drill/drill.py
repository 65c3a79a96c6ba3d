"""What the parts of the drill run: commands in processes of their own, which end with the part's time, and the Python package's build."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WRONG_FLAG = ": no flag of "
MODEL = "--model gpt2-medium --dtype bf16 --batch 8 --sequence 1024"
DRY_MODEL = "--d-model 128 --d-ff 512 --num-layers 2 --batch 1 --sequence 32"


class Failed(Exception):
    """What went wrong in a part, in one line."""


class Refused(Exception):
    """A program refused what it was asked for, with this text."""


@dataclasses.dataclass(frozen=True)
class Finding:
    text: str
    right: bool = True
    fast: bool = True  # what is judged by times
    refused: str = ""


# Whose all-reduces are modelled: how many ranks, and a rate and a latency, or what firkin import takes of data/.
CLUSTERS = {
    "nvlink": (8, "allreduce_8xH200.csv"),
    "alps": (128, "allreduce_alps_gh200_4to2048gpu.csv --where config=cross_nic-ofi1.9.2"),
    "tcp": (8, "100gbit,30us"),
}


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


class Drill:
    """Where everything is, and the commands of the part that runs now."""

    def __init__(self, out, build, dry, quick, limit_s):
        self.out, self.build, self.dry, self.quick = out, build, dry, quick or dry
        self.device = "cpu" if dry else "cuda"
        self.folder = out  # of this part's files
        self.deadline = time.monotonic() + limit_s
        self.machine = {}  # of the machine, as the program last said them
        self.environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "PYTHONUNBUFFERED": "1"}
        torch = importlib.util.find_spec("torch")
        if torch is None:
            raise SystemExit(f"gpu-drill: {sys.executable} has no torch; expected the python3 that has it first on the PATH")
        torch = pathlib.Path(torch.submodule_search_locations[0])
        libraries = [torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib"))]
        self.environment["LD_LIBRARY_PATH"] = ":".join([*map(str, libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
        self.package = PackageBuild(self)

    def folder_of(self, number, part):
        folder = self.out / f"{number}-{part.name}"
        folder.mkdir(exist_ok=True)
        return folder

    def link(self, name):
        """What --link takes: a table of the cluster's published times, or its rate and latency."""
        world, source = CLUSTERS[name]
        if ".csv" not in source:
            return source
        words = f"{ROOT}/data/{source} --collective all_reduce --world {world} --out {self.folder / name}"
        self.run(f"firkin import {name}", self.build / "firkin", "import", *words.split())
        return self.folder / name / "allreduce.csv"

    def words(self, text):
        """The words of a command. {nvlink} and the like are a cluster, {model} what is trained, {folder} the part's; of {a|b} a is for a
        whole run, b for a quick one; {cuda:a} is left out where the CPU takes the GPU's place."""
        text = re.sub(r"\{cuda:([^{}]*)\}", "" if self.dry else r"\1", text)
        text = re.sub(r"\{([^{}|]*)\|([^{}|]*)\}", r"\2" if self.quick else r"\1", text)
        named = [name for name in CLUSTERS if f"{{{name}}}" in text]
        clusters = {name: f"--ranks 1 --world {CLUSTERS[name][0]} --link {self.link(name)}" for name in named}
        return text.format(model=DRY_MODEL if self.dry else MODEL, folder=self.folder, **clusters).split()

    def left_s(self):
        return self.deadline - time.monotonic()

    def start(self, name, *words, folder=None, **environment):
        """A command whose output goes to NAME.log of a folder, without one this part's."""
        log = ((folder or self.folder) / f"{name}.log").open("w")
        log.write(json.dumps([*map(str, words)]) + "\n")
        log.flush()
        values = self.environment | {key: str(value) for key, value in environment.items()}
        process = subprocess.Popen([*map(str, words)], cwd=ROOT, env=values, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        process.log = pathlib.Path(log.name)
        log.close()
        return process

    def finish(self, process):
        """Its exit code and output. Fails when the part's time is over before."""
        try:
            process.wait(max(self.left_s(), 0))
        except subprocess.TimeoutExpired:
            stop(process)
            raise Failed(f"{process.log.stem} had not ended in the part's time: {last_line(process.log.read_text(errors='replace'))}")
        return process.returncode, process.log.read_text(errors="replace").partition("\n")[2]

    def run(self, name, *words, **environment):
        """The output of a command that has to end well."""
        return self.output(self.start(name, *words, **environment))

    def output(self, process):
        """Of one that has begun. With exit code 2 our programs refuse what they are asked for; a flag that is not there is our mistake."""
        code, output = self.finish(process)
        if code == 2 and process.args[0].startswith(str(self.build)) and WRONG_FLAG not in last_line(output):
            raise Refused(last_line(output))
        if code != 0:
            raise Failed(f"{process.log.stem} ended with {code}: {last_line(output)}")
        return output

    def firkin(self, name, *words):
        """The results.json of a command of the program, which stays in the folder NAME of this part."""
        device = () if words[0] == "predict" else ("--device", self.device)
        self.run(f"firkin {name}", self.build / "firkin", *words, *device, "--out", self.folder / name)
        return self.results(name)

    def results(self, name):
        results = json.loads((self.folder / name / "results.json").read_text())
        self.machine = results.get("environment") or self.machine
        return results

    def ranks(self, name, size, *words, **environment):
        """Starts a command once for every rank. NCCL takes each for a machine of its own, so that ranks may share a GPU."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        shared = {"WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                  "NCCL_NET": "Socket"} | environment  # fmt: skip
        return [self.start(f"{name} {rank}", *words, RANK=rank, NCCL_HOSTID=f"drill{rank}", **shared) for rank in range(size)]

    def run_ranks(self, name, size, *words, **environment):
        """The output of every rank; all have to end well."""
        return [self.output(process) for process in self.ranks(name, size, *words, **environment)]


def stop(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(3)  # seconds


class PackageBuild:
    """The Python package with its engine, for the python3 that runs this: of the build folder, or built beside the first parts."""

    def __init__(self, drill):
        self.drill, self.process, self.path = drill, None, drill.build / "python"

    def standard_library(self):
        """The libstdc++ that torch has loaded: a compiler may bring one of its own, and two of them in a process corrupt its memory."""
        find = "import torch; print(next(line.split()[-1] for line in open('/proc/self/maps') if 'libstdc++.so' in line))"
        return subprocess.run([sys.executable, "-c", find], capture_output=True, text=True, check=True).stdout.strip()

    def begin(self, folder):
        """folder: of its log."""
        if (self.path / "firkin").exists():
            return
        kit, self.path = self.drill.build, self.drill.build.parent / "package" / "python"
        options = {"CMAKE_BUILD_TYPE": "Release", "CMAKE_UNITY_BUILD": "ON", "CMAKE_UNITY_BUILD_BATCH_SIZE": "4",
                   "FIRKIN_WITH_TORCH": "OFF", "FIRKIN_BUILD_TESTS": "OFF", "FIRKIN_PYTHON_PACKAGE": "ON", "FIRKIN_PYTHON_ENGINE": "ON",
                   "FIRKIN_VEGA_BUNDLE": kit / "vega.js", "CMAKE_CXX_STANDARD_LIBRARIES": self.standard_library()}  # fmt: skip
        configure = ["cmake", "-S", ROOT, "-B", self.path.parent, "-G", "Ninja", *(f"-D{name}={value}" for name, value in options.items())]
        jobs = max(2, (os.cpu_count() or 1) - 4)  # cores are left to what is measured meanwhile
        build = ["ninja", "-C", self.path.parent, "-j", jobs, "firkin_core", "firkin_engine"]
        line = " && ".join(" ".join(map(str, words)) for words in (configure, build))
        self.process = self.drill.start("package", "nice", "bash", "-c", line, folder=folder, FIRKIN_PYTHON=sys.executable)

    def wait(self, most_s):
        """Until it is built, for at most so long: what is timed then has the cores to itself."""
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(most_s)

    def folder(self):
        if self.process is not None:
            code, output = self.drill.finish(self.process)
            if code != 0:
                raise Failed(f"the Python package is not built: {last_line(output)}")
        return self.path
