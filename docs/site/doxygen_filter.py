"""A public header with its plain comments as Doxygen's: doxygen_filter.py HEADER (the INPUT_FILTER of docs/site/Doxyfile).

A comment describes the declaration below it, or the one before it on its line; the first one describes the file. One that an empty line
follows describes nothing. Examples are indented by two more spaces, where Markdown wants four. The namespace firkin and what is only
declared of others are left out, because Breathe would show each once per file, and so is what Sphinx cannot read: designated
initialisers, and texts in several pieces.
"""

import pathlib
import re
import sys


def filtered(header: str) -> str:
    header = re.sub(r"(?m)^namespace (?!firkin\b)\S+ \{\n(.*\n)*?\}.*\n", "", header)
    header = re.sub(r"(?m)^(namespace firkin \{|\}  // namespace .*)\n", "", header)
    header = re.sub(r'" *\n *"', "", re.sub(r" = \{\.[^;]*\};", ";", header))
    lines = header.splitlines()
    behind, describes = -1, True  # where a comment behind code goes on; whether the block of comments has a declaration
    for i, line in enumerate(lines):
        comment = re.fullmatch(r"( *)//( .*)?", line)
        if comment and behind != len(comment[1]):
            if i == 0 or not lines[i - 1].lstrip().startswith("//"):
                below = next((other for other in lines[i:] if not other.lstrip().startswith("//")), "")
                describes = i == 0 or not re.match(r" *($|\}|#)", below)
            if describes:
                lines[i] = f"{comment[1]}///{escaped(comment[2] or '')}"
        elif comment:
            lines[i] = f"{comment[1]}///<{escaped(comment[2] or '')}"
        elif trailing := re.fullmatch(r"( *[^\s/#}][^\"]*?) +// (.*)", line):
            behind = line.index("// ", len(trailing[1]))
            opens = trailing[1].endswith("{")
            lines[i] = f"/// {escaped(trailing[2])}\n{trailing[1]}" if opens else f"{trailing[1]}  ///< {escaped(trailing[2])}"
        else:
            behind = -1
    return "\n".join(["/// @file", *lines]) + "\n"


def escaped(text: str) -> str:
    """Nothing is a command or markup but `code`; Doxygen leaves what stands in quotes alone."""
    if text.startswith("   "):
        return f" {text}"
    parts = re.split(r"(`[^`]*`|\"[^\"]*\")", text.removeprefix(" "))
    return "".join(part if i % 2 else re.sub(r"(--|[\\@<>&#%*])", r"\\\1", part) for i, part in enumerate(parts))


if __name__ == "__main__":
    sys.stdout.write(filtered(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")))
