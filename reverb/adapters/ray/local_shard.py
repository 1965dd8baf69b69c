# SPDX-License-Identifier: Apache-2.0
"""A shard in a process of the program, for example of a learner: no socket, no copy."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import reverb
from reverb.adapters.ray.group_settings import GroupSettings, ShardSettings
from reverb.adapters.ray.names import ask_directory
from reverb.adapters.ray.shard_life import ShardLife
from reverb.errors import ReverbError

__all__ = ["LocalShard", "serve_here"]

_TIMEOUT_S = 60.0
_LEAVE_TIMEOUT_S = 5.0


class LocalShard:
    """A shard of a group that lives in this process, and ends with it.

    Attributes:
      index: Index of the shard in the group.
    """

    def __init__(self, life: ShardLife) -> None:
        self.index = life.settings.index
        self._life = life
        self._thread = threading.Thread(
            target=life.beat_until_stopped, name="shard-life", daemon=True
        )
        self._thread.start()

    @property
    def server(self) -> reverb.Server:
        """The server of the shard."""
        return self._life.server

    def client(self) -> reverb.Client:
        """Makes a client of this shard alone, which needs no socket."""
        return self.server.localhost_client()

    def stop(self, *, move_items: bool = False) -> None:
        """Removes the shard from the group, and ends it.

        Does nothing if it has been stopped before.

        Args:
          move_items: Whether its items are moved to the other shards first; otherwise they are
            lost.

        Raises:
          ReverbError: If its items could not be moved; the shard is not stopped then.
        """
        if self._life.is_stopped:
            return
        name = self._life.settings.group.name
        if move_items:
            self._give_items(name)
        self._life.end_beats()
        self._thread.join()
        # If the group does not answer now, it removes the silent shard later.
        with contextlib.suppress(ReverbError):
            ask_directory(name, "leave", self.index, timeout_s=_LEAVE_TIMEOUT_S)
        self._life.stop(has_moved=move_items)

    def _give_items(self, name: str) -> None:
        heirs = ask_directory(name, "begin_drain", self.index, timeout_s=_TIMEOUT_S)
        try:
            for last in (False, True):
                self._life.give_items(heirs, last=last)
        except BaseException:
            self._life.take_inserts_again()
            ask_directory(name, "cancel_drain", self.index, timeout_s=_TIMEOUT_S)
            raise

    def __enter__(self) -> "LocalShard":
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def serve_here(name: str, make_tables: Callable[[], Sequence[reverb.Table]]) -> LocalShard:
    """Makes this process a shard of a group.

    A learner that samples from it needs no socket and copies nothing. Blocks until the shard is in
    the map of the group; from then on writers insert into it too.

    Ray does not restart it, and it has no store. If its process ends, its items are lost, and the
    group removes it from the map after a minute.

    Args:
      name: Name of the group.
      make_tables: Makes the tables, as in `start`.

    Raises:
      FailedPreconditionError: If there is no such group, or if this process is not connected to a
        Ray cluster.
      InvalidArgumentError: If the tables are not those of the group; the text names table and
        field.
    """
    index, num_shards, group = ask_directory(name, "reserve", timeout_s=_TIMEOUT_S)
    life = ShardLife(
        ShardSettings(
            group=_with_tables(group, make_tables),
            index=index,
            num_shards=num_shards,
            checkpoint_name=f"{name}.{index}.{group.run}",
            start_from=None,
        ),
        is_actor=False,
    )
    life.start()
    try:
        life.set_map(ask_directory(name, "admit", life.facts(), timeout_s=_TIMEOUT_S))
    except BaseException:
        life.stop()
        raise
    return LocalShard(life)


def _with_tables(group: GroupSettings, make_tables: Callable[[], Sequence[Any]]) -> GroupSettings:
    return dataclasses.replace(
        group,
        pickled_tables=GroupSettings.pickle_tables(make_tables),
        base_port=None,
        # No other process would find it: the index of the shard is never used again.
        stores=None,
    )
