# SPDX-License-Identifier: Apache-2.0
"""Windows: random consecutive steps of an item, chosen when it is sampled."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from reverb._checks.arguments import check_at_least, check_integer
from reverb._client.column_choice import ColumnChoice
from reverb.errors import InvalidArgumentError

__all__ = ["MAX_STEPS", "Window", "check_items_of_windows", "check_window"]

# The core has the same.
MAX_STEPS = 65_536

_PADS = ("none", "left", "right", "both")

# Number of steps whose positions are in memory at once.
_AT_ONCE = 1 << 18


class Window:
    """Consecutive steps of an item, at a random position, for `Client.sample_batch`.

    Items are whole episodes or long pieces of a stream, as `sequence_writer` and
    `insert_sequence` write them. The server draws an item, and then a step of it, the *anchor*,
    with the same probability for each step that has a window. Only the steps from
    `anchor - before` to `anchor + length`, without the last, are read and sent. Items without a
    window are drawn again.

    Example:
      >>> client.insert_sequence([np.arange(20.0)], {"table": 1.0})
      >>> window = reverb.Window(5)
      >>> print(window)
      Window(5)

    Attributes:
      length: Number of steps from the anchor on.
      before: Number of steps before the anchor.
      pad: Where a window may reach beyond the item.
      spans: The columns of which only a part is sampled.
    """

    __slots__ = ("before", "length", "pad", "spans")

    def __init__(
        self,
        length: int,
        before: int = 0,
        pad: Literal["none", "left", "right", "both"] = "none",
        spans: Mapping[Any, tuple[int, int]] | None = None,
    ) -> None:
        """Makes a window.

        Args:
          length: Number of steps from the anchor on, at least 1.
          before: Number of steps before the anchor, such as a burn-in or a stack of frames.
            `before + length` is at most 65,536.
          pad: "none": the whole window lies within the item. "left": it may begin before the first
            step, which is repeated. "right": it may end after the last step, which is repeated.
            "both". The field `window_mask` of a batch's info says which steps are padding.
          spans: For some columns the steps `(start, stop)` that are sampled, counted from the
            anchor, within `[-before, length)`: such a column is `[B, stop - start, ...]`. Keys are
            names of columns or positions, as in the argument `columns` of `sample_batch`.

        Raises:
          InvalidArgumentError: If a number is out of its range, or `pad` has another value.
          TypeError: If an argument has the wrong type.
        """
        self.length = check_at_least(1, "window.length", length)
        self.before = check_at_least(0, "window.before", before)
        if self.before + self.length > MAX_STEPS:
            raise InvalidArgumentError(
                f"window: before + length must be at most {MAX_STEPS:,}, got "
                f"{self.before + self.length:,}"
            )
        if pad not in _PADS:
            raise InvalidArgumentError(
                f"window.pad must be 'none', 'left', 'right' or 'both', got {pad!r}"
            )
        self.pad = pad
        self.spans = {} if spans is None else dict(_checked(spans, -self.before, self.length))

    @property
    def num_steps(self) -> int:
        """Number of steps of a window, `before + length`."""
        return self.before + self.length

    @property
    def pads_left(self) -> bool:
        """Whether a window may begin before the first step."""
        return self.pad in ("left", "both")

    @property
    def pads_right(self) -> bool:
        """Whether a window may end after the last step."""
        return self.pad in ("right", "both")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Window) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((self.length, self.before, self.pad))

    def __reduce__(self) -> tuple[Any, ...]:
        return Window, self._fields()

    def _fields(self) -> tuple[Any, ...]:
        return self.length, self.before, self.pad, self.spans

    def __repr__(self) -> str:
        others = {"before": (self.before, 0), "pad": (self.pad, "none"), "spans": (self.spans, {})}
        changed = [f"{name}={value!r}" for name, (value, usual) in others.items() if value != usual]
        return f"Window({', '.join([str(self.length), *changed])})"

    def to_native(self, choice: ColumnChoice | None) -> tuple[Any, ...]:
        """Returns the window as the core reads it.

        Args:
          choice: Columns of the table; needed if there are spans.

        Raises:
          InvalidArgumentError: If a span is of no column, or two are of the same one.
        """
        spans: dict[int, tuple[int, int]] = {}
        for name, span in self.spans.items():
            for at in () if choice is None else choice.find("window.spans", name):
                if at in spans:
                    raise InvalidArgumentError(f"window.spans has two spans of column {at}")
                spans[at] = span
        flat = [(at, *spans[at]) for at in sorted(spans)]
        return self.length, self.before, self.pads_left, self.pads_right, flat

    def mask(self, start: np.ndarray, num_windows: np.ndarray) -> np.ndarray:
        """Returns which steps of windows are steps of their items.

        Args:
          start: First step of each window, int32 `[B]`.
          num_windows: Number of windows of each item, int32 `[B]`.

        Returns:
          bool `[B, before + length]`, `False` for padding.
        """
        shape = (len(start), self.num_steps)
        if self.pad == "none":
            return np.ones(shape, bool)
        # The number of steps of each item.
        count = num_windows + (0 if self.pads_left else self.before)
        count = count + (0 if self.pads_right else self.length - 1)
        steps = np.arange(self.num_steps, dtype=np.int32)
        mask = np.empty(shape, bool)
        # The mask may be as large as the batch, so nothing else is.
        num_rows = max(1, _AT_ONCE // self.num_steps)
        for at in range(0, len(start), num_rows):
            rows = slice(at, at + num_rows)
            part = start[rows, None] + steps
            np.logical_and(part >= 0, part < count[rows, None], out=mask[rows])
        return mask


def _checked(
    spans: Mapping[Any, Any], first: int, end: int
) -> Iterator[tuple[Any, tuple[int, int]]]:
    """Yields spans whose bounds are integers within the window."""
    if not isinstance(spans, Mapping):
        raise TypeError(
            "window.spans must be a dict of columns and pairs (start, stop), got "
            f"{type(spans).__name__}"
        )
    for name, span in spans.items():
        if not isinstance(span, tuple | list) or len(span) != 2:
            raise TypeError(f"window.spans[{name!r}] must be a pair (start, stop), got {span!r}")
        start, stop = (check_integer(f"window.spans[{name!r}]", it) for it in span)
        if not first <= start < stop <= end:
            raise InvalidArgumentError(
                f"window.spans[{name!r}] must have at least one step and lie within "
                f"[{first}, {end}), got ({start}, {stop})"
            )
        yield name, (start, stop)


def check_window(window: object) -> None:
    """Checks the type of an argument `window`.

    Raises:
      TypeError: If it is no window.
    """
    if not isinstance(window, Window):
        raise TypeError(f"window must be a reverb.Window, got {type(window).__name__}")


def check_items_of_windows(window: object, emit_timesteps: bool) -> None:
    """Checks the window of `Client.sample`.

    Raises:
      InvalidArgumentError: If timesteps are asked for: the info and the mask are of the whole
        window.
      TypeError: If it is no window.
    """
    check_window(window)
    if emit_timesteps:
        raise InvalidArgumentError(
            f"emit_timesteps must be False with a window, got {window} and emit_timesteps=True"
        )


# The public import path.
Window.__module__ = "reverb"
