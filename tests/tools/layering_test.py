"""The repository is tidy.

Includes go down only: no module includes one above it, and those of WITHOUT_LIBTORCH never include LibTorch; examples
include what is installed. Files say what they are, public headers with an example. What is declared is used.
Functions of Python's have at most LONGEST_FUNCTION lines; those of C++'s as many, which clang-tidy checks (tools/lint).

FIRKIN_SOURCE_DIR is the repository, FIRKIN_BUILD a folder in which everything was built with GCC.
"""

import ast
import json
import os
import pathlib
import re
import subprocess
import unittest
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(os.environ["FIRKIN_SOURCE_DIR"])
BUILD = pathlib.Path(os.environ["FIRKIN_BUILD"])
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


LONGEST_FUNCTION = 60  # as in .clang-tidy
SENTENCE = re.compile(r"\S.*?[.:](\s|$)", re.DOTALL)


def sources(*patterns: str) -> Iterator[tuple[pathlib.Path, str]]:
    for pattern in patterns:
        for file in sorted(ROOT.glob(pattern)):
            yield file.relative_to(ROOT), file.read_text()


def opening_comment(text: str) -> str:
    comment = re.match(r"(//.*\n)*", text)
    return re.sub(r"^// ?", "", comment[0], flags=re.MULTILINE) if comment else ""


def has_own_header(file: pathlib.Path) -> bool:
    """Whether a header of the same name says what the file is."""
    public = ROOT / "include/firkin" / file.parts[1] / file.with_suffix(".h").name
    return (ROOT / file).with_suffix(".h").is_file() or public.is_file()


class Tidy(unittest.TestCase):
    maxDiff = None

    def test_files_begin_with_a_sentence(self):
        silent = []
        for file, text in sources("include/**/*.h", "src/**/*.h", "src/**/*.cpp", "python/**/*.h", "python/**/*.cpp"):
            if not (file.suffix == ".cpp" and has_own_header(file)) and not SENTENCE.match(opening_comment(text)):
                silent.append(str(file))
        for file, text in sources("python/**/*.py", "src/**/*.py", "tests/**/*.py"):
            if not SENTENCE.match(ast.get_docstring(ast.parse(text)) or ""):
                silent.append(str(file))
        self.assertEqual(silent, [], "files without a sentence that says what they are")

    def test_public_headers_have_an_example(self):
        code = re.compile(r"^ *//   +\S.*[;({]", re.MULTILINE)  # set off from the text of a comment
        without = [str(file) for file, text in sources("include/**/*.h") if not code.search(text)]
        self.assertEqual(without, [], "public headers without an example")

    def test_functions_of_python_are_short(self):
        long = []
        for file, text in sources("python/**/*.py", "src/**/*.py"):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef):
                    body = node.body[1:] if ast.get_docstring(node) else node.body
                    lines = node.end_lineno - body[0].lineno + 1 if body else 0
                    if lines > LONGEST_FUNCTION:
                        long.append(f"{file}:{node.lineno}: {node.name} has {lines} lines")
        self.assertEqual(long, [])

    def test_private_names_of_python_are_used(self):
        words = re.findall(r"\w+", "".join(text for _, text in sources("python/**/*.py", "python/**/*.cpp", "python/**/*.h")))
        unused = []
        for file, text in sources("python/firkin/*.py"):
            for node in ast.walk(ast.parse(text)):
                is_private = isinstance(node, (ast.FunctionDef, ast.ClassDef)) and re.match(r"_[a-z]", node.name, re.IGNORECASE)
                if is_private and not node.decorator_list and words.count(node.name) < 2:
                    unused.append(f"{file}:{node.lineno}: {node.name}")
        self.assertEqual(unused, [])


def symbols(tool: str, objects: list[pathlib.Path], pattern: str) -> set[str]:
    """What `pattern` finds in the tool's output; the kinds of a constructor or destructor count as one."""
    output = subprocess.run([*tool.split(), *objects], capture_output=True, text=True, check=True).stdout
    return {re.sub(r"([CD])2E", r"\g<1>1E", name) for name in re.findall(pattern, output)}


@pytest.mark.full
class Built(unittest.TestCase):
    maxDiff = None

    def test_declarations_are_used(self):
        """The linker's tables tell, because GCC with -fPIC inlines no function that another library could replace.

        They do not know of inline functions, templates and types, or of functions without a definition.
        """
        commands = json.loads((BUILD / "compile_commands.json").read_text())
        outputs = [re.search(r" -o (\S+)", command["command"])[1] for command in commands]
        if not any(output.startswith("src/ddp/") for output in outputs) or "clang" in commands[0]["command"]:
            self.skipTest("expected GCC's objects of all modules")
        built = [BUILD / output for output in outputs if output.startswith(("src/", "python/", "tests/"))]
        self.assertEqual([str(each) for each in built if not each.is_file()], [], "not built")
        modules = [each for each in built if each.is_relative_to(BUILD / "src")]
        declared = symbols("nm --defined-only --extern-only", modules, r" [BDRT] (_Z\w*6firkin\w*)")
        used = symbols("readelf --relocs --wide", built, r"\bR_\S+ +[0-9a-f]+ +(_Z\w+)")
        self.assertTrue(declared & used, "no symbols")
        unused = subprocess.run(["c++filt"], input="\n".join(sorted(declared - used)), capture_output=True, text=True, check=True).stdout
        self.assertEqual(unused.splitlines(), [])
