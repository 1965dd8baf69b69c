# SPDX-License-Identifier: Apache-2.0
"""The servers of a program: in this process, or in another one of the same package."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

from specs import build_table
from values import specs

import reverb
from support.package_workers import Worker

_HOST = pathlib.Path(__file__).parent / "host.py"
_host: list[Worker] = []


class LocalServers:
    """Servers in this process; each is known by its index in the program."""

    def __init__(self) -> None:
        self._servers: dict[int, tuple[Any, list[Any]]] = {}

    def start(self, index: int, tables: list[dict[str, Any]], port: int | None, path: str) -> int:
        """Starts a server that saves to and loads from `path`; returns its port."""
        built = [_table(table) for table in tables]
        checkpointer = reverb.checkpointers.DefaultCheckpointer(path)
        self._servers[index] = (reverb.Server(built, port, checkpointer), built)
        return self._servers[index][0].port

    def stop(self, index: int) -> None:
        """Stops a server; its tables are gone."""
        self._servers.pop(index)[0].stop()

    def stop_all(self) -> None:
        """Stops what runs."""
        for index in list(self._servers):
            self.stop(index)

    def can(self, index: int, table: int, what: str, count: int) -> bool:
        """Asks a table whether it would let `count` inserts or samples through."""
        return getattr(self._servers[index][1][table], f"can_{what}")(count)


class RemoteServers:
    """The same in another process, which is kept for the next program."""

    def __init__(self) -> None:
        if not _host:
            _host.append(Worker("host", sys.executable, _HOST))

    def start(self, index: int, tables: list[dict[str, Any]], port: int | None, path: str) -> int:
        """See `LocalServers.start`."""
        return _host[0].call("start", index=index, tables=tables, port=port, path=path)

    def stop(self, index: int) -> None:
        """See `LocalServers.stop`."""
        _host[0].call("stop", index=index)

    def stop_all(self) -> None:
        """See `LocalServers.stop_all`."""
        _host[0].call("stop_all")

    def can(self, index: int, table: int, what: str, count: int) -> bool:
        """See `LocalServers.can`."""
        return _host[0].call("can", index=index, table=table, what=what, count=count)


def _table(spec: dict[str, Any]) -> Any:
    signature = spec["signature"]
    if signature is not None:
        signature = specs(*signature)
    if spec["make"] == "Table":
        return build_table({**spec, "signature": None}).replace(signature=signature)
    make = getattr(reverb.Table, spec["make"])
    return make(spec["name"], spec["max_size"], signature=signature)
