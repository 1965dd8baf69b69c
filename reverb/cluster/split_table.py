# SPDX-License-Identifier: Apache-2.0
"""Dividing a table among the shards of a group."""

import logging
import operator
from typing import Any

from reverb._server.table import Table
from reverb.cluster.table_part import TableNumbers, TablePart, narrowness, part_of
from reverb.errors import InvalidArgumentError
from reverb.item_selectors import selector_settings
from reverb.rate_limiters import RateLimiter

__all__ = ["MAX_SHARDS", "check_parts", "check_place", "split_table"]

# Each shard needs at least one slot of keys.
MAX_SHARDS = 4096

_SEEDS = 2**64

_logger = logging.getLogger("reverb")


def split_table(
    table: Table, index: int, num_shards: int, *, is_coordinated: bool = False
) -> Table:
    """Makes the part of a table that one shard of a group serves.

    Together, the parts keep the limits of the table. `max_size` and `max_bytes` are divided; a
    queue or stack keeps its `max_size`, because its rate limiter bounds the number of items. The
    parts of `min_size_to_sample` add up to it, and so do the bounds of the rate limiter, so that
    the group's cursor, inserts times `samples_per_insert` minus samples, stays within the table's
    bounds. Each shard gets a different seed. Everything else stays the same.

    `Server(shard=...)` splits its tables itself.

    Example:
      >>> table = reverb.Table.queue("queue", max_size=10)
      >>> split_table(table, 0, 4).info.rate_limiter_info.max_diff
      2.0
      >>> split_table(table, 3, 4).info.rate_limiter_info.max_diff
      3.0

    Args:
      table: A table with the numbers of the whole group. It is not changed.
      index: Index of the shard, from 0 on.
      num_shards: Number of shards of the group, at most 4096.
      is_coordinated: Whether a coordinator moves budget between the shards. Then a part in which
        inserts and samples would wait for each other causes only a warning.

    Returns:
      An empty table.

    Raises:
      InvalidArgumentError: If a number is out of its range, if the rate limiter is too fine for so
        many shards (the text has a number that works), or if the sampler is `Shuffle` or `Recent`.
    """
    part = check_parts(table, index, num_shards, is_coordinated=is_coordinated)
    numbers = _numbers_of(table)
    warning = next(filter(None, narrowness(numbers, num_shards)), None)
    if warning is not None:
        _logger.warning("%s", warning)
    if not is_coordinated and num_shards > 1 and _drifts(numbers, table.info.sampler_options):
        _logger.warning(
            "table %s is sampled by priority, so its shards are not sampled as they are written: "
            "without a coordinator the rate limiters of the shards make samples and inserts wait "
            "more often than that of one server does (Shard(is_coordinated=True))",
            table.name,
        )
    seed = table.internal_seed
    return table.replace(
        max_size=part.max_size,
        max_bytes=part.max_bytes,
        rate_limiter=RateLimiter(
            samples_per_insert=numbers.samples_per_insert,
            min_size_to_sample=part.min_size_to_sample,
            min_diff=part.min_diff,
            max_diff=part.max_diff,
        ),
        seed=None if seed is None else (seed + index) % _SEEDS,
    )


def check_parts(table: Table, index: int, num_shards: int, *, is_coordinated: bool) -> TablePart:
    """Returns the numbers of the part of a table, see `split_table`.

    Raises:
      InvalidArgumentError: As `split_table`.
    """
    index, num_shards = check_place(index, num_shards)
    table.internal_table.check_in_group()
    numbers = _numbers_of(table)
    error, _ = narrowness(numbers, num_shards)
    if error is not None and not is_coordinated:
        raise InvalidArgumentError(error)
    return part_of(numbers, index, num_shards)


def _numbers_of(table: Table) -> TableNumbers:
    info = table.info
    limiter = info.rate_limiter_info
    return TableNumbers(
        name=table.name,
        max_size=info.max_size,
        max_bytes=table.internal_settings.max_bytes or None,
        max_times_sampled=info.max_times_sampled,
        samples_per_insert=limiter.samples_per_insert,
        min_size_to_sample=limiter.min_size_to_sample,
        min_diff=limiter.min_diff,
        max_diff=limiter.max_diff,
    )


def _drifts(numbers: TableNumbers, sampler: Any) -> bool:
    """Whether the cursors of equal parts drift apart until they reach their bounds."""
    is_bounded = not (numbers.is_open_below or numbers.is_open_above)
    return is_bounded and selector_settings(sampler).kind == "prioritized"


def check_place(index: int, num_shards: int) -> tuple[int, int]:
    """Returns the index and the number of shards as integers.

    Raises:
      InvalidArgumentError: If a number is out of its range.
      TypeError: If one is not an integer.
    """
    index, num_shards = operator.index(index), operator.index(num_shards)
    if not 1 <= num_shards <= MAX_SHARDS:
        raise InvalidArgumentError(f"num_shards must be from 1 to {MAX_SHARDS}, got {num_shards}")
    if not 0 <= index < num_shards:
        raise InvalidArgumentError(
            f"index must be from 0 to {num_shards - 1}, which is num_shards - 1, got {index}"
        )
    return index, num_shards
