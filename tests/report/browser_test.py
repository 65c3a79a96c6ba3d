"""The pages in headless Chromium: every chart draws, and nothing goes wrong or out.

FIRKIN names the binary; browser.py says which browser. Skipped where there is none.
"""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from browser import CHROMIUM, open_page, requests_elsewhere

FIRKIN = os.environ["FIRKIN"]
DATA = pathlib.Path(__file__).parent / "data"
RESULTS = DATA / "tune.json"
REPORT_CHARTS = ["curve", "allreduce", "ready", "strategies"]
HEAT_MAPS = ["sensitivity-time", "sensitivity-cap"]


@unittest.skipUnless(CHROMIUM, "no chromium on this machine")
class Page(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def report(self):
        page = self.folder / "report.html"
        subprocess.run([FIRKIN, "report", str(RESULTS), "--html", str(page)], check=True, capture_output=True, timeout=60)
        return page

    def prediction(self):
        (self.folder / "t.csv").write_text("name,bytes,ready_s\n" + "".join(f"w{i},{1 << 20},{i / 100}\n" for i in range(40)))
        (self.folder / "a.csv").write_text("bytes,world_size,median_s\n1024,8,0.001\n1073741824,8,0.5\n")
        command = [FIRKIN, "predict", "--tensors", "t.csv", "--allreduce", "a.csv", "--comm-slowdown", "1.2", "--sensitivity", "--out", "."]
        subprocess.run(command, check=True, capture_output=True, timeout=60, cwd=self.folder)
        return self.folder / "report.html"

    def open(self, page, width, height):
        return open_page(page.as_uri(), width, height, self.folder)

    def check(self, page, charts, width, height):
        document, log = self.open(page, width, height)
        self.assertIn('data-charts="drawn"', document)
        for chart in charts:
            drawn = re.search(rf'id="chart-{chart}"[^>]*data-state="drawn".*?<svg(.*?)</svg>', document, re.DOTALL)
            self.assertIsNotNone(drawn, chart)
            self.assertGreater(drawn[1].count("<path"), 5, chart)  # axes, and marks
        self.assertNotIn("NaN", re.sub(r"<script.*?</script>", "", document, flags=re.DOTALL))
        self.assertNotRegex(log, r"CONSOLE.*(Error|Refused|violates|Infinite extent)")

    def test_all_charts_draw_in_a_wide_window(self):
        self.check(self.report(), REPORT_CHARTS, 1400, 1000)

    def test_all_charts_draw_in_a_narrow_window(self):
        self.check(self.report(), REPORT_CHARTS, 380, 800)

    def test_the_page_of_every_command_has_an_answer_a_chart_and_no_errors(self):
        """On a laptop and on a telephone: a headline, a chart that is drawn, nothing on the console, nothing from the network."""
        files = sorted(DATA.glob("*.json"))
        self.assertGreaterEqual(len(files), 6)
        for file in files:
            page = self.folder / f"{file.stem}.html"
            subprocess.run([FIRKIN, "report", str(file), "--html", str(page)], check=True, capture_output=True, timeout=60)
            for width, height in [(1280, 800), (390, 844)]:
                with self.subTest(page=file.stem, width=width):
                    document, log = self.open(page, width, height)
                    self.assertRegex(document, r"<h1>[^<]{20,}</h1>")
                    self.assertIn('data-charts="drawn"', document)
                    self.assertGreaterEqual(document.count('data-state="drawn"'), 1)
                    self.assertEqual(document.count('class="save" hidden'), 0)
                    self.assertNotRegex(log, r"CONSOLE.*(Error|Refused|violates|Uncaught|Infinite extent)")
                    self.assertEqual(requests_elsewhere(self.folder), [])

    def test_the_setting_to_paste_has_a_menu_of_frameworks(self):
        document, _ = self.open(self.report(), 1280, 800)
        section = re.search(r'<section class="paste".*?</section>', document, re.DOTALL)[0]
        self.assertGreaterEqual(section.count("<option"), 7)
        self.assertEqual(len(re.findall(r'<div data-tool="[^"]+">', section)), 1)  # the others are hidden
        self.assertNotRegex(section, r"<(label|button)[^>]* hidden")

    def test_on_a_telephone_the_setting_to_paste_is_not_cut(self):
        page = self.report()
        measured = "document.body.dataset.cut = [...document.querySelectorAll('.paste pre')].filter(pre => pre.scrollWidth > pre.clientWidth).length"
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
        page.write_text(text.replace("</body>", f"<script>{measured}</script></body>"), encoding="utf-8")
        document, _ = self.open(page, 390, 844)
        self.assertIn('data-cut="0"', document)

    def test_several_results_share_a_page(self):
        page = self.folder / "several.html"
        files = [str(DATA / name) for name in ("tune.json", "bench-chunks.json", "bench-allreduce.json")]
        subprocess.run([FIRKIN, "report", *files, "--html", str(page)], check=True, capture_output=True, timeout=60)
        self.check(page, ["curve", "chunks-2", "allreduce-3"], 1280, 800)

    def test_trainings_share_charts(self):
        files = []
        for name in ("first", "second"):
            (self.folder / name).mkdir()
            (self.folder / name / "results.json").write_bytes((DATA / "train.json").read_bytes())
            files.append(str(self.folder / name))
        page = self.folder / "trainings.html"
        subprocess.run([FIRKIN, "report", *files, "--html", str(page)], check=True, capture_output=True, timeout=60)
        self.check(page, ["losses", "speeds"], 1280, 800)

    def test_the_curve_and_all_heat_maps_of_a_prediction_draw(self):
        self.check(self.prediction(), ["predicted", *HEAT_MAPS], 1200, 1000)


if __name__ == "__main__":
    unittest.main()
