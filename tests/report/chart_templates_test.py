"""Every chart template draws with the rows of chart_examples.json: in light colours, alone and with the shared look."""

import json
import pathlib
import re
import sys
import unittest

import vl_convert

SOURCE = pathlib.Path(__file__).parents[2]
REPORT = SOURCE / "src" / "report"
EXAMPLES = SOURCE / "tests" / "report" / "chart_examples.json"
sys.path.insert(0, str(SOURCE / "tools"))
from render_charts import VEGA_LITE, charts_of_page, coloured, light_colours  # noqa: E402


def references(value):
    """The names of all data sets that a specification draws from."""
    if isinstance(value, list):
        return {name for child in value for name in references(child)}
    if not isinstance(value, dict):
        return set()
    own = {value["data"]["name"]} if isinstance(value.get("data"), dict) and "name" in value["data"] else set()
    return own | {name for key, child in value.items() if key != "datasets" for name in references(child)}


class Templates(unittest.TestCase):
    def setUp(self):
        colours = light_colours((REPORT / "page.html").read_text(encoding="utf-8"))
        self.specs = json.loads(coloured((REPORT / "charts.json").read_text(encoding="utf-8"), colours))
        self.config = self.specs.pop("config")
        self.assertGreaterEqual(len(self.specs), 4)
        for name, rows in json.loads(EXAMPLES.read_text(encoding="utf-8")).items():
            self.assertEqual(set(self.specs[name]["datasets"]), set(rows))
            self.specs[name]["datasets"] = rows

    def check_drawing(self, name, spec):
        svg = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)
        with self.subTest(name):
            self.assertGreater(svg.count("<path"), 5)
            self.assertIsNone(re.search(r".{60}(NaN|undefined|null)", svg))

    def test_a_template_draws_alone(self):
        for name, spec in self.specs.items():
            self.check_drawing(name, spec)

    def test_a_template_draws_with_the_shared_look(self):
        for name, spec in self.specs.items():
            self.check_drawing(name, {**spec, "config": self.config})

    def test_a_template_draws_every_one_of_its_data_sets(self):
        for name, spec in self.specs.items():
            with self.subTest(name):
                self.assertEqual(set(spec["datasets"]), references(spec))

    def test_a_template_says_what_it_shows(self):
        for name, spec in self.specs.items():
            with self.subTest(name):
                self.assertEqual(spec["$schema"], "https://vega.github.io/schema/vega-lite/v6.json")
                self.assertGreater(len(spec["description"]), 20)

    def test_the_charts_of_a_page_become_files_of_their_own(self):
        spec = {"config": {}, "autosize": {"contains": "padding"}, "width": "container", "mark": {"type": "bar", "color": "var(--chart-measured)"}}
        island = json.dumps([{"id": "curve", "title": "A title", "spec": spec}])
        page = f':root {{ --chart-ink: #111111; --chart-surface: #ffffff; --chart-measured: #c8500a; }}<script type="application/json" id="charts">{island}</script>'
        chart = charts_of_page(page)["curve"]
        self.assertEqual((chart["title"]["text"], chart["title"]["color"], chart["width"]), ("A title", "#111111", 820))
        self.assertEqual((chart["mark"]["color"], chart["background"]), ("#c8500a", "#ffffff"))
