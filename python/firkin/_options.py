"""Races options of DistributedDataParallel that change the time of a step but not its result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from firkin._core import paired_ratio
from firkin._measure import Samples, StepBench
from firkin._tuner import Setting
from torch.nn.parallel import DistributedDataParallel as DDP

_RACED = ("gradient_as_bucket_view", "batched_grad_copy", "static_graph")  # batched_grad_copy: from torch 2.12 on
_LEAST_GAIN = 0.005  # as a share of a step: less is not worth an argument in the program

BLOCKS = (6, 8)  # the fewest blocks, which an interval needs, and the most
MOST = len(_RACED) + 1  # the most settings in a race


@dataclass
class OptionRace:
    """The options that win, and a sentence on each that was considered."""

    won: dict[str, bool] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def options_to_race(given: Mapping[str, object], *, compiled: bool) -> list[str]:
    """The options that this PyTorch has and that the program has not set itself."""
    known = [name for name in _RACED if name in inspect.signature(DDP.__init__).parameters and name not in given]
    is_other_graph = compiled or given.get("find_unused_parameters")
    return [name for name in known if not (name == "static_graph" and is_other_graph)]


def race_options(
    bench: StepBench, setting: Setting, options: list[str], measured: Callable[[list[Setting]], Samples]
) -> OptionRace:
    """Measures the setting with and without each option, in the same blocks.

    Collective. measured: runs blocks of steps.
    """
    race, habits = OptionRace(), bench.habits(setting)
    reasons = {
        "gradient_as_bucket_view": "the program keeps gradients, which the next step would overwrite" if habits.keeps_gradients else "",
        "static_graph": "PyTorch's first step with it may not be under no_sync()" if habits.accumulates else "",
    }
    raced = [setting]
    for name in options:
        if reason := reasons.get(name):
            race.notes.append(f"{name}=True was not tried: {reason}")
            continue
        with_it = setting._replace(name=f"{setting.name}, {name}")
        bench.options[with_it.name] = {name: True}
        if (error := bench.refusal(with_it)) is None:
            raced.append(with_it)
        else:
            race.notes.append(f"{name}=True was not tried: the step fails with it ({error})")
    if len(raced) == 1:
        return race
    samples = measured(raced)
    for with_it, step_s in zip(raced[1:], samples[1:]):
        ((name, _),) = bench.options[with_it.name].items()
        ratio, low, high = paired_ratio(step_s, samples[0])
        wins = high < 1 and ratio < 1 - _LEAST_GAIN
        race.won |= {name: True} if wins else {}
        race.notes.append(f"{name}=True: {ratio:.3f} ({low:.3f} to {high:.3f}) of a step without it{', and is chosen' if wins else ''}")
    return race
