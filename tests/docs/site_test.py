"""The documentation site in headless Chromium, and its links: nothing goes wrong, nothing comes from elsewhere, every link leads somewhere.

FIRKIN_SITE is the folder that `make docs` made. `make docs-test` runs this; ctest does not, which builds no site.
"""

import os
import pathlib
import re
import sys
import unittest
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "report"))
from browser import CHROMIUM, open_page, requests_elsewhere  # noqa: E402
from folders import InAFolder  # noqa: E402

SITE = pathlib.Path(os.environ["FIRKIN_SITE"]).resolve()
PAGES = ["README", "docs/index", "docs/tutorial", "docs/tutorial_cpp", "docs/install", "docs/clusters", "docs/gpu", "docs/frameworks", "docs/emulated_links", "docs/watch", "examples/cmsc828g/README",
         "docs/data_parallel", "docs/command_line", "docs/results", "docs/python", "docs/where_it_matters", "docs/performance_model",
         "docs/ordered", "docs/validation", "docs/validation/1gbit-communication/report", "docs/experiments", "docs/decisions", "docs/reference/plan", "docs/reference/ddp", "examples/digits/README", "examples/python/README", "CONTRIBUTING"]  # fmt: skip
LOADING = re.compile(r'<(?:script|img|source|iframe)\b[^>]*?\bsrc="([^"]+)"|'
                     r'<link\b(?=[^>]*\brel="(?:stylesheet|preload|icon)")[^>]*?\bhref="([^"]+)"')  # fmt: skip


def documents() -> dict[pathlib.Path, str]:
    return {file: file.read_text(encoding="utf-8") for file in sorted(SITE.rglob("*.html"))}


class Links(unittest.TestCase):
    def test_nothing_is_loaded_from_elsewhere(self):
        for file, text in documents().items():
            for source in (first or second for first, second in LOADING.findall(text)):
                self.assertNotRegex(source, r"^(https?:)?//", file)
        for file in SITE.rglob("*.css"):
            self.assertNotRegex(file.read_text(encoding="utf-8"), r"@import|url\([\"']?(https?:)?//", file)

    def test_every_internal_link_leads_to_a_page_and_its_heading(self):
        texts = documents()
        names = {file: set(re.findall(r'\b(?:id|name)="([^"]+)"', text)) for file, text in texts.items()}
        links = 0
        for file, text in texts.items():
            for link in re.findall(r'<a\b[^>]*?\bhref="([^"]+)"', text):
                url = urllib.parse.urlsplit(link)
                if url.scheme or url.netloc:
                    continue
                links += 1
                target = (file.parent / urllib.parse.unquote(url.path)).resolve() if url.path else file
                self.assertTrue(target.is_file(), f"{file.relative_to(SITE)}: {link}")
                if url.fragment and target in names:
                    self.assertIn(urllib.parse.unquote(url.fragment), names[target], f"{file.relative_to(SITE)}: {link}")
        self.assertGreater(links, 500)


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
