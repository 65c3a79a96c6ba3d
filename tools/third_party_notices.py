"""Makes THIRD_PARTY_NOTICES: the licences of what the program, the pages that it writes and the Python package contain of others.

Usage: third_party_notices.py [--npm NODE_MODULES] > THIRD_PARTY_NOTICES      with the Python of .venv

Every text comes from the archive of the very version: what C++ includes, from Debian's packages (libcli11-dev, libgloo-dev and
nlohmann-json3-dev, which nothing else needs) and the wheels of torch and nanobind; the pages' JavaScript, which the wheel vl-convert-python
carries without its notices, from the same modules on npm (a folder with them, or npm is asked). tests/tools/notices_test.py compares the
outcome with what is built.
"""

import argparse
import collections
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import zipfile

import vl_convert

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "src/report"))
from assemble_report_page import NOTICES_OF_PAGES, VEGA_LITE

INLINED = {"vega-embed": ["fast-json-patch", "semver"]}  # what a module's own build took into it
WITHDRAWN = {"robust-predicates": "^3.0.0"}  # 3.0.0 is no longer there to be read
PERMISSION = re.compile(r"Permission is hereby granted|Permission to use|Redistribution and use|Licensed under|free and unencumbered")
COPYRIGHT = re.compile(r"^\s*Copyright\b")
TITLE = re.compile(r"^\(?(The )?(ISC|MIT|BSD)[\w -]*Licen[cs]e( \(MIT\))?\)?$", re.IGNORECASE)
DEBIAN = {"CLI11": "libcli11-dev", "Gloo": "libgloo-dev", "nlohmann-json": "nlohmann-json3-dev"}

INTRODUCTION = """\
Third-party notices of Firkin
=============================

Copyright 2026 the authors of Firkin. Firkin itself is under the Apache License 2.0 (LICENSE). It contains code of others, under the terms
below. The measurements of others in data/ (installed: share/firkin; in the Python package: firkin/data) have their terms in data/LICENSES.

  the program firkin, the installed libraries and the Python package, from headers:
{program}
  the Python package alone:
{python}
  the program and the Python package, as text, and every page that they write: JavaScript of Vega, Vega-Lite and Vega-Embed,
  with what these are made of; the second part of this file, which each page shows as well

LibTorch (PyTorch) is linked and not part of what is distributed: the program uses the one that it finds, under that one's own licences.
The GNU C and C++ libraries are linked in the same way. What only builds or tests Firkin is not listed.
"""


def embedded_modules(vega_lite: str = VEGA_LITE) -> dict[str, str]:
    """Name -> version of every JavaScript module in the pages: what the three that are asked for import, as the wheel holds them."""
    library = next(pathlib.Path(vl_convert.__file__).parent.glob("vl_convert*.so")).read_bytes()
    heads = list(re.finditer(rb"Original file: /npm/((?:@[a-z0-9-]+/)?[a-z0-9.-]+@[0-9][0-9A-Za-z.-]*)/", library))
    ends = [head.start() for head in heads[1:]] + [heads[-1].end() + 2_000_000]
    imports = {head[1].decode(): {name.decode() for name in re.findall(rb'from ?"/npm/([^"]+?)/\+esm"', library[head.end() : end])}
               for head, end in zip(heads, ends)}  # fmt: skip
    version = max((name for name in imports if name.startswith(f"vega-lite@{vega_lite}.")), default=None)
    todo = [f"vega@{vl_convert.get_vega_version()}", f"vega-embed@{vl_convert.get_vega_embed_version()}", version]
    found: dict[str, str] = {}
    while todo:
        name, _, number = todo.pop().rpartition("@")
        if name == "vega-lite":  # vega-embed names another version, which the wheel replaces with the one that is asked for
            number = version.rpartition("@")[2]
        if name not in found:
            found[name] = number
            todo += sorted(imports[f"{name}@{number}"])
    return found


def installed_modules(modules: dict[str, str], folder: pathlib.Path) -> pathlib.Path:
    """The archives of the modules, and of what is inlined in them, unpacked by npm."""
    wanted = modules | {name: WITHDRAWN[name] for name in WITHDRAWN if name in modules}
    (folder / "package.json").write_text(json.dumps({"name": "notices", "private": True, "dependencies": wanted, "overrides": wanted}))
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--legacy-peer-deps"]
    subprocess.run(command, cwd=folder, check=True, stdout=sys.stderr)
    return folder / "node_modules"


def split(text: str) -> tuple[list[str], str]:
    """The copyright lines of a licence, and the rest. A file with several licences, or with text between those lines, is taken whole."""
    whole = text.replace("\r", "").strip()
    joined = re.sub(r"(?m)^(\s*Copyright\b.*?)[.,]?\n\s*All rights reserved\.?", r"\1. All rights reserved.", whole)
    lines = [line for line in (line.rstrip() for line in joined.splitlines()) if not TITLE.match(line.strip())]
    held = [i for i, line in enumerate(lines) if COPYRIGHT.match(line)]
    if not held or len(PERMISSION.findall(whole)) > 1 or any(lines[i] for i in range(held[0], held[-1]) if i not in held):
        return [], whole
    rest = "\n".join(line for i, line in enumerate(lines) if i not in held)
    return [lines[i].strip() for i in held], re.sub(r"\n{3,}", "\n\n", textwrap.dedent(rest)).strip("\n")


def notices_in_sources(package: pathlib.Path) -> list[str]:
    """Licences and copyright lines within a package's sources: of code that it took over."""
    found = []
    for file in sorted([*package.glob("src/**/*.js"), *package.glob("src/**/*.ts")]):
        text = file.read_text(encoding="utf-8", errors="replace")
        comments = re.findall(r"/\*.*?\*/", text, re.DOTALL) + re.findall(r"(?://[^\n]*\n)+", text)
        for comment in comments:
            if "Copyright" in comment:
                plain = comment.removeprefix("/*").removesuffix("*/").lstrip("*").strip("\n ")
                for mark in (r"//", r"\*"):
                    if all(re.match(rf"\s*{mark}", line) for line in plain.splitlines()):
                        plain = re.sub(rf"(?m)^\s*{mark} ?", "", plain)
                found.append(textwrap.dedent(plain).strip("\n"))
    return found


def wrapped(text: str) -> str:
    return "\n".join(textwrap.fill(line, 110) if len(line) > 110 else line.rstrip() for line in text.splitlines())


def grouped(components: list[tuple[str, str]]) -> str:
    """One entry per licence text: who uses it, by copyright line, then the text."""
    users = collections.defaultdict(lambda: collections.defaultdict(list))
    texts = {}
    for component, text in components:
        lines, body = split(text)
        key = re.sub(r"[\s\W]+", " ", body)
        texts.setdefault(key, body)
        users[key][", ".join(lines)].append(component)
    entries = []
    for key, by_copyright in users.items():
        heads = [f"{', '.join(names)}{': ' if line else ''}{line}" for line, names in by_copyright.items()]
        entries.append("\n".join(textwrap.fill(head, 110, subsequent_indent="    ", break_on_hyphens=False) for head in heads) + "\n\n"
                       + textwrap.indent(wrapped(texts[key]), "  "))  # fmt: skip
    return "\n\n".join(f"{'-' * 80}\n{entry}" for entry in entries)


def wheel_file(wheel: str, pattern: str) -> pathlib.Path:
    return next(path.locate() for path in importlib.metadata.files(wheel) if re.fullmatch(pattern, str(path)))


def debian_licence(package: str) -> str:
    """From Debian's copyright file: whose the library's own files are, and the licence of those."""
    stanzas = [stanza for stanza in pathlib.Path(f"/usr/share/doc/{package}/copyright").read_text().split("\n\n")]
    own = [stanza for stanza in stanzas if re.match(r"Files: +(\*|include/)", stanza)]
    holders = [re.search(r"Copyright: +(.*)", stanza)[1] for stanza in own]
    licence = re.search(r"License: +(.*)", own[0])[1]
    text = next(stanza for stanza in stanzas if stanza.startswith((f"License: {licence}\n", f"License: {licence} \n")) or
                re.match(rf"License: +{re.escape(licence)}\n", stanza)).partition("\n")[2]  # fmt: skip
    plain = re.sub(r"(?m)^ \.?", "", text)
    body = "\n".join(line for line in plain.splitlines() if not COPYRIGHT.match(line)).strip()
    return "\n".join(f"Copyright (c) {holder}" for holder in holders) + "\n\n" + body


def debian_version(package: str) -> str:
    version = subprocess.run(["dpkg-query", "-W", "-f=${Version}", package], check=True, capture_output=True, text=True).stdout
    return re.sub(r"[+-].*", "", version)


def program_components() -> list[tuple[str, str]]:
    found = [(f"{name} {debian_version(package)}", debian_licence(package)) for name, package in DEBIAN.items()]
    base = pathlib.Path(wheel_file("torch", r"torch/include/fmt/base\.h")).read_text()
    number = int(re.search(r"define FMT_VERSION (\d+)", base)[1])
    fmt = wheel_file("torch", r"torch-[^/]*/licenses/third_party/fmt/LICENSE").read_text()
    found.append((f"fmt {number // 10000}.{number // 100 % 100}.{number % 100}", fmt))
    torch = wheel_file("torch", r"torch-[^/]*/licenses/LICENSE").read_text()
    found.append((f"PyTorch {importlib.metadata.version('torch').partition('+')[0]}", torch))
    return sorted(found, key=lambda component: component[0].lower())


def python_components(folder: pathlib.Path) -> list[tuple[str, str]]:
    """nanobind, and the hash map within it; pybind11, as the wheel of torch has it, for the engine."""
    pinned = re.search(r"nanobind==[\d.]+", (pathlib.Path(__file__).parents[1] / "pyproject.toml").read_text())[0]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), pinned]
    subprocess.run(command, check=True, stdout=sys.stderr)
    with zipfile.ZipFile(next(folder.glob("nanobind-*.whl"))) as wheel:
        licence = next(name for name in wheel.namelist() if name.endswith("licenses/LICENSE"))
        header = wheel.read("nanobind/ext/robin_map/include/tsl/robin_map.h").decode()
        comment = re.sub(r"(?m)^ \* ?", "", header[header.index("/**") + 3 : header.index("*/")])
        found = [(pinned.replace("==", " "), wheel.read(licence).decode()), ("tsl::robin_map, in nanobind", comment)]
    common = pathlib.Path(wheel_file("torch", r"torch/include/pybind11/detail/common\.h")).read_text()
    version = ".".join(re.search(rf"define PYBIND11_VERSION_{part} (\d+)", common)[1] for part in ("MAJOR", "MINOR", "MICRO"))
    pybind11 = wheel_file("torch", r"torch-[^/]*/licenses/third_party/pybind11/LICENSE").read_text()
    return [*found, (f"pybind11 {version}", pybind11)]


def page_components(modules: dict[str, str], packages: pathlib.Path) -> list[tuple[str, str]]:
    found = []
    for name, version in sorted(modules.items()):
        of = [(f"{name} {version}", packages / name)]
        for inlined in INLINED.get(name, []):
            number = json.loads((packages / inlined / "package.json").read_text())["version"]
            of.append((f"{inlined} {number}, in {name}", packages / inlined))
        for title, package in of:
            licence = next(file for file in sorted(package.iterdir()) if re.match(r"licen[cs]e", file.name, re.IGNORECASE))
            found.append((title, licence.read_text(encoding="utf-8")))
            found += [(f"a part of {title}", notice) for notice in notices_in_sources(package)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--npm", type=pathlib.Path, help="a folder node_modules with the modules")
    chosen = parser.parse_args()
    modules = embedded_modules()
    with tempfile.TemporaryDirectory() as folder:
        packages = chosen.npm or installed_modules(modules, pathlib.Path(folder))
        program, python = program_components(), python_components(pathlib.Path(folder))
        listed = [textwrap.fill(", ".join(name for name, _ in part), 110, initial_indent="    ", subsequent_indent="    ")
                  for part in (program, python)]  # fmt: skip
        print(INTRODUCTION.format(program=listed[0], python=listed[1]))
        print(f"{grouped(program + python)}\n\n\n{NOTICES_OF_PAGES}\n{'=' * len(NOTICES_OF_PAGES)}\n")
        print(grouped(page_components(modules, packages)))


if __name__ == "__main__":
    main()
