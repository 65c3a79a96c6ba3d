"""Runs one regime within a time limit, and records how it went.

OUT/NAME/results.json is firkin tune's, OUT/NAME/run.json this file's; OUT/NAME.log is what was printed.
"""

import json
import os
import pathlib
import resource
import signal
import subprocess
import time

GRACE_S = 20  # from SIGTERM to SIGKILL; lab/run itself gives its hosts 5 s
MEASURED = "measured"


def run_file(out, name):
    return pathlib.Path(out) / name / "run.json"


def is_measured(out, name, shown_command):
    """Whether the folder has a complete result of exactly this command."""
    try:
        run = json.loads(run_file(out, name).read_text())
        result = json.loads((pathlib.Path(out) / name / "results.json").read_text())
    except (OSError, ValueError):
        return False
    return run.get("status") == MEASURED and run.get("command") == shown_command and result.get("complete") is True


def write_atomically(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data if isinstance(data, bytes) else data.encode())
    temporary.replace(path)


def busy_core_seconds():
    """What all processes of the machine have computed, in user and kernel mode."""
    fields = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return sum(map(int, fields[1:4])) / os.sysconf("SC_CLK_TCK")


def own_core_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def end_group(process):
    """SIGTERM, and SIGKILL for who has not ended; a lab's hosts end with lab/run."""
    for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(patience_s)
            return
        except subprocess.TimeoutExpired:
            continue


def run_limited(command, limit_s, folder, log):
    """Runs it in the folder. How it ended: MEASURED, or one line that says why not."""
    with open(log, "wb") as file:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            end_group(process)
            return f"ended after its limit of {limit_s:.0f} s"
        except BaseException:  # Ctrl-C: what was started ends with this program
            end_group(process)
            raise
    if code == 0:
        return MEASURED
    said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"exit code {code}: {said[-1].strip() if said else 'it said nothing'}"


def measure(regime, firkin, blocks, out, limit_s):
    """Runs the regime in OUT, where inputs/ is. Returns its record, which is OUT/NAME/run.json as well: seconds, and load averages of a minute."""
    out = pathlib.Path(out)
    run_file(out, regime.name).unlink(missing_ok=True)
    started, busy, own, load = time.monotonic(), busy_core_seconds(), own_core_seconds(), os.getloadavg()[0]
    status = run_limited(regime.command(firkin, blocks), limit_s, out, out / f"{regime.name}.log")
    seconds = time.monotonic() - started
    others = (busy_core_seconds() - busy - (own_core_seconds() - own)) / seconds
    record = {"name": regime.name, "status": status, "command": regime.shown_command(blocks), "blocks": blocks, "seconds": round(seconds, 1),
              "load_before": round(load, 2), "load_after": round(os.getloadavg()[0], 2), "busy_cores_of_others": round(max(others, 0), 2)}
    write_atomically(run_file(out, regime.name), json.dumps(record, indent=1) + "\n")
    return record
