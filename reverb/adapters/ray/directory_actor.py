# SPDX-License-Identifier: Apache-2.0
"""The Ray actor that decides for a group: its shards, and the owner of each slot."""

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import reverb
from reverb import cluster
from reverb.adapters.ray.draining import end_when_streams_have, move_away
from reverb.adapters.ray.engine import ray
from reverb.adapters.ray.group_saver import GroupSaver, SavingActor
from reverb.adapters.ray.group_settings import GroupSettings
from reverb.adapters.ray.group_status import GroupStatus
from reverb.adapters.ray.names import DESCRIBE_TIMEOUT_S, POLL_S, shard_indices
from reverb.adapters.ray.placement import nodes_of
from reverb.adapters.ray.shard_facts import BEAT_S, Answer, Member, ShardFacts, status_of
from reverb.adapters.ray.shard_processes import ShardProcesses
from reverb.adapters.ray.shard_stores import choose_indices, find_stores
from reverb.cluster.directory import Directory, parse_map
from reverb.cluster.group_checkpoint import GroupCheckpoint
from reverb.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    ReverbError,
    UnavailableError,
)

__all__ = ["DirectoryActor"]

# How long a stop waits for the last commits, which end after five seconds on a disk that hangs.
_STOP_S = 10.0

# A shard of `serve_here` that is silent for longer has ended with its process.
_LOST_AFTER_S = 60.0
# How long programs wait for a restarted directory, which first asks its shards for the map.
_RECOVERY_S = 30.0

_logger = logging.getLogger("reverb.ray")


class DirectoryActor:
    """Starts the shards, and sends the map of the group to each of them.

    It stores nothing on disk. When Ray restarts it, it learns everything from the shards.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._directory = Directory(settings.name, settings.checkpoint_directory)
        self._lock = threading.RLock()
        # Held by calls that change the number of shards; the other lock is never held for long.
        self._changes = threading.RLock()
        self._members: dict[int, Member] = {}
        self._processes = ShardProcesses(settings)
        self._saver = GroupSaver(settings)
        # Set when the directory knows its shards.
        self._ready = threading.Event()
        self._coordinator: cluster.Coordinator | None = None
        self._stopped = threading.Event()
        # After a restart of this actor, its shards already exist.
        if shard_indices(settings.name):
            threading.Thread(target=self._recover, name="recover", daemon=True).start()

    # ---- Starting --------------------------------------------------------------------------------

    def begin(self, timeout_s: float) -> None:
        """Starts the shards; returns when all serve and have the map.

        Raises:
          ReverbError: If a shard cannot start; the text names it.
          DeadlineExceededError: If one does not start in time; the text names the missing ones.
        """
        settings = self._settings
        stores = find_stores(settings, nodes_of(ray.nodes(), {}))
        checkpoint, start_points = self._saver.start_points(stores)
        indices = choose_indices(settings, stores, checkpoint.parts if checkpoint else ())
        homes = [stores.get(it, ()) for it in indices]
        places = self._processes.find_nodes(settings.num_shards, timeout_s, homes=homes)
        with self._lock:
            self._lay_out(indices, checkpoint)
            for index, where in zip(indices, places, strict=True):
                self._processes.start(index, settings.num_shards, where, start_points.get(index))
            self._ready.set()
        self._wait_for(indices, timeout_s)
        self._push(wait=True)
        self._begin_watching()

    def _wait_for(self, indices: Sequence[int], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                states = {
                    index: self._members[index].facts if index in self._members else None
                    for index in indices
                }
            for index, facts in states.items():
                if facts is not None and facts.state == "failed":
                    raise FailedPreconditionError(
                        f"shard {index} of group '{self._settings.name}' cannot start on node "
                        f"{facts.node_id}: {facts.error}"
                    )
            missing = [it for it, facts in states.items() if not facts]
            if not missing:
                return
            if time.monotonic() > deadline:
                raise DeadlineExceededError(
                    f"the shards {missing} of group '{self._settings.name}' did not start within "
                    f"{timeout_s:g} s; they load their checkpoints, or wait for a node with "
                    f"{dict(self._settings.resources)} to spare"
                )
            time.sleep(POLL_S)

    def _lay_out(self, indices: Sequence[int], checkpoint: GroupCheckpoint | None) -> None:
        """Makes the first map, with the slots of the checkpoint that these shards load."""
        self._directory.lay_out(indices)
        if checkpoint is not None and checkpoint.parts.keys() == set(indices):
            self._directory.set_slots(checkpoint.slots)
            self._directory.epoch = max(self._directory.epoch, checkpoint.epoch) + 1

    def _recover(self) -> None:
        """Learns from the shards what the actor had decided before its restart."""
        found, maps = self._ask_for_maps()
        checkpoint = self._saver.find_latest()
        with self._lock:
            if maps:
                self._directory.learn(max(maps, key=lambda proto: proto.epoch))
            else:  # All shards died with the directory. They load the checkpoint.
                self._lay_out(sorted(found) or range(self._settings.num_shards), checkpoint)
                # Programs that have a lost map take over only one with a higher epoch.
                self._directory.epoch += time.time_ns() // 1_000_000
            for index, facts in found.items():
                if facts.state == "serving" and index in self._directory.indices:
                    self._take(facts)
            self._ready.set()
        self._push()
        self._begin_watching()

    def _ask_for_maps(self) -> tuple[dict[int, ShardFacts], list[Any]]:
        """Returns the facts of the shards that answer, and their maps.

        Blocks as long as a shard that does not answer may be the only one that has the map.
        """
        while True:
            indices = self._processes.find()
            found = self._processes.describe(indices, DESCRIBE_TIMEOUT_S)
            maps = [parse_map(facts.map) for facts in found.values() if facts.map]
            missing = sorted(set(indices) - found.keys())
            if maps or not missing:
                return found, maps
            name = self._settings.name
            _logger.info("directory of group '%s': the shards %s do not answer", name, missing)
            time.sleep(POLL_S)

    # ---- Calls of shards -------------------------------------------------------------------------

    def register(self, facts: ShardFacts) -> Answer:
        """Stores the facts of a shard that serves or has failed; returns its next action."""
        index = facts.index
        with self._lock:
            if not self._ready.is_set():
                return Answer(action="wait")
            if facts.state == "failed":
                member = self._members.setdefault(index, Member(facts, time.monotonic(), 0))
                member.facts = facts
                return Answer(action="wait")
        is_current = self._is_current(index, facts)
        if is_current is None:
            return Answer(action="wait")
        if not is_current:
            return Answer(action="stop", reason="Ray has started this shard again elsewhere")
        with self._lock:
            is_back = index not in self._directory.indices and not facts.is_actor
            if index not in self._directory.indices and not is_back:
                # The caller that started the shard will admit it.
                self._members[index] = Member(facts, time.monotonic())
                return Answer(action="wait")
            try:
                if is_back:  # The shard had been removed from the map because it was silent.
                    self._admit(facts)
                is_new = is_back or self._take(facts)
            except InvalidArgumentError as error:
                failed = dataclasses.replace(facts, state="failed", error=str(error))
                self._members[index] = Member(failed, time.monotonic())
                return Answer(action="stop", reason=str(error))
            num_starts = self._members[index].num_starts
            serialized = self._directory.to_proto().SerializeToString()
        if is_new:
            self._push()
        return Answer(action="go_on", map=serialized, num_starts=num_starts)

    def beat(self, index: int, server_id: int, epoch: int) -> Answer:
        """Records a sign of life of a shard; returns its next action, and a map newer than its."""
        with self._lock:
            if not self._ready.is_set():
                return Answer(action="go_on")
            member = self._members.get(index)
            if member is None or index not in self._directory.indices:
                return Answer(action="register")
            if member.facts.server_id != server_id:
                return Answer(action="register")
            member.last_seen = time.monotonic()
            member.epoch = epoch
            if epoch < self._directory.epoch:
                serialized = self._directory.to_proto().SerializeToString()
                return Answer(action="go_on", map=serialized)
            return Answer(action="go_on")

    def last_known(self, index: int) -> tuple[str, bytes | None]:
        """Returns the last address of a shard, and the map; empty and `None` if it is unknown."""
        with self._lock:
            if index not in self._directory.indices:
                return "", None
            serialized = self._directory.to_proto().SerializeToString()
            return self._directory.shard(index).address, serialized

    def learn_tables(self, serialized: bytes) -> None:
        """Takes over the tables of a map that a client has changed at the shards."""
        with self._lock:
            is_news = self._directory.learn_tables(parse_map(serialized))
        if is_news:
            self._push()

    def _take(self, facts: ShardFacts) -> bool:
        """Stores the address of a shard of the map; returns whether the map has changed."""
        index = facts.index
        self._directory.set_tables(index, facts.tables)
        before = self._members.get(index)
        is_news = before is None or before.facts.server_id != facts.server_id
        # Before a restart, this actor may have counted more.
        num_starts = max(facts.num_starts, (before.num_starts if before else 0) + is_news)
        self._members[index] = Member(facts, time.monotonic(), num_starts, facts.epoch)
        if not facts.sees_directory:
            _logger.warning(
                "shard %d of group '%s' on node %s does not see the files of the directory in %s: "
                "the group cannot be saved, and the shard would restart empty on another node. Use "
                "storage that all nodes share",
                index,
                self._settings.name,
                facts.node_id,
                self._settings.checkpoint_directory,
            )
        return self._directory.register(
            index,
            facts.address,
            server_id=facts.server_id,
            unix_path=facts.unix_path,
        )

    def _is_current(self, index: int, facts: ShardFacts) -> bool | None:
        """Whether this process is Ray's actor of the shard now, and not a replaced one.

        `None`: unknown, because the actor does not answer.
        """
        if self._processes.get(index) is None or not facts.is_actor:
            return True
        now = self._processes.describe([index], DESCRIBE_TIMEOUT_S).get(index)
        return None if now is None else now.server_id == facts.server_id

    def _push(self, *, wait: bool = False) -> None:
        """Sends the map to all shards that are actors; others get it with their next beat.

        A shard that has it has its part of the tables, too. `wait` until they have it.
        """
        with self._lock:
            serialized = self._directory.to_proto().SerializeToString()
            handles = self._processes.among(self._members)
        calls = [handle.set_map.remote(serialized) for handle in handles.values()]
        if wait:
            ray.wait(calls, num_returns=len(calls), timeout=DESCRIBE_TIMEOUT_S)

    def _coordinate(self) -> None:
        """Moves the windows of rate limiters, until this actor ends."""
        if self._coordinator is None or not self._coordinator.is_running:
            self._coordinator = cluster.Coordinator(self.address())

    def _begin_watching(self) -> None:
        self._coordinate()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def _watch(self) -> None:
        """Saves at intervals, and removes shards that have ended with their processes."""
        interval = self._settings.checkpoint_interval_s
        next_save = None if interval is None else time.monotonic() + interval
        while not self._stopped.wait(BEAT_S):
            if interval is not None and next_save is not None and time.monotonic() >= next_save:
                next_save = time.monotonic() + interval
                try:
                    self.checkpoint()
                except Exception as error:
                    _logger.warning("group '%s': %s", self._settings.name, error)
            self.remove_lost(_LOST_AFTER_S)
            self._coordinate()

    def remove_lost(self, after_s: float) -> None:
        """Removes silent shards of `serve_here` from the map.

        If such a shard is back after all, it is admitted again, with its items.
        """
        now = time.monotonic()
        with self._lock:
            lost = [
                index
                for index, member in self._members.items()
                if not member.facts.is_actor
                and now - member.last_seen > after_s
                and index in self._directory.indices
            ]
            for index in lost:
                _logger.warning(
                    "shard %d of group '%s' has been silent for %.0f s and is removed",
                    index,
                    self._settings.name,
                    after_s,
                )
                with contextlib.suppress(FailedPreconditionError):
                    self._directory.remove(index)
                    del self._members[index]
        if lost:
            self._push()

    # ---- Calls of programs -----------------------------------------------------------------------

    def address(self) -> str:
        """Returns the address for clients."""
        self._wait_until_ready()
        with self._lock:
            addresses = [self._directory.shard(it).address for it in self._directory.indices]
        return self._settings.scheme + ",".join(it for it in addresses if it)

    def _wait_until_ready(self) -> None:
        """Waits until the shards are known: else the group would look empty, with free indices."""
        if not self._ready.wait(_RECOVERY_S):
            raise UnavailableError(
                f"the directory of group '{self._settings.name}' has not heard from its shards "
                f"within {_RECOVERY_S:g} s; Ray has restarted it, and it asks them for the map"
            )

    def is_ready(self) -> bool:
        """Whether the directory knows its shards."""
        return self._ready.is_set()

    def status(self) -> GroupStatus:
        """Asks all shards for their status."""
        self._wait_until_ready()
        with self._lock:
            indices = self._directory.indices
        answered = self._processes.describe(indices, DESCRIBE_TIMEOUT_S / 5)
        with self._lock:
            shards = {
                it: status_of(it, self._directory, self._members.get(it), answered.get(it))
                for it in indices
            }
            sizes: dict[str, int] = {}
            for shard in shards.values():
                for table, size in shard.sizes.items():
                    sizes[table] = sizes.get(table, 0) + size
            return GroupStatus(
                name=self._settings.name,
                epoch=self._directory.epoch,
                address=self.address(),
                shards=shards,
                sizes=sizes,
                latest_checkpoint=self._saver.latest,
                latest_error=self._saver.latest_error,
            )

    def checkpoint(self) -> str:
        """Saves the group; returns the directory of the checkpoint.

        Raises:
          FailedPreconditionError: If it cannot be saved; the text names the shard.
        """
        self._wait_until_ready()
        with self._lock:
            proto = self._directory.to_proto()
            handles = self._processes.among(self._directory.indices)
            shards: dict[int, Any] = {
                it: SavingActor(it, handles[it])
                if it in handles
                else reverb.Client(self._address_of(it))
                for it in self._directory.indices
            }
        return self._saver.save(proto, shards, self._coordinator)

    def add_shards(self, count: int, timeout_s: float) -> list[int]:
        """Starts more shards; returns their indices when they serve."""
        self._wait_until_ready()
        with self._changes:
            with self._lock:
                taken = [it.facts.node_id for it in self._members.values()]
            places = self._processes.find_nodes(count, timeout_s, taken)
            with self._lock:
                indices = [self._directory.reserve() for _ in places]
                total = len(self._directory.indices) + count
                for index, where in zip(indices, places, strict=True):
                    self._processes.start(index, total, where, is_added=True)
            try:
                self._wait_for(indices, timeout_s)
            except ReverbError:
                self.stop_shards(indices, have_moved=True)
                for index in indices:
                    self._end(index)
                raise
            with self._lock:
                for index in indices:
                    self._admit(self._members[index].facts)
            self._push(wait=True)
            return indices

    def drain(self, index: int, wait_s: float) -> int:
        """Moves the items of a shard to the others and ends it; returns the number of items."""
        self._wait_until_ready()
        with self._changes:
            handle = self._processes.get(index)
            if index in self._directory.indices and handle is None:
                raise FailedPreconditionError(
                    f"shard {index} lives in a process of the program, which ends it: "
                    "LocalShard.stop(move_items=True)"
                )
            heirs = self.begin_drain(index)
            try:
                num_moved = move_away(index, handle, heirs, wait_s)
            except BaseException:
                self.cancel_drain(index)
                raise
            self.leave(index)
            end_when_streams_have(index, handle)
            self._end(index)
            return num_moved

    def begin_drain(self, index: int) -> dict[int, tuple[str, list[int]]]:
        """Prepares the leave of a shard: marks it, and enlarges the tables of the others.

        Returns:
          The addresses and the slots of the others.
        """
        self._wait_until_ready()
        with self._changes:
            with self._lock:
                self._directory.begin_drain(index)
                slots = self._directory.slots_without(index)
                heirs = {it: (self._address_of(it), slots[it]) for it in slots}
            self._push(wait=True)
            return heirs

    def cancel_drain(self, index: int) -> None:
        """Undoes `begin_drain`: the shard stays."""
        self._wait_until_ready()
        with self._changes:
            with self._lock:
                if index in self._directory.indices:
                    self._directory.end_drain(index)
            self._push(wait=True)

    def stop_shards(self, indices: Sequence[int] = (), *, have_moved: bool = False) -> None:
        """Stops servers that have stores, by default all: their stores have all that was confirmed.

        If their items `have_moved`, their stores are deleted.
        """
        self._wait_until_ready()
        if self._settings.stores is None:
            return
        handles = self._processes.among(indices or self._members)
        calls = [handle.stop.remote(has_moved=have_moved) for handle in handles.values()]
        _, late = ray.wait(calls, num_returns=len(calls), timeout=_STOP_S)
        if late:
            _logger.warning(
                "group '%s': %d shards did not stop within %g s; they end as if they had crashed",
                self._settings.name,
                len(late),
                _STOP_S,
            )

    def _address_of(self, index: int) -> str:
        """The address of one shard alone, for clients."""
        scheme = self._settings.scheme.removeprefix("shards").strip("+:/")
        return (f"{scheme}://" if scheme else "") + self._directory.shard(index).address

    def reserve(self) -> tuple[int, int, GroupSettings]:
        """Returns an index for a shard of `serve_here`, and the number of shards with it."""
        self._wait_until_ready()
        with self._lock:
            return self._directory.reserve(), len(self._directory.indices) + 1, self._settings

    def admit(self, facts: ShardFacts) -> bytes:
        """Adds a shard of `serve_here` to the map; returns the map."""
        self._wait_until_ready()
        with self._changes:
            with self._lock:
                self._admit(facts)
                serialized = self._directory.to_proto().SerializeToString()
            self._push(wait=True)
            return serialized

    def leave(self, index: int) -> None:
        """Removes a shard from the map."""
        self._wait_until_ready()
        with self._changes:
            with self._lock:
                if index in self._directory.indices:
                    self._directory.remove(index)
                self._members.pop(index, None)
            self._push(wait=True)

    def _admit(self, facts: ShardFacts) -> None:
        index = facts.index
        self._directory.set_tables(index, facts.tables)
        self._directory.add(
            index,
            facts.address,
            server_id=facts.server_id,
            unix_path=facts.unix_path,
            former_slots=facts.slots,
        )
        self._take(facts)

    def _end(self, index: int) -> None:
        self._members.pop(index, None)
        self._processes.end(index)
