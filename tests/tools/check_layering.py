"""Includes go down only: no module includes one above it, and those of WITHOUT_LIBTORCH never include LibTorch;
examples include what is installed.

Usage: check_layering.py SOURCE_DIR      prints each violation; exit code 1 if there is any
"""

import pathlib
import re
import sys

MODULES = ["base", "stats", "plan", "measuring", "model", "import", "results", "report", "trace", "comm", "ddp", "workload", "bench", "tune", "cli"]  # bottom first
WITHOUT_LIBTORCH = {"base", "stats", "plan", "measuring", "model", "import", "results", "report"}
PYTHON = "python"  # python/src is above the modules without LibTorch, and sees no other
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
LIBTORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")


def is_above(module: str, other: str) -> bool:
    return module not in WITHOUT_LIBTORCH if other == PYTHON else MODULES.index(module) > MODULES.index(other)


def violations(root: pathlib.Path) -> list[str]:
    found = []
    for module in [*MODULES, PYTHON]:
        folders = [root / "python" / "src"] if module == PYTHON else [root / folder / module for folder in ("include/firkin", "src")]
        files = [f for folder in folders for f in folder.rglob("*") if f.suffix in (".h", ".cpp")]
        for file in sorted(files):
            for number, line in enumerate(file.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                where = f"{file.relative_to(root)}:{number}"
                parts = match[1].removeprefix("firkin/").split("/")  # installed modules' headers lie in include/firkin, others in src
                if len(parts) > 1 and parts[0] in MODULES and is_above(parts[0], module):
                    found.append(f"{where}: {module}/ includes {parts[0]}/, which is above it")
                if module in {*WITHOUT_LIBTORCH, PYTHON} and LIBTORCH.match(match[1]):
                    found.append(f"{where}: {module}/ includes LibTorch ({match[1]})")
    drawn = re.findall(r'"bold">(\w+)<', (root / "docs/images/modules.svg").read_text())
    found += [f"docs/images/modules.svg lacks {module}/" for module in [*MODULES, PYTHON] if module not in drawn]
    for file in sorted((root / "examples").rglob("*.cpp")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            match = re.match(r'#include "([^"]+)"', line)
            if match and not (root / "include" / match[1]).is_file():
                found.append(f"{file.relative_to(root)}:{number}: {match[1]} is not in include/, and is not installed")
    return found


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    sources = sum(1 for _ in (root / "src").rglob("*.cpp"))
    if sources == 0:
        print(f"{root}: no sources found")
        return 1
    found = violations(root)
    print("\n".join(found) or f"{sources} sources: includes go down only")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
