"""The blocks of commands in the documentation, and what each says of being run.

Above every block that is fenced as console or bash stands a comment of HTML, which readers do not see:

    <!-- run -->               a test runs the commands; what is shown must come out, "..." stands for any lines
    <!-- not run: WHY -->      takes minutes, needs GPUs, changes the machine, is shown elsewhere ...
"""

import dataclasses
import pathlib
import re

MARK = re.compile(r"^<!-- (run|not run: \S.*) -->$")
PAGES = ["README.md", "CONTRIBUTING.md", "docs/*.md", "examples/*/README.md", "data/README.md"]


@dataclasses.dataclass
class Block:
    where: str  # file:line of the fence
    mark: str | None  # "run", "not run: WHY", or None where there is none
    lines: list[str]

    def commands(self) -> list[tuple[str, list[str]]]:
        """Every command of the block, its continued lines as well, with the lines that are shown below it."""
        found: list[tuple[str, list[str]]] = []
        continued = False
        for line in self.lines:
            if continued:
                found[-1] = (f"{found[-1][0]}\n{line}", [])
            elif line.startswith("$ "):
                found.append((line[2:], []))
            elif found:
                found[-1][1].append(line)
            continued = (continued or line.startswith("$ ")) and line.endswith("\\")
        return found


def blocks_of(text: str, name: str) -> list[Block]:
    found, lines, start = [], text.splitlines(), None
    for i, line in enumerate(lines):
        if start is None and line.startswith("```"):
            start = i
        elif start is not None and line == "```":
            if lines[start] in ("```console", "```bash"):
                mark = MARK.match(lines[start - 1]) if start else None
                found.append(Block(f"{name}:{start + 1}", mark[1] if mark else None, lines[start + 1 : i]))
            start = None
    return found


def all_blocks(root: pathlib.Path) -> list[Block]:
    files = sorted({file for pattern in PAGES for file in root.glob(pattern)})
    return [block for file in files for block in blocks_of(file.read_text(encoding="utf-8"), str(file.relative_to(root)))]


def difference(shown: list[str], printed: list[str]) -> str | None:
    """Where what is shown is not what was printed; None where it is. "..." among the shown lines stands for any lines, or none."""
    at, skipping = 0, False
    for line in (line.rstrip() for line in shown):
        if line == "...":
            skipping = True
            continue
        while skipping and at < len(printed) and printed[at].rstrip() != line:
            at += 1
        if at == len(printed) or printed[at].rstrip() != line:
            return f"shown:   {line}\nprinted: {printed[at] if at < len(printed) else '(nothing more)'}"
        at, skipping = at + 1, False
    return None if skipping or at == len(printed) else f"printed, and not shown: {printed[at]}"
