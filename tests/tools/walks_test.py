"""The walks of CONTRIBUTING.md name files, functions and tables that are there.

Usage: walks_test.py REPOSITORY
"""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
PAGES = ("CONTRIBUTING.md",)
ENDINGS = "cpp|h|py|md|json|cmake|txt|html|css|js|svg"
READERS = {"mine.json", "firkin-out/tune/report.html"}  # what a reader of the page would have
SOURCES = ("src", "include", "python", "tests", "tools", "benchmarks", "cmake", "docs", "data", "lab", "launch", "examples")

files = [path.relative_to(root) for top in SOURCES for path in (root / top).rglob("*") if "__pycache__" not in path.parts]
files += [path.relative_to(root) for path in root.iterdir() if path.is_file()]
names = {path.name for path in files}
code = "\n".join((root / path).read_text(encoding="utf-8") for path in files if path.suffix in (".cpp", ".h", ".py"))


def there(name: str) -> bool:
    """A path from the root, or of a public header; a name alone is that of some file. READER and MODULE stand for any."""
    if re.search(r"(^|/)[A-Z]+(/|$)", name):
        return there(re.split(r"/[A-Z]+(?:/|$)", name)[0] + "/")
    if "/" in name:
        return name in READERS or (root / name).exists() or (root / "include" / name).exists()
    return name in READERS or name in names


missing = []
checked = 0
for page in PAGES:
    for line, text in enumerate((root / page).read_text(encoding="utf-8").splitlines(), 1):
        for word in re.findall(r"`([^`]+)`", text):
            if re.fullmatch(rf"[\w./-]+\.({ENDINGS})|(?:src|include|tests|docs|tools|benchmarks)/[\w./-]+", word):
                wrong = not there(word)
            elif called := re.fullmatch(r"(?:firkin::)?(\w+)\(\)", word):
                wrong = not re.search(rf"\b{called[1]}\(", code)
            elif re.fullmatch(r"k[A-Z]\w+", word):
                wrong = not re.search(rf"\b{word}\b", code)
            else:
                continue
            checked += 1
            if wrong:
                missing.append(f"{page}:{line}: {word} is not there")
if missing or checked < 40:
    sys.exit("\n".join(missing) or f"only {checked} names were found")
print(f"{checked} names are there")
