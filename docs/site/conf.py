"""The documentation site: `make docs` (docs/site/build). Its pages are the Markdown files of the repository, in their places there, so
that their links work here as they do where the repository is read.
"""

import os
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]

project = "Firkin"
copyright = "the authors of Firkin, Apache License 2.0"
version = release = re.search(r"project\(firkin VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]

extensions = ["myst_parser", "breathe"]
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "data/README.md", "examples/*/README.md", "docs/*.md",
                    "docs/reference/*.md"]  # fmt: skip

# The Python package, where it is built or installed. It is read without PyTorch.
try:
    import firkin  # noqa: F401

    extensions += ["sphinx.ext.autodoc"]
    autodoc_mock_imports = ["firkin._torch", "torch"]
    without = []
except ImportError:
    without = ["docs/reference/python.*"]
# Pages that the table of contents names and that are not there yet.
exclude_patterns = ["build*", ".*", *without] + [page for page in ("docs/validation.*",) if not list(ROOT.glob(page))]
suppress_warnings = ["toc.excluded"]

smartquotes = False  # --json stays what it is
myst_heading_anchors = 3  # links to headings, with the names that they have where the repository is read
myst_enable_extensions = ["colon_fence"]
nitpicky = False  # types of LibTorch and of the standard library are not documented here

breathe_projects = {"firkin": f"{os.environ['FIRKIN_DOCS_BUILD']}/xml"}
breathe_default_project = "firkin"
breathe_default_members = ("members",)
breathe_show_include = False


def read_docstring(app, what, name, obj, options, lines: list[str]) -> None:
    """Docstrings are plain text, with examples indented: nothing in them is markup of reStructuredText."""
    found, in_code = [], False
    for i, line in enumerate(lines):
        code = line.startswith("    ") and (in_code or i > 0 and not lines[i - 1].strip()) or in_code and not line.strip()
        if code and not in_code:
            found += ["", ".. code-block:: python", ""]
        elif in_code and not code:
            found.append("")
        found.append(line if code else re.sub(r"([*`|_\\])", r"\\\1", line))
        in_code = code
    lines[:] = found


def setup(app) -> None:
    if "sphinx.ext.autodoc" in extensions:
        app.connect("autodoc-process-docstring", read_docstring)


html_theme = "furo"
html_title = f"Firkin {version}"
html_static_path = ["static"]
html_extra_path = ["root"]  # index.html, which leads to root_doc
html_css_files = ["firkin.css"]
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # would be fetched from the pages, which browsers refuse where these are files
pygments_style = "friendly"
pygments_dark_style = "monokai"
