# SPDX-License-Identifier: Apache-2.0
"""What a shard that starts takes from the other shards of its group, and tells them."""

import concurrent.futures
import logging
import socket
from collections.abc import Sequence
from typing import Any

from reverb._server.shard import OWN_EPOCH, Shard, shard_addresses
from reverb._server.table import Table, arguments_of
from reverb._server.table_part import take_numbers
from reverb.client import Client
from reverb.cluster.shard_calls import map_of, server_id_of, set_map
from reverb.core import protos
from reverb.errors import ReverbError

__all__ = ["RunningGroup", "with_settings"]

_logger = logging.getLogger("reverb")

# Time for all shards together. One that is frozen does not answer.
_TIMEOUT_S = 2.0
_MAX_THREADS = 16
# Shards that start at the same time may each make the next map.
_MAX_ATTEMPTS = 3
# What clients can change of a table that runs.
_CHANGEABLE = ("max_size", "max_bytes", "max_times_sampled", "sampler", "rate_limiter")


class RunningGroup:
    """The other shards of a group as one of them finds them when it starts.

    Asks with the token and certificates of the environment.

    Attributes:
      maps: The maps of those that run, as `ShardMap` messages, by their indices. Empty if the
        address has not one place for each shard.
    """

    def __init__(self, shard: Shard) -> None:
        """Blocks for two seconds at most."""
        self._shard = shard
        self._places = [] if shard.address is None else shard_addresses(shard.address)
        self._scheme = ""
        if (shard.address or "").lower().startswith("shards+grpcs:"):
            self._scheme = "grpcs://"
        self.maps = self._ask_all()

    def changed_map(self) -> bytes | None:
        """Returns the newest map, if clients have changed the group's settings.

        Settings of a group belong to the group, so a shard that starts again needs those of the
        others before it serves.

        Returns:
          A serialized `ShardMap`. `None` if no other shard runs, or if nothing was changed since
          they started.
        """
        maps = [it for it in self.maps.values() if it.epoch - it.moves > OWN_EPOCH]
        newest = max(maps, key=lambda it: it.epoch, default=None)
        return None if newest is None else newest.SerializeToString()

    def tell_address(self, own: Client) -> None:
        """Gives all shards a new map if the others have another address of this one.

        Clients that run learn the address from it within five seconds. If shards refuse, that is a
        warning: new clients find this shard without it. Blocks for seconds at most.

        Args:
          own: A client of this shard, which serves now.
        """
        index, why = self._shard.index, "others change the group at the same time"
        for _ in range(_MAX_ATTEMPTS):
            if not self._other_addresses():
                return
            newest = max(self.maps.values(), key=lambda it: it.epoch)
            newest.epoch += 1
            newest.moves += 1
            # A shard that was started again has another id, which its own map tells.
            ids = {
                it.index: it.server_id
                for other, known in self.maps.items()
                for it in known.shards
                if it.index == other
            }
            for it in newest.shards:
                it.server_id = ids.get(it.index, 0)
                if it.index == index:
                    it.address, it.server_id = self._places[index], server_id_of(own)
            given = newest.SerializeToString()
            try:
                set_map(own, given, index)
                for other in self.maps:
                    with self._client(other) as client:
                        set_map(client, given, other)
            except ReverbError as error:
                why = str(error)
            self.maps = self._ask_all()
        for address in self._other_addresses()[:1]:
            _logger.warning(
                "other shards have %s as the address of this one (shard %d), and clients that run "
                "keep it: make new clients, or start this shard there again (%s)",
                address,
                index,
                why,
            )

    def _other_addresses(self) -> list[str]:
        """The addresses that the others have of this shard, and that are not its own."""
        return [
            it.address
            for known in self.maps.values()
            for it in known.shards
            if it.index == self._shard.index and it.address not in ("", self._places[it.index])
        ]

    def _ask_all(self) -> dict[int, Any]:
        others = [it for it in range(len(self._places)) if it != self._shard.index]
        if len(self._places) != self._shard.num_shards or not others:
            return {}
        pool = concurrent.futures.ThreadPoolExecutor(min(len(others), _MAX_THREADS))
        asked = {it: pool.submit(self._ask, it) for it in others}
        done, _ = concurrent.futures.wait(asked.values(), _TIMEOUT_S)
        # A thread that waits for a frozen shard ends by its own time limit.
        pool.shutdown(wait=False, cancel_futures=True)
        found = {
            index: protos.ShardMap.FromString(it.result())
            for index, it in asked.items()
            if it in done and it.result()
        }
        group, num_shards = self._shard.group, self._shard.num_shards
        return {
            index: it
            for index, it in found.items()
            if it.group == group and len(it.shards) == num_shards
        }

    def _ask(self, index: int) -> bytes | None:
        """The map of a shard; `None` if it does not run or does not say it."""
        host, _, port = self._places[index].rpartition(":")
        try:
            # A server that does not run is no reason to wait.
            socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_S).close()
        except OSError:
            return None
        try:
            with self._client(index) as client:
                return map_of(client)
        except ReverbError as error:
            _logger.warning(
                "shard %s does not say which settings its group has: %s",
                self._places[index],
                error,
            )
            return None

    def _client(self, index: int) -> Client:
        return Client(self._scheme + self._places[index], connect_timeout_s=_TIMEOUT_S)


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
