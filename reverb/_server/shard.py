# SPDX-License-Identifier: Apache-2.0
"""A server's position in a group."""

import dataclasses
import itertools
import re
from collections.abc import Sequence

from reverb._server.split_table import check_index, split_table
from reverb._server.table import Table
from reverb.core import native, protos
from reverb.errors import InvalidArgumentError
from reverb.shown_text import shows_no_token

__all__ = ["NUM_SLOTS", "OWN_EPOCH", "Shard", "ShardPlace", "check_group", "shard_addresses"]

# The top bits of the key of an item are its slot.
NUM_SLOTS = native.NUM_SLOTS

OWN_EPOCH = 1
"""Epoch of the map that a server of a group makes itself, before it has one of a directory."""

MAX_GROUP_CHARACTERS = 64

_SCHEME = re.compile(r"shards(\+grpcs?)?://(/)?", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class ShardPlace:
    """The group of a server, in the form for the native server.

    Attributes:
      map: A serialized `ShardMap`.
      index: Index of the server in it.
      is_coordinated: Whether its rate limiters wait for the windows of a coordinator.
      rejoins: Whether the group runs already, and gives the server its map.
    """

    map: bytes
    index: int
    is_coordinated: bool
    rejoins: bool


@shows_no_token
@dataclasses.dataclass(frozen=True)
class Shard:
    """Makes a server one of several that share the load of the same tables: `Server(shard=...)`.

    Give every server of the group the same tables, with the sizes and rate limiters of the whole
    group; it serves its part of them, see `split_table`. Clients connect to the group at
    `shards:///` with the addresses of the servers in the order of their indices.

    Without a coordinator, each shard permanently has an equal part of a rate limiter's budget. With
    one, tables with a bounded limiter block all inserts and samples until the coordinator has given
    them a part, and then it moves budget to the shards that need it.

    Example:
      >>> shard = Shard(0, 2, group="replay")
      >>> table = reverb.Table.queue("queue", max_size=10)
      >>> with reverb.Server([table], shard=shard) as server:
      ...     server.server_info()["queue"].rate_limiter_info.max_diff
      5.0

    Attributes:
      index: Number of the server in the group, from 0 on; each server needs its own.
      num_shards: Number of servers of the group, at most 4096.
      group: Name of the group, at most 64 characters. A server accepts no map of a group with
        another name.
      address: Address of the group for clients, for example
        `"shards:///replay-0:8000,replay-1:8000"`; `None`: unknown to the servers. If it has one
        address for each shard, in the order of their indices, every server passes them on to
        clients.
      is_coordinated: Whether there is a coordinator. If an address is given, the server with index
        0 runs it, with a token and certificates from the environment.
      rejoins: Whether the server comes back to a group that runs, which gives it its map and may
        have grown. Its `Store` is then compared with that map, not with this place.

    Raises:
      InvalidArgumentError: If a value is out of its range, or if `address` is not that of a group.
      TypeError: If a value has the wrong type.
    """

    index: int
    num_shards: int
    group: str = ""
    _: dataclasses.KW_ONLY
    address: str | None = None
    is_coordinated: bool = False
    rejoins: bool = False

    def __post_init__(self) -> None:
        index, num_shards = check_index(self.index, self.num_shards)
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "num_shards", num_shards)
        check_group(self.group)
        if self.address is not None:
            shard_addresses(self.address)

    def split(self, tables: Sequence[Table]) -> list[Table]:
        """Returns the parts of tables that this shard serves.

        Raises:
          InvalidArgumentError: See `split_table`.
        """
        return [
            split_table(table, self.index, self.num_shards, is_coordinated=self.is_coordinated)
            for table in tables
        ]

    def place(self, tables: Sequence[Table], found: bytes | None = None) -> ShardPlace:
        """Returns the map of the group: the shards in order, with equal parts of the slots.

        Args:
          tables: Those of the whole group.
          found: The serialized `ShardMap` of the others, if the group was changed. It becomes that
            of this server, with its own address.
        """
        addresses = [] if self.address is None else shard_addresses(self.address)
        if len(addresses) != self.num_shards:
            # These are only for finding the group; they do not belong to the shards in order.
            addresses = [""] * self.num_shards
        if found is not None:
            message = protos.ShardMap.FromString(found)
            for it in message.shards:
                if it.index == self.index:
                    it.address, it.server_id = addresses[self.index], 0
            return self._with_map(message.SerializeToString())
        ends = [index * NUM_SLOTS // self.num_shards for index in range(self.num_shards + 1)]
        message = protos.ShardMap(
            epoch=OWN_EPOCH,
            group=self.group,
            shards=[
                protos.Shard(
                    index=index,
                    address=address,
                    # `Server` starts this coordinator.
                    is_coordinator=index == 0 and self.is_coordinated and self.address is not None,
                )
                for index, address in enumerate(addresses)
            ],
            slots=[
                protos.SlotRange(first=first, count=end - first, owner=index)
                for index, (first, end) in enumerate(itertools.pairwise(ends))
            ],
            tables=[protos.TableInfo.FromString(table.internal_table.info()) for table in tables],
        )
        return self._with_map(message.SerializeToString())

    def _with_map(self, serialized: bytes) -> ShardPlace:
        return ShardPlace(serialized, self.index, self.is_coordinated, self.rejoins)


def check_group(name: str) -> None:
    """Checks the name of a group.

    Raises:
      InvalidArgumentError: If it is too long, or cannot be printed.
      TypeError: If it is not a string.
    """
    if not isinstance(name, str):
        raise TypeError(f"group must be a str, got {name!r}")
    if len(name) > MAX_GROUP_CHARACTERS or not name.isprintable():
        raise InvalidArgumentError(
            f"group must have at most {MAX_GROUP_CHARACTERS} printable characters, got {name!r}"
        )


def shard_addresses(address: str) -> list[str]:
    """Splits the address of a group, such as `shards:///a:1,b:2?writers=local`, into `a:1`, `b:2`.

    Raises:
      InvalidArgumentError: If it is not such an address.
      TypeError: If it is not a string.
    """
    if not isinstance(address, str):
        raise TypeError(f"address must be a str, got {address!r}")
    scheme = _SCHEME.match(address)
    parts = [] if scheme is None else address[scheme.end() :].partition("?")[0].split(",")
    parts = [part.strip() for part in parts]
    if not parts or not all(re.fullmatch(r"[^\s/,]+:\d+", part) for part in parts):
        raise InvalidArgumentError(
            f"address must be that of a group, for example shards:///a:8000,b:8000, got {address!r}"
        )
    return parts


# The public import path.
Shard.__module__ = "reverb.cluster"
