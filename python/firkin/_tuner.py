"""Decides which settings of DistributedDataParallel firkin.tune measures next, and which it recommends.

Uses the performance model of `firkin tune`, and no PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from firkin._core import AllReduceTable, InputError, Profile, Tuning, assign_buckets, caps_of_counts

_MIB = 1 << 20
RACED = 4  # the most caps that are raced, besides those that the caller asks for

Steps = Sequence[Sequence[float]]  # seconds, [setting][block]


class Setting(NamedTuple):
    """One way to call DistributedDataParallel: with a cap, with a list of caps for these buckets, or with neither."""

    name: str
    counts: list[int]  # the tensors per bucket that are expected, in gradient-ready order
    cap_mib: float | None = None
    as_list: bool = False


_NONE = Setting("none", [])


class Tuner:
    """Decides what firkin.tune measures, one list of settings after another, and what it recommends.

    lists: whether DistributedDataParallel takes a list of caps, so that any plan can serve for calibration.
    calibrations: the number of settings to calibrate on: 4, which is one more than the numbers to be determined, or 2.
    caps_mib: caps to race besides those with the best predictions. Raises InputError if the profile or the table does
    not pass its checks, or if a cap is below the smallest.
    """

    def __init__(
        self, profile: Profile, table: AllReduceTable, world_size: int, *, lists: bool, calibrations: int = 4,
        smallest_cap_mib: float = 0.0, caps_mib: Sequence[float] = (),
    ) -> None:  # fmt: skip
        self._tuning, self._sizes = Tuning(profile, table, world_size), profile.bytes
        self._smallest_mib, self._caps_mib = smallest_cap_mib or 1 / _MIB, caps_mib
        for cap in caps_mib:
            if not cap >= self._smallest_mib:
                raise InputError(f"a cap of {cap:g} MiB; expected at least {self._smallest_mib:.3g} MiB")
        plans = [counts for counts in self._tuning.calibration_counts() if lists and caps_of_counts(counts, self._sizes)]
        settings = [Setting(f"{len(counts)} buckets", counts, as_list=True) for counts in plans]
        for parts in (24, 12, 6, 3)[: 4 - len(plans)]:  # caps take the place of plans that are not possible
            settings.append(self._by_cap(max(sum(self._sizes) // parts / _MIB, self._smallest_mib)))
        every = 4 // calibrations
        self.calibration_settings = settings[every - 1 :: every]  # measured together with "none", which comes first
        self.race_settings: list[Setting] = []  # set by calibrate(): caps, ascending

    def _by_cap(self, cap_mib: float) -> Setting:
        return Setting(f"{cap_mib:.6g} MiB", [len(bucket) for bucket in assign_buckets(self._sizes, cap_mib)], cap_mib)

    def calibrate(self, step_s: Steps, raced: int = RACED) -> None:
        """Fits the prediction to measured steps, and chooses the race's caps.

        step_s: the times of "none", then of calibration_settings. raced: the most caps, besides those that the caller
        asked for.
        """
        self._tuning.calibrate([_NONE, *self.calibration_settings], step_s)
        self.race_settings = [self._by_cap(cap) for cap in self._tuning.choose_race(self._caps_mib, self._smallest_mib, raced)]

    def race(self, step_s: Steps) -> bool:
        """Returns whether the race is decided and needs no further block. step_s: the times of race_settings."""
        return self._tuning.race(self.race_settings, step_s)

    @property
    def gain_settings(self) -> tuple[Setting, Setting]:
        """After race(): PyTorch's default and the chosen cap, to be measured behind "none"."""
        default = [len(bucket) for bucket in assign_buckets(self._sizes, cap_mib=25, first_cap_mib=1)]
        return Setting("torch default", default), self.race_settings[self._tuning.leader]

    def decide(self, step_s: Steps) -> None:
        """Decides between PyTorch's default and the chosen cap. step_s: the times of "none", then of gain_settings."""
        default, chosen = self.gain_settings
        self._tuning.decide([_NONE, default, chosen._replace(name="chosen cap")], step_s)

    @property
    def choice(self) -> Setting:
        """After decide(): PyTorch's default if it is to be kept, else the chosen cap."""
        return self.gain_settings[0 if self._tuning.keeps_default else 1]

    def results(self) -> str:
        """After decide(): the text of a results.json, without the facts that only PyTorch knows."""
        return self._tuning.results()
