"""Vega-Lite charts to image files, with vl-convert: no browser, no network.

Usage: render_charts.py CHARTS.json png|svg FOLDER      CHARTS.json: [{"id": "curve", "spec": {...}}, ...] -> FOLDER/curve.png

Each file is written beside its place and then moved there, so that an interrupted run leaves none or a whole one.
"""

import json
import os
import pathlib
import sys

import vl_convert

VEGA_LITE = "6.4"


def rendered(spec: dict, image_format: str) -> bytes:
    if image_format == "svg":
        return vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE).encode()
    return vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=2)


def main() -> None:
    charts, image_format, folder = sys.argv[1:]
    for chart in json.loads(pathlib.Path(charts).read_text(encoding="utf-8")):
        target = pathlib.Path(folder) / f"{chart['id']}.{image_format}"
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            temporary.write_bytes(rendered(chart["spec"], image_format))
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
