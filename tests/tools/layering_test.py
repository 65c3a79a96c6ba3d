"""Includes go down only: no module includes one above it, and those of WITHOUT_LIBTORCH never include LibTorch;
examples include what is installed.

FIRKIN_SOURCE_DIR is the repository.
"""

import os
import pathlib
import re
import unittest

ROOT = pathlib.Path(os.environ["FIRKIN_SOURCE_DIR"])
MODULES = ["base", "stats", "plan", "measuring", "model", "import", "results", "report", "trace", "comm", "ddp", "workload", "bench", "tune", "cli"]  # bottom first
WITHOUT_LIBTORCH = {"base", "stats", "plan", "measuring", "model", "import", "results", "report"}
PYTHON = "python"  # python/src is above the modules without LibTorch, and sees no other
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
LIBTORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")


def violations() -> list[str]:
    found = []
    for module in [*MODULES, PYTHON]:
        folders = [ROOT / "python" / "src"] if module == PYTHON else [ROOT / folder / module for folder in ("include/firkin", "src")]
        above = {*MODULES} - WITHOUT_LIBTORCH if module == PYTHON else MODULES[MODULES.index(module) + 1 :]
        files = [f for folder in folders for f in folder.rglob("*") if f.suffix in (".h", ".cpp")]
        for file in sorted(files):
            for number, line in enumerate(file.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                where = f"{file.relative_to(ROOT)}:{number}"
                parts = match[1].removeprefix("firkin/").split("/")  # installed modules' headers lie in include/firkin, others in src
                if len(parts) > 1 and parts[0] in above:
                    found.append(f"{where}: {module}/ includes {parts[0]}/, which is above it")
                if module in {*WITHOUT_LIBTORCH, PYTHON} and LIBTORCH.match(match[1]):
                    found.append(f"{where}: {module}/ includes LibTorch ({match[1]})")
    drawn = re.findall(r'"bold">(\w+)<', (ROOT / "docs/images/modules.svg").read_text())
    found += [f"docs/images/modules.svg lacks {module}/" for module in [*MODULES, PYTHON] if module not in drawn]
    for file in sorted((ROOT / "examples").rglob("*.cpp")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            match = re.match(r'#include "([^"]+)"', line)
            if match and not (ROOT / "include" / match[1]).is_file():
                found.append(f"{file.relative_to(ROOT)}:{number}: {match[1]} is not in include/, and is not installed")
    return found


class Layering(unittest.TestCase):
    def test_includes_go_down_only(self):
        self.assertTrue(list((ROOT / "src").rglob("*.cpp")), "no sources")
        self.assertEqual(violations(), [])
