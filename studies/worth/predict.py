"""firkin predict, as a function."""

import json
import pathlib
import subprocess
import tempfile

MIB = 1 << 20


def predict(firkin, tensors_csv, allreduce_csv, ranks, caps=(), rule="close-when-full", forward_s=None):
    """The result of `firkin predict --json`, with sharded where forward is known; `caps` in bytes, in the order of the result's curve. The best cap and plan have no bucket
    larger than what was measured."""
    largest = max(int(line.partition(",")[0]) for line in allreduce_csv.splitlines()[1:])
    with tempfile.TemporaryDirectory() as folder:
        tensors, allreduce = pathlib.Path(folder) / "tensors.csv", pathlib.Path(folder) / "allreduce.csv"
        tensors.write_text(tensors_csv)
        allreduce.write_text(allreduce_csv)
        command = [firkin, "predict", "--tensors", tensors, "--allreduce", allreduce, "--world", str(ranks), "--rule", rule, "--json",
                   "--max-bucket", f"{largest}B"]  # fmt: skip
        distinct = list(dict.fromkeys(round(cap) for cap in caps))
        if distinct:
            command += ["--cap", ",".join(f"{cap}B" for cap in distinct)]
        if forward_s is not None:
            command += ["--forward", f"{forward_s!r}s", "--sharded"]
        result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        if distinct:
            result["curve"] = [result["curve"][distinct.index(round(cap))] for cap in caps]
        return result


def without_needs(tensors_csv):
    """The same profile for a prediction of caps alone, which takes a tenth of the time."""
    return "".join(line.rpartition(",")[0] + "\n" for line in tensors_csv.splitlines())
