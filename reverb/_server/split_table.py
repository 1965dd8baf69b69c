# SPDX-License-Identifier: Apache-2.0
"""Dividing a table among the shards of a group."""

import logging
import operator
import sys
from typing import Any

from google.protobuf.message import Message

from reverb._server.table import Table, arguments_of
from reverb._server.table_part import narrowness, part_of
from reverb.errors import InvalidArgumentError
from reverb.item_selectors import selector_settings

__all__ = ["MAX_SHARDS", "check_index", "check_parts", "split_table"]

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
    warning = next(filter(None, narrowness(table.internal_settings, num_shards)), None)
    if warning is not None:
        _logger.warning("%s", warning)
    if not is_coordinated and num_shards > 1 and _drifts(table.internal_settings):
        _logger.warning(
            "table %s is sampled by priority, so its shards are not sampled as often as they are "
            "written. Without a coordinator, inserts and samples wait more often than with one "
            "server, or for ever: use Shard(is_coordinated=True)",
            table.name,
        )
    seed = table.internal_seed
    own_seed = None if seed is None else (seed + index) % _SEEDS
    return table.replace(**arguments_of(part), seed=own_seed)


def check_parts(table: Table, index: int, num_shards: int, *, is_coordinated: bool) -> Message:
    """Returns the settings of the part of a table, see `split_table`.

    Raises:
      InvalidArgumentError: As `split_table`.
    """
    index, num_shards = check_index(index, num_shards)
    table.internal_table.check_in_group()
    error, _ = narrowness(table.internal_settings, num_shards)
    if error is not None and not is_coordinated:
        raise InvalidArgumentError(error)
    return part_of(table.internal_settings, index, num_shards)


def _drifts(settings: Any) -> bool:
    """Whether the cursors of equal parts drift apart until they reach their bounds."""
    limiter = settings.rate_limiter
    is_bounded = max(abs(limiter.min_diff), abs(limiter.max_diff)) < sys.float_info.max
    return is_bounded and selector_settings(settings.sampler).kind == "prioritized"


def check_index(index: int, num_shards: int) -> tuple[int, int]:
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
