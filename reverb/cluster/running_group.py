# SPDX-License-Identifier: Apache-2.0
"""What a shard that starts takes from the other shards of its group: settings that were changed."""

import concurrent.futures
import logging
import socket
from collections.abc import Sequence

from reverb._server.shard import OWN_EPOCH, Shard, shard_addresses
from reverb._server.table import Table, arguments_of
from reverb._server.table_part import take_numbers
from reverb.client import Client
from reverb.cluster.shard_calls import map_of
from reverb.core import protos
from reverb.errors import ReverbError

__all__ = ["changed_map", "with_settings"]

_logger = logging.getLogger("reverb")

# Time for all shards together. One that is frozen does not answer.
_TIMEOUT_S = 2.0
_MAX_THREADS = 16
# What clients can change of a table that runs.
_CHANGEABLE = ("max_size", "max_bytes", "max_times_sampled", "sampler", "rate_limiter")


def changed_map(shard: Shard) -> bytes | None:
    """Returns the newest map of the other shards, if clients have changed the group's settings.

    Settings of a group belong to the group, so a shard that starts again needs those of the others
    before it serves. Blocks for two seconds at most; asks with the token and certificates of the
    environment.

    Returns:
      A serialized `ShardMap`. `None` if no other shard runs, if nothing was changed since they
      started, or if the address has not one place for each shard.
    """
    addresses = [] if shard.address is None else shard_addresses(shard.address)
    if len(addresses) != shard.num_shards:
        return None
    scheme = "grpcs://" if (shard.address or "").lower().startswith("shards+grpcs:") else ""
    others = [it for index, it in enumerate(addresses) if index != shard.index]
    if not others:
        return None
    pool = concurrent.futures.ThreadPoolExecutor(min(len(others), _MAX_THREADS))
    asked = [pool.submit(_ask, scheme, it) for it in others]
    done, _ = concurrent.futures.wait(asked, _TIMEOUT_S)
    # A thread that waits for a frozen shard ends by its own time limit.
    pool.shutdown(wait=False, cancel_futures=True)
    maps = [protos.ShardMap.FromString(found) for it in done if (found := it.result())]
    maps = [
        it
        for it in maps
        if it.group == shard.group and len(it.shards) == shard.num_shards and it.epoch > OWN_EPOCH
    ]
    newest = max(maps, key=lambda it: it.epoch, default=None)
    return None if newest is None else newest.SerializeToString()


def _ask(scheme: str, address: str) -> bytes | None:
    """The map of a shard; `None` if it does not run or does not say it."""
    host, _, port = address.rpartition(":")
    try:
        # A server that does not run is no reason to wait.
        socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_S).close()
    except OSError:
        return None
    try:
        with Client(scheme + address, connect_timeout_s=_TIMEOUT_S) as client:
            return map_of(client)
    except ReverbError as error:
        _logger.warning("shard %s does not say which settings its group has: %s", address, error)
        return None


def with_settings(tables: Sequence[Table], serialized_map: bytes) -> list[Table]:
    """Returns tables with the settings of a map. Logs each difference."""
    given = {info.name: info for info in protos.ShardMap.FromString(serialized_map).tables}
    changed = []
    for table in tables:
        info = given.get(table.name)
        if info is None:
            changed.append(table)
            continue
        own, new = table.internal_settings, table.internal_settings
        take_numbers(new, info)
        new.sampler.CopyFrom(info.sampler_options)
        changed.append(table.replace(**arguments_of(new)))
        for field in _CHANGEABLE:
            before, after = (" ".join(str(getattr(it, field)).split()) for it in (own, new))
            if before != after:
                _logger.warning(
                    "table %s: %s is %s, as it was changed in the group, not %s as given in code; "
                    "`reverb configure` changes it for all shards",
                    table.name,
                    field,
                    after,
                    before,
                )
    return changed
