# SPDX-License-Identifier: Apache-2.0
"""The numbers of a shard's part of a table, such that all parts together keep the table's limits.

The core computes them, because changes of a group's settings need the same rule.
"""

import dataclasses
import sys

from reverb.core import native

__all__ = ["TableNumbers", "TablePart", "narrowness", "part_of"]

_MAX = sys.float_info.max


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableNumbers:
    """The numbers of a table that are divided.

    Attributes:
      name: Name of the table, for errors.
      max_size: Maximum number of items.
      max_bytes: Maximum memory; `None`: no limit.
      max_times_sampled: Maximum number of samples of an item; below 1: no limit.
      samples_per_insert: Ratio of the rate limiter.
      min_size_to_sample: Number of items from which on samples are allowed.
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
    def is_open_below(self) -> bool:
        """Whether the cursor has no lower bound."""
        return abs(self.min_diff) >= _MAX

    @property
    def is_open_above(self) -> bool:
        """Whether the cursor has no upper bound."""
        return abs(self.max_diff) >= _MAX


@dataclasses.dataclass(frozen=True)
class TablePart:
    """The numbers of a part; see `TableNumbers`."""

    max_size: int
    max_bytes: int | None
    min_size_to_sample: int
    min_diff: float
    max_diff: float


def part_of(table: TableNumbers, index: int, num_shards: int) -> TablePart:
    """Returns the part of a shard.

    * `max_size` is divided, rounded up. A table that is never full because of its limiter, such as
      a queue, keeps its `max_size`, because shards may hold different numbers of items.
    * `max_bytes` is divided, rounded down.
    * The parts of `min_size_to_sample` add up to it; each is at least 1.
    * The bounds of the parts add up to the bounds of the table. All shards have the same distance
      from their bounds to the cursor of a part that holds `min_size_to_sample` unsampled items. If
      the cursor is always a whole number, so are the bounds.

    Raises:
      InvalidArgumentError: If there are not enough bytes for the parts.
    """
    return TablePart(*native.table_part(table, index, num_shards))


def narrowness(table: TableNumbers, num_shards: int) -> tuple[str | None, str | None]:
    """Why the parts of a rate limiter are too narrow, with a number that works.

    Returns:
      An error if inserts and samples of a part would wait for each other, else `None`; and a
      warning if the parts have little budget for requests of several items, else `None`.
    """
    return native.table_narrowness(table, num_shards)
