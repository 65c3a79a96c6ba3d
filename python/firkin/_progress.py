"""How far a tuning is: a bar with the time left, by tqdm where it is there; lines where nobody looks at a terminal."""

from __future__ import annotations

import sys
import time
from typing import Any

_LINES_EVERY_S = 10.0


class Progress:
    def __init__(self, expected_s: float, shown: bool) -> None:
        self._started = time.perf_counter()
        self._expected_s, self._shown = expected_s, shown
        self._bar: Any = None
        self._last_line_s = -_LINES_EVERY_S
        self._on_terminal = sys.stderr.isatty() or "ipykernel" in sys.modules
        if shown and self._on_terminal:
            try:
                from tqdm.auto import tqdm  # type: ignore[import-untyped]
            except ImportError:
                return
            form = "{desc} {percentage:3.0f}% |{bar}| {postfix}"
            self._bar = tqdm(total=100, desc="firkin.tune", bar_format=form, file=sys.stderr, leave=False)

    def expect(self, seconds: float) -> None:
        """All of it takes that long at least."""
        self._expected_s = max(self._expected_s, seconds)

    def at(self, what: str) -> None:
        """what: it does now."""
        if not self._shown:
            return
        done_s = time.perf_counter() - self._started
        left_s = max(self._expected_s - done_s, 0.0)
        share = min(done_s / self._expected_s, 0.99)
        text = f"{what}, {left_s:.0f} s left" if left_s else f"{what}, about to end"
        if self._bar is not None:
            self._bar.n = round(100 * share)
            self._bar.set_postfix_str(text)
        elif self._on_terminal:
            print(f"\r\033[Kfirkin.tune {share:4.0%} {text}", end="", file=sys.stderr, flush=True)
        elif done_s - self._last_line_s >= _LINES_EVERY_S:
            self._last_line_s = done_s
            print(f"firkin.tune {share:4.0%} {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._shown and self._on_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def say(self, lines: str) -> None:
        """After close()."""
        if self._shown:
            print("firkin.tune: " + lines.replace("\n", "\n  "), file=sys.stderr, flush=True)
