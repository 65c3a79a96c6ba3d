"""What of a measured regime is kept beside the page: its whole result with the raw samples, a prediction of other rules' buckets, and its picture.

DATA/NAME/ gets run.json, results.json.gz and prediction.json.gz, PAGES/NAME/ curve.svg. A regime that was not measured keeps its run.json alone, which says
why.
"""

import gzip
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from measure import MEASURED, write_atomically


def calibration_flags(calibration):
    """Of firkin predict, for what firkin tune calibrated."""
    flags = ["--compute-slowdown", calibration["compute_slowdown"], "--overhead", f'{calibration["overhead_s"]}s', "--latency-factor", calibration["latency_factor"]]
    return [str(flag) for flag in flags]


def predict(firkin, measured, result):
    """What the calibrated model says of the measured caps and of the rules that tune does not run, as JSON text."""
    caps = ",".join(f"{row['cap_mib']}MiB" for row in result["curve"])
    command = [str(firkin), "predict", "--tensors", "tensors.csv", "--allreduce", "allreduce.csv", "--cap", caps,
               *calibration_flags(result["calibration"]), "--json"]
    return subprocess.run(command, cwd=measured, check=True, capture_output=True).stdout


def draw(firkin, measured, scratch):
    """The chart of T(b), as SVG. Needs vl-convert-python."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
    from render_charts import charts_of_page, rendered

    command = [str(firkin), "report", str(measured / "results.json"), "--out", str(scratch)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    page = (pathlib.Path(scratch) / "report.html").read_text(encoding="utf-8")
    return rendered(charts_of_page(page)["curve"], "svg")


def without_names(result):
    """Hosts are called as in a lab, whatever the machine is called."""
    for index, host in enumerate(result["environment"]["hosts"]):
        host["host"] = f"host{index}"
    return result


def compressed(data):
    return gzip.compress(data, 9, mtime=0)  # equal data, equal file


def keep(firkin, out, name, data, pages):
    """Replaces what was kept of the regime: DATA/NAME and the picture in PAGES/NAME. Raises OSError, ValueError, KeyError or subprocess.CalledProcessError when its result is not usable."""
    measured, kept = pathlib.Path(out) / name, pathlib.Path(data) / name
    files = {"run.json": (measured / "run.json").read_text()}
    picture = None
    if json.loads(files["run.json"])["status"] == MEASURED:
        result = without_names(json.loads((measured / "results.json").read_text()))
        with tempfile.TemporaryDirectory() as scratch:
            picture = draw(firkin, measured, scratch)
        files["prediction.json.gz"] = compressed(predict(firkin, measured, result))
        files["results.json.gz"] = compressed(json.dumps(result).encode())
    shutil.rmtree(kept, ignore_errors=True)
    for file, content in files.items():
        write_atomically(kept / file, content)
    if picture:
        write_atomically(pathlib.Path(pages) / name / "curve.svg", picture)
