# SPDX-License-Identifier: Apache-2.0
"""The place of a server in a group."""

import dataclasses
import itertools
import re
from collections.abc import Sequence

from reverb._server.table import Table
from reverb.cluster.split_table import check_place, split_table
from reverb.core import native, protos
from reverb.errors import InvalidArgumentError
from reverb.shown_text import shows_no_token

__all__ = ["NUM_SLOTS", "Shard", "ShardPlace", "check_group", "shard_addresses"]

# The top bits of the key of an item are its slot.
NUM_SLOTS = native.NUM_SLOTS

MAX_GROUP_CHARACTERS = 64

_SCHEME = re.compile(r"shards(\+grpcs?)?://(/)?", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class ShardPlace:
    """What the native server is told of its group.

    Attributes:
      map: A serialized `ShardMap`.
      index: Its own place in it.
      is_coordinated: Whether its rate limiters wait for the windows of a coordinator.
    """

    map: bytes
    index: int
    is_coordinated: bool


@shows_no_token
@dataclasses.dataclass(frozen=True)
class Shard:
    """Makes a server one of several that share the load of the same tables: `Server(shard=...)`.

    Every server of the group is given the same tables, with the sizes and rate limiters of the
    whole group, and serves its part of them; see `split_table`. Clients reach all of them together
    at `shards:///` with the addresses of the servers in the order of their indices.

    Without a coordinator each shard has an equal part of the room that a rate limiter leaves, for
    good. With one, tables with such a limiter let nothing through until it has given them a part,
    and it moves room to where it is needed.

    Example:
      >>> shard = Shard(0, 2, group="replay")
      >>> table = reverb.Table.queue("queue", max_size=10)
      >>> with reverb.Server([table], shard=shard) as server:
      ...     server.server_info()["queue"].rate_limiter_info.max_diff
      5.0

    Attributes:
      index: Place in the group, from 0 on; no two servers of a group have the same.
      num_shards: Number of servers of the group, at most 4096.
      group: What the group is called, at most 64 characters. A server takes no map of a group with
        another name.
      address: Where clients reach the group, for example
        `"shards:///replay-0:8000,replay-1:8000"`; `None`: the servers need not know. With one
        address for each shard, in the order of their indices, every server tells them to clients.
      is_coordinated: Whether there is a coordinator. If an address is given, the server with index
        0 runs it, with a token and certificates from the environment.

    Raises:
      InvalidArgumentError: If a value is out of its range, or if the address is none of a group.
      TypeError: If a value has the wrong type.
    """

    index: int
    num_shards: int
    group: str = ""
    _: dataclasses.KW_ONLY
    address: str | None = None
    is_coordinated: bool = False

    def __post_init__(self) -> None:
        index, num_shards = check_place(self.index, self.num_shards)
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

    def place(self, tables: Sequence[Table]) -> ShardPlace:
        """Returns the map by position: the shards in order, each with an equal part of the slots.

        Args:
          tables: Those of the whole group.
        """
        addresses = [] if self.address is None else shard_addresses(self.address)
        if len(addresses) != self.num_shards:
            # Seeds, of which nobody knows whose they are.
            addresses = [""] * self.num_shards
        ends = [index * NUM_SLOTS // self.num_shards for index in range(self.num_shards + 1)]
        message = protos.ShardMap(
            epoch=1,
            group=self.group,
            shards=[
                protos.Shard(
                    index=index,
                    address=address,
                    # See `Server`, which starts it.
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
        return ShardPlace(message.SerializeToString(), self.index, self.is_coordinated)


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
    """Returns the places of the address of a group: `shards:///a:1,b:2?writers=local`.

    Raises:
      InvalidArgumentError: If it is not such an address.
      TypeError: If it is not a string.
    """
    if not isinstance(address, str):
        raise TypeError(f"address must be a str, got {address!r}")
    scheme = _SCHEME.match(address)
    places = [] if scheme is None else address[scheme.end() :].partition("?")[0].split(",")
    places = [place.strip() for place in places]
    if not places or not all(re.fullmatch(r"[^\s/,]+:\d+", place) for place in places):
        raise InvalidArgumentError(
            f"address must be that of a group, for example shards:///a:8000,b:8000, got {address!r}"
        )
    return places
