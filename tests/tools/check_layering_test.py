"""The layering check finds what it is for."""

import pathlib
import tempfile
import unittest

from check_layering import violations


class CheckLayering(unittest.TestCase):
    def violations_of(self, path: str, line: str) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / path
            file.parent.mkdir(parents=True)
            file.write_text(f"// a comment\n{line}\n")
            return violations(pathlib.Path(folder))

    def test_an_include_of_a_room_above_is_found_with_its_line(self):
        found = self.violations_of("src/plan/timeline.cpp", '#include "firkin/ddp/data_parallel.h"')
        self.assertEqual(found, ["src/plan/timeline.cpp:2: plan/ includes ddp/, which is above it"])

    def test_so_is_one_of_a_header_that_lies_beside_its_source(self):
        found = self.violations_of("src/report/page.cpp", '#include "bench/tuner.h"')
        self.assertEqual(found, ["src/report/page.cpp:2: report/ includes bench/, which is above it"])

    def test_libtorch_below_the_line_is_found_in_headers_too(self):
        found = self.violations_of("include/firkin/stats/summary.h", "#include <ATen/ATen.h>")
        self.assertEqual(len(found), 1)

    def test_the_python_package_sees_only_rooms_without_libtorch(self):
        self.assertEqual(len(self.violations_of("python/src/tuner.cpp", '#include "firkin/comm/process_group.h"')), 1)
        self.assertEqual(len(self.violations_of("python/src/tuner.cpp", "#include <torch/torch.h>")), 1)
        self.assertEqual(self.violations_of("python/src/tuner.cpp", '#include "report/report.h"'), [])

    def test_an_include_of_a_room_below_is_fine(self):
        self.assertEqual(self.violations_of("src/ddp/x.cpp", '#include "firkin/plan/timeline.h"\n#include <torch/torch.h>'), [])


if __name__ == "__main__":
    unittest.main()
