"""What Firkin's headers add to the compile time of a LibTorch program: examples/own_model with Firkin, and its network and step alone.

  .venv/bin/python studies/compile/consumer.py [ROUNDS]      the Python of the torch to compile against; CXX names the compiler

In every round (3) each program is compiled once, alone; the median is printed, and all times. Five minutes on one core.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
TORCH = pathlib.Path(torch.__file__).parent / "include"
EXAMPLE = (ROOT / "examples/own_model/main.cpp").read_text()
INCLUDES = [line for line in EXAMPLE.splitlines() if line.startswith('#include "firkin/')]
NETWORK_AND_STEP = "\n".join(line for line in EXAMPLE[: EXAMPLE.index("int run(")].splitlines() if line not in INCLUDES)
ONE_PROCESS = """
}  // namespace

int main() {
  torch::nn::Sequential network = make_network();
  torch::optim::AdamW optimizer(network->parameters());
  double loss = 0;
  for (int step = 0; step < 20; ++step) loss = train_step(network, optimizer);
  std::printf("20 steps: loss %.3f\\n", loss);
}
"""
PROGRAMS = {
    "the program for one process": NETWORK_AND_STEP + ONE_PROCESS,
    "the same with Firkin": EXAMPLE,
    "Firkin's headers without torch/torch.h": "\n".join([*INCLUDES, "int main() {}\n"]),
}


def compile_s(source: pathlib.Path) -> float:
    folders = ["-I", ROOT / "include", "-isystem", TORCH, "-isystem", TORCH / "torch/csrc/api/include"]
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-O2", *folders, "-c", source, "-o", source.with_suffix(".o")]
    start = time.monotonic()
    subprocess.run(command, check=True)
    return time.monotonic() - start


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    times_s = {name: [] for name in PROGRAMS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for number, (name, text) in enumerate(PROGRAMS.items()):
                source = pathlib.Path(folder) / f"program_{number}.cpp"
                source.write_text(text)
                times_s[name].append(compile_s(source))
    for name, times in times_s.items():
        print(f"{name:40} {statistics.median(times):5.1f} s    {', '.join(f'{each:.1f}' for each in times)}")


if __name__ == "__main__":
    main()
