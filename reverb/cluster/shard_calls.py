# SPDX-License-Identifier: Apache-2.0
"""Calls to single shards, for programs that run a group."""

from collections.abc import Sequence

from reverb._client.small_calls import answer_of, request_of
from reverb.client import Client
from reverb.core import protos

__all__ = ["map_of", "move_items", "server_id_of", "set_map"]


def server_id_of(client: Client) -> int:
    """Returns the id of a client's server; a server draws it when it starts.

    Raises:
      UnimplementedError: If the server is one of dm-reverb.
      UnavailableError: If no server answers.
    """
    answer = answer_of("Directory", client._client.call(*request_of("Directory")))
    return answer.server_id


def map_of(client: Client) -> bytes | None:
    """Returns a shard's map of the group, as a serialized `ShardMap`; `None` if it has none.

    Raises:
      UnavailableError: If no server answers.
    """
    answer = answer_of("Directory", client._client.call(*request_of("Directory")))
    return answer.map.SerializeToString() if answer.HasField("map") else None


def set_map(client: Client, serialized_map: bytes, index: int) -> None:
    """Gives a shard, by a client of it alone, the map of its group, where it has this index.

    Raises:
      FailedPreconditionError: If the shard has a newer map, if it is of another group, or if the
        map has another server at this index.
      InvalidArgumentError: If the map is invalid.
    """
    shard_map = protos.ShardMap.FromString(serialized_map)
    client._client.call(*request_of("SetDirectory", map=shard_map, index=index))


def move_items(source: Client, target: Client, table: str, slots: Sequence[int]) -> tuple[int, int]:
    """Copies items of one shard to another one, with their keys, priorities and counts.

    Blocks until all are copied. They stay in the source. Both clients are of one shard alone. An
    empty list of slots means all items.

    Returns:
      The number of copied items, and the number of items that the target had already.

    Raises:
      UnavailableError: If a shard does not answer.
      ResourceExhaustedError: If the table of the target has no room.
      UnimplementedError: If items have removal priorities, which an older target would drop.
    """
    return source._client.transfer(table, list(slots), target._client)
