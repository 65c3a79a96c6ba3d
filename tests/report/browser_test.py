"""The pages in headless Chromium: every chart draws, and nothing goes wrong or out.

FIRKIN names the binary; browser.py says which browser. Skipped where there is none.
"""

import os
import pathlib
import re
import subprocess
import unittest

import pytest
from browser import CHROMIUM, open_page, requests_elsewhere
from folders import InAFolder

FIRKIN = os.environ["FIRKIN"]
TUNE = pathlib.Path(__file__).parent / "data/tune.json"
REPORT_CHARTS = ["curve", "allreduce"]
TINY = ["--d-model", "32", "--d-ff", "64", "--num-layers", "2", "--batch", "1", "--sequence", "16"]
LAPTOP, TELEPHONE = (1280, 800), (390, 844)
MEASURED = {  # commands, and the charts of their pages
    ("bench", "allreduce", "-e", "4K", "--time", "0.5s"): ["allreduce"],
    ("bench", "chunks", "--elements", "4096", "--time", "0.5s"): ["chunks"],
    ("bench", "layers", "--steps", "6", *TINY): [],
    ("bench", "step", "--strategies", "flat,bucketed", "--blocks", "4", *TINY): ["steps"],
    ("trace", "--strategies", "naive,overlap", *TINY): ["timeline"],
}  # fmt: skip


def setUpModule():  # unittest's name
    if not CHROMIUM:
        raise unittest.SkipTest("no chromium on this machine")


class Browser(InAFolder):
    def run_firkin(self, *words):
        subprocess.run([FIRKIN, *map(str, words)], check=True, capture_output=True, timeout=300, cwd=self.folder)

    def page_of(self, result):
        self.run_firkin("report", result, "--out", self.folder)
        return self.folder / "report.html"

    def open(self, page, window):
        return open_page(page.as_uri(), *window, self.folder)

    def check(self, page, window, charts=()):
        """A headline, charts that are all drawn, nothing on the console, nothing from the network."""
        document, log = self.open(page, window)
        self.assertRegex(document, r"<h1>[^<]{20,}</h1>")
        self.assertIn('data-charts="drawn"', document)
        self.assertEqual(document.count('data-state="drawn"'), document.count('id="chart-'))
        self.assertEqual(document.count('class="save" hidden'), 0)
        for chart in charts:
            drawn = re.search(rf'id="chart-{chart}"[^>]*data-state="drawn".*?<svg(.*?)</svg>', document, re.DOTALL)
            self.assertIsNotNone(drawn, chart)
            self.assertGreater(drawn[1].count("<path"), 5, chart)  # axes, and marks
        self.assertNotIn("NaN", re.sub(r"<script.*?</script>", "", document, flags=re.DOTALL))
        self.assertNotRegex(log, r"CONSOLE.*(Error|Refused|violates|Uncaught|Infinite extent)")
        self.assertEqual(requests_elsewhere(self.folder), [])
        return document


class Page(Browser):
    def test_all_charts_draw_and_the_setting_to_paste_has_a_menu_of_frameworks(self):
        document = self.check(self.page_of(TUNE), LAPTOP, REPORT_CHARTS)
        section = re.search(r'<section class="paste".*?</section>', document, re.DOTALL)[0]
        self.assertGreaterEqual(section.count("<option"), 7)
        self.assertEqual(len(re.findall(r'<div data-tool="[^"]+">', section)), 1)  # the others are hidden
        self.assertNotRegex(section, r"<(label|button)[^>]* hidden")


@pytest.mark.full
class EveryPage(Browser):
    def test_every_command_on_a_laptop_and_on_a_telephone(self):
        pages = [(self.page_of(TUNE), REPORT_CHARTS)]
        (self.folder / "t.csv").write_text("name,bytes,ready_s\n" + "".join(f"w{i},{1 << 20},{i / 100}\n" for i in range(40)))
        (self.folder / "a.csv").write_text("bytes,world_size,median_s\n1024,8,0.001\n1073741824,8,0.5\n")
        commands = {("predict", "--tensors", "t.csv", "--allreduce", "a.csv"): ["predicted"]}
        if pathlib.Path(FIRKIN).with_name("firkin-measure").exists():  # a build with LibTorch
            commands |= MEASURED
        for number, (words, charts) in enumerate(commands.items()):
            self.run_firkin(*words, "--out", str(number))
            pages.append((self.folder / str(number) / "report.html", charts))
        for page, charts in pages:
            for window in (LAPTOP, TELEPHONE):
                with self.subTest(charts=charts, window=window):
                    self.check(page, window, charts)

    def test_on_a_telephone_the_setting_to_paste_is_not_cut(self):
        page = self.page_of(TUNE)
        measured = "document.body.dataset.cut = [...document.querySelectorAll('.paste pre')].filter(pre => pre.scrollWidth > pre.clientWidth).length"
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
        page.write_text(text.replace("</body>", f"<script>{measured}</script></body>"), encoding="utf-8")
        document, _ = self.open(page, TELEPHONE)
        self.assertIn('data-cut="0"', document)
