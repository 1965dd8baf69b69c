# SPDX-License-Identifier: Apache-2.0
"""The state of a running program: servers, a client, and the items that it has seen."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from typing import Any

from servers import LocalServers, RemoteServers

import reverb

# The answer of a step that would have blocked, or whose result no document promises.
SKIPPED = "skipped"


class World:
    """The state of one run of one program.

    Attributes:
      schema: The nest that every step has.
      tables: The tables' settings by name; every server has them all.
      keys: For each table the keys of its items in the order in which they were seen first.
      unsettled: Tables of which an unknown number of items was sampled in advance.
      raced: Tables that were sampled while a writer wrote: how often they ran out of an episode's
        items depends on both threads.
      clients: One of each server.
      server: The number of the server that a step is about.
    """

    def __init__(self, program: dict[str, Any]) -> None:
        self.schema = program["schema"]
        self.tables = {table["name"]: table for table in program["tables"]}
        self.keys: dict[str, list[int]] = {name: [] for name in self.tables}
        self.unsettled: set[str] = set()
        self.raced: set[str] = set()
        self.server = 0
        self.servers = LocalServers() if program["place"] == "in_process" else RemoteServers()
        self._specs = [_with_signature(table, self.schema) for table in program["tables"]]
        self._folders = [tempfile.TemporaryDirectory() for _ in range(program["servers"])]
        self.clients: list[reverb.Client] = [None] * program["servers"]
        for self.server in reversed(range(program["servers"])):
            self._start()

    @property
    def client(self) -> reverb.Client:
        """A client of the server that the step is about."""
        return self.clients[self.server]

    @property
    def address(self) -> str:
        """The address of the server that the step is about."""
        return self.client.server_address

    def restart(self) -> None:
        """Stops the server and starts one with what it saved last.

        It gets another port: how long clients wait before they try an old one again is not
        promised.
        """
        # An iterator that outlives the server in its process hangs in the original.
        gc.collect()
        self.servers.stop(self.server)
        self._start()

    def _start(self) -> None:
        folder = self._folders[self.server].name
        port = self.servers.start(self.server, self._specs, None, folder)
        self.clients[self.server] = reverb.Client(f"localhost:{port}")

    def close(self) -> None:
        """Ends the servers."""
        self.servers.stop_all()
        for folder in self._folders:
            folder.cleanup()

    def key(self, table: str, key: int) -> int:
        """Returns a number for a key that both packages give the same item."""
        keys = self.keys.setdefault(table, [])
        if key not in keys:
            keys.append(key)
        return keys.index(key)

    def keys_of(self, table: str, numbers: list[int] | None) -> list[int] | None:
        """Returns the keys of items by their number; one that was never seen has none."""
        if numbers is None:
            return None
        seen = self.keys.get(table, [])
        return [seen[number] if number < len(seen) else 10_000 + number for number in numbers]

    def may_insert(self, table: str, count: int) -> bool:
        """Whether `count` inserts pass without waiting."""
        if table in self.unsettled:
            return False
        info = self.client.server_info(5).get(table)
        if info is None or count == 0:
            return True
        limiter = info.rate_limiter_info
        if info.current_size + count <= limiter.min_size_to_sample:
            return True
        inserts = limiter.insert_stats.completed + count
        samples = limiter.sample_stats.completed
        return inserts * limiter.samples_per_insert - samples <= limiter.max_diff

    def may_sample(self, table: str, count: int, client: reverb.Client | None = None) -> bool:
        """Whether `count` samples pass without waiting, whatever they remove."""
        if table in self.unsettled:
            return False
        info = (client or self.client).server_info(5).get(table)
        if info is None:
            return True
        limiter = info.rate_limiter_info
        removed = count - 1 if info.max_times_sampled > 0 else 0
        if info.current_size - removed < max(1, limiter.min_size_to_sample):
            return False
        inserts = limiter.insert_stats.completed * limiter.samples_per_insert
        return inserts - limiter.sample_stats.completed - count >= limiter.min_diff


def attempt(function: Callable[[], Any]) -> dict[str, Any]:
    """Returns `{"result": ...}`, or `{"raised": [classes]}` from the most special one up."""
    try:
        return {"result": function()}
    except Exception as error:
        return {"raised": raised(error), "text": str(error)[-300:]}


def raised(error: Exception) -> list[str]:
    """Returns the class of an exception and its base classes."""
    classes = type(error).__mro__
    return [_class_name(cls) for cls in classes[: classes.index(Exception) + 1]]


def _class_name(cls: type) -> str:
    package = cls.__module__.split(".")[0]
    return cls.__name__ if package in ("builtins", "reverb") else f"{package}.{cls.__name__}"


def _with_signature(table: dict[str, Any], schema: Any) -> dict[str, Any]:
    leading = table["signature"]
    return {**table, "signature": leading and [schema, leading]}
