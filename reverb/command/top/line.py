# SPDX-License-Identifier: Apache-2.0
"""Lines of text whose parts have a role; a terminal gives a colour to each role."""

import dataclasses
import textwrap
from collections.abc import Iterable, Sequence

from reverb.command import text

# Roles: "" for normal text, "bold", "soft" for less important text, "one" and "two" for the two
# sides of a picture, and these for states.
ROLE_OF_STATE = {
    "shard down": "bad",
    "never": "bad",
    "stuck": "bad",
    "starved": "bad",
    "full": "bad",
    "slow readers": "bad",
    "paused": "wait",
    "draining": "wait",
    "behind": "wait",
    "ahead": "wait",
    "filling": "good",
    "flowing": "good",
    "idle": "soft",
    "unknown": "soft",
}


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of escaped text, see `text.plain`.

    Attributes:
      parts: Texts, each with its role.
    """

    parts: tuple[tuple[str, str], ...] = ()

    @property
    def plain(self) -> str:
        """The text without roles."""
        return "".join(part for part, _ in self.parts)

    @property
    def width(self) -> int:
        """Width in columns of a terminal."""
        return sum(text.cells(part) for part, _ in self.parts)

    def fit(self, width: int) -> "Line":
        """Returns the line clipped or padded to a number of columns."""
        parts, room = [], width
        for part, role in self.parts:
            parts.append((text.clip(part, room), role))
            room -= text.cells(parts[-1][0])
            if parts[-1][0] != part:
                break
        return Line((*parts, (" " * room, "")))

    def __add__(self, other: "Line") -> "Line":
        return Line(self.parts + other.parts)


@dataclasses.dataclass(frozen=True)
class Block:
    """Lines under a title.

    Attributes:
      title: Title of the block.
      lines: The lines.
    """

    title: str
    lines: Sequence[Line]


def line(*parts: str | tuple[str, str]) -> Line:
    """Makes a line of texts, or of texts with a role: `line("total ", ("3", "bold"))`."""
    return Line(tuple((it, "") if isinstance(it, str) else it for it in parts))


def wrapped(value: str, width: int, role: str = "") -> list[Line]:
    """Breaks a plain text between words into lines of a number of columns."""
    return [line((row, role)) for row in textwrap.wrap(value, max(width, 1))]


def facts(pairs: Iterable[tuple[str, str]], width: int) -> list[Line]:
    """Makes a line for each pair: a name at the left, its value at the right."""
    return [
        line(
            (name, "soft"), text.fit("", width - text.cells(name) - text.cells(value)) or " ", value
        )
        for name, value in pairs
    ]


def columns(blocks: Sequence[Block], width: int, count: int, gap: int = 3) -> list[Line]:
    """Puts blocks into columns: each goes into the column that has the fewest lines so far.

    The lines of the blocks fit into `column_width(width, count, gap)`; `width` is that of the
    terminal.
    """
    each = column_width(width, count, gap)
    stacks: list[list[Line]] = [[] for _ in range(count)]
    for block in blocks:
        stack = min(stacks, key=len)
        stack += [line((block.title, "bold")), *block.lines, line()]
    rows = max(map(len, stacks), default=0)
    between = line(" " * gap)
    made = []
    for row in range(rows):
        joined = line()
        for i, stack in enumerate(stacks):
            cell = stack[row] if row < len(stack) else line()
            joined += (between if i else line()) + cell.fit(each)
        made.append(joined)
    return made[:-1]  # The last row is the gap below the longest stack.


def column_width(width: int, count: int, gap: int = 3) -> int:
    """Returns the maximum width of a block in one of `count` columns."""
    return max((width - gap * (count - 1)) // count, 1)
