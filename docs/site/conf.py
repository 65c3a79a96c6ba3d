"""The documentation site: `make docs` (docs/site/build). Its pages are the Markdown files of the repository, in their places there, so
that their links work here as they do where the repository is read.
"""

import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]

project = "Firkin"
copyright = "the authors of Firkin, Apache License 2.0"
version = release = re.search(r"project\(firkin VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]

extensions = ["myst_parser", "breathe"]
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "data/README.md", "examples/*/README.md", "docs/*.md",
                    "docs/reference/*.md", "docs/validation/*/report.md"]  # fmt: skip

# The Python package, where it is built or installed. It is read without PyTorch.
try:
    import firkin

    firkin._NEED_ENGINE = ()  # and without the engine

    extensions += ["sphinx.ext.autodoc"]
    autodoc_mock_imports = ["firkin._torch", "torch"]
    without = []
except ImportError:
    without = ["docs/reference/python.*"]
exclude_patterns = ["build*", ".*", *without]
suppress_warnings = ["toc.excluded"]

highlight_language = "none"
smartquotes = False  # --json stays what it is
myst_heading_anchors = 3  # links to headings, with the names that they have where the repository is read
myst_enable_extensions = ["colon_fence"]
myst_disable_syntax = ["myst_line_comment"]  # a line that begins with % is text
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


COMMANDS = ["tune", "predict", "bench step", "bench allreduce", "bench chunks", "bench collectives", "bench pairs", "bench layers",
            "trace", "import", "buckets", "report"]  # fmt: skip


def add_help(app, page: str, source: list[str]) -> None:
    """The help of every command behind docs/command_line.md, where FIRKIN names a program."""
    firkin = pathlib.Path(os.environ.get("FIRKIN", ""))
    if page == "docs/command_line" and firkin.is_file():
        source[0] += "\n## Help\n"
        for command in COMMANDS:
            text = subprocess.run([firkin, *command.split(), "--help-all"], check=True, text=True, capture_output=True).stdout.strip()
            source[0] += f"\n### firkin {command}\n\n```text\n{text}\n```\n"


def leave_out_of_contents(app, doctree) -> None:
    """Reports of the study are reached from its page."""
    if app.env.docname.startswith("docs/validation/"):
        app.env.metadata[app.env.docname]["orphan"] = True


def setup(app) -> None:
    app.connect("source-read", add_help)
    app.connect("doctree-read", leave_out_of_contents)
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
