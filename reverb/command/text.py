# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them."""

import datetime
import math

# Limits of dm-reverb that mean "none".
_UNLIMITED = 1e300

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DURATIONS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def number(value: float) -> str:
    """A number with few digits; whole numbers with all of theirs."""
    if isinstance(value, int) or (math.isfinite(value) and value == int(value)):
        return f"{int(value):,}" if abs(value) < _UNLIMITED else f"{value:g}"
    return f"{value:.6g}"


def limit(value: float) -> str:
    """One of the two limits of a rate limiter."""
    return number(value) if abs(value) < _UNLIMITED else "unlimited"


def bytes_(count: int) -> str:
    """A size, for example `1.5 MiB`."""
    value = float(count)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            return f"{value:.3g} {unit}" if unit != "B" else f"{count} B"
        value /= 1024
    raise AssertionError("the last unit takes everything")


def duration(seconds: float) -> str:
    """A time span in its two largest units, for example `2 h 5 min`."""
    rest = max(int(seconds), 0)
    parts = []
    for size, unit in _DURATIONS:
        if rest >= size or (unit == "s" and not parts):
            parts.append(f"{rest // size} {unit}")
            rest %= size
        elif parts:
            break
    return " ".join(parts[:2])


def moment(seconds: float, now: float) -> str:
    """A moment in local time, and how long ago that is."""
    local = datetime.datetime.fromtimestamp(seconds).astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S %z} ({duration(now - seconds)} ago)"
