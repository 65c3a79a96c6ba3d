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

# Words of other formats, or of the interface, that happen to be fields as well.
ELSEWHERE = {
    "name": "Chrome traces, model files, tensors.csv",
    "bytes": "tensors.csv and allreduce.csv",
    "model": "a flag's group and messages",
    "description": "firkin models",
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
        sources = {p: p.read_text() for p in [*ROOT.glob("src/**/*.cpp"), *ROOT.glob("src/**/*.h"), *ROOT.glob("include/**/*.h")]}
        sizes = re.findall(r'\{"(\w+)", &TransformerConfig', (ROOT / "src/model/transformer_config.cpp").read_text())
        names = {key for file in DATA.glob("*.json") for key in keys(json.loads(file.read_text()))} - ELSEWHERE.keys() - set(sizes)
        self.assertGreater(len(names), 60)
        for name in sorted(names):
            with self.subTest(name=name):
                files = [str(p.relative_to(ROOT)) for p, text in sources.items() if f'"{name}"' in text]
                self.assertLessEqual(len(files), 1, files)


if __name__ == "__main__":
    unittest.main()
