"""A rank is killed or stopped in every phase of a training, and at random moments: the others end by themselves, in time, with an error that names it.

FAULT_RANKS names the program.
"""

import functools
import random
import signal
import unittest

import faults
import pytest

# Children would keep a lost rank's connections open, and the others waiting until the timeout.
WITH_CHILDREN = faults.Case(2, "bucket", signal.SIGKILL, victim=1, rank_0_hosts=False, timeout_s=120, children=True)
NOTHING_LOST = [faults.Case(max(faults.WORLDS), None, signal.SIGKILL, victim=0, rank_0_hosts=hosts) for hosts in (False, True)]


@functools.cache
def outcomes():
    """Of the first tier's cases, some of which run at once: by case."""
    return {outcome.case: outcome for outcome in faults.run_all([*faults.one_case_a_phase(), WITH_CHILDREN, *NOTHING_LOST])}


class LostRank:
    """What must hold in whichever cases."""

    def for_each_survivor(self, check):
        for outcome in self.outcomes:
            for ending in outcome.survivors:
                with self.subTest(case=str(outcome.case), survivor=ending.rank):
                    check(outcome, ending)

    def test_the_victim_gets_its_signal_in_its_phase(self):
        for outcome in self.outcomes:
            with self.subTest(case=str(outcome.case)):
                self.assertEqual(outcome.victims_end, outcome.case.signal.name)
                said = outcome.victims_output.splitlines() or ["nothing"]
                # A signal at a moment comes from a thread of its own: the training may print a step more.
                self.assertIn(f"reached {outcome.case.phase}", said if outcome.case.moment_s is not None else said[-1:])

    def test_every_survivor_ends_by_itself_soon_after_the_timeout(self):
        def check(_, ending):
            self.assertIsNotNone(ending.code, f"still there after {ending.seconds:.1f} s\n{ending.output}{ending.errors}")
            self.assertLess(ending.seconds, faults.TIMEOUT_S + faults.GRACE_S)

        self.for_each_survivor(check)

    def test_every_survivor_ends_with_exit_code_1(self):
        self.for_each_survivor(lambda _, ending: self.assertEqual(ending.code, 1, f"{ending.output}{ending.errors}"))

    def test_what_every_survivor_says_last_names_the_lost_rank(self):
        def check(outcome, ending):
            self.assertRegex(ending.message, f"^fault_ranks: rank {ending.rank}: ")
            self.assertTrue(faults.names_lost_rank(outcome, ending), f"{ending.output}{ending.errors}")

        self.for_each_survivor(check)


class LostInEachPhase(LostRank, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.outcomes = [outcomes()[case] for case in faults.one_case_a_phase()]


@pytest.mark.full
class LostWhenever(LostRank, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.outcomes = faults.run_all(faults.every_phase_signal_and_world() + faults.random_moments(random.Random()))

    def test_each_rank_of_each_world_is_lost_under_either_host_of_the_store(self):
        for world in faults.WORLDS:
            met = {(o.case.victim, o.case.rank_0_hosts) for o in self.outcomes if o.case.world == world and o.case.moment_s is None}
            self.assertEqual(met, {(victim, hosts) for victim in range(world) for hosts in (False, True)})


class ChildrenOutliveALostRank(unittest.TestCase):
    def test_the_others_end_long_before_the_timeout(self):
        outcome = outcomes()[WITH_CHILDREN]
        [ending] = outcome.survivors
        self.assertEqual(ending.code, 1, f"{ending.output}{ending.errors}")
        self.assertLess(ending.seconds, outcome.case.timeout_s / 2)
        self.assertTrue(faults.names_lost_rank(outcome, ending), f"{ending.output}{ending.errors}")


class NothingLost(unittest.TestCase):
    def test_every_rank_ends_well_under_either_host_of_the_store(self):
        for case in NOTHING_LOST:
            with self.subTest(str(case)):
                outcome = outcomes()[case]
                self.assertEqual(outcome.victims_end, "exit 0", outcome.victims_output)
                self.assertEqual([ending.code for ending in outcome.survivors], [0] * len(outcome.survivors), outcome.survivors)
