"""What a chart template says of itself. That it draws is for the tests of the commands whose pages have it to say (tests/cli/program.py)."""

import json
import pathlib
import unittest

SOURCE = pathlib.Path(__file__).parents[2]
REPORT = SOURCE / "src" / "report"
from render_charts import charts_of_page, coloured, light_colours


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
        del self.specs["config"]  # the look that all share
        self.assertGreaterEqual(len(self.specs), 4)

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
