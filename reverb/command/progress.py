# SPDX-License-Identifier: Apache-2.0
"""A progress bar for a terminal."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

_SECONDS_BETWEEN_DRAWINGS = 0.1
_BAR_WIDTH = 12
# Before this time the rate would jump.
_SECONDS_BEFORE_RATE = 0.5

_CLEAR_LINE = "\r\x1b[K"


class Progress:
    """Draws a progress bar in the last line of a terminal, and removes it at the end.

    Use it in a `with` block. If `enabled` is `None`, it draws if `stream` is a terminal; `noun` is
    the name of the counted things, in the plural.
    """

    def __init__(
        self,
        label: str,
        *,
        enabled: bool | None = None,
        noun: str = "items",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._stream = sys.stderr if stream is None else stream
        self._enabled = self._stream.isatty() if enabled is None else enabled
        self._noun = noun
        self._clock = clock
        self._started = clock()
        self._last_drawing = -float("inf")

    def __call__(self, done: int, total: int) -> None:
        """Draws the progress ten times per second at most; `total` is 0 if it is unknown."""
        now = self._clock()
        if not self._enabled or now - self._last_drawing < _SECONDS_BETWEEN_DRAWINGS:
            return
        self._last_drawing = now
        line = f"{self._label} {_line(done, total, now - self._started, self._noun)}"
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(_CLEAR_LINE + line[:width])
        self._stream.flush()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._enabled and self._last_drawing > -float("inf"):
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()


def _line(done: int, total: int, seconds: float, noun: str) -> str:
    if not total:
        return f"{done:,} {noun}"
    share = min(done / total, 1.0)
    filled = round(share * _BAR_WIDTH)
    bar = "#" * filled + "." * (_BAR_WIDTH - filled)
    line = f"[{bar}] {share:4.0%} {done:,} of {total:,} {noun}"
    if seconds < _SECONDS_BEFORE_RATE or not done:
        return line
    rate = done / seconds
    remaining = round(max(total - done, 0) / rate)
    clock = f"{remaining // 60}:{remaining % 60:02}"
    return f"{line}, {rate:,.0f}/s, {clock} left"
