"""What bash is offered, of commands that need no LibTorch. tests/install/ has the rest, and the other shells."""

import subprocess
import unittest

from program import FIRKIN, InFolder

COMPLETE = 'source <("$0" completions bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _firkin; printf "%s\\n" "${COMPREPLY[@]}"'


class Bash(InFolder):
    def setUp(self):
        super().setUp()
        (self.folder / "t.csv").touch()

    def offered(self, *words):
        command = ["bash", "-c", COMPLETE, FIRKIN, FIRKIN, *words]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=self.folder)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout.split()

    def test_values_that_are_listed(self):
        self.assertEqual(self.offered("predict", "--rule", ""), ["at-most", "close-when-full"])
        self.assertEqual(self.offered("import", "--model", "gpt2-"), ["gpt2-medium", "gpt2-large", "gpt2-xl"])
        self.assertEqual(self.offered("predict", "--cluster", "aws"), ["aws-p4de"])

    def test_files_where_a_file_may_stand_and_nothing_for_numbers(self):
        self.assertEqual(self.offered("predict", "--tensors", ""), ["t.csv"])
        self.assertEqual(self.offered("predict", "--world", ""), [])

    def test_a_seed_only_where_something_is_random(self):
        if self.offered("tu"):  # this build can measure
            self.assertEqual(self.offered("tune", "--see"), ["--seed"])
        for command in ["predict"], ["compare"], ["report"], ["import"]:
            with self.subTest(command=command):
                self.assertNotIn("--seed", self.offered(*command, "--"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
