"""The report in headless Chromium: every chart draws, and nothing goes wrong or out.

FIRKIN names the binary; CHROMIUM the browser (default: chromium on the path; the test is skipped where there is none).
"""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

FIRKIN = os.environ["FIRKIN"]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
RESULTS = pathlib.Path(__file__).parent / "data" / "tune.json"


@unittest.skipUnless(CHROMIUM, "no chromium on this machine")
class Page(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def open(self, width, height):
        """The page's document after its scripts ran, and what the browser logged."""
        page = self.folder / "report.html"
        subprocess.run([FIRKIN, "report", str(RESULTS), "--html", str(page)], check=True, capture_output=True, timeout=60)
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--enable-logging=stderr"]
        command += ["--disable-background-networking", "--disable-component-update", "--disable-sync", f"--window-size={width},{height}"]
        command += [f"--user-data-dir={self.folder / 'profile'}", "--virtual-time-budget=10000", "--dump-dom", page.as_uri()]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return result.stdout, result.stderr

    def check(self, width, height):
        document, log = self.open(width, height)
        self.assertIn('data-charts="drawn"', document)
        for chart in ["curve", "allreduce", "ready", "strategies"]:
            drawn = re.search(rf'id="chart-{chart}"[^>]*data-state="drawn".*?<svg(.*?)</svg>', document, re.DOTALL)
            self.assertIsNotNone(drawn, chart)
            self.assertGreater(drawn[1].count("<path"), 5, chart)  # axes, and marks
        self.assertNotIn("NaN", re.sub(r"<script.*?</script>", "", document, flags=re.DOTALL))
        self.assertNotRegex(log, r"CONSOLE.*(Error|Refused|violates)")

    def test_all_charts_draw_in_a_wide_window(self):
        self.check(1400, 1000)

    def test_all_charts_draw_in_a_narrow_window(self):
        self.check(380, 800)


if __name__ == "__main__":
    unittest.main()
