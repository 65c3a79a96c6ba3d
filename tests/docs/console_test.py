"""Every block of commands in the documentation is run, or says why it is not, and those that are run print what the page shows.

FIRKIN names the binary, FIRKIN_SOURCE_DIR the repository. The commands of a page run one after another in a folder that holds build/firkin,
and data, tests and tools of the repository. They need neither LibTorch nor the Python package, which not every build has.

Above every block that is fenced as console or bash stands a comment of HTML, which readers do not see:

    <!-- run -->               a test runs the commands; what is shown must come out, "..." stands for any lines
    <!-- not run: WHY -->      takes minutes, needs GPUs, changes the machine, is shown elsewhere ...
"""

import dataclasses
import itertools
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(os.environ["FIRKIN_SOURCE_DIR"])
FIRKIN = pathlib.Path(os.environ["FIRKIN"])
DEADLINE_S = 300  # a hang, not a benchmark
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


class Console(unittest.TestCase):
    def test_every_block_is_run_or_says_why_not(self):
        unmarked = [block.where for block in all_blocks(ROOT) if block.mark is None]
        self.assertEqual(unmarked, [], "expected <!-- run --> or <!-- not run: WHY --> in the line above")

    def test_what_is_run_prints_what_is_shown(self):
        run = [block for block in all_blocks(ROOT) if block.mark == "run"]
        self.assertGreaterEqual(len(run), 3)
        for page, blocks in itertools.groupby(run, key=lambda block: block.where.partition(":")[0]):
            with tempfile.TemporaryDirectory() as folder:
                self.prepare(pathlib.Path(folder))
                for block in blocks:
                    with self.subTest(block=block.where):
                        self.run_block(block, pathlib.Path(folder))

    def test_every_command_has_its_row(self):
        help_text = subprocess.run([FIRKIN, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
        commands = re.findall(r"(?m)^  (\w+) ", help_text.partition("Subcommands:")[2])
        self.assertIn("predict", commands)
        page = (ROOT / "docs/command_line.md").read_text(encoding="utf-8")
        self.assertEqual([command for command in commands if f"`firkin {command}" not in page], [])

    def prepare(self, folder: pathlib.Path):
        (folder / "build").mkdir()
        (folder / "build/firkin").symlink_to(FIRKIN)
        for shared in ("data", "tests", "tools"):
            (folder / shared).symlink_to(ROOT / shared)

    def run_block(self, block: Block, folder: pathlib.Path):
        self.assertTrue(block.commands(), "no line starts with '$ '")
        environment = os.environ | {"PATH": f"{folder}/build:{os.environ['PATH']}"}
        for command, shown in block.commands():
            result = subprocess.run(["bash", "-c", command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                    timeout=DEADLINE_S, env=environment)  # fmt: skip
            self.assertEqual(result.returncode, 0, f"{command}\n{result.stdout}")
            self.assertIsNone(difference(shown, result.stdout.splitlines()), command)
