"""How the study runs a regime: within a limit, once, and so that one that fails costs only itself. A shell script runs instead of firkin tune."""

import json
import unittest
from unittest import mock

import recorded
from folders import InAFolder
from measure import MEASURED, is_measured, measure
from processes import ends
from regimes import Regime, all_regimes

RESULT = """echo '{"complete": true}' > NAME/results.json"""


class Runs(InAFolder):
    def setUp(self):
        super().setUp()
        self.regime = Regime("small", "no link", "a script", (), 1, lab=None)

    def run_script(self, text, limit_s=60):
        program = self.folder / "program"
        program.write_text("#!/bin/sh\nmkdir -p small\n" + text.replace("NAME", "small") + "\n")
        program.chmod(0o755)
        return measure(self.regime, program, 4, self.folder, limit_s)

    def is_measured(self, blocks=4):
        return is_measured(self.folder, "small", self.regime.shown_command(blocks))

    def test_a_regime_with_a_result_is_measured(self):
        record = self.run_script(RESULT)
        self.assertEqual((record["status"], record["blocks"], record["command"]), (MEASURED, 4, "build/firkin tune --compare --blocks 4 --out small"))
        self.assertEqual(record, json.loads((self.folder / "small" / "run.json").read_text()))
        self.assertTrue(self.is_measured())

    def test_another_command_is_another_measurement(self):
        self.run_script(RESULT)
        self.assertFalse(self.is_measured(blocks=5))

    def test_a_partial_result_is_not_measured(self):
        self.run_script("""echo '{"complete": false}' > NAME/results.json""")
        self.assertFalse(self.is_measured())
        (self.folder / "small" / "results.json").write_text('{"complete":')
        self.assertFalse(self.is_measured())

    def test_a_run_that_fails_says_its_last_line(self):
        self.run_script(RESULT)
        record = self.run_script("echo first; echo firkin: no such thing >&2; echo; exit 3")
        self.assertEqual(record["status"], "exit code 3: firkin: no such thing")
        self.assertFalse(self.is_measured())  # the result is an earlier one's

    def test_a_run_beyond_its_limit_is_ended_with_all_that_it_started(self):
        child = self.folder / "child"
        for limit_s in (1, 4, 16):  # until the shell has come so far
            record = self.run_script("sleep 600 & echo $! > child; wait", limit_s)
            self.assertEqual(record["status"], f"ended after its limit of {limit_s} s")
            self.assertFalse(self.is_measured())
            if child.exists() and child.read_text():
                break
        self.assertTrue(ends(int(child.read_text())), "what it started still runs")

    def test_a_run_that_ignores_signals_is_killed(self):
        with mock.patch("measure.GRACE_S", 0.2):
            record = self.run_script("trap '' TERM; while :; do sleep 0.1; done", limit_s=1)
        self.assertEqual(record["status"], "ended after its limit of 1 s")


class Regimes(unittest.TestCase):
    def test_all_together_take_at_most_fifty_minutes(self):
        self.assertLessEqual(sum(regime.expected_s for regime in all_regimes()), 3000)

    def test_commands_name_no_place_of_this_machine(self):
        for regime in all_regimes():
            self.assertFalse([word for word in regime.shown_command(20).split() if word.startswith("/")])


class Usage(InAFolder):
    def assert_refused(self, words, mentions):
        ended = recorded.study(*words)
        self.assertEqual((ended.returncode, ended.stdout, len(ended.stderr.splitlines())), (2, "", 1), ended.stderr)
        self.assertIn(mentions, ended.stderr)

    def test_bad_flags(self):
        for words, mentions in [([], "no program; expected one such as build/firkin"), (["none/firkin"], "no such program"),
                                (["--only", "2gbit", "--list"], "--only 2gbit: expected one of loopback-compute"),
                                (["--blocks", "3", "--list"], "--blocks 3: expected 4 or more"),
                                (["--limit", "0", "--list"], "--limit 0.0: expected a positive"),
                                (["--frobnicate"], "--frobnicate")]:
            with self.subTest(words=words):
                self.assert_refused(words, mentions)

    def test_a_program_that_is_not_firkin(self):
        self.assert_refused(["/bin/false", "--out", self.folder, "--docs", self.folder], "expected a built firkin")

    def test_the_list_says_what_is_measured_already(self):
        regime = all_regimes()[-1]
        kept = self.folder / regime.name
        kept.mkdir()
        (kept / "run.json").write_text(json.dumps({"status": MEASURED, "command": regime.shown_command(20)}))
        (kept / "results.json").write_text('{"complete": true}')
        lines = recorded.study("--list", "--out", self.folder).stdout.splitlines()
        self.assertEqual([line.split()[0] for line in lines if " measured " in line], [regime.name])
        self.assertEqual(len(lines), 18)
