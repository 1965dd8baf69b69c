# SPDX-License-Identifier: Apache-2.0
"""The group of which the started server is a shard."""

from reverb._server.shard import Shard
from reverb._server.split_table import check_parts
from reverb.errors import ReverbError
from reverb.server_executable import server_from_proto
from reverb.server_executable.settings import Given, Settings

__all__ = ["shard_of", "shard_problems"]


def shard_of(settings: Settings) -> Shard | None:
    """Returns the shard that the settings describe; `None` if the server is in no group.

    If the settings have the address of the group, the server with index 0 is its coordinator.
    """
    if settings["shard_index"] is None:
        return None
    address = settings["group_address"]
    return Shard(
        settings["shard_index"],
        settings["num_shards"],
        settings["group"] or "",
        address=address,
        is_coordinated=address is not None,
    )


def shard_problems(settings: Settings, given: Given) -> list[str]:
    """Why tables cannot be divided among the shards, each a line with its position in the config.

    Expects settings without other problems.
    """
    shard = shard_of(settings)
    if shard is None:
        return []
    problems = []
    for number, config in enumerate(settings.tables):
        try:
            for table in server_from_proto.tables_from_proto([config]):
                check_parts(
                    table, shard.index, shard.num_shards, is_coordinated=shard.is_coordinated
                )
        except ReverbError as error:
            path = f"tables[{number}]"
            line = settings.parsed.line_of(path)
            problems.append(f"{given.source.name}, line {line}: {path}: {error}")
    return problems
