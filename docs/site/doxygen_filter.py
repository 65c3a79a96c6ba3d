"""A public header with its comments as Doxygen reads them: doxygen_filter.py HEADER (the INPUT_FILTER of docs/site/Doxyfile).

Headers carry plain comments: what a declaration is, above it or behind it; an example is indented by two more spaces. The first comment is
the file's. A comment that is followed by an empty line belongs to no declaration and is left as it is. The namespace firkin, in which all
is, and what is only declared of others are left out: Breathe would show each once per file.
"""

import pathlib
import re
import sys

OWN_LINE = re.compile(r"^(\s*)//(?: (.*)|)$")
TRAILING = re.compile(r"^(?P<code>\s*[^\s/#][^\"]*?)\s+// (?P<text>.*)$")
NAMESPACE = re.compile(r"^(namespace firkin \{|\}  // namespace firkin)$")
FOREIGN = re.compile(r"(?m)^namespace (?!firkin\b)\S+ \{\n(.*\n)*?\}.*\n")
DESIGNATED = re.compile(r" = \{\.[^;]*\};")  # an initialiser that Sphinx cannot read
JOINED = re.compile(r'" *\n *"')  # between the pieces of one text, which Sphinx cannot read either
SPECIAL = re.compile(r"(\\|@|<|>|&|#|%|::|---?)")


def plain(text: str) -> str:
    """Words that are no commands of Doxygen's, and `code` as code."""
    text = SPECIAL.sub(r"\\\1", text).replace("*/", "* /")
    return re.sub(r"`([^`]+)`", r"<tt>\1</tt>", text)


def described(lines: list[str]) -> list[str]:
    result, in_code = [], False
    for i, line in enumerate(lines):
        after_blank = i == 0 or not lines[i - 1].strip()
        before_code = in_code and not line and i + 1 < len(lines) and lines[i + 1].startswith("  ")
        code = before_code or line.startswith("  ") and (in_code or after_blank)
        if code != in_code:
            result.append("@code{.cpp}" if code else "@endcode")
        result.append(line[2:].replace("*/", "* /") if code else plain(line))
        in_code = code
    return result + (["@endcode"] if in_code else [])


def comment(lines: list[str], start: str = "/**", indent: str = "") -> list[str]:
    body = described(lines)
    return [f"{indent}{start} {body[0]}", *(f"{indent}{line}" for line in body[1:]), f"{indent}*/"]


def filtered(source: list[str]) -> list[str]:
    result: list[str] = []
    at, first = 0, True
    while at < len(source):
        line = source[at]
        if OWN_LINE.match(line):
            end = at
            while end < len(source) and OWN_LINE.match(source[end]):
                end += 1
            texts = [OWN_LINE.match(each)[2] or "" for each in source[at:end]]
            declares = end < len(source) and source[end].strip() and not source[end].lstrip().startswith(("}", "#"))
            if first:
                result += comment(["", *texts], "/** @file")
            elif declares:
                result += comment(texts, indent=OWN_LINE.match(line)[1])
            first, at = False, end
            continue
        at += 1
        if NAMESPACE.match(line):
            continue
        trailing = TRAILING.match(line)
        if not trailing or trailing["code"].strip().startswith("}"):
            result.append(line)
            continue
        column, texts = line.index("// ", len(trailing["code"])), [trailing["text"]]
        while at < len(source) and source[at].startswith(" " * column + "// "):
            texts.append(source[at].strip()[3:])
            at += 1
        if trailing["code"].endswith("{"):
            result += [*comment(texts), trailing["code"]]
        else:
            result.append(f"{trailing['code']} /**< {' '.join(plain(text) for text in texts)} */")
    return result


if __name__ == "__main__":
    source = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    header = JOINED.sub("", DESIGNATED.sub(";", FOREIGN.sub("", source)))
    print("\n".join(filtered(header.splitlines())))
