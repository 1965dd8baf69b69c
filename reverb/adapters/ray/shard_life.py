# SPDX-License-Identifier: Apache-2.0
"""The life of one shard: it loads, serves, registers, and sends beats to the directory."""

import logging
import os
import pathlib
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

import reverb
from reverb import cluster
from reverb.adapters.ray.engine import ray
from reverb.adapters.ray.group_settings import ShardSettings
from reverb.adapters.ray.names import ask_directory
from reverb.adapters.ray.shard_facts import BEAT_S, Answer, ShardFacts
from reverb.adapters.ray.shard_stores import files_of
from reverb.cluster import group_checkpoint
from reverb.cluster.directory import OWN_EPOCH, parse_map, slots_as_values
from reverb.cluster.running_group import with_settings
from reverb.cluster.shard_calls import map_of, move_items, server_id_of, set_map
from reverb.cluster.shard_tables import TablesOfMap, part_settings, serialize_tables, tables_in_map
from reverb.errors import FailedPreconditionError, InvalidArgumentError, ReverbError

__all__ = ["MARKER", "ShardLife"]

MARKER = ".reverb-group-{name}-{run}"
"""A file in the checkpoint directory; a shard that sees it shares the disk with the group."""

_CALL_TIMEOUT_S = 10.0
# How long a shard that cannot start waits before it tries again, for example because another
# process still holds its checkpoint.
_RETRY_S = 2.0
# Linux refuses longer paths of sockets.
_MAX_UNIX_PATH = 107

_logger = logging.getLogger("reverb.ray")


class ShardLife:
    """A server, and the thread that keeps it in the map of its group.

    Attributes:
      settings: Settings of the shard.
      is_actor: Whether Ray restarts it when it dies.
    """

    def __init__(self, settings: ShardSettings, *, is_actor: bool) -> None:
        """Stores the settings; call `run` or `start` next."""
        self.settings = settings
        self.is_actor = is_actor
        # Address of the shard before its restart; empty at the first start.
        self._last_address = ""
        self._lock = threading.Lock()
        self._maps = threading.Lock()
        self._state = "starting"
        self._error: str | None = None
        self._server: reverb.Server | None = None
        self._server_id = 0
        self._address = ""
        self._socket = ""
        self._tables: list[bytes] = []
        # Numbers of the group's rate limiter for each table.
        self._limits: dict[str, tuple[float, ...]] = {}
        self._map: bytes | None = None
        self._epoch = 0
        # The tables of the last map whose parts are in force.
        self._tables_of_map: TablesOfMap | None = None
        # A map in which a client has changed tables, until the directory knows it.
        self._untold: bytes | None = None
        self._restored_from: str | None = None
        self._stopped = threading.Event()
        context = ray.get_runtime_context()
        # The directory counts the starts and sends the number, because a restarted directory has to
        # ask the shards for it.
        self._num_starts = 2 if is_actor and context.was_current_actor_reconstructed else 1
        self._is_added = settings.is_added and self._num_starts == 1
        self._store = settings.group.store(settings.index)
        self._node_id = context.get_node_id()
        self._host = _as_host(ray.util.get_node_ip_address())

    @property
    def server(self) -> reverb.Server:
        """The server.

        Raises:
          FailedPreconditionError: If it does not serve yet, or not any more.
        """
        if self._server is None:
            raise FailedPreconditionError(
                f"shard {self.settings.index} of group '{self.settings.group.name}' is "
                f"{self._state}{f': {self._error}' if self._error else ''}"
            )
        return self._server

    def start(self) -> None:
        """Loads and serves; blocks until it does.

        Raises:
          ReverbError: If it cannot; see `reverb.Server`.
        """
        self._last_address, last_map = self._last_known()
        tables = self.settings.group.make_tables()
        serialized = serialize_tables(tables)
        if last_map is not None:
            # Before items come back, for which smaller tables would have no room.
            tables = with_settings(tables, last_map)
        self._check_store()
        server = self._make_server(tables, last_map)
        client = server.localhost_client()
        restored_from = client.checkpoint_status().restored_from
        status = client.status().store
        if self._store is not None and status is not None and status.recovered is not None:
            restored_from = str(self._store.path)
        server_id = server_id_of(client)
        with self._lock:
            self._tables = serialized
            given = serialize_tables(tables)
            parts = (part_settings(it, 0, self.settings.num_shards) for it in given)
            self._limits = {name: part.limits for name, part in parts}
            self._server, self._server_id = server, server_id
            self._address = f"{self._host}:{server.port}"
            self._restored_from = restored_from
            self._state, self._error = "serving", None
        kept = [] if self._store is None else [f"no store of it in {self._store.path}"]
        if self._root:
            saved = group_checkpoint.shard_directory(self._root, self.settings.index)
            kept.append(f"no checkpoint of it in {saved}")
        if self._last_address and kept and restored_from is None:
            _logger.warning(
                "shard %d of group '%s' came back empty on node %s: there is %s",
                self.settings.index,
                self.settings.group.name,
                self._node_id,
                " and ".join(kept),
            )

    def run(self) -> None:
        """Serves and keeps the shard in the map, until `stop`. Meant for a thread."""
        while not self._stopped.is_set() and self._server is None:
            try:
                self.start()
            except Exception as error:
                # Ray never restarts an actor whose constructor fails, so this one keeps running.
                self._state, self._error = "failed", f"{type(error).__name__}: {error}"
                _logger.warning("shard %d cannot start: %s", self.settings.index, self._error)
                self._report_failure()
                self._stopped.wait(_RETRY_S)
        self.beat_until_stopped()

    def beat_until_stopped(self) -> None:
        """Sends a beat to the directory every second, and acts on its answers."""
        is_registered = False
        trouble = ""
        while not self._stopped.is_set():
            try:
                is_registered = self._beat(is_registered)
                trouble = ""
            except Exception as error:
                # Ray restarts the directory; the shard keeps its map meanwhile. The thread
                # survives any other error too, because a shard without beats has no new maps.
                if str(error) != trouble and not self._stopped.is_set():
                    trouble = str(error)
                    _logger.warning(
                        "shard %d of group '%s' tries again each second to follow its group: %s",
                        self.settings.index,
                        self.settings.group.name,
                        error,
                    )
            self._stopped.wait(BEAT_S)

    def facts(self) -> ShardFacts:
        """Facts about the shard for the directory."""
        with self._lock:
            return ShardFacts(
                index=self.settings.index,
                state=self._state,
                error=self._error,
                address=self._address,
                server_id=self._server_id,
                unix_path=self._socket,
                node_id=self._node_id,
                pid=os.getpid(),
                epoch=self._epoch,
                tables=self._tables,
                restored_from=self._restored_from,
                sees_directory=self._sees_directory(),
                is_actor=self.is_actor,
                num_starts=self._num_starts,
                map=self._map,
                slots=self._own_slots(),
            )

    def _own_slots(self) -> list[int]:
        """The shard's slots in its map; needed only if a newer map lacks the shard."""
        if self.is_actor or self._map is None:
            return []
        return [
            slot
            for entry in slots_as_values(parse_map(self._map))
            if entry["owner"] == self.settings.index
            for slot in range(entry["first"], entry["first"] + entry["count"])
        ]

    def sizes(self) -> dict[str, int]:
        """Returns the number of items of each table; none if it does not serve."""
        server = self._server
        if server is None:
            return {}
        return {name: info.current_size for name, info in server.server_info().items()}

    def insert_streams(self) -> list[tuple[str, str, int]]:
        """Returns the open streams of inserts: client, its address, number of items so far."""
        streams = self.server.status(with_streams=True).streams
        return sorted((it.client, it.peer, it.items) for it in streams if it.kind == "insert")

    def give_items(self, heirs: Mapping[int, tuple[str, list[int]]], *, last: bool) -> int:
        """Copies the items of the shard to the others; blocks until they have them.

        `heirs` are the address and the slots of each. `last` pauses inserts from now on, so that no
        more items arrive. Returns the number of items that were added to others.
        """
        client = self.server.localhost_client()
        num_added = 0
        for table in self.server.server_info():
            if last:
                client.pause_table(table, samples=False)
            for address, slots in heirs.values():
                target = reverb.Client(address)
                num_added += move_items(client, target, table, slots)[0]
        return num_added

    def take_inserts_again(self) -> None:
        """Undoes the pause of `give_items`, if the shard stays after all."""
        client = self.server.localhost_client()
        for table in self.server.server_info():
            client.resume_table(table, samples=False)

    def set_map(self, serialized: bytes) -> int:
        """Accepts a map that is newer than its own; returns the epoch of its map after that."""
        epoch = parse_map(serialized).epoch
        server = self.server
        self._look_at_map()
        with self._maps:  # One at a time, so that an older map cannot replace a newer one.
            if epoch > self._epoch:
                set_map(server.localhost_client(), serialized, self.settings.index)
                with self._lock:
                    self._map, self._epoch = serialized, epoch
                self._set_parts()
            return self._epoch

    def _set_parts(self) -> None:
        """Changes the shard's parts of the tables to those of its map; holds the lock of maps.

        Does nothing if the tables of the map are those of the map before: a client that changes
        tables changes the parts first and the map then.
        """
        if self._map is None:
            return
        tables = tables_in_map(parse_map(self._map), self.settings.index)
        if tables is None or tables == self._tables_of_map:
            return
        parts = tables.parts()
        limits = self._limits
        self.server.configure_tables(
            {name: part.change_from(limits[name]) for name, part in parts.items()}
        )
        self._limits = {name: part.limits for name, part in parts.items()}
        self._tables_of_map = tables

    def end_beats(self) -> None:
        """Ends `run` and `beat_until_stopped`, but not the server."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called, or the directory has ended it."""
        return self._stopped.is_set()

    def stop(self, drain_s: float = 0.0, *, has_moved: bool = False) -> None:
        """Ends the thread and the server; waits at most `drain_s` until its streams have ended.

        `has_moved`: others have its items, so its store is emptied and deleted.
        """
        self._stopped.set()
        with self._lock:
            server, self._server = self._server, None
            self._state = "stopped"
        if server is not None:
            for table in server.server_info() if has_moved else ():
                server.localhost_client().reset(table)
            server.stop(drain_s)
        if has_moved and self._store is not None and not self._is_added:
            for file in files_of(self._store.path):
                file.unlink(missing_ok=True)

    @property
    def _root(self) -> str:
        return self.settings.group.checkpoint_directory

    def _check_store(self) -> None:
        if self._is_added and self._store is not None and files_of(self._store.path):
            raise FailedPreconditionError(
                f"{self._store.path} has the store of a shard {self.settings.index} of an earlier "
                "group: move it away, or start the group with as many shards as that one had"
            )
        self._is_added = False  # From now on what is there is its own.

    def _make_server(self, tables: list[reverb.Table], last_map: bytes | None) -> reverb.Server:
        settings = self.settings
        checkpointer = None
        if self._root:
            start_from = settings.start_from
            if start_from is not None and not pathlib.Path(start_from, "DONE").exists():
                _logger.warning(
                    "shard %d of group '%s' starts empty: node %s does not see %s",
                    settings.index,
                    settings.group.name,
                    self._node_id,
                    start_from,
                )
                start_from = None
            checkpointer = reverb.checkpointers.DefaultCheckpointer(
                str(group_checkpoint.shard_directory(self._root, settings.index)),
                fallback_checkpoint_path=start_from,
                name=settings.checkpoint_name,
            )
        # The remainder, because the indices of shards that have left are missing.
        place = settings.index % settings.num_shards, settings.num_shards
        if last_map is not None:
            found = tables_in_map(parse_map(last_map), settings.index)
            place = place if found is None else (found.index, found.num_shards)
        shard = cluster.Shard(
            *place,
            settings.group.name,
            is_coordinated=True,
            # The map has the index of a shard that is greater because others have left.
            rejoins=self._num_starts > 1 or settings.index >= settings.num_shards,
        )
        port, unix_path = self._wanted_port(), self._unix_path()
        attempts = [(port, unix_path), (port, None)]
        if settings.group.base_port is None and port is not None:
            # Another process may have taken the port that the shard had before its restart.
            attempts += [(None, unix_path), (None, None)]
        for port, unix_path in attempts:
            try:
                server = reverb.Server(
                    tables,
                    port,
                    checkpointer,
                    shard=shard,
                    unix_path=unix_path,
                    store=self._store,
                    **settings.group.server_options,
                )
            except InvalidArgumentError as error:
                if (port, unix_path) == attempts[-1]:
                    raise
                _logger.info("shard %d: %s", settings.index, error)
                tables = settings.group.make_tables()
            else:
                self._socket = unix_path or ""
                return server
        raise AssertionError("the last attempt returns or raises")

    def _unix_path(self) -> str | None:
        """The socket for clients on the same node; a restarted shard has the same."""
        group = self.settings.group
        directory = pathlib.Path(tempfile.gettempdir(), f"reverb-{os.getuid()}")
        path = str(directory / f"{group.name}.{group.run}.{self.settings.index}")
        return path if len(os.fsencode(path)) <= _MAX_UNIX_PATH else None

    def _wanted_port(self) -> int | None:
        """The port that the program gave, or the one before the restart, which clients know."""
        if self.settings.group.base_port is not None:
            return self.settings.group.base_port + self.settings.index
        host, _, port = self._last_address.rpartition(":")
        return int(port) if host == self._host else None

    def _last_known(self) -> tuple[str, bytes | None]:
        try:
            return self._ask("last_known", self.settings.index)
        except ReverbError:
            return "", None  # Ray restarts the directory, which will learn the new address.

    def _beat(self, is_registered: bool) -> bool:
        """Returns whether the directory knows the shard."""
        self._look_at_map()
        answer: Answer
        if not is_registered:
            answer = self._ask("register", self.facts())
        else:
            answer = self._ask("beat", self.settings.index, self._server_id, self._epoch)
        if answer.num_starts is not None:
            with self._lock:
                self._num_starts = answer.num_starts
        if answer.map:
            self.set_map(answer.map)
        with self._maps:
            self._set_parts()  # Again, if that failed before.
        if answer.action == "stop":
            _logger.warning(
                "shard %d of group '%s' ends: %s",
                self.settings.index,
                self.settings.group.name,
                answer.reason,
            )
            self.stop()
        return answer.action == "go_on"

    def _look_at_map(self) -> None:
        """Sends the server's map to the directory if a client has changed tables in it."""
        with self._maps:
            found = map_of(self.server.localhost_client())
            epoch = 0 if found is None else parse_map(found).epoch
            # The first map, which the server made itself, does not count.
            is_foreign = epoch > max(self._epoch, OWN_EPOCH)
            if is_foreign:
                with self._lock:
                    self._map, self._epoch = found, epoch
                self._untold = found
                # The client has set the parts, too; it counts shards that are about to leave.
                self._tables_of_map = None
            untold = self._untold
        if untold is not None:
            self._ask("learn_tables", untold)
            with self._maps:
                if self._untold is untold:
                    self._untold = None

    def _report_failure(self) -> None:
        try:
            self._ask("register", self.facts())
        except ReverbError as error:
            _logger.info("shard %d: %s", self.settings.index, error)

    def _ask(self, method: str, *arguments: Any) -> Any:
        name = self.settings.group.name
        return ask_directory(name, method, *arguments, timeout_s=_CALL_TIMEOUT_S)

    def _sees_directory(self) -> bool:
        group = self.settings.group
        return not self._root or (
            pathlib.Path(self._root, MARKER.format(name=group.name, run=group.run)).exists()
        )


def _as_host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
