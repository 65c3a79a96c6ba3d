"""The study's modules, and a recorded result to make pages from.

Of a replay of four tensors over a modelled link of 500 Mbit/s: 8 blocks, on a busy machine.
"""

import gzip
import json
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
STUDY = HERE.parents[1] / "studies" / "validation"
RECORDED = HERE / "data" / "recorded"

sys.dont_write_bytecode = True
sys.path.insert(0, str(STUDY))


def study(*words):
    """Where pages go to --docs, results are kept beside them."""
    words = list(words)
    if "--docs" in words:
        words += ["--data", pathlib.Path(words[words.index("--docs") + 1]) / "validation"]
    return subprocess.run([sys.executable, STUDY / "study.py", *map(str, words)], capture_output=True, text=True)


def result():
    return json.loads(gzip.decompress((RECORDED / "results.json.gz").read_bytes()))


def place(docs, name, change=None):
    """The recorded result as that of a regime, changed if asked."""
    kept = pathlib.Path(docs) / "validation" / name
    shutil.copytree(RECORDED, kept)
    if change:
        changed = result()
        change(changed)
        (kept / "results.json.gz").write_bytes(gzip.compress(json.dumps(changed).encode()))
    return kept
