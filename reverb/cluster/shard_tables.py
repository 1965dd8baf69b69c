# SPDX-License-Identifier: Apache-2.0
"""The tables of a group: the same in all shards, with the numbers of the whole group."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf import json_format

from reverb._nests import structured_value
from reverb._rollouts.settings import Rollouts
from reverb._server import table_part
from reverb._server.table_change import TableChange
from reverb.core import protos
from reverb.errors import DataLossError, InvalidArgumentError
from reverb.item_selectors import from_options, selector_settings
from reverb.rate_limiters import RateLimiter, from_proto

__all__ = [
    "PartSettings",
    "TablesOfMap",
    "check_tables",
    "part_settings",
    "serialize_tables",
    "settings_of",
    "tables_as_values",
    "tables_from_values",
    "tables_in_map",
]

# Fields for the contents and counters of a table. All others are settings, the same in all shards.
_COUNTERS = (
    "current_size",
    "num_episodes",
    "num_deleted_episodes",
    "num_unique_samples",
    "table_worker_time",
    "max_priority",
)
_LIMITER_COUNTERS = ("insert_stats", "sample_stats")
_SETTINGS = [
    field.name
    for field in protos.TableInfo.DESCRIPTOR.fields
    if field.name not in (*_COUNTERS, "name", "rate_limiter_info")
]
_LIMITS = ("samples_per_insert", "min_size_to_sample", "min_diff", "max_diff")


def serialize_tables(tables: Iterable[Any]) -> list[bytes]:
    """Returns the settings of `reverb.Table` objects, for `Directory.set_tables`."""
    return [table.internal_table.info() for table in tables]


def tables_as_values(proto: Any) -> list[dict[str, Any]]:
    """Returns the tables of a `ShardMap` message as plain values, for a manifest."""
    return [json_format.MessageToDict(table) for table in proto.tables]


def tables_from_values(values: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """Returns the tables of a manifest as serialized `TableInfo` messages.

    Raises:
      DataLossError: If they are damaged.
    """
    try:
        infos = [json_format.ParseDict(dict(it), protos.TableInfo()) for it in values]
    except (json_format.ParseError, ValueError, TypeError) as error:
        raise DataLossError(f"the tables of the group's checkpoint are damaged: {error}") from None
    return [info.SerializeToString() for info in infos]


@dataclasses.dataclass(frozen=True)
class PartSettings:
    """The settings of one shard's part of a table, after a change of the group's table.

    Attributes:
      limits: Numbers of the group's rate limiter, to detect whether they have changed.
      rate_limiter: The limiter of the part.
      others: The other settings of the part.
    """

    limits: tuple[float, ...]
    rate_limiter: RateLimiter
    others: TableChange

    def change_from(self, limits: tuple[float, ...]) -> TableChange:
        """Returns the change of the part, if the group's rate limiter had these numbers before.

        The limiter changes only if they differ, because the coordinator sets the bounds in force.
        """
        limiter = self.rate_limiter if limits != self.limits else None
        return dataclasses.replace(self.others, rate_limiter=limiter)


def part_settings(table: bytes, index: int, num_shards: int) -> tuple[str, PartSettings]:
    """Returns the name of a table, and the settings of the part of one shard.

    `table` is a serialized `TableInfo` message: the table of the whole group.
    """
    info = protos.TableInfo.FromString(table)
    limits = tuple(getattr(info.rate_limiter_info, name) for name in _LIMITS)
    part = table_part.part_of(table_part.settings_of(info), index % num_shards, num_shards)
    parameters = selector_settings(info.sampler_options).parameters
    draws_apart = parameters.get("draw", "independent") != "independent"
    rollouts = None
    if info.HasField("rollouts"):
        signature = structured_value.decode(info.signature)
        rollouts = Rollouts.from_proto(info.rollouts.settings, signature)
    others = TableChange(
        max_size=part.max_size,
        max_bytes=part.max_bytes or None,
        max_times_sampled=max(info.max_times_sampled, 0),
        priority_exponent=parameters.get("priority_exponent"),
        sampler=from_options(info.sampler_options) if draws_apart else None,
        rollouts=rollouts,
    )
    return info.name, PartSettings(limits, from_proto(part.rate_limiter), others)


@dataclasses.dataclass(frozen=True)
class TablesOfMap:
    """The tables of a map, and which part of them a shard has.

    Attributes:
      tables: The tables of the whole group, as serialized `TableInfo` messages.
      index: Index of the shard among those that remain, from 0 on.
      num_shards: How many shards remain.
    """

    tables: tuple[bytes, ...]
    index: int
    num_shards: int

    def parts(self) -> dict[str, PartSettings]:
        """Returns the settings of the shard's part of each table."""
        return dict(part_settings(it, self.index, self.num_shards) for it in self.tables)


def tables_in_map(proto: Any, index: int) -> TablesOfMap | None:
    """Returns the tables of a `ShardMap` message, for the shard with an index.

    `None` if the shard is about to leave, or is not in the map: it keeps the parts that it has.
    """
    staying = [it.index for it in proto.shards if not it.is_draining]
    if index not in staying:
        return None
    tables = tuple(it.SerializeToString(deterministic=True) for it in proto.tables)
    return TablesOfMap(tables, staying.index(index), len(staying))


def settings_of(table: object) -> Any:
    """Returns a copy of a `TableInfo` message without its counters."""
    copy = protos.TableInfo()
    copy.CopyFrom(table)
    for name in _COUNTERS:
        copy.ClearField(name)
    for name in _LIMITER_COUNTERS:
        copy.rate_limiter_info.ClearField(name)
    return copy


def check_tables(index: int, found: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Checks that the tables of a shard are those of the others.

    Raises:
      InvalidArgumentError: If they are not; the text names shard, table and field.
    """
    names = [table.name for table in found]
    if names != [table.name for table in wanted]:
        raise InvalidArgumentError(
            f"shard {index} has the tables {names}, and the other shards have "
            f"{[table.name for table in wanted]}: all shards of a group need the same tables, in "
            "the same order"
        )
    for table, other in zip(found, wanted, strict=True):
        limits, other_limits = table.rate_limiter_info, other.rate_limiter_info
        pairs = [
            *((name, _text(table, name), _text(other, name)) for name in _SETTINGS),
            *((name, _text(limits, name), _text(other_limits, name)) for name in _LIMITS),
        ]
        for field, mine, theirs in pairs:
            if mine != theirs:
                raise InvalidArgumentError(
                    f"shard {index}, table {table.name}: {field.removesuffix('_options')} is "
                    f"{mine}, and {theirs} in the other shards: all shards of a group need the "
                    "same tables"
                )


def _text(message: object, field: str) -> str:
    return " ".join(str(getattr(message, field)).split()) or "none"
