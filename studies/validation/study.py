#!/usr/bin/env python3
"""The validation study: firkin tune in 18 regimes, its raw results, and the page docs/validation.md.

  studies/validation/study.py build/firkin                    what is not measured yet, then the page; took an hour on two cores
  studies/validation/study.py build/firkin --only 1gbit-gpt2-large
  studies/validation/study.py --list                          the regimes, and what each takes
  studies/validation/study.py --page                          the page anew, from what is kept

A regime whose result is in --out, by the same command, is skipped; one that fails or exceeds its limit costs only itself, is named at the end, and
is tried again the next time. Exit code: 0 all measured and the page written, 1 otherwise, 2 bad usage; of --page, 0 where there is at least one result.
"""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True

from keep import keep
from measure import MEASURED, is_measured, measure, run_file, write_atomically
from page import write_page
from regimes import ROOT, all_regimes, alps_table, import_command

MEASURED_FOR_BLOCKS = 20  # Regime.expected_s
FIXED_S = 20  # of it, whatever the blocks: profile and all-reduce


class Usage(Exception):
    """One line: what, and what was expected."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Usage(message)


def parse(words):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("firkin", nargs="?", help="the program, such as build/firkin")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "firkin-out" / "validation", help="where regimes are measured")
    parser.add_argument("--docs", type=pathlib.Path, default=ROOT / "docs", help="where the page is written, and a report for each regime")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "studies" / "validation" / "data", help="where results are kept")
    parser.add_argument("--only", action="append", metavar="NAME", help="a regime; may be given several times")
    parser.add_argument("--blocks", type=int, default=MEASURED_FOR_BLOCKS, help="of each regime, 20 by default; at least 4")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="per regime (default: four times what is expected of it)")
    parser.add_argument("--list", action="store_true", help="show the regimes, and measure nothing")
    parser.add_argument("--page", action="store_true", help="write the page from what is kept, and measure nothing")
    flags = parser.parse_args(words)
    known = {regime.name: regime for regime in all_regimes()}
    for name in flags.only or []:
        if name not in known:
            raise Usage(f"--only {name}: expected one of {', '.join(known)}")
    if flags.blocks < 4:
        raise Usage(f"--blocks {flags.blocks}: expected 4 or more")
    if flags.limit is not None and not flags.limit > 0:
        raise Usage(f"--limit {flags.limit}: expected a positive number of seconds")
    if not (flags.list or flags.page):
        if flags.firkin is None:
            raise Usage("no program; expected one such as build/firkin")
        flags.firkin = pathlib.Path(flags.firkin).resolve()
        if not flags.firkin.is_file():
            raise Usage(f"{flags.firkin}: no such program; expected one such as build/firkin")
    flags.regimes = [known[name] for name in dict.fromkeys(flags.only)] if flags.only else list(known.values())
    return flags


def expected_s(regime, blocks):
    return FIXED_S + (regime.expected_s - FIXED_S) * blocks / MEASURED_FOR_BLOCKS


def minutes(seconds):
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def say(text):
    print(f"study: {text}", file=sys.stderr, flush=True)


def list_regimes(flags):
    for regime in flags.regimes:
        done = "measured" if is_measured(flags.out, regime.name, regime.shown_command(flags.blocks)) else minutes(expected_s(regime, flags.blocks))
        print(f"{regime.name:28} {done:>9}   {regime.shown_command(flags.blocks)}")


def make_inputs(flags):
    """OUT/inputs/, which commands name."""
    inputs = flags.out.resolve() / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    write_atomically(inputs / "allreduce_512.csv", alps_table())
    ended = subprocess.run(import_command(flags.firkin, inputs / "gpt2_large"), cwd=ROOT, capture_output=True, text=True)
    if ended.returncode != 0:
        raise Usage(f"{flags.firkin} import: {ended.stderr.strip() or 'failed'}; expected a built firkin")
    write_atomically(inputs / "gpt2_large.csv", (inputs / "gpt2_large" / "tensors.csv").read_bytes())


def kept(flags, name):
    """False, and a line, where the result cannot be used."""
    try:
        keep(flags.firkin, flags.out, name, flags.data, flags.docs / "validation")
        return True
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {error.returncode}"]
        say(f"{name}: {' '.join(map(str, error.cmd[1:3]))}: {reason[0]}")
    except (OSError, ValueError, KeyError) as error:
        say(f"{name}: its result cannot be kept: {type(error).__name__} {error}")
    return False


def measure_all(flags):
    """What is not measured yet. The names of those that failed."""
    out = flags.out.resolve()
    make_inputs(flags)
    todo = [regime for regime in flags.regimes if not is_measured(out, regime.name, regime.shown_command(flags.blocks))]
    left_s = sum(expected_s(regime, flags.blocks) for regime in todo)
    say(f"{len(todo)} of {len(flags.regimes)} regimes to measure, about {minutes(left_s)}")
    took_s, expected_so_far_s, failed = 0, 0, []
    for regime in flags.regimes:
        if regime in todo:
            usual_s = expected_s(regime, flags.blocks)
            say(f"{time.strftime('%H:%M:%S')} {regime.name}, {regime.link}, {regime.workload}: about {minutes(usual_s)}")
            record = measure(regime, flags.firkin, flags.blocks, out, flags.limit or 4 * usual_s)
            took_s, expected_so_far_s, left_s = took_s + record["seconds"], expected_so_far_s + usual_s, left_s - usual_s
            say(f"{regime.name}: {record['status']}, {minutes(record['seconds'])}, load {record['load_before']} then {record['load_after']}, "
                f"others on {record['busy_cores_of_others']} cores; about {minutes(left_s * took_s / expected_so_far_s)} left")
        measured_now = json.loads(run_file(out, regime.name).read_text())["status"] == MEASURED
        if not kept(flags, regime.name) or not measured_now:
            failed.append(regime.name)
    return failed


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends what runs, as Ctrl-C does
    try:
        flags = parse(sys.argv[1:])
        if flags.list:
            list_regimes(flags)
            return 0
        failed = [] if flags.page else measure_all(flags)
        written = write_page(all_regimes(), flags.docs, flags.data)
        if failed:
            say(f"not measured: {', '.join(failed)}; the logs are {flags.out}/NAME.log")
        return 0 if written and not failed else 1
    except Usage as error:
        say(error)
        return 2
    except KeyboardInterrupt:
        say("interrupted; the same command continues from here")
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
