# SPDX-License-Identifier: Apache-2.0
"""The Ray actor that decides for a group: which shards there are, and who owns which slot."""

import contextlib
import dataclasses
import logging
import pathlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import reverb
from reverb import cluster
from reverb.adapters.ray.engine import ray
from reverb.adapters.ray.group_settings import GroupSettings, ShardSettings
from reverb.adapters.ray.group_status import GroupStatus, ShardStatus
from reverb.adapters.ray.names import NAMESPACE, result_of, shard_indices, shard_name
from reverb.adapters.ray.placement import Place, nodes_of, place
from reverb.adapters.ray.shard_actor import ShardActor
from reverb.adapters.ray.shard_life import BEAT_S, MARKER
from reverb.cluster import group_checkpoint
from reverb.cluster.directory import Directory, parse_map
from reverb.cluster.shard_tables import tables_as_values
from reverb.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    ReverbError,
)
from reverb.server_status import CheckpointStatus

__all__ = ["DirectoryActor"]

_DESCRIBE_TIMEOUT_S = 5.0
# A shard of `serve_here` that is not heard of for so long has ended with its process.
_LOST_AFTER_S = 60.0
_POLL_S = 0.05
# How long a shard that has left waits for its streams: their clients go to the others.
_STREAMS_END_S = 5.0

_logger = logging.getLogger("reverb.ray")


@dataclasses.dataclass
class _Member:
    """A shard that has registered."""

    facts: dict[str, Any]
    last_seen: float
    num_starts: int = 1
    epoch: int = 0


class DirectoryActor:
    """Starts the shards, and tells each of them about the others.

    It keeps nothing on disk. When Ray starts it again, it learns everything from the shards.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._directory = Directory(settings.name, settings.checkpoint_directory)
        self._lock = threading.RLock()
        # Of those that change the number of shards; the other lock is never held for long.
        self._changes = threading.Lock()
        self._saves = threading.Lock()
        self._members: dict[int, _Member] = {}
        self._handles: dict[int, Any] = {}
        self._is_ready = False
        self._latest_checkpoint: str | None = None
        self._latest_error: str | None = None
        self._coordinator: cluster.Coordinator | None = None
        self._stopped = threading.Event()
        # In its first life it starts the shards; in later ones they are there.
        if shard_indices(settings.name):
            threading.Thread(target=self._recover, name="recover", daemon=True).start()

    # ---- Starting --------------------------------------------------------------------------------

    def begin(self, timeout_s: float) -> None:
        """Starts the shards; returns when all serve and have the map.

        Raises:
          ReverbError: If a shard cannot start; names it.
          DeadlineExceededError: If one does not start in time; names those that are missing.
        """
        settings = self._settings
        start_points: Mapping[int, pathlib.Path] = {}
        indices: Sequence[int] = range(settings.num_shards)
        checkpoint = None
        if settings.checkpoint_directory:
            checkpoint, start_points = self._start_points()
            indices = sorted(start_points) if checkpoint else indices
        places = place(
            settings.num_shards, settings.placement, settings.resources, nodes_of(ray.nodes())
        )
        with self._lock:
            self._directory.lay_out(indices)
            if checkpoint is not None:
                self._directory.set_slots(checkpoint.slots)
                self._directory.epoch = max(self._directory.epoch, checkpoint.epoch) + 1
                self._latest_checkpoint = str(checkpoint.path)
            for index, where in zip(indices, places, strict=True):
                self._create(index, settings.num_shards, where, start_points.get(index))
            self._is_ready = True
        self._wait_for(indices, timeout_s)
        self._push(wait=True)
        self._coordinate()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def _start_points(
        self,
    ) -> tuple[group_checkpoint.GroupCheckpoint | None, Mapping[int, pathlib.Path]]:
        """The latest checkpoint of the group, and what each shard starts with."""
        settings = self._settings
        root = pathlib.Path(settings.checkpoint_directory)
        root.mkdir(parents=True, exist_ok=True)
        for old in root.glob(MARKER.format(name=settings.name, run="*")):
            old.unlink(missing_ok=True)
        (root / MARKER.format(name=settings.name, run=settings.run)).touch()
        checkpoint = group_checkpoint.latest(root, settings.name)
        if checkpoint is not None:
            if len(checkpoint.parts) != settings.num_shards:
                raise FailedPreconditionError(
                    f"{checkpoint.path} was saved by {len(checkpoint.parts)} shards, and "
                    f"num_shards is {settings.num_shards}: start as many, or make a checkpoint for "
                    f"{settings.num_shards} shards with `reverb reshard --shards "
                    f"{settings.num_shards} {checkpoint.path} OUT`"
                )
            return checkpoint, {it: checkpoint.path_of(it) for it in checkpoint.parts}
        alone = group_checkpoint.shards_alone(root)
        if alone:
            _logger.warning(
                "%s has no complete checkpoint of the group '%s': each shard starts with the last "
                "one that it saved itself, which are of different moments",
                root,
                settings.name,
            )
        return None, {it: path for it, path in alone.items() if it < settings.num_shards}

    def _create(
        self, index: int, num_shards: int, where: Place, start_from: pathlib.Path | None
    ) -> None:
        name = self._settings.name
        # A number is one of a kind, and so is this moment: whatever else lies in the directory of
        # the shard, it loads only what this shard has saved.
        born = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        settings = ShardSettings(
            group=self._settings,
            index=index,
            num_shards=num_shards,
            checkpoint_name=f"{name}.{index}.{born}",
            start_from=None if start_from is None else str(start_from),
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

    def _wait_for(self, indices: Sequence[int], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                states = {
                    index: self._members[index].facts if index in self._members else None
                    for index in indices
                }
            for index, facts in states.items():
                if facts is not None and facts["state"] == "failed":
                    raise FailedPreconditionError(
                        f"shard {index} of group '{self._settings.name}' cannot start on node "
                        f"{facts['node_id']}: {facts['error']}"
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
            time.sleep(_POLL_S)

    def _recover(self) -> None:
        """Learns from the shards what the life before had decided."""
        name = self._settings.name
        found = {}
        for index in shard_indices(name):
            try:
                self._handles[index] = ray.get_actor(shard_name(name, index), namespace=NAMESPACE)
                call = self._handles[index].describe.remote()
                found[index] = result_of(call, _DESCRIBE_TIMEOUT_S, f"shard {index}")
            except (ReverbError, ValueError) as error:
                _logger.info("directory of group '%s': shard %d: %s", name, index, error)
        maps = [parse_map(facts["map"]) for facts in found.values() if facts["map"]]
        with self._lock:
            if maps:
                self._directory.learn(max(maps, key=lambda proto: proto.epoch))
            else:
                self._directory.lay_out(self._handles or range(self._settings.num_shards))
            for index, facts in found.items():
                if facts["state"] == "serving" and index in self._directory.indices:
                    self._take(facts)
            self._is_ready = True
        if self._settings.checkpoint_directory:
            with contextlib.suppress(ReverbError):
                latest = group_checkpoint.latest(self._settings.checkpoint_directory, name)
                self._latest_checkpoint = None if latest is None else str(latest.path)
        self._push()
        self._coordinate()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    # ---- What shards ask -------------------------------------------------------------------------

    def register(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Notes that a shard serves, or why it does not; returns what it has to do."""
        index = facts["index"]
        with self._lock:
            if not self._is_ready:
                return {"action": "wait"}
            if facts["state"] == "failed":
                member = self._members.setdefault(index, _Member(facts, time.monotonic(), 0))
                member.facts = facts
                return {"action": "wait"}
        if not self._is_current(index, facts):
            return {"action": "stop", "reason": "Ray has started this shard again elsewhere"}
        with self._lock:
            is_back = index not in self._directory.indices and not facts["is_actor"]
            if index not in self._directory.indices and not is_back:
                # It is admitted by who has started it.
                self._members[index] = _Member(facts, time.monotonic())
                return {"action": "wait"}
            try:
                self._learn_tables(facts["map"])
                if is_back:  # It had been taken out because it was not heard of.
                    self._admit(facts)
                is_new = is_back or self._take(facts)
            except InvalidArgumentError as error:
                failed = facts | {"state": "failed", "error": str(error)}
                self._members[index] = _Member(failed, time.monotonic())
                return {"action": "stop", "reason": str(error)}
            serialized = self._directory.to_proto().SerializeToString()
            tables = self._tables_of_group()
        if is_new:
            self._push()
        if is_back:
            self._share_sizes()
        return {"action": "go_on", "map": serialized, "tables": tables}

    def beat(self, index: int, server_id: int, epoch: int) -> dict[str, Any]:
        """Notes that a shard lives; returns what it has to do, and the map if it has an old one."""
        with self._lock:
            if not self._is_ready:
                return {"action": "go_on"}
            member = self._members.get(index)
            if member is None or index not in self._directory.indices:
                return {"action": "register"}
            if member.facts["server_id"] != server_id:
                return {"action": "register"}
            member.last_seen = time.monotonic()
            member.epoch = epoch
            if epoch > self._directory.epoch:
                return {"action": "register"}  # A client has changed a table.
            if epoch < self._directory.epoch:
                serialized = self._directory.to_proto().SerializeToString()
                return {"action": "go_on", "map": serialized}
            return {"action": "go_on"}

    def address_of(self, index: int) -> str:
        """Returns where a shard was last; empty if that is not known."""
        with self._lock:
            if index in self._directory.indices:
                return self._directory.shard(index).address
            return ""

    def _learn_tables(self, serialized: bytes | None) -> None:
        """A client changes tables at the shards, in a new map that this actor hears of then."""
        if serialized and self._directory.learn_tables(parse_map(serialized)):
            self._push()

    def _take(self, facts: dict[str, Any]) -> bool:
        """Notes where a shard of the map is; returns whether the map has changed."""
        index = facts["index"]
        self._directory.set_tables(index, facts["tables"])
        before = self._members.get(index)
        is_news = before is None or before.facts["server_id"] != facts["server_id"]
        self._members[index] = _Member(
            facts,
            time.monotonic(),
            (before.num_starts if before else 0) + is_news,
            facts["epoch"],
        )
        if not facts["sees_directory"]:
            _logger.warning(
                "shard %d of group '%s' on node %s does not see the files of the directory in %s: "
                "the group cannot be saved, and the shard comes back empty on another node. Use "
                "storage that all nodes share",
                index,
                self._settings.name,
                facts["node_id"],
                self._settings.checkpoint_directory,
            )
        return self._directory.register(
            index,
            facts["address"],
            server_id=facts["server_id"],
            unix_path=facts["unix_path"],
        )

    def _is_current(self, index: int, facts: dict[str, Any]) -> bool:
        """Whether Ray means this process by the shard, and not one that it has replaced."""
        handle = self._handles.get(index)
        if handle is None or not facts["is_actor"]:
            return True
        try:
            call = handle.describe.remote()
            now = result_of(call, _DESCRIBE_TIMEOUT_S, f"shard {index}")
        except ReverbError:
            return True  # Nobody else can be meant at present.
        return now["server_id"] == facts["server_id"]

    def _push(self, *, wait: bool = False) -> None:
        """Sends the map to all shards that are actors; others get it when they ask next."""
        with self._lock:
            serialized = self._directory.to_proto().SerializeToString()
            handles = [it for index, it in self._handles.items() if index in self._members]
        calls = [handle.set_map.remote(serialized) for handle in handles]
        if wait:
            ray.wait(calls, num_returns=len(calls), timeout=_DESCRIBE_TIMEOUT_S)

    def _coordinate(self) -> None:
        """Moves the windows of rate limiters, until this actor ends."""
        if self._coordinator is None or not self._coordinator.is_running:
            self._coordinator = cluster.Coordinator(self.address())

    def _watch(self) -> None:
        """Saves from time to time, and notices shards that have ended with their processes."""
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
        """Takes shards in processes of the program out of the map that were not heard of so long.

        One that is back after all is admitted again, with its items.
        """
        now = time.monotonic()
        with self._lock:
            lost = [
                index
                for index, member in self._members.items()
                if not member.facts["is_actor"]
                and now - member.last_seen > after_s
                and index in self._directory.indices
            ]
            for index in lost:
                _logger.warning(
                    "shard %d of group '%s' has not been heard of for %.0f s and is taken out",
                    index,
                    self._settings.name,
                    after_s,
                )
                with contextlib.suppress(FailedPreconditionError):
                    self._directory.remove(index)
                    del self._members[index]
        if lost:
            self._push()

    # ---- What programs ask -----------------------------------------------------------------------

    def address(self) -> str:
        """Returns what clients connect to."""
        with self._lock:
            addresses = [self._directory.shard(it).address for it in self._directory.indices]
        return self._settings.scheme + ",".join(it for it in addresses if it)

    def is_ready(self) -> bool:
        """Whether the directory knows its shards."""
        return self._is_ready

    def status(self) -> GroupStatus:
        """Asks all shards, and returns what they say."""
        with self._lock:
            indices = self._directory.indices
            calls = {
                it: self._handles[it].describe.remote() for it in indices if it in self._handles
            }
        answered = {}
        if calls:
            done, _ = ray.wait(
                list(calls.values()), num_returns=len(calls), timeout=_DESCRIBE_TIMEOUT_S / 5
            )
            for index, call in calls.items():
                if call in done:
                    with contextlib.suppress(ReverbError):
                        answered[index] = result_of(call, 0, f"shard {index}")
        with self._lock:
            shards = {it: self._shard_status(it, answered.get(it)) for it in indices}
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
                latest_checkpoint=self._latest_checkpoint,
                latest_error=self._latest_error,
            )

    def _shard_status(self, index: int, answer: dict[str, Any] | None) -> ShardStatus:
        member = self._members.get(index)
        facts = answer or (member.facts if member else {})
        last_seen_s = time.monotonic() - member.last_seen if member else float("inf")
        if answer is not None:
            state = answer["state"]
        elif member is not None and not member.facts["is_actor"] and last_seen_s < 5 * BEAT_S:
            state = member.facts["state"]
        else:
            state = "lost"
        return ShardStatus(
            index=index,
            state=state,
            address=self._directory.shard(index).address,
            node_id=facts.get("node_id", ""),
            pid=facts.get("pid", 0),
            num_starts=member.num_starts if member else 0,
            epoch=answer["epoch"] if answer else (member.epoch if member else 0),
            num_slots=self._directory.num_slots(index),
            is_draining=self._directory.shard(index).is_draining,
            last_seen_s=last_seen_s,
            sizes=facts.get("sizes", {}),
            restored_from=facts.get("restored_from"),
            sees_directory=facts.get("sees_directory", True),
            is_actor=facts.get("is_actor", True),
            error=facts.get("error"),
        )

    def checkpoint(self) -> str:
        """Saves the group; returns the directory of the checkpoint.

        Raises:
          FailedPreconditionError: If it cannot be saved; names the shard.
        """
        root = self._settings.checkpoint_directory
        if not root:
            raise FailedPreconditionError(
                f"group '{self._settings.name}' was started without checkpoint_directory"
            )
        with self._saves:
            with self._lock:
                proto = self._directory.to_proto()
                slots = self._directory.slots()
                shards: dict[int, Any] = {
                    it: _SavingActor(it, self._handles[it])
                    if it in self._handles
                    else reverb.Client(self._directory.shard(it).address)
                    for it in self._directory.indices
                }
            try:
                saved = group_checkpoint.save(
                    root,
                    self._settings.name,
                    shards,
                    epoch=proto.epoch,
                    slots=slots,
                    tables=tables_as_values(proto),
                    keep_latest=self._settings.keep_latest,
                    freeze=self._freeze,
                    unfreeze=self._unfreeze,
                )
            except (ReverbError, OSError) as error:
                self._latest_error = str(error)
                raise
            self._latest_checkpoint, self._latest_error = str(saved.path), None
            return str(saved.path)

    def _freeze(self) -> None:
        if self._coordinator is not None:
            self._coordinator.freeze()

    def _unfreeze(self) -> None:
        if self._coordinator is not None:
            self._coordinator.unfreeze()

    def add_shards(self, count: int, timeout_s: float) -> list[int]:
        """Starts more shards; returns their numbers when they serve."""
        with self._changes:
            with self._lock:
                taken = [it.facts["node_id"] for it in self._members.values()]
                places = place(
                    count,
                    self._settings.placement,
                    self._settings.resources,
                    nodes_of(ray.nodes()),
                    taken,
                )
                indices = [self._directory.reserve() for _ in places]
                total = len(self._directory.indices) + count
                for index, where in zip(indices, places, strict=True):
                    self._create(index, total, where, None)
            try:
                self._wait_for(indices, timeout_s)
            except ReverbError:
                for index in indices:
                    self._end(index)
                raise
            with self._lock:
                for index in indices:
                    self._admit(self._members[index].facts)
            self._push(wait=True)
            self._share_sizes()
            return indices

    def drain(self, index: int, wait_s: float) -> int:
        """Moves the items of a shard to the others and ends it; returns how many were moved."""
        with self._changes:
            if index in self._directory.indices and index not in self._handles:
                raise FailedPreconditionError(
                    f"shard {index} lives in a process of the program, which ends it: "
                    "LocalShard.stop(move_items=True)"
                )
            heirs = self._begin_drain(index)
            handle, name = self._handles[index], f"shard {index}"
            num_moved = 0
            try:
                self._wait_for_writers(index, handle, wait_s)
                for last in (False, True):
                    call = handle.give_items.remote(heirs, last)
                    num_moved += result_of(call, None, name)
            except BaseException:
                with contextlib.suppress(ReverbError):
                    call = handle.take_inserts_again.remote()
                    result_of(call, _DESCRIBE_TIMEOUT_S, name)
                self._cancel_drain(index)
                raise
            self._remove(index)
            with contextlib.suppress(ReverbError):
                result_of(handle.stop.remote(_STREAMS_END_S), 2 * _STREAMS_END_S, name)
            self._end(index)
            return num_moved

    def begin_drain(self, index: int) -> dict[int, tuple[str, list[int]]]:
        """A shard in a process of the program is about to leave; returns its heirs."""
        with self._changes:
            return self._begin_drain(index)

    def cancel_drain(self, index: int) -> None:
        """It stays after all."""
        with self._changes:
            self._cancel_drain(index)

    def _begin_drain(self, index: int) -> dict[int, tuple[str, list[int]]]:
        """Marks a shard, and makes room at the others; returns their addresses and slots."""
        scheme = self._settings.scheme.removeprefix("shards").strip("+:/")
        scheme = f"{scheme}://" if scheme else ""
        with self._lock:
            self._directory.begin_drain(index)
            slots = self._directory.slots_without(index)
            heirs = {it: (scheme + self._directory.shard(it).address, slots[it]) for it in slots}
        self._push(wait=True)
        self._share_sizes(leaving=index)
        return heirs

    def _cancel_drain(self, index: int) -> None:
        with self._lock:
            if index in self._directory.indices:
                self._directory.end_drain(index)
        self._push()
        self._share_sizes()

    def _wait_for_writers(self, index: int, handle: Any, wait_s: float) -> None:
        """Waits until no writer has a stream to the shard: they leave at the end of an episode."""
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            call = handle.num_insert_streams.remote()
            if result_of(call, _DESCRIBE_TIMEOUT_S, f"shard {index}") == 0:
                return
            time.sleep(_POLL_S)

    def _remove(self, index: int) -> None:
        with self._lock:
            if index in self._directory.indices:
                self._directory.remove(index)
            self._members.pop(index, None)
        self._push(wait=True)
        self._share_sizes()

    def reserve(self) -> tuple[int, int, GroupSettings]:
        """Returns a number for a shard in a process of the program, and how many there will be."""
        with self._lock:
            return self._directory.reserve(), len(self._directory.indices) + 1, self._settings

    def admit(self, facts: dict[str, Any]) -> bytes:
        """Takes a shard in a process of the program into the map; returns the map."""
        with self._changes:
            with self._lock:
                self._admit(facts)
                serialized = self._directory.to_proto().SerializeToString()
            self._push()
            self._share_sizes()
            return serialized

    def leave(self, index: int) -> None:
        """Takes a shard in a process of the program out of the map again."""
        with self._changes:
            self._remove(index)

    def _admit(self, facts: dict[str, Any]) -> None:
        index = facts["index"]
        self._directory.set_tables(index, facts["tables"])
        self._directory.add(
            index,
            facts["address"],
            server_id=facts["server_id"],
            unix_path=facts["unix_path"],
            former_slots=facts["slots"],
        )
        self._take(facts)

    def _share_sizes(self, leaving: int | None = None) -> None:
        """Gives each shard its part of the tables' sizes, when their number has changed."""
        with self._lock:
            stay = [it for it in self._directory.indices if it != leaving]
            tables = self._directory.tables()
            handles = [self._handles[it] for it in stay if it in self._handles]
        calls = [handle.set_tables.remote(tables, len(stay)) for handle in handles]
        ray.wait(calls, num_returns=len(calls), timeout=_DESCRIBE_TIMEOUT_S)

    def _tables_of_group(self) -> tuple[list[bytes], int]:
        """The tables of the whole group, and in how many parts they are."""
        return self._directory.tables(), len(self._directory.indices)

    def _end(self, index: int) -> None:
        """Ends the process of a shard for good."""
        handle = self._handles.pop(index, None)
        self._members.pop(index, None)
        if handle is not None:
            ray.kill(handle, no_restart=True)

    def stop(self) -> None:
        """Ends all shards for good."""
        self._stopped.set()
        with self._lock:
            root = self._settings.checkpoint_directory
            if root:
                marker = MARKER.format(name=self._settings.name, run=self._settings.run)
                pathlib.Path(root, marker).unlink(missing_ok=True)
            for index in shard_indices(self._settings.name):
                with contextlib.suppress(ValueError):
                    handle = ray.get_actor(
                        shard_name(self._settings.name, index), namespace=NAMESPACE
                    )
                    ray.kill(handle, no_restart=True)


class _SavingActor:
    """A shard as `group_checkpoint.save` wants it, by calls of its actor."""

    def __init__(self, index: int, handle: Any) -> None:
        self._name = f"shard {index}"
        self._handle = handle

    def checkpoint(self) -> str:
        return result_of(self._handle.checkpoint.remote(), None, self._name)

    def checkpoint_status(self) -> CheckpointStatus:
        call = self._handle.checkpoint_status.remote()
        return result_of(call, _DESCRIBE_TIMEOUT_S, self._name)
