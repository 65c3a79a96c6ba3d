"""The architecture as a picture: which module includes which, from the sources, and what each is for, from CONTRIBUTING.md.

Usage: module_picture.py REPOSITORY > docs/images/modules.svg      a test (module_picture) compares the two

A row for every module, from top to bottom; a mark in a column means that a file of the row's module includes a header of
the column's. All marks lie left of the diagonal: includes go down only.
"""

import html
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/tools"))
from check_layering import INCLUDE, ROOMS, WITHOUT_LIBTORCH  # noqa: E402

ROW, LEFT, MATRIX, TOP, COLUMN = 30, 14, 672, 92, 26  # pixels
TEXT, MUTED, LINE, MARK, OWN = "#1d2733", "#5b6775", "#d9e0e8", "#0b6bb5", "#9fb3c8"


def included_rooms(root: pathlib.Path, room: str) -> set[str]:
    files = [file for folder in ("include/firkin", "src") for file in (root / folder / room).rglob("*") if file.suffix in (".h", ".cpp")]
    headers = [match[1] for file in files for line in file.read_text().splitlines() if (match := INCLUDE.match(line))]
    return {header.removeprefix("firkin/").split("/")[0] for header in headers} & set(ROOMS) - {room}


def purposes(root: pathlib.Path) -> dict[str, str]:
    """What CONTRIBUTING.md's list says of each room."""
    found = re.findall(r"(?m)^(\w+)/ +(\S.*)$", (root / "CONTRIBUTING.md").read_text())
    return {room: text.removesuffix(" (installed)") for room, text in found}


def text(x: float, y: float, words: str, style: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" {style}{more}>{html.escape(words)}</text>'


def picture(root: pathlib.Path) -> str:
    rooms = [room for room in reversed(ROOMS) if (root / "src" / room).is_dir()]
    columns = list(reversed(rooms))
    what = purposes(root)
    width, height = MATRIX + COLUMN * len(columns) + LEFT, TOP + ROW * len(rooms) + 34
    code, plain = f'font-family="monospace" font-size="14" fill="{TEXT}"', f'font-family="sans-serif" font-size="12" fill="{MUTED}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
             f"<title>Modules of Firkin, and which includes which</title>", f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
             text(LEFT, 30, "Which module includes which", f'font-family="sans-serif" font-size="17" font-weight="600" fill="{TEXT}"')]  # fmt: skip
    for i, column in enumerate(columns):
        x = MATRIX + COLUMN * (i + 0.5) + 4
        parts.append(text(x, TOP - 8, column, code.replace("14", "12"), f' transform="rotate(-55 {x} {TOP - 8})"'))
    for j, room in enumerate(rooms):
        y, includes = TOP + ROW * j, included_rooms(root, room)
        if room in WITHOUT_LIBTORCH and rooms[j - 1] not in WITHOUT_LIBTORCH:
            parts.append(f'<line x1="{LEFT}" x2="{width - LEFT}" y1="{y}" y2="{y}" stroke="{MUTED}" stroke-dasharray="5 4"/>')
        else:
            parts.append(f'<line x1="{LEFT}" x2="{width - LEFT}" y1="{y}" y2="{y}" stroke="{LINE}"/>')
        parts += [text(LEFT, y + 20, f"{room}/", code), text(LEFT + 96, y + 20, what.get(room, ""), plain)]
        for i, column in enumerate(columns):
            if column == room or column in includes:
                fill = OWN if column == room else MARK
                parts.append(f'<rect x="{MATRIX + COLUMN * i + 5}" y="{y + 7}" width="16" height="16" rx="3" fill="{fill}"/>')
    parts += [text(LEFT, height - 12, "A blue mark: a file of the row's module includes a header of the column's. Grey: the module itself. "
                   "Below the dashed line nothing knows LibTorch.", plain), "</svg>"]  # fmt: skip
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(picture(pathlib.Path(sys.argv[1])), end="")
