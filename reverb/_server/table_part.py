# SPDX-License-Identifier: Apache-2.0
"""The parts of a table in the shards of a group: together they keep the table's limits.

The core divides and adds up, because changes of a group's settings need the same rule. Tables are
`PriorityTableCheckpoint` messages, without counters.
"""

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message

from reverb.core import native, protos

__all__ = ["DIVIDED", "narrowness", "part_of", "settings_of", "take_numbers", "whole_of"]

DIVIDED = ("max_size", "max_bytes", "min_size_to_sample", "min_diff", "max_diff")
"""Settings that differ between the parts of a table."""


def part_of(table: Any, index: int, num_shards: int) -> Any:
    """Returns the part of a shard.

    * `max_size` is divided, rounded up. A table that is never full because of its limiter, such as
      a queue, keeps its `max_size`, because shards may hold different numbers of items.
    * `max_bytes` is divided, rounded down.
    * The parts of `min_size_to_sample` add up to it; each is at least 1.
    * The bounds of the parts add up to the bounds of the table. All shards have the same distance
      from their bounds to the cursor of a part that holds `min_size_to_sample` unsampled items. If
      the cursor is always a whole number, so are the bounds.

    Raises:
      InvalidArgumentError: If there are not enough bytes for the parts, or if the table is invalid.
    """
    part = native.table_part(table.SerializeToString(), index, num_shards)
    return protos.PriorityTableCheckpoint.FromString(part)


def whole_of(parts: Sequence[Any]) -> Message:
    """Returns the table that has these parts, at least one.

    Divided again, it has the same parts. A queue keeps its `max_size`, and if every part has
    `min_size_to_sample` 1, so has the table. Settings that are not divided are those of the first
    part.

    Raises:
      InvalidArgumentError: If a part is invalid.
    """
    whole = native.table_whole([part.SerializeToString() for part in parts])
    assert whole is not None, "there are parts"
    return protos.PriorityTableCheckpoint.FromString(whole)


def settings_of(info: Any) -> Any:
    """Returns the settings that a `TableInfo` message has; others have their defaults."""
    settings = protos.PriorityTableCheckpoint(
        table_name=info.name,
        sampler=info.sampler_options,
        remover=info.remover_options,
    )
    take_numbers(settings, info)
    return settings


def take_numbers(settings: Any, info: Any) -> None:
    """Changes settings to the numbers of a `TableInfo` message."""
    limiter, numbers = settings.rate_limiter, info.rate_limiter_info
    for target, source in ((settings, info), (limiter, numbers)):
        for field in source.DESCRIPTOR.fields:
            same = target.DESCRIPTOR.fields_by_name.get(field.name)
            if same is not None and same.type == field.type and field.message_type is None:
                setattr(target, field.name, getattr(source, field.name))


def narrowness(table: Any, num_shards: int) -> tuple[str | None, str | None]:
    """Why the parts of a rate limiter are too narrow, with a number that works.

    Returns:
      An error if inserts and samples of a part would wait for each other, else `None`; and a
      warning if the parts have little budget for requests of several items, else `None`.

    Raises:
      InvalidArgumentError: If the table is invalid.
    """
    return native.table_narrowness(table.SerializeToString(), num_shards)
