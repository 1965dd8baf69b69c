# SPDX-License-Identifier: Apache-2.0
"""The Ray actor that holds one shard."""

import dataclasses
import threading

from reverb.adapters.ray.group_settings import ShardSettings
from reverb.adapters.ray.shard_facts import ShardFacts
from reverb.adapters.ray.shard_life import ShardLife
from reverb.server_status import CheckpointStatus


class ShardActor(ShardLife):
    """Runs the server of a shard. Ray restarts it, with the same arguments, when it dies.

    The constructor returns at once and never fails, because Ray gives up an actor whose constructor
    does.
    """

    def __init__(self, settings: ShardSettings) -> None:
        super().__init__(settings, is_actor=True)
        threading.Thread(target=self.run, name="shard-life", daemon=True).start()

    def describe(self) -> ShardFacts:
        """Returns the facts of the shard for the directory, with sizes of tables."""
        return dataclasses.replace(self.facts(), sizes=self.sizes())

    def checkpoint(self) -> str:
        """Saves, and returns the path."""
        return self.server.localhost_client().checkpoint()

    def checkpoint_status(self) -> CheckpointStatus:
        """Returns the progress of a save."""
        return self.server.localhost_client().checkpoint_status()
