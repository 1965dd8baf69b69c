# SPDX-License-Identifier: Apache-2.0
"""Rate limiters: how fast a table may be sampled compared to how fast it is written.

A limiter counts inserts `I`, samples `S` and deletes `D`. With the parameters below,
a sample is allowed if `I - D >= min_size_to_sample` and
`I * samples_per_insert - S - 1 >= min_diff`; an insert is allowed if the table stays within
`min_size_to_sample` items or `(I + 1) * samples_per_insert - S <= max_diff`. Otherwise it waits.
"""

import logging
import numbers
import sys
from collections.abc import Iterable
from typing import Any

from reverb._checks.arguments import check_integer, check_number
from reverb._checks.pickles import not_pickled
from reverb.core import native, protos
from reverb.errors import InvalidArgumentError
from reverb.shown_text import shown, type_name

__all__ = ["MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"]

_logger = logging.getLogger("reverb")


class RateLimiter:
    """A limiter with all four parameters; the subclasses are common cases.

    Each table needs an object of its own.

    Example:
      >>> RateLimiter(samples_per_insert=2.0, min_size_to_sample=10, min_diff=10.0, max_diff=30.0)
      RateLimiter(samples_per_insert=2, min_diff_=10, max_diff=30, min_size_to_sample=10)
    """

    def __init__(
        self,
        samples_per_insert: float,
        min_size_to_sample: int,
        min_diff: float,
        max_diff: float,
    ) -> None:
        """Makes a limiter.

        Args:
          samples_per_insert: How often an item is sampled on average; greater than 0.
          min_size_to_sample: Samples wait until the table holds this many items; at least 1.
          min_diff: Samples wait if `I * samples_per_insert - S` would fall below it.
          max_diff: Inserts wait if `I * samples_per_insert - S` would rise above it.

        Raises:
          InvalidArgumentError: If a number is out of its range.
          TypeError: If `min_size_to_sample` is not an integer.
        """
        self._samples_per_insert = samples_per_insert
        self._min_size_to_sample = min_size_to_sample
        self._min_diff = min_diff
        self._max_diff = max_diff
        self.internal_limiter = native.RateLimiter(
            check_number("samples_per_insert", samples_per_insert),
            check_integer("min_size_to_sample", min_size_to_sample, allows_bool=True),
            check_number("min_diff", min_diff),
            check_number("max_diff", max_diff),
        )

    def to_proto(self) -> Any:
        """Makes a `RateLimiterCheckpoint` message without counters."""
        return protos.RateLimiterCheckpoint(
            samples_per_insert=self._samples_per_insert,
            min_size_to_sample=self._min_size_to_sample,
            min_diff=self._min_diff,
            max_diff=self._max_diff,
        )

    __reduce__ = not_pickled("send its arguments, and make it where the table is made")

    @shown
    def __repr__(self) -> str:
        return repr(self.internal_limiter)

    @shown
    def __str__(self) -> str:
        numbers = {
            "samples_per_insert": self._samples_per_insert,
            "min_size_to_sample": self._min_size_to_sample,
            "min_diff": self._min_diff,
            "max_diff": self._max_diff,
        }
        largest = sys.float_info.max
        bounded = {name: it for name, it in numbers.items() if abs(it) < largest}
        arguments = ", ".join(f"{name}={it:g}" for name, it in bounded.items())
        return f"{type(self).__name__} with {arguments}"


def from_proto(message: Any) -> RateLimiter:
    """Makes the limiter that a message with its four numbers describes. Counters are ignored.

    Raises:
      InvalidArgumentError: If a number is out of its range.
    """
    return RateLimiter(
        samples_per_insert=message.samples_per_insert,
        min_size_to_sample=message.min_size_to_sample,
        min_diff=message.min_diff,
        max_diff=message.max_diff,
    )


class MinSize(RateLimiter):
    """Samples wait until the table holds `min_size_to_sample` items; inserts never wait.

    Example:
      >>> limiter = MinSize(1)
    """

    def __init__(self, min_size_to_sample: int) -> None:
        super().__init__(
            samples_per_insert=1.0,
            min_size_to_sample=min_size_to_sample,
            min_diff=-sys.float_info.max,
            max_diff=sys.float_info.max,
        )


class SampleToInsertRatio(RateLimiter):
    """Keeps the ratio of samples to inserts within a margin.

    Example:
      >>> SampleToInsertRatio(samples_per_insert=4.0, min_size_to_sample=1000, error_buffer=400.0)
      RateLimiter(samples_per_insert=4, min_diff_=3600, max_diff=4400, min_size_to_sample=1000)
    """

    def __init__(
        self,
        samples_per_insert: float,
        min_size_to_sample: int,
        error_buffer: float | tuple[float, float],
    ) -> None:
        """Makes a limiter.

        Args:
          samples_per_insert: How often an item is sampled on average; greater than 0.
          min_size_to_sample: Samples wait until the table holds this many items; at least 1.
          error_buffer: Maximum deviation of `I * samples_per_insert - S` from
            `min_size_to_sample * samples_per_insert` in both directions, in samples; or the pair
            `(min_diff, max_diff)`.

        Raises:
          InvalidArgumentError: If a number is out of its range, or if the margin is so narrow that
            inserts and samples would wait for each other.
        """
        # The middle of the range: `min_size_to_sample` items inserted, none sampled.
        check_number("samples_per_insert", samples_per_insert)
        check_integer("min_size_to_sample", min_size_to_sample, allows_bool=True)
        offset = samples_per_insert * min_size_to_sample
        min_diff, max_diff = _diffs(error_buffer, offset)
        if samples_per_insert <= 0:
            raise InvalidArgumentError(
                f"samples_per_insert must be greater than 0, got {samples_per_insert}"
            )
        needed = 2 * max(1.0, samples_per_insert)
        if max_diff - min_diff < needed:
            raise InvalidArgumentError(
                "The size of error_buffer must be at least max(1.0, samples_per_insert) = "
                f"{needed / 2} on each side, got {(max_diff - min_diff) / 2}: samples and inserts "
                "would wait for each other."
            )
        if max_diff < offset:
            _logger.warning(
                "The rate limiter stops inserts at max_diff %s, before the %s that "
                "min_size_to_sample items bring: writers wait until the table is sampled.",
                max_diff,
                offset,
            )
        if min_diff > offset:
            raise InvalidArgumentError(
                f"min_diff must be at most samples_per_insert * min_size_to_sample = {offset}, got "
                f"{min_diff}: samples would wait for more inserts than min_size_to_sample."
            )
        super().__init__(
            samples_per_insert=samples_per_insert,
            min_size_to_sample=min_size_to_sample,
            min_diff=min_diff,
            max_diff=max_diff,
        )


class Queue(RateLimiter):
    """For queues: every item is sampled once; inserts wait while the table holds `size` items.

    Example:
      >>> Queue(10)
      RateLimiter(samples_per_insert=1, min_diff_=0, max_diff=10, min_size_to_sample=1)
    """

    def __init__(self, size: int) -> None:
        super().__init__(
            samples_per_insert=1.0,
            min_size_to_sample=1,
            min_diff=0.0,
            max_diff=check_number("size", size),
        )


class Stack(RateLimiter):
    """For stacks: the same rule as `Queue`.

    Example:
      >>> Stack(10)
      RateLimiter(samples_per_insert=1, min_diff_=0, max_diff=10, min_size_to_sample=1)
    """

    def __init__(self, size: int) -> None:
        super().__init__(
            samples_per_insert=1.0,
            min_size_to_sample=1,
            min_diff=0.0,
            max_diff=check_number("size", size),
        )


def _diffs(error_buffer: object, offset: float) -> tuple[float, float]:
    if isinstance(error_buffer, numbers.Real):  # NumPy's numbers are `Real` too.
        margin = float(error_buffer)
        return offset - margin, offset + margin
    if isinstance(error_buffer, str) or not isinstance(error_buffer, Iterable):
        kind = type_name(error_buffer)
        raise TypeError(f"error_buffer must be a number, or min_diff and max_diff, got {kind}")
    min_diff, max_diff = error_buffer
    return min_diff, max_diff
