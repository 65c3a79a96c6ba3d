"""One regime of the study from beginning to end: measured, kept, on the page; and skipped the second time. It needs no network namespaces."""

import os

import recorded
from folders import InAFolder

REGIME = "512-gpus-gpt2-large"


class OneRegime(InAFolder):
    def test_is_measured_once_and_stands_on_the_page(self):
        out, docs = self.folder / "out", self.folder / "docs"
        words = [os.environ["FIRKIN"], "--only", REGIME, "--blocks", "4", "--limit", "400", "--out", out, "--docs", docs]
        first = recorded.study(*words)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertIn("1 of 1 regimes to measure", first.stderr)
        page = (docs / "validation.md").read_text()
        self.assertIn(f"validation/{REGIME}/report.md", page)
        self.assertIn(f"# {REGIME}", (docs / "validation" / REGIME / "report.md").read_text())
        self.assertNotIn(str(self.folder), page)
        kept = {path.name for path in (docs / "validation" / REGIME).iterdir()}
        self.assertEqual(kept, {"run.json", "results.json.gz", "prediction.json.gz", "curve.svg", "report.md"})

        again = recorded.study(*words)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("0 of 1 regimes to measure", again.stderr)
        self.assertEqual((docs / "validation.md").read_text(), page)
