# SPDX-License-Identifier: Apache-2.0
"""Pictures made of characters: bars, the cursor between its bounds, and rates over time."""

import dataclasses
import math
from collections.abc import Sequence

from reverb.command import text
from reverb.command.top.line import Line, line


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Draws with a set of characters.

    Attributes:
      parts: Characters of the parts of a bar.
      rest: Character of the rest of a bar.
      scale: Left end, middle, right end and cursor of a gauge.
      steps: Characters of rising height; the first is empty.
    """

    parts: str
    rest: str
    scale: str
    steps: str

    def words(self, value: str) -> str:
        """Replaces characters that a terminal with these pictures cannot show."""
        return value.translate(str.maketrans(_IN_ASCII)) if self.rest.isascii() else value

    def bar(self, shares: Sequence[float], width: int) -> Line:
        """Draws shares of a whole, beside each other; each one above 0 is visible."""
        made, room = line(), width
        for i, share in enumerate(shares):
            share = min(max(share, 0.0), 1.0)
            count = min(max(round(share * width), 1 if share > 0 else 0), room)
            made += line((self.parts[i] * count, ("one", "two")[i]))
            room -= count
        return made + line((self.rest * room, "soft"))

    def gauge(self, position: float, width: int) -> Line:
        """Draws a scale with a cursor at a position from 0 to 1."""
        left, middle, right, cursor = self.scale
        at = 1 + round(min(max(position, 0.0), 1.0) * (width - 3))
        before, after = left + middle * (at - 1), middle * (width - 2 - at) + right
        return line((before, "soft"), (cursor, "one"), (after, "soft"))

    def chart(self, values: Sequence[float], top: float, height: int, role: str) -> list[Line]:
        """Draws a column for each value, with lines of full height `top`; NaN stays empty."""
        steps = len(self.steps) - 1
        # A small value that is not 0 is drawn as one step.
        heights = [
            0
            if math.isnan(it) or it <= 0 or top <= 0
            else max(1, min(round(it / top * steps * height), steps * height))
            for it in values
        ]
        return [
            line(("".join(self.steps[min(max(it - below, 0), steps)] for it in heights), role))
            for below in range((height - 1) * steps, -1, -steps)
        ]


BLOCKS = Pictures("█▓", "░", "├─┤●", " ▁▂▃▄▅▆▇█")
ASCII = Pictures("#=", ".", "|-|O", " .:|")


# Replacements of characters in texts for a terminal that shows only ASCII.
_IN_ASCII = {text.ELLIPSIS: "~", text.NOTHING: "-", "\u221e": "inf", "\u00b5": "u"}


def pictures_for(encoding: str) -> Pictures:
    """Returns the pictures that a terminal with an encoding can show."""
    try:
        "".join((BLOCKS.parts, BLOCKS.rest, BLOCKS.scale, BLOCKS.steps)).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS
