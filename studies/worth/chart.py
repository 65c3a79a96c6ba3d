"""The two heat maps, with the report's own template and tools."""

import copy
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHARTS = json.loads((ROOT / "src/report/charts.json").read_text(encoding="utf-8"))
NOTHING = 0.005  # less than half a percent is shown as 0, on grey
DARKEST = 0.6


def gain(cell):
    """What the best cap saves of the default's step."""
    return 1 - cell["best_s"] / cell["rules_s"]["pytorch"]


def ordered_gain(cell):
    """What `ordered` saves of the best cap's step."""
    return 1 - cell["ordered_s"] / cell["best_s"]


def heat_map(cells, value, title):
    spec = copy.deepcopy(CHARTS["heat_map"])
    encoding, (fill, text) = spec["encoding"], spec["layer"]
    del encoding["tooltip"]
    encoding["x"]["axis"] |= {"title": None, "labelLimit": 120}
    encoding["y"]["axis"] |= {"title": None}
    fill["encoding"] = {
        "color": {"condition": {"test": f"datum.shade < {NOTHING}", "value": "#8a97a6"}, "value": "#0b6bb5"},
        "opacity": {"field": "shade", "type": "quantitative", "legend": None, "scale": {"domain": [0, DARKEST], "range": [0.22, 0.6], "clamp": True}},
    }
    rows = [{"cluster": cell["cluster"], "row": str(cell["ranks"]), "column": cell["model"], "shade": value(cell),
             "label": f"{100 * value(cell):.0f} %".replace("-0 %", "0 %")} for cell in cells]  # fmt: skip
    return {
        "$schema": spec["$schema"],
        "title": {"text": title, "anchor": "start", "fontSize": 14, "offset": 12},
        "data": {"values": rows},
        "facet": {"row": {"field": "cluster", "type": "nominal", "sort": list(dict.fromkeys(cell["cluster"] for cell in cells)), "title": None,
                          "header": {"labelAngle": 0, "labelAlign": "left", "labelFontSize": 12, "labelColor": "#1d2733", "labelLimit": 200}}},
        "resolve": {"scale": {"y": "independent"}, "axis": {"x": "shared"}},
        "spacing": 7,
        "spec": {"width": 640, "height": {"step": 22}, "encoding": encoding, "layer": [fill, text]},
        "padding": 12,
        "config": {**CHARTS["config"], "background": "white"},
    }  # fmt: skip


def write(cells, folder):
    """Needs vl-convert-python."""
    sys.path.insert(0, str(ROOT / "tools"))
    from render_charts import rendered

    maps = {
        "worth_best_cap": (gain, "Step time that the best bucket cap saves over PyTorch's default, by ranks and model (predicted)"),
        "worth_ordered": (ordered_gain, "Step time that ordered communication saves over the best bucket cap (predicted)"),
    }
    for name, (value, title) in maps.items():
        (pathlib.Path(folder) / f"{name}.svg").write_bytes(rendered(heat_map(cells, value, title), "svg"))
