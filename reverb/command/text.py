# SPDX-License-Identifier: Apache-2.0
"""Formats numbers, sizes, times and names for people."""

import datetime
import math
import unicodedata

# Limits of dm-reverb that mean "none".
_UNLIMITED = 1e300

_UNIT = 1024
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_DURATIONS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
# Thousands are abbreviated only from ten thousand on.
_POWERS = (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e4, 1e3))

ELLIPSIS = "\u2026"
# Shown in place of a missing number.
NOTHING = "\u2013"


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


def age(seconds: float, now: float) -> float:
    """Returns the time since a moment, in seconds; 0 if the clock was set back meanwhile."""
    return max(now - seconds, 0.0)


def moment(seconds: float, now: float) -> str:
    """Formats a time in the local zone, with its age."""
    local = datetime.datetime.fromtimestamp(seconds).astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S %z} ({duration(now - seconds)} ago)"


def short(value: float) -> str:
    """Formats a changing number in few characters, for example `24.8 k`."""
    if math.isnan(value):
        return NOTHING
    if abs(value) > _UNLIMITED:
        return "\u221e" if value > 0 else "-\u221e"
    for unit, least, size in _POWERS:
        if abs(value) >= least:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.1f}"


def plural(count: int, noun: str) -> str:
    """Formats a number of things, for example `2 items`."""
    return f"{short(count)} {noun}{'' if count == 1 else 's'}"


def interval(seconds: float | None) -> str:
    """Formats a time from microseconds to days in one unit, for example `41 s`."""
    if seconds is None or math.isnan(seconds):
        return NOTHING
    if math.isinf(seconds):
        return "\u221e"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} \u00b5s"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 120:
        return f"{seconds:.{1 if seconds < 10 else 0}f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"


def plain(value: str) -> str:
    r"""Escapes a text so that it cannot contain terminal control sequences.

    Clients choose their names freely. Control characters, line ends, marks that change the
    direction of writing and undefined code points of Unicode become escapes, such as `\x1b`.
    """
    if value.isprintable():
        return value
    return "".join(
        it if it.isprintable() else it.encode("unicode_escape").decode("ascii") for it in value
    )


def cells(value: str) -> int:
    """Returns the width of a plain text in columns of a terminal."""
    return len(value) if value.isascii() else sum(map(_cells_of, value))


def clip(value: str, width: int) -> str:
    """Cuts a plain text to a number of columns; a cut text ends with an ellipsis."""
    if cells(value) <= width:
        return value
    kept, room = [], width - 1
    for character in value:
        room -= _cells_of(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept) + ELLIPSIS if width > 0 else ""


def fit(value: str, width: int) -> str:
    """Clips or pads a plain text to a number of columns."""
    clipped = clip(value, width)
    return clipped + " " * (width - cells(clipped))


def _cells_of(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
