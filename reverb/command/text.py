# SPDX-License-Identifier: Apache-2.0
"""Formats numbers, sizes and times for people."""

import datetime
import math

# Limits of dm-reverb that mean "none".
_UNLIMITED = 1e300

_UNIT = 1024
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_DURATIONS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def number(value: float) -> str:
    """Formats a number with few digits; whole numbers with all digits."""
    if isinstance(value, int) or (math.isfinite(value) and value == int(value)):
        return f"{int(value):,}" if abs(value) < _UNLIMITED else f"{value:g}"
    return f"{value:.6g}"


def limit(value: float) -> str:
    """Formats one of the two limits of a rate limiter."""
    return number(value) if abs(value) < _UNLIMITED else "unlimited"


def bytes_(count: int) -> str:
    """Formats a size, for example `1.5 MiB`."""
    if count < _UNIT:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    value = count / _UNIT**power
    return f"{value:.{1 if value < 100 else 0}f} {_UNITS[power - 1]}"


def duration(seconds: float) -> str:
    """Formats a duration in its two largest units, for example `2 h 5 min`."""
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
    """Formats a time in the local zone, with its age."""
    local = datetime.datetime.fromtimestamp(seconds).astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S %z} ({duration(now - seconds)} ago)"
