"""Every field name of results.json stands in one source file.

Usage: one_place_test.py SOURCE_DIR
"""

import json
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
DATA = ROOT / "tests" / "report" / "data"

# Fields whose name other formats or messages have as well. Names of one word ("samples") are words of the interface, too, and not looked for.
ELSEWHERE = {
    "world_size": "traces for HolisticTraceAnalysis, other projects' files, messages of the text reader",
    "sequence_length": "messages of the text reader",
    "alpha_s": "a parameter of the all-reduce chart's template",
    "beta_s_per_byte": "a parameter of the all-reduce chart's template",
    "cap_mib": "a column of the curve chart's template",
    "ready_s": "a column of the ready chart's template",
}


def keys(value):
    if isinstance(value, dict):
        for key, child in value.items():
            yield key
            if key not in ("settings",):
                yield from keys(child)
    elif isinstance(value, list):
        for child in value:
            yield from keys(child)


class OnePlace(unittest.TestCase):
    def test_a_field_name_is_in_one_source_file(self):
        code = lambda path: re.sub(r"//[^\n]*", "", path.read_text())  # noqa: E731
        sources = {p: code(p) for p in [*ROOT.glob("src/**/*.cpp"), *ROOT.glob("src/**/*.h"), *ROOT.glob("include/**/*.h")]}
        sizes = re.findall(r'"(\w+)"', (ROOT / "src/model/transformer_config.h").read_text())
        named = {key for file in DATA.glob("*.json") for key in keys(json.loads(file.read_text())) if "_" in key}
        names = named - ELSEWHERE.keys() - set(sizes)
        self.assertGreater(len(names), 50)
        for name in sorted(names):
            with self.subTest(name=name):
                files = [str(p.relative_to(ROOT)) for p, text in sources.items() if f'"{name}"' in text]
                self.assertLessEqual(len(files), 1, files)


if __name__ == "__main__":
    unittest.main()
