"""The two heat maps, in the colours of the report's page."""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
NOTHING = 0.005  # less than half a percent is shown as 0, on grey
DARKEST = 0.6


def gain(cell):
    """What the best cap saves of the default's step."""
    return 1 - cell["best_s"] / cell["rules_s"]["pytorch"]


def ordered_gain(cell):
    """What `ordered` saves of the best cap's step."""
    return 1 - cell["ordered_s"] / cell["best_s"]


def heat_map(cells, value, title, config):
    def axis(field, where):
        return {"field": field, "type": "ordinal", "sort": None, "scale": {"paddingInner": 0.04, "paddingOuter": 0},
                "axis": {"title": None, "labelPadding": 6} | where}  # fmt: skip

    encoding = {"x": axis("column", {"orient": "top", "labelLimit": 120}), "y": axis("row", {})}
    fill = {"mark": {"type": "rect", "cornerRadius": 3, "color": "#0b6bb5"}, "encoding": {
        "color": {"condition": {"test": f"datum.shade < {NOTHING}", "value": "#8a97a6"}, "value": "#0b6bb5"},
        "opacity": {"field": "shade", "type": "quantitative", "legend": None, "scale": {"domain": [0, DARKEST], "range": [0.22, 0.6], "clamp": True}},
    }}  # fmt: skip
    text = {"mark": "text", "encoding": {"text": {"field": "label"}, "color": {"value": "#1d2733"}}}
    rows = [{"cluster": cell["cluster"], "row": str(cell["ranks"]), "column": cell["model"], "shade": value(cell),
             "label": f"{100 * value(cell):.0f} %".replace("-0 %", "0 %")} for cell in cells]  # fmt: skip
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "title": {"text": title, "anchor": "start", "fontSize": 14, "offset": 12},
        "data": {"values": rows},
        "facet": {"row": {"field": "cluster", "type": "nominal", "sort": list(dict.fromkeys(cell["cluster"] for cell in cells)), "title": None,
                          "header": {"labelAngle": 0, "labelAlign": "left", "labelFontSize": 12, "labelColor": "#1d2733", "labelLimit": 200}}},
        "resolve": {"scale": {"y": "independent"}, "axis": {"x": "shared"}},
        "spacing": 7,
        "spec": {"width": 640, "height": {"step": 22}, "encoding": encoding, "layer": [fill, text]},
        "padding": 12,
        "config": {**config, "background": "white"},
    }  # fmt: skip


def write(cells, folder):
    """Needs vl-convert-python."""
    from render_charts import coloured, light_colours, rendered

    report = ROOT / "src/report"
    colours = light_colours((report / "page.html").read_text(encoding="utf-8"))
    config = json.loads(coloured((report / "charts.json").read_text(encoding="utf-8"), colours))["config"]
    maps = {
        "worth_best_cap": (gain, "Step time that the best bucket cap saves over PyTorch's default, by ranks and model (predicted)"),
        "worth_ordered": (ordered_gain, "Step time that ordered communication saves over the best bucket cap (predicted)"),
    }
    for name, (value, title) in maps.items():
        (pathlib.Path(folder) / f"{name}.svg").write_bytes(rendered(heat_map(cells, value, title, config), "svg"))
