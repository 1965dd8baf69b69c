# SPDX-License-Identifier: Apache-2.0
"""The actors of a group's shards."""

import contextlib
import pathlib
import time
import uuid
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from reverb.adapters.ray.engine import free_resources, ray
from reverb.adapters.ray.group_settings import GroupSettings, ShardSettings
from reverb.adapters.ray.names import NAMESPACE, result_of, shard_indices, shard_name
from reverb.adapters.ray.placement import ShardNode, has_room_when_idle, nodes_of, place
from reverb.adapters.ray.shard_actor import ShardActor
from reverb.adapters.ray.shard_facts import ShardFacts
from reverb.errors import ResourceExhaustedError, ReverbError

__all__ = ["ShardProcesses"]

_BORN_CHARACTERS = 12
# How long to wait for room on full nodes, where actors that have just ended still count.
_ROOM_WAIT_S = 10.0
_ROOM_POLL_S = 0.25


class ShardProcesses:
    """Starts the actors of shards, finds them again, and ends them."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._handles: dict[int, Any] = {}

    def find_nodes(
        self,
        count: int,
        timeout_s: float,
        taken: Sequence[str] = (),
        homes: Sequence[Collection[str]] = (),
    ) -> list[ShardNode]:
        """Chooses nodes that have room now for `count` more shards.

        Waits for room for some seconds, if there would be any on an idle cluster. `taken` and
        `homes` as in `place`.

        Raises:
          InvalidArgumentError: As `place`.
          ResourceExhaustedError: If there is no room; the text says what is missing on which node.
        """
        settings = self._settings
        wanted = count, settings.placement, settings.resources
        deadline = time.monotonic() + min(timeout_s, _ROOM_WAIT_S)
        while True:
            nodes = nodes_of(ray.nodes(), free_resources())
            try:
                return place(*wanted, nodes, taken, homes)
            except ResourceExhaustedError as error:
                if time.monotonic() > deadline or not has_room_when_idle(*wanted, nodes):
                    raise ResourceExhaustedError(f"group '{settings.name}': {error}") from None
            time.sleep(_ROOM_POLL_S)

    def start(
        self,
        index: int,
        num_shards: int,
        where: ShardNode,
        start_from: pathlib.Path | None = None,
        *,
        is_added: bool = False,
    ) -> None:
        """Starts the actor of a shard; does not wait for it."""
        name = self._settings.name
        # A unique name, so that the shard loads only its own checkpoints, whatever else is in its
        # directory.
        born = uuid.uuid4().hex[:_BORN_CHARACTERS]
        settings = ShardSettings(
            group=self._settings,
            index=index,
            num_shards=num_shards,
            checkpoint_name=f"{name}.{index}.{born}",
            start_from=None if start_from is None else str(start_from),
            is_added=is_added,
        )
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        self._handles[index] = (
            ray.remote(ShardActor)
            .options(
                name=shard_name(name, index),
                namespace=NAMESPACE,
                lifetime="detached",
                max_restarts=-1,
                max_concurrency=8,
                scheduling_strategy=affinity(where.node_id, soft=True),
                runtime_env=self._settings.runtime_env,
                **where.options,
            )
            .remote(settings)
        )

    def find(self) -> list[int]:
        """Finds the actors that the directory had started before its restart."""
        self._handles = {}
        for index in shard_indices(self._settings.name):
            with contextlib.suppress(ValueError):  # It has just ended.
                name = shard_name(self._settings.name, index)
                self._handles[index] = ray.get_actor(name, namespace=NAMESPACE)
        return sorted(self._handles)

    def get(self, index: int) -> Any:
        """Returns the handle of an actor; `None` if the shard is not an actor."""
        return self._handles.get(index)

    def among(self, indices: Iterable[int]) -> dict[int, Any]:
        """Returns the handles of the shards that are actors."""
        return {it: self._handles[it] for it in indices if it in self._handles}

    def describe(self, indices: Iterable[int], timeout_s: float) -> dict[int, ShardFacts]:
        """Asks the shards that are actors; returns the answers within `timeout_s`."""
        handles = self.among(indices)
        calls = {index: handle.describe.remote() for index, handle in handles.items()}
        if not calls:
            return {}
        done, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=timeout_s)
        answered = {}
        for index, call in calls.items():
            if call in done:
                with contextlib.suppress(ReverbError):
                    answered[index] = result_of(call, 0, f"shard {index}")
        return answered

    def end(self, index: int) -> None:
        """Ends an actor for good."""
        handle = self._handles.pop(index, None)
        if handle is not None:
            ray.kill(handle, no_restart=True)
