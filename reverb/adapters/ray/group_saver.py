# SPDX-License-Identifier: Apache-2.0
"""Saves a group, and finds the checkpoint with which it starts."""

import contextlib
import logging
import pathlib
import threading
from collections.abc import Collection, Mapping
from typing import Any

from reverb import cluster
from reverb.adapters.ray.group_settings import GroupSettings
from reverb.adapters.ray.names import result_of
from reverb.adapters.ray.shard_life import MARKER
from reverb.cluster import group_checkpoint
from reverb.cluster.directory import slots_as_values
from reverb.cluster.shard_tables import tables_as_values
from reverb.errors import FailedPreconditionError, ReverbError
from reverb.server_status import CheckpointStatus

__all__ = ["GroupSaver", "SavingActor"]

_STATUS_TIMEOUT_S = 5.0

_logger = logging.getLogger("reverb.ray")


class GroupSaver:
    """The checkpoints of a group.

    Attributes:
      latest: Directory of the last checkpoint; `None` if there is none.
      latest_error: Error of the last save; `None` if it succeeded.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self.latest: str | None = None
        self.latest_error: str | None = None

    def start_points(
        self, stores: Collection[int]
    ) -> tuple[group_checkpoint.GroupCheckpoint | None, Mapping[int, pathlib.Path]]:
        """Prepares the directory; returns the latest checkpoint, and the part for each shard.

        Its number of shards does not matter if all shards have `stores`, which win over it.

        Raises:
          FailedPreconditionError: If the checkpoint was saved by another number of shards, or by
            another group.
          DataLossError: If a part of it is missing; the text names shard and path.
        """
        settings = self._settings
        if not settings.checkpoint_directory:
            return None, {}
        root = pathlib.Path(settings.checkpoint_directory)
        root.mkdir(parents=True, exist_ok=True)
        for old in root.glob(MARKER.format(name=settings.name, run="*")):
            old.unlink(missing_ok=True)
        (root / MARKER.format(name=settings.name, run=settings.run)).touch()
        checkpoint = group_checkpoint.latest(root, settings.name)
        if checkpoint is not None:
            if settings.num_shards not in (len(checkpoint.parts), len(stores)):
                raise FailedPreconditionError(
                    f"{checkpoint.path} was saved by {len(checkpoint.parts)} shards, and "
                    f"num_shards is {settings.num_shards}: start as many, or make a checkpoint for "
                    f"{settings.num_shards} shards with `reverb reshard --shards "
                    f"{settings.num_shards} {checkpoint.path} OUT`"
                )
            self.latest = str(checkpoint.path)
            return checkpoint, {it: checkpoint.path_of(it) for it in checkpoint.parts}
        alone = group_checkpoint.shards_alone(root)
        if alone:
            _logger.warning(
                "%s has no complete checkpoint of the group '%s': each shard starts with its own "
                "last checkpoint, and these were saved at different times",
                root,
                settings.name,
            )
        return None, {it: path for it, path in alone.items() if it < settings.num_shards}

    def find_latest(self) -> group_checkpoint.GroupCheckpoint | None:
        """Looks for the last checkpoint, after a restart of the directory; returns it."""
        root, latest = self._settings.checkpoint_directory, None
        if root:
            with contextlib.suppress(ReverbError):
                latest = group_checkpoint.latest(root, self._settings.name)
                self.latest = None if latest is None else str(latest.path)
        return latest

    def save(
        self, proto: Any, shards: Mapping[int, Any], coordinator: cluster.Coordinator | None
    ) -> str:
        """Saves the group while the coordinator is frozen; returns the directory.

        Raises:
          FailedPreconditionError: If it cannot be saved; the text names the shard.
        """
        root = self._settings.checkpoint_directory
        if not root:
            raise FailedPreconditionError(
                f"group '{self._settings.name}' was started without checkpoint_directory"
            )
        with self._lock:
            try:
                saved = group_checkpoint.save(
                    root,
                    self._settings.name,
                    shards,
                    epoch=proto.epoch,
                    slots=slots_as_values(proto),
                    tables=tables_as_values(proto),
                    keep_latest=self._settings.keep_latest,
                    freeze=None if coordinator is None else coordinator.freeze,
                    unfreeze=None if coordinator is None else coordinator.unfreeze,
                )
            except (ReverbError, OSError) as error:
                self.latest_error = str(error)
                raise
            self.latest, self.latest_error = str(saved.path), None
            return self.latest


class SavingActor:
    """A shard for `group_checkpoint.save`, which calls the shard's actor."""

    def __init__(self, index: int, handle: Any) -> None:
        self._name = f"shard {index}"
        self._handle = handle

    def checkpoint(self) -> str:
        """Saves, and returns the path."""
        return result_of(self._handle.checkpoint.remote(), None, self._name)

    def checkpoint_status(self) -> CheckpointStatus:
        """Returns the progress of the save."""
        call = self._handle.checkpoint_status.remote()
        return result_of(call, _STATUS_TIMEOUT_S, self._name)
