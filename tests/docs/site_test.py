"""The documentation site in headless Chromium: nothing goes wrong, and nothing comes from elsewhere. That links lead somewhere is for Sphinx to
say: those within the site when it is built, others in `make docs-links`.

FIRKIN_SITE is the folder that `make docs` made. `make docs-test` runs this; ctest does not, which builds no site.
"""

import os
import pathlib
import re
import unittest

import pytest

from browser import CHROMIUM, open_page, requests_elsewhere
from folders import InAFolder

SITE = pathlib.Path(os.environ.get("FIRKIN_SITE", "build-docs/html")).resolve()
if not SITE.exists():
    pytest.skip(f"no {SITE}: make docs", allow_module_level=True)
PAGES = ["README", "docs/index", "docs/tutorial", "docs/tutorial_cpp", "docs/install", "docs/clusters", "docs/gpu", "docs/frameworks", "docs/emulated_links", "docs/watch", "examples/cmsc828g/README",
         "docs/data_parallel", "docs/command_line", "docs/results", "docs/python", "docs/where_it_matters", "docs/performance_model",
         "docs/ordered", "docs/validation", "docs/validation/1gbit-communication/report", "docs/experiments", "docs/decisions", "docs/reference/plan", "docs/reference/ddp", "examples/digits/README", "examples/python/README", "CONTRIBUTING"]  # fmt: skip
LOADING = re.compile(r'<(?:script|img|source|iframe)\b[^>]*?\bsrc="([^"]+)"|'
                     r'<link\b(?=[^>]*\brel="(?:stylesheet|preload|icon)")[^>]*?\bhref="([^"]+)"')  # fmt: skip


class Sources(unittest.TestCase):
    def test_nothing_is_loaded_from_elsewhere(self):
        for file in SITE.rglob("*.html"):
            for source in (first or second for first, second in LOADING.findall(file.read_text(encoding="utf-8"))):
                self.assertNotRegex(source, r"^(https?:)?//", file)
        for file in SITE.rglob("*.css"):
            self.assertNotRegex(file.read_text(encoding="utf-8"), r"@import|url\([\"']?(https?:)?//", file)


@unittest.skipUnless(CHROMIUM, "no chromium on this machine")
class Pages(InAFolder):
    def open(self, name: str, width: int, height: int, query: str = "") -> str:
        document, log = open_page((SITE / f"{name}.html").as_uri() + query, width, height, self.folder)
        self.assertNotRegex(log, r"CONSOLE.*(Error|error|Refused|violates|Uncaught|Failed)")
        self.assertEqual(requests_elsewhere(self.folder), [])
        return document

    def test_pages_open_wide_and_narrow_without_an_error(self):
        for name in PAGES:
            for width, height in [(1280, 800), (390, 844)]:
                with self.subTest(page=name, width=width):
                    self.assertRegex(self.open(name, width, height), r"<h1>[^<]{3,}<")

    def test_search_finds_without_a_network(self):
        document = self.open("search", 1280, 800, "?q=indifference")
        self.assertRegex(document, r'<ul [^>]*class="search".*<a href="docs/')
