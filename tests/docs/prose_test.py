"""Prose: codespell over all sources; proselint's checks and a style of our own over the pages, whose lines fit: 100 columns, 88 of code.

FIRKIN_SOURCE_DIR is the repository. What a reader does not read as prose is left out: code, links' addresses, comments of HTML.
Lines of tables, links and images may be longer, for they cannot be wrapped.
"""

import os
import pathlib
import re
import subprocess
import sys
import unittest

import pytest

ROOT = pathlib.Path(os.environ["FIRKIN_SOURCE_DIR"])
pytest.importorskip("proselint", reason="no proselint: tools/bootstrap test installs it")
from proselint.checks import __register__ as their_checks
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check
from proselint.registry.checks.types import PreferredForms
from proselint.tools import LintFile

PAGES = ["*.md", "docs/*.md", "docs/validation/*/report.md", "examples/*/README.md", "data/README.md"]
WIDTH, CODE_WIDTH = 100, 88

# A pattern, what to write instead, and why. Each has been found on these pages.
STYLE = {
    r"who (?:cannot|can not|has|have|waits|wants)": "whoever, or name them",  # English has no "who wants it may"
    r"an? [a-z]+ of yours": "your own ...",  # "your own" is shorter, and what people say
    r"(?:costs?|pays?) a latency": "pays latency",  # latency is not counted
    r"(?:is|are|be) on (?:its|their) way": "in flight",  # the field's term
    r"(?:go|goes|going) on (?:from|with|where)": "continue, restart",  # an idiom that search does not find
    r"(?:this|the) house": "architecture",  # a picture that readers do not share
    r"rooms?": "module",  # the same
    r"allreduces?": "all-reduce",  # one spelling, for search
    r"optimizers?": "optimiser",  # British spelling, except in names of code
}
# Of proselint's checks, those that a technical page must not obey.
THEIRS_LEFT_OUT = {
    "typography": False,  # text stays ASCII
    "misc.but": False,
    "misc.narcissism": False,
    "social_awareness": False,  # "master weights" is the field's name
    "redundancy.ras_syndrome": False,
    "dates_times": False,
}


def prose_of(text: str) -> str:
    """The text with everything blanked that is no prose; lines and columns stay."""
    for pattern in [r"(?ms)^(```|:::).*?^\1$", r"(?s)<!--.*?-->", r"(?m)^ {4,}\S.*$", r"`[^`]+`", r"(?<=\])\([^)\s]+\)", r"https?://\S+"]:
        text = re.sub(pattern, lambda match: re.sub(r"[^\n]", "#", match[0]), text)
    text = re.sub(r"(?m)^#+ (.*)$", r"\1.", text)
    return re.sub(r"[*\[\]]", " ", text.replace("|", ";"))


def too_long(text: str) -> list[tuple[int, int]]:
    """Lines and the width that they should have had."""
    found, in_code = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            in_code = not in_code
        elif in_code and len(line) > CODE_WIDTH:
            found.append((number, CODE_WIDTH))
        elif not in_code and len(line) > WIDTH and not line.startswith(("|", "![", "#", "<!--")) and len(line.split()) > 3:
            found.append((number, WIDTH))
    return found


class Prose(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        registry = CheckRegistry()
        registry.register_many(their_checks)
        registry.register_many([Check(path=f"firkin.{name}", check_type=PreferredForms(items=dict([form])), message="'{1}': expected {0}.")
                                for name, form in enumerate(STYLE.items())])  # fmt: skip
        cls.pages = sorted({page for pattern in PAGES for page in ROOT.glob(pattern)})
        cls.config = DEFAULT | {"checks": DEFAULT["checks"] | THEIRS_LEFT_OUT | {"firkin": True}}

    def lint(self, text: str, name: str = "page") -> list[str]:
        found = LintFile(source=name, content=prose_of(text)).lint(self.config)
        return [f"{name}:{result.pos[0]}: {result.check_result.message}" for result in found]

    def test_pages_keep_to_the_style(self):
        self.assertGreater(len(self.pages), 30)
        for wrong, said in (("Small ones cost a latency each.", "expected pays latency"), ("The ranks are in a a group.", "a a")):  # of either style
            self.assertIn(said, " ".join(self.lint(wrong + "\n")))
        found = [line for page in self.pages for line in self.lint(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))]
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_words_are_spelt_right(self):  # [tool.codespell] in pyproject.toml says where
        said = subprocess.run([sys.executable, "-m", "codespell_lib"], cwd=ROOT, capture_output=True, text=True)
        self.assertEqual((said.returncode, said.stdout), (0, ""), said.stderr)

    def test_lines_fit(self):
        found = [f"{page.relative_to(ROOT)}:{number}: longer than {width}"
                 for page in self.pages for number, width in too_long(page.read_text(encoding="utf-8"))]  # fmt: skip
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_no_document_is_named_by_its_number_in_data(self):
        """Readers know it by its course or its author."""
        number = re.compile(r"(?<![\d.,])00\d\b")
        self.assertRegex("as 003 says of 5,000 tensors", number)
        self.assertNotRegex("5,000 tensors in 0.002 s", number)
        pages = [page for page in self.pages if page.parent.name != "data"]
        found = [f"{page.relative_to(ROOT)}: {number.search(text)[0]}" for page in pages
                 if number.search(text := prose_of(page.read_text(encoding="utf-8")))]  # fmt: skip
        self.assertEqual(found, [])
