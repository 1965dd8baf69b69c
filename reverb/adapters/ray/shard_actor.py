# SPDX-License-Identifier: Apache-2.0
"""The Ray actor that holds one shard."""

import dataclasses
import threading
from collections.abc import Mapping

from reverb.adapters.ray.group_settings import ShardSettings
from reverb.adapters.ray.shard_facts import ShardFacts
from reverb.adapters.ray.shard_life import ShardLife
from reverb.server_status import CheckpointStatus


class ShardActor:
    """Runs the server of a shard. Ray restarts it, with the same arguments, when it dies.

    The constructor returns at once and never fails, because Ray gives up an actor whose constructor
    does.
    """

    def __init__(self, settings: ShardSettings) -> None:
        self._life = ShardLife(settings, is_actor=True)
        threading.Thread(target=self._life.run, name="shard-life", daemon=True).start()

    def describe(self) -> ShardFacts:
        """Returns the facts of the shard for the directory, with sizes of tables."""
        return dataclasses.replace(self._life.facts(), sizes=self._life.sizes())

    def set_map(self, serialized: bytes) -> int:
        """Accepts a newer map; returns the epoch of the shard's map after that."""
        return self._life.set_map(serialized)

    def checkpoint(self) -> str:
        """Saves, and returns the path."""
        return self._life.server.localhost_client().checkpoint()

    def checkpoint_status(self) -> CheckpointStatus:
        """Returns the progress of a save."""
        return self._life.server.localhost_client().checkpoint_status()

    def insert_streams(self) -> list[tuple[str, str, int]]:
        """Returns the open streams of inserts: client, its address, number of items so far."""
        return self._life.insert_streams()

    def give_items(self, heirs: Mapping[int, tuple[str, list[int]]], last: bool) -> int:
        """Copies the items of the shard to the others; returns how many were added."""
        return self._life.give_items(heirs, last=last)

    def take_inserts_again(self) -> None:
        """Accepts inserts again, if the shard stays after all."""
        self._life.take_inserts_again()

    def stop(self, drain_s: float) -> None:
        """Stops the server when its streams have ended, or after `drain_s`."""
        self._life.stop(drain_s)
