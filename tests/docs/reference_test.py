"""The reference has every public header, with words for every free function, and every name of the Python package; and docs/results.md
explains the fields that the sources write, all of them and no others; and errors that docs/limits.md quotes are the sources' own.

FIRKIN_SOURCE_DIR is the repository.
"""

import os
import pathlib
import re
import unittest

ROOT = pathlib.Path(os.environ["FIRKIN_SOURCE_DIR"])
NOT_INSTALLED = {"json_text.h"}
FUNCTION = re.compile(r"^(?!using|class|struct|enum|namespace|static_assert)\w[\w:<>,&*\[\] ]*?\b(\w+)\(")  # not within a class


def missing_pages() -> list[str]:
    """Headers that no page of docs/reference shows, and headers on pages that are not there."""
    pages = {page.stem: page.read_text() for page in (ROOT / "docs/reference").glob("*.md")}
    headers = {f"{file.parent.name}/{file.name}" for file in (ROOT / "include/firkin").rglob("*.h") if file.name not in NOT_INSTALLED}
    shown = {f"{module}/{name}" for module, page in pages.items() for name in re.findall(r"(?m)^```\{doxygenfile\} (\S+)$", page)}
    included = {name for page in pages.values() for name in re.findall(r"`#include <firkin/(\S+)>`", page)}
    return [f"include/firkin/{header}: not in docs/reference" for header in sorted(headers - (shown & included))] + [
        f"docs/reference: {header} is no public header" for header in sorted((shown | included) - headers)]  # fmt: skip


def missing_names() -> list[str]:
    """Names that the Python package offers and that its page does not show; none where there is no package."""
    package = ROOT / "python/firkin/__init__.py"
    if not package.exists():
        return []
    offered = re.findall(r'"(\w+)"', re.search(r"__all__ = \[(.*?)\]", package.read_text(), re.DOTALL)[1])
    page = (ROOT / "docs/reference/python.md").read_text()
    return [f"python/firkin: {name} is not in docs/reference/python.md" for name in offered
            if not name.startswith("__") and not re.search(rf"(?m)^\.\. auto\w+:: firkin\.{name}$", page)]  # fmt: skip


def without_words(header: pathlib.Path) -> list[str]:
    """Functions outside of classes that no comment describes, neither above nor behind them. Declarations that follow each other without
    an empty line share one."""
    found, described = [], False
    for line in header.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("namespace"):
            described = False
        elif line.startswith("//"):
            described = True
        elif (name := FUNCTION.match(line)) and not described and "//" not in line:
            found.append(f"{header.parent.name}/{header.name}: {name[1]}")
    return found


def lines_nobody_says() -> list[str]:
    """What the second column of docs/limits.md quotes, and no source says."""
    files = [file for folder in ("src", "python") for file in (ROOT / folder).rglob("*") if file.suffix in (".cpp", ".h", ".py")]
    said = "\n".join(re.sub(r'"\s*\n\s*f?"', "", file.read_text(encoding="utf-8")) for file in files)  # a string may go on in the next line
    lines = re.findall(r"(?m)^\| .+? \| (.+?) \| .+ \|$", (ROOT / "docs/limits.md").read_text())
    quoted = [words for line in lines for words in re.findall(r"`([^`]+)`", line)]
    return [f"docs/limits.md: no source says '{line}'" for line in quoted if line not in said] or ([] if len(quoted) > 20 else ["docs/limits.md: no lines"])


def unknown_fields() -> list[str]:
    """Fields in the first column of a table of docs/results.md that stand in no string of the sources."""
    sources = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*") if file.suffix in (".cpp", ".h"))
    written = {word for text in re.findall(r'"([^"\n]*)"', sources) for word in re.findall(r"\w+", text)}
    rows = re.findall(r"(?m)^\| (`[^|]+) \|", (ROOT / "docs/results.md").read_text())
    fields = {name for row in rows for code in re.findall(r"`([^`]+)`", row) for name in re.findall(r"\w+", code)}
    return [f"docs/results.md: {name} is written by no source" for name in sorted(fields - written)] or ([] if fields else ["docs/results.md: no fields"])


def undocumented_fields() -> list[str]:
    """Fields of the tables in src/results, and what is written beside them, that stand nowhere in docs/results.md as code."""
    sources = [file for folder in ("src", "include") for pattern in ("*.cpp", "*.h") for file in sorted((ROOT / folder).rglob(pattern))]
    texts = {file: file.read_text(encoding="utf-8") for file in sources}
    constants = dict(re.findall(r'\b(k\w+) = "(\w+)"', "\n".join(texts.values())))
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    documented = {name for code in re.findall(r"`([^`]+)`", page) for name in re.findall(r"\w+", code)}
    found = []
    for file, text in texts.items():
        if file.parent.name != "results":
            continue
        keys = [key or constants.get(constant, constant) for key, constant in re.findall(r'\bField\(\s*(?:"(\w+)"|(k\w+)),', text)]
        keys += [key for chain in re.findall(r'\b(?:object|document)((?:\["\w+"\])+) = ', text) for key in re.findall(r"\w+", chain)]
        found += [f"docs/results.md: {key} of {file.name} is not explained" for key in sorted({*keys} - documented)]
    return found


class Reference(unittest.TestCase):
    def test_lacks_nothing_and_has_nothing_else(self):
        headers = [file for file in sorted((ROOT / "include/firkin").rglob("*.h")) if file.name not in NOT_INSTALLED]
        self.assertTrue(headers)
        self.assertEqual([line for header in headers for line in without_words(header)], [], "functions without a comment")
        self.assertEqual(missing_pages() + missing_names() + unknown_fields() + undocumented_fields() + lines_nobody_says(), [])
