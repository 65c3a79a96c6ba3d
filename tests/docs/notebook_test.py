"""The notebook for CMSC 828G is executed, and prints what it was stored with; its model is that of `firkin predict`.

Needs nbclient and matplotlib, which tools/bootstrap test-all installs in .venv.
`notebook_test.py --store` stores what it prints now.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import pytest

ROOT = pathlib.Path(os.environ.get("FIRKIN_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
nbclient = pytest.importorskip("nbclient", reason="no nbclient: tools/bootstrap test-all installs it")
import nbformat

NOTEBOOK = ROOT / "examples/cmsc828g/assignment2.ipynb"
COURSE = ["allreduce-times.csv", "layer-sizes-gpt2_large-bs4.csv", "layer-times-gpt2_large-bs4.csv"]


def printed(notebook) -> list[str]:
    return [output.text for cell in notebook.cells for output in cell.get("outputs", []) if output.output_type == "stream"]


def executed():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", coalesce_streams=True, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when each cell ran
    return notebook


class Notebook(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stored, cls.now = nbformat.read(NOTEBOOK, as_version=4), executed()

    def test_it_prints_what_is_stored(self):
        self.assertGreater(len(printed(self.stored)), 3)
        self.assertEqual(printed(self.now), printed(self.stored))

    def test_it_draws_its_two_figures(self):
        for notebook in (self.stored, self.now):
            figures = [output for cell in notebook.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
            self.assertEqual(len(figures), 2)

    def test_its_model_is_that_of_predict(self):
        firkin = os.environ["FIRKIN"]
        rows = re.findall(r"b = +(\d+) MiB: +(\d+) buckets, T = (\d+) ms", printed(self.now)[0])
        self.assertGreaterEqual(len(rows), 5)
        with tempfile.TemporaryDirectory() as folder:
            files = [str(ROOT / "data/cmsc828g" / name) for name in COURSE]
            subprocess.run([firkin, "import", "--out", folder, *files], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            predict = [firkin, "predict", "--tensors", f"{folder}/tensors.csv", "--allreduce", f"{folder}/allreduce.csv", "--cap"]
            text = subprocess.run([*predict, ",".join(f"{mib}MiB" for mib, _, _ in rows)], check=True, stdout=subprocess.PIPE, text=True).stdout
        for row in rows:
            self.assertRegex(text, r"(?m)^ +{} +{} +{} ms".format(*row))


if __name__ == "__main__" and sys.argv[1:] == ["--store"]:
    nbformat.write(executed(), NOTEBOOK)
