# SPDX-License-Identifier: Apache-2.0
"""The numbers of a shard's part of a table, such that all parts together keep the table's.

The core divides: a change of a group's settings goes by the same rule.
"""

import dataclasses
import sys

from reverb.core import native

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
    return TablePart(*native.table_part(table, index, num_shards))


def narrowness(table: TableNumbers, num_shards: int) -> tuple[str | None, str | None]:
    """Why the parts of a rate limiter are too narrow, with the number that would do.

    Returns:
      An error: there is a part in which inserts and samples would wait for each other; and a
      warning: there is little room in each part for requests of several items. `None` if it is not
      so.
    """
    return native.table_narrowness(table, num_shards)
