"""Charts to image files, with the wheel vl-convert-python: no browser, no network.

Usage: render_charts.py REPORT.html png|svg FOLDER        the charts of a page that firkin wrote -> FOLDER/curve.png

Each file is written beside its place and then moved there, so that an interrupted run leaves none or a whole one.
"""

import json
import os
import pathlib
import re
import sys

import vl_convert

VEGA_LITE = "6.4"


def rendered(spec: dict, image_format: str) -> bytes:
    if image_format == "svg":
        return vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE).encode()
    return vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=2)


def light_colours(page: str) -> dict[str, str]:
    return dict(re.findall(r"(--chart-\w+): *(#\w+);", page[page.index(":root {"):].partition("}")[0]))


def coloured(text: str, colours: dict[str, str]) -> str:
    return re.sub(r"var\((--chart-\w+)\)", lambda match: colours[match[1]], text)


def charts_of_page(page: str) -> dict[str, dict]:
    """A file has no page around it: the light page's colours, a background, a title, a width. The page's own script does the same."""
    colours = light_colours(page)
    island = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    charts = {}
    for chart in json.loads(coloured(island[1], colours)):
        title = {"text": chart["title"], "anchor": "start", "color": colours["--chart-ink"], "fontSize": 15, "offset": 12}
        spec = {**chart["spec"], "title": title, "width": 820, "padding": 16, "background": colours["--chart-surface"]}
        spec["autosize"] = {**spec["autosize"], "type": "fit-x"}
        spec["config"] = {**spec["config"], "font": "DejaVu Sans, sans-serif"}
        charts[chart["id"]] = spec
    return charts


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    source, image_format, folder = sys.argv[1:]
    text = pathlib.Path(source).read_text(encoding="utf-8")
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    for name, spec in charts_of_page(text).items():
        target = pathlib.Path(folder) / f"{name}.{image_format}"
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            temporary.write_bytes(rendered(spec, image_format))
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        print(f"wrote {target}")


if __name__ == "__main__":
    main()
