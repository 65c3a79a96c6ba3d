"""Numbers, tables and paragraphs as the pages have them."""

import re
import textwrap


def milliseconds(seconds):
    return f"{seconds * 1e3:.4g} ms"


def percent(fraction, digits=1):
    return "-" if fraction is None else f"{100 * fraction:.{digits}f} %"


def signed(fraction):
    return "-" if fraction is None else f"{100 * fraction:+.1f} %"


def cap_text(mib):
    return f"{mib:.3g}"


def interval(low, high, show=milliseconds):
    return "too few blocks" if low is None or high is None else f"{show(low)} to {show(high)}"


def share_text(share):
    """A figures.Share in a table; what the model says is marked."""
    return "-" if share is None else signed(share.value) + (" *p*" if share.predicted else "")


def share_with_interval(share):
    if share is None or share.predicted:
        return share_text(share)
    return f"{share_text(share)} ({interval(share.low, share.high, signed)})"


def table(header, rows):
    """The first column to the left, the others to the right."""
    ruler = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [header, ruler, *rows])


def reflowed(page):
    """Paragraphs and list items filled to 100 columns: numbers of any length stand in them."""
    def fill(words, indent=""):
        words = re.sub(r"`[^`]+`", lambda code: code[0].replace(" ", "\0"), " ".join(words.split()))
        words = words.replace(" %", "\0%")  # the site takes a line that begins with % for a comment
        return textwrap.fill(words, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False).replace("\0", " ")

    blocks = []
    for block in page.split("\n\n"):
        if block.startswith("- "):
            block = "\n".join(fill("- " + item, "  ") for item in block.removeprefix("- ").split("\n- "))
        elif not block.startswith(("#", "<!--", "|", "![", "```", "    ")):
            block = fill(block)
        blocks.append(block.strip("\n"))
    return "\n\n".join(blocks) + "\n"
