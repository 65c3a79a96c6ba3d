"""The program as a user starts it: what the tests of this folder share. FIRKIN names the binary."""

import contextlib
import json
import os
import re
import subprocess

from folders import InAFolder
from ports import reserved_port
from processes import DEADLINE_S
from render_charts import charts_of_page, rendered

FIRKIN = os.environ["FIRKIN"]
# A model that steps in a few milliseconds.
TINY = ["--d-model", "32", "--d-ff", "64", "--num-layers", "2"]
TINY_MODEL = [*TINY, "--batch", "1", "--sequence", "16"]


def firkin(*words, **options):
    return subprocess.run([FIRKIN, *map(str, words)], capture_output=True, text=True, timeout=DEADLINE_S, **options)


@contextlib.contextmanager
def launched(*commands, **variables):
    """One process for each command, as a launcher starts the ranks of a group."""
    kept = {name: value for name, value in os.environ.items() if name != "TORCH_CPP_LOG_LEVEL"}
    with reserved_port() as port:
        meeting = kept | {"WORLD_SIZE": str(len(commands)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} | variables
        yield [subprocess.Popen([FIRKIN, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                env=meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank, words in enumerate(commands)]  # fmt: skip


class InFolder(InAFolder):
    def assert_succeeds(self, *words, **options):
        result = firkin(*words, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def results(self):
        return json.loads((self.out / "results.json").read_text())

    def assert_refused(self, *words, mentions, **options):
        """Exit code 2, one line that says why, and nothing else."""
        result = firkin(*words, **options)
        with self.subTest(words=words):
            self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.assertTrue(result.stderr.startswith("firkin: "), result.stderr)
            self.assertIn(mentions, result.stderr)

    def assert_read_whole(self, *charts):
        """`firkin report` reads all of the results that were written: they stand on its page, whose charts are these, and draw."""
        self.assert_succeeds("report", self.out / "results.json", "--out", self.folder / "again")
        page = (self.folder / "again/report.html").read_text(encoding="utf-8")
        island = re.search(r'<script type="application/json" id="results">(.*?)</script>', page, re.DOTALL)
        self.assertEqual(json.loads(island[1]), self.results())
        drawn = charts_of_page(page)
        self.assertEqual(tuple(drawn), charts)
        for name, spec in drawn.items():
            svg = rendered(spec, "svg").decode()
            self.assertGreater(svg.count("<path"), 5, name)
            self.assertIsNone(re.search(r".{60}(NaN|undefined|null)", svg), name)
