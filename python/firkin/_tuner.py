"""Tuner: which settings of DistributedDataParallel to measure next, and which to choose, by the model of `firkin tune`. Without PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from firkin._core import AllReduceTable, InputError, Profile, Tuning, assign_buckets, caps_of_counts

_MIB = 1 << 20
RACED = 4  # caps, at most, but for those that are asked for

Steps = Sequence[Sequence[float]]  # seconds, [setting][block]


class Setting(NamedTuple):
    """One way to call DistributedDataParallel: by a cap, by the list of caps that makes its buckets, or with neither."""

    name: str
    counts: list[int]  # tensors per bucket, in gradient-ready order, that it should give
    cap_mib: float | None = None
    as_list: bool = False


_NONE = Setting("none", [])


class Tuner:
    """What firkin.tune measures, one list of settings after another, and what it recommends.

    lists: whether DistributedDataParallel takes a list of caps, with which any plan can be calibrated on. calibrations: on 4 settings, one
    more than what they are to determine, or 2. caps_mib: to be raced besides the best predicted. Raises InputError when the profile or the
    table does not pass its checks, or a cap is below the smallest.
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
        for parts in (24, 12, 6, 3)[: 4 - len(plans)]:  # where a plan is not possible
            settings.append(self._by_cap(max(sum(self._sizes) // parts / _MIB, self._smallest_mib)))
        every = 4 // calibrations
        self.calibration_settings = settings[every - 1 :: every]  # to be measured after none
        self.race_settings: list[Setting] = []  # after calibrate(): caps, ascending

    def _by_cap(self, cap_mib: float) -> Setting:
        return Setting(f"{cap_mib:.6g} MiB", [len(bucket) for bucket in assign_buckets(self._sizes, cap_mib)], cap_mib)

    def calibrate(self, step_s: Steps, raced: int = RACED) -> None:
        """step_s: of none, then of calibration_settings. raced: caps, at most, but for those that were asked for."""
        self._tuning.calibrate([_NONE, *self.calibration_settings], step_s)
        self.race_settings = [self._by_cap(cap) for cap in self._tuning.choose_race(self._caps_mib, self._smallest_mib, raced)]

    def race(self, step_s: Steps) -> bool:
        """Whether another block of it is worth nothing. step_s: of race_settings."""
        return self._tuning.race(self.race_settings, step_s)

    @property
    def gain_settings(self) -> tuple[Setting, Setting]:
        """After race(): PyTorch's default, and the chosen cap. To be measured after none."""
        default = [len(bucket) for bucket in assign_buckets(self._sizes, cap_mib=25, first_cap_mib=1)]
        return Setting("torch default", default), self.race_settings[self._tuning.leader]

    def decide(self, step_s: Steps) -> None:
        """step_s: of none, then of gain_settings."""
        default, chosen = self.gain_settings
        self._tuning.decide([_NONE, default, chosen._replace(name="chosen cap")], step_s)

    @property
    def choice(self) -> Setting:
        """After decide(): the default where that is to be kept, else the chosen cap."""
        return self.gain_settings[0 if self._tuning.keeps_default else 1]

    def results(self) -> str:
        """After decide(): the text of a results.json, without what only PyTorch knows."""
        return self._tuning.results()
