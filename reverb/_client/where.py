# SPDX-License-Identifier: Apache-2.0
"""Conditions of items, which a server checks without decoding anything."""

import dataclasses
import datetime
import math
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from reverb._checks.arguments import check_integer
from reverb.core import protos
from reverb.errors import InvalidArgumentError

__all__ = ["Where", "condition_of"]

_MAX_TIMES_SAMPLED = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Where:
    """A condition of items: bounds of their priority, number of samples and time of insertion.

    An item fulfils it if it is within all bounds that are given. Servers check it by the numbers
    that they keep of each item, and decode no data. Used by `Client.scan` and
    `Client.delete_items`.

    Example:
      >>> reverb.Where(priority=(0.5, None), times_sampled=(0, 0))
      Where(priority=(0.5, None), times_sampled=(0, 0), inserted_at=None)

    Attributes:
      priority: `(lowest, highest)`; both ends are included, and `None` as an end is no bound.
        `None` instead of the pair: any priority.
      times_sampled: `(fewest, most)`, how often the item was sampled; otherwise as `priority`.
      inserted_at: `(start, end)`, times of insertion by the clock of the server: the start is
        included, the end is not, so that intervals that follow each other share no item. Each is a
        `datetime` (local time, if it has no time zone) or a number of seconds since 1970, such as
        `scan(with_inserted_at=True)` yields; `None` is no bound. Items that were loaded from a
        checkpoint, or that another shard has sent, keep their time.

    Raises:
      InvalidArgumentError: If a pair is no pair, if a bound is not a number or time, or if the
        first bound is greater than the second.
    """

    priority: tuple[float | None, float | None] | None = None
    times_sampled: tuple[int | None, int | None] | None = None
    inserted_at: (
        tuple[datetime.datetime | float | None, datetime.datetime | float | None] | None
    ) = None

    def __post_init__(self) -> None:
        _bounds("priority", "(lowest, highest)", self.priority, _number)
        _bounds("times_sampled", "(fewest, most)", self.times_sampled, _count)
        _bounds("inserted_at", "(start, end)", self.inserted_at, _seconds)

    @property
    def has_bounds(self) -> bool:
        """Whether any bound is given; if not, all items fulfil the condition."""
        return bool(self.to_proto().ByteSize())

    def to_proto(self) -> Message:
        """Makes a `reverb.ItemCondition` message."""
        lowest, highest = _bounds("priority", "", self.priority, _number)
        fewest, most = _bounds("times_sampled", "", self.times_sampled, _count)
        start, end = _bounds("inserted_at", "", self.inserted_at, _seconds)
        return protos.ItemCondition(
            min_priority=lowest,
            max_priority=highest,
            min_times_sampled=fewest,
            max_times_sampled=most,
            inserted_from_s=start,
            inserted_before_s=end,
        )


def condition_of(where: Where | None) -> Message:
    """Returns the `reverb.ItemCondition` message of an argument `where`.

    Raises:
      TypeError: If it is no `Where`.
    """
    if where is None:
        return protos.ItemCondition()
    if not isinstance(where, Where):
        raise TypeError(f"where must be a reverb.Where, got {where!r}")
    return where.to_proto()


def _bounds(
    argument: str, form: str, pair: object, number: Callable[[Any], float]
) -> tuple[Any, Any]:
    """Returns two numbers, or `None` for no bound."""
    if pair is None:
        return None, None
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InvalidArgumentError(f"{argument} must be a pair {form}, got {pair!r}")
    try:
        low, high = (None if bound is None else number(bound) for bound in pair)
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise InvalidArgumentError(
            f"{argument} must be a pair {form}, got {pair!r}: {error}"
        ) from None
    if low is not None and high is not None and low > high:
        raise InvalidArgumentError(
            f"{argument} must be a pair {form} whose first number is not greater than the second, "
            f"got {pair!r}"
        )
    # Infinite ends are no bounds.
    return None if low == -math.inf else low, None if high == math.inf else high


def _number(value: Any) -> float:
    number = float(value) if not isinstance(value, str | bytes) else math.nan
    if math.isnan(number):
        raise ValueError(f"{value!r} is not a number")
    return number


def _count(value: object) -> int:
    count = check_integer("a number of samples", value)
    if not 0 <= count <= _MAX_TIMES_SAMPLED:
        raise ValueError(f"{count} is not a number from 0 to 2**31 - 1")
    return count


def _seconds(value: object) -> float:
    return value.timestamp() if isinstance(value, datetime.datetime) else _number(value)


# The public import path.
Where.__module__ = "reverb"
