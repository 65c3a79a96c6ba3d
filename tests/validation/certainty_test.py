"""What `firkin predict` says of its certainty, against the caps of the studies that its errors were not fitted to (studies/validation/certainty.py)."""

import concurrent.futures
import os
import pathlib
import re
import statistics
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "studies" / "validation"))

import certainty

FIRKIN = os.environ["FIRKIN"]
# Frequencies that recommendation.cpp says in words: unlikely, may be, likely.
SAID = (1 / 6, 0.6, 0.75)
FEWEST = 20


class Certainty(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cases = [case for case in certainty.all_cases() if case.study not in certainty.FITTED]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            cls.judged = list(pool.map(lambda case: certainty.judge(FIRKIN, case), cases))
        cls.caps = [cap for _, caps, *_ in cls.judged for cap in caps]

    def test_words_hold_as_often_as_they_say(self):
        for said, low, high in zip(SAID, certainty.NEAR_BINS, certainty.NEAR_BINS[1:], strict=False):
            held = [cap.held_near for cap in self.caps if low <= cap.near < high]
            self.assertGreaterEqual(len(held), FEWEST)
            self.assertAlmostEqual(statistics.fmean(held), said, delta=0.1)

    def test_what_caps_are_expected_to_cost(self):
        for low, high in ((0.02, 0.05), (0.05, 0.1)):
            these = [cap for cap in self.caps if low <= cap.regret < high]
            self.assertGreaterEqual(len(these), FEWEST)
            self.assertAlmostEqual(statistics.fmean(cap.held_regret for cap in these), statistics.fmean(cap.regret for cap in these), delta=0.03)
        self.assertGreater(statistics.fmean(cap.held_regret for cap in self.caps if cap.regret >= 0.1), 0.1)

    def test_what_ranges_of_gains_have_held_is_what_the_program_says(self):
        gains = [gain for _, _, _, _, gain, *_ in self.judged if gain]
        likely = [gain for gain in gains if certainty.is_likely(gain[1])]
        inside = sum(predicted["low"] <= measured <= predicted["high"] for _, predicted, measured in gains)
        said = re.search(r'kGainHeld =\s*"(.*?)";', (ROOT / "src/report/words.h").read_text(), re.DOTALL)[1]
        gained = sum(gain[2] > 0 for gain in likely)
        self.assertEqual(said, f"Of {len(gains)} gains measured on CPUs such ranges held {inside}, and {gained} of {len(likely)} caps called likely gained.")
