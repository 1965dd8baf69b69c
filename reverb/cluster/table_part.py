# SPDX-License-Identifier: Apache-2.0
"""The numbers of a shard's part of a table, such that all parts together keep the table's."""

import dataclasses
import math
import sys
from collections.abc import Iterator

from reverb.errors import InvalidArgumentError

__all__ = ["TableNumbers", "TablePart", "narrowness", "part_of"]

_MAX = sys.float_info.max


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableNumbers:
    """What is divided of a table.

    Attributes:
      name: Of the table, for errors.
      max_size: Maximum number of items.
      max_bytes: Maximum memory; `None`: no limit.
      max_times_sampled: How often an item is sampled; below 1: as often as one likes.
      samples_per_insert: Of the rate limiter, as the following.
      min_size_to_sample: Number of items from which on it is sampled.
      min_diff: Lower bound of the cursor: inserts times `samples_per_insert` minus samples.
      max_diff: Upper bound of the cursor.
    """

    name: str
    max_size: int
    max_bytes: int | None
    max_times_sampled: int
    samples_per_insert: float
    min_size_to_sample: int
    min_diff: float
    max_diff: float

    @property
    def is_exact(self) -> bool:
        """Whether the cursor is a whole number at any time, and so are its bounds."""
        numbers = (self.samples_per_insert, self.min_diff, self.max_diff)
        return all(_is_unbounded(it) or float(it).is_integer() for it in numbers)

    @property
    def is_open_below(self) -> bool:
        """Whether the cursor has no lower bound."""
        return _is_unbounded(self.min_diff)

    @property
    def is_open_above(self) -> bool:
        """Whether the cursor has no upper bound."""
        return _is_unbounded(self.max_diff)

    @property
    def is_bounded_by_limiter(self) -> bool:
        """Whether the limiter never lets in more items than `max_size`, as that of a queue.

        Each item is sampled once and counts 1, so that the cursor is the number of items.
        """
        return (
            self.max_times_sampled == 1
            and self.samples_per_insert == 1
            and self.max_diff <= self.max_size
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TablePart:
    """The numbers of a part; see `TableNumbers`."""

    max_size: int
    max_bytes: int | None
    min_size_to_sample: int
    min_diff: float
    max_diff: float


def part_of(table: TableNumbers, index: int, num_shards: int) -> TablePart:
    """Returns the part of a shard.

    * `max_size` is divided, rounded up. A table that its limiter keeps from being full, as a queue,
      keeps its `max_size`: there may be more room for one shard than for another.
    * `max_bytes` is divided, rounded down.
    * The parts of `min_size_to_sample` add up to it; each is 1 at least.
    * The bounds of the parts add up to the bounds of the table: each shard has the same room around
      the cursor that its part of `min_size_to_sample` has, without samples. Where the cursor is
      always a whole number, so are the bounds.

    Raises:
      InvalidArgumentError: If there are not enough bytes for the parts.
    """
    max_size = table.max_size
    if not table.is_bounded_by_limiter:
        max_size = -(-table.max_size // num_shards)
    max_bytes = table.max_bytes
    if max_bytes is not None:
        max_bytes //= num_shards
        if max_bytes < 1:
            raise InvalidArgumentError(
                f"max_bytes of table {table.name} must be at least {num_shards}, a byte for each "
                f"shard, got {table.max_bytes}"
            )
    min_sizes = _min_sizes(table.min_size_to_sample, num_shards)
    lower = _bounds(table, table.min_diff, min_sizes)
    upper = _bounds(table, table.max_diff, min_sizes)
    return TablePart(
        max_size=max_size,
        max_bytes=max_bytes,
        min_size_to_sample=min_sizes[index],
        min_diff=_at_least(lower, table.min_diff)[index],
        max_diff=_at_most(upper, table.max_diff)[index],
    )


def narrowness(table: TableNumbers, num_shards: int) -> tuple[str | None, str | None]:
    """Why the parts of a rate limiter are too narrow, with the number that would do.

    Returns:
      An error: there is a part in which inserts and samples would wait for each other; and a
      warning: there is little room in each part for requests of several items. `None` if it is not
      so.
    """
    low, high, spi = table.min_diff, table.max_diff, table.samples_per_insert
    if num_shards == 1 or table.is_open_below or table.is_open_above:
        return None, None
    # One insert and one sample must fit; with whole numbers they may share their last step.
    step = max(1.0, spi if table.is_exact else spi + 1.0)
    wanted = 2.0 * max(1.0, spi)
    room = high - low
    least = min(part.max_diff - part.min_diff for part in _parts(table, num_shards))
    text = (
        f"the rate limiter of table {table.name} is too fine for {num_shards} shards: it lets "
        f"inserts * samples_per_insert - samples move by {room:g} (max_diff - min_diff), "
        f"{room / num_shards:g} in each shard"
    )
    if least < step:
        return f"{text}, where it needs {step:g}; {step * num_shards:g} would do", None
    if room < wanted * num_shards:
        return None, (
            f"{text}, where {wanted:g} would be good; {wanted * num_shards:g} would do, an "
            f"error_buffer of {wanted * num_shards / 2:g}"
        )
    return None, None


def _parts(table: TableNumbers, num_shards: int) -> Iterator[TablePart]:
    # The bytes do not matter here.
    table = dataclasses.replace(table, max_bytes=None)
    min_sizes = _min_sizes(table.min_size_to_sample, num_shards)
    lower = _at_least(_bounds(table, table.min_diff, min_sizes), table.min_diff)
    upper = _at_most(_bounds(table, table.max_diff, min_sizes), table.max_diff)
    for min_size, low, high in zip(min_sizes, lower, upper, strict=True):
        yield TablePart(
            max_size=1, max_bytes=None, min_size_to_sample=min_size, min_diff=low, max_diff=high
        )


def _min_sizes(min_size: int, num_shards: int) -> list[int]:
    return [max(1, it) for it in _whole_parts(min_size, num_shards)]


def _whole_parts(total: int, num_shards: int) -> list[int]:
    """Whole numbers that add up to the total, as alike as possible."""
    part, rest = divmod(total, num_shards)
    return [part + (index < rest) for index in range(num_shards)]


def _bounds(table: TableNumbers, bound: float, min_sizes: list[int]) -> list[float]:
    """The parts of a bound; but for rounding they add up to it."""
    num_shards = len(min_sizes)
    if _is_unbounded(bound):
        return [bound] * num_shards
    spi = table.samples_per_insert
    # Where the cursors are when each shard has its items, and nobody has sampled. A table with
    # fewer items than shards has no such place.
    is_in_all = sum(min_sizes) == table.min_size_to_sample
    places = [spi * it for it in min_sizes] if is_in_all else [0.0] * num_shards
    rest = bound - math.fsum(places)
    if table.is_exact:
        # Those with more items have less of the rest.
        parts = [float(it) for it in reversed(_whole_parts(int(rest), num_shards))]
    else:
        parts = [rest / num_shards] * num_shards
    return [place + part for place, part in zip(places, parts, strict=True)]


def _at_least(parts: list[float], total: float) -> list[float]:
    """The parts, with a sum that is not below the total by a rounding error."""
    return [-it for it in _at_most([-it for it in parts], -total)]


def _at_most(parts: list[float], total: float) -> list[float]:
    """The parts, with a sum that is not above the total by a rounding error."""
    if _is_unbounded(total):
        return parts
    parts = list(parts)
    while (surplus := math.fsum([*parts, -total])) > 0:
        parts[-1] = math.nextafter(parts[-1] - surplus, -math.inf)
    return parts


def _is_unbounded(bound: float) -> bool:
    return abs(bound) >= _MAX
