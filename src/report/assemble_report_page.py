"""The report's page without its results: page.html with Vega's JavaScript and its licences.

Usage: assemble_report_page.py PAGE NOTICES OUTPUT [BUNDLE]
       assemble_report_page.py --bundle > BUNDLE              Vega's JavaScript from the wheel vl-convert-python, which is
                                                              taken where no BUNDLE is given

NOTICES is THIRD_PARTY_NOTICES, whose second part, of that JavaScript, the page shows on demand. The security policy names each script by its
hash and forbids everything else: no network, no other script, no eval.
"""

import base64
import hashlib
import html
import pathlib
import re
import sys

VEGA_LITE = "6.4"  # charts name the schema of Vega-Lite 6
NOTICES_OF_PAGES = "In every page: JavaScript"  # the heading of that part of THIRD_PARTY_NOTICES


def script_text(text: str) -> str:
    """Text that can stand inside a script element, which the first "</script" or an "<!--" would disturb."""
    text = re.sub(r"</(script)", r"<\\/\1", text, flags=re.IGNORECASE)  # the same string to JavaScript
    if "<!--" in text:
        sys.exit("assemble_report_page.py: a script holds '<!--'; expected none")
    return text


def policy(scripts: list[str]) -> str:
    hashes = ["'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'" for script in scripts]
    return "; ".join([
        "default-src 'none'",
        "script-src " + " ".join(hashes),
        "style-src 'unsafe-inline'",  # Vega sets styles of the elements that it draws
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ])


def notices_of_pages(text: str) -> str:
    heading, _, notices = text.partition(f"\n{NOTICES_OF_PAGES}\n")[2].partition("\n")
    if not heading.startswith("===") or "<!--" in notices:
        sys.exit(f"assemble_report_page.py: expected notices with the heading '{NOTICES_OF_PAGES}' and without '<!--'")
    return html.escape(notices.strip())


def vega_bundle() -> str:
    try:
        import vl_convert
    except ImportError:
        sys.exit(f"no vl-convert: {sys.executable} cannot import vl_convert; run tools/bootstrap, or set FIRKIN_PYTHON or -DFIRKIN_VEGA_BUNDLE=FILE")
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)


def main() -> None:
    if sys.argv[1:] == ["--bundle"]:
        sys.stdout.write(vega_bundle())
        return
    page, notices, output, *given = map(pathlib.Path, sys.argv[1:])
    bundle = script_text(given[0].read_text(encoding="utf-8") if given else vega_bundle())
    text = page.read_text(encoding="utf-8")
    script = re.search(r"<script>(\n.*?)</script>", text, re.DOTALL)[1]
    parts = {
        "CONTENT_SECURITY_POLICY": policy([bundle, script]),
        "NOTICES": notices_of_pages(notices.read_text(encoding="utf-8")),
        "BUNDLE": bundle,
    }
    page = re.sub(r"@([A-Z_]+)@", lambda match: parts[match[1]], text)
    output.write_text(page, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
