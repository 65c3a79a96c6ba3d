"""The charts' templates as images, each with its example rows and the shared look.

Usage: render_chart_templates.py CHARTS_FOLDER png|svg FOLDER      src/report/charts/curve.vl.json -> FOLDER/curve.png
"""

import json
import pathlib
import sys

from render_charts import rendered


def main() -> None:
    charts, image_format, folder = sys.argv[1:]
    config = json.loads((pathlib.Path(charts) / "config.json").read_text(encoding="utf-8"))
    for path in sorted(pathlib.Path(charts).glob("*.vl.json")):
        spec = {"autosize": {"type": "fit-x", "contains": "padding"}, **json.loads(path.read_text(encoding="utf-8"))}
        spec["config"] = {**config, "background": "white"}
        (pathlib.Path(folder) / path.name.replace(".vl.json", f".{image_format}")).write_bytes(rendered(spec, image_format))


if __name__ == "__main__":
    main()
