#!/usr/bin/env python3
"""Records the noise of step times: one setting under eight names, in randomised blocks.

  studies/stats/record_same_setting.py build/firkin loopback
  studies/stats/record_same_setting.py build/firkin link --link 1gbit --sequence 32
  studies/stats/record_same_setting.py build/firkin loaded --busy 2 --sequence 32

Other flags go to `firkin bench step`. Writes tests/stats/data/same_setting_NAME.csv: a line per block, a column per name, seconds a step (slowest of two ranks). The names are
bucket caps that all hold the whole model, so that each makes one and the same bucket: whatever a test finds between them is noise.
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CAPS_MIB = range(1001, 1009)


def work_without_end():
    while True:
        pass


def record(firkin, blocks, options):
    with tempfile.TemporaryDirectory() as out:
        command = [firkin, "bench", "step", "--ranks", "2", "--model", "demo", "--batch", "1",
                   "--strategies", "bucketed", "--cap", ",".join(f"{cap}MiB" for cap in CAPS_MIB), "--blocks", str(blocks), "--steps-per-block", "1",
                   "--out", out, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        samples = json.loads((pathlib.Path(out) / "results.json").read_text())["configurations"][0]["samples"]["step_s"]
    return samples[1:]  # without the strategy none


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("firkin")
    parser.add_argument("name")
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--busy", type=int, default=0, help="processes that compute without end meanwhile")
    arguments, options = parser.parse_known_args()
    if "--sequence" not in options:
        options += ["--sequence", "128"]
    busy = [multiprocessing.Process(target=work_without_end, daemon=True) for _ in range(arguments.busy)]
    for process in busy:
        process.start()
    samples = record(arguments.firkin, arguments.blocks, options)
    for process in busy:
        process.terminate()
    place = "modelled link" if "--link" in options else "loopback"
    load = f"{arguments.busy} busy processes beside it" if arguments.busy else "no load of its own beside it, on a machine shared with others"
    lines = [(f"# firkin bench step, --batch 1 {' '.join(options)}: demo model, 2 ranks on {os.cpu_count()} cores, {place}, {load}; one setting "
             "under eight names, seconds a step by block"),
             ",".join(f"name{i + 1}" for i in range(len(samples)))]
    lines += [",".join(f"{seconds:.6g}" for seconds in block) for block in zip(*samples)]
    path = ROOT / "tests/stats/data" / f"same_setting_{arguments.name}.csv"
    path.write_text("\n".join(lines) + "\n")
    print(f"wrote {path.relative_to(ROOT)}: {arguments.blocks} blocks", file=sys.stderr)


if __name__ == "__main__":
    main()
