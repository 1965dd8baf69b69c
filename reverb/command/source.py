# SPDX-License-Identifier: Apache-2.0
"""One interface to checkpoints and running servers: tables, statistics and items."""

import abc
import dataclasses
import pathlib
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from reverb._checkpoints.stored import TableStatistics, read
from reverb._client.connecting import is_group
from reverb.client import Client
from reverb.command import text
from reverb.command.item_statistics import collect
from reverb.errors import (
    PermissionDeniedError,
    TableNotFoundError,
    UnavailableError,
    UnimplementedError,
)
from reverb.replay_sample import ReplaySample
from reverb.reverb_types import TableInfo

# Called with the number of finished items and of all items; the latter is 0 if unknown.
ProgressCallback = Callable[[int, int], Any]


@dataclasses.dataclass(frozen=True)
class StoredItem:
    """An item of a table.

    Attributes:
      key: Identifies the item in its table.
      priority: Priority of the item.
      times_sampled: How often it was sampled so far.
      inserted_at: Time of insertion, in seconds since 1970.
      columns: Arrays `[T, ...]`, or `[...]` for a column that is a single step.
    """

    key: int
    priority: float
    times_sampled: int
    inserted_at: float
    columns: list[np.ndarray]


class Source(abc.ABC):
    """The source of the commands' data.

    Attributes:
      kind: `checkpoint` or `server`.
      name: The checkpoint's path, or the server's address.
      server_name: Name under which a checkpoint was saved, see `DefaultCheckpointer`.
      tables: Settings and counters by table name, read when the source was opened.
      missing: Addresses of the shards of a group that do not answer, by their numbers. Their part
        of each table is not there.
    """

    kind: str
    name: str
    server_name: str | None = None
    tables: dict[str, TableInfo]
    missing: Mapping[int, str] = types.MappingProxyType({})

    def statistics(
        self, tables: Sequence[str], progress: ProgressCallback
    ) -> Mapping[str, TableStatistics]:
        """Computes statistics of the items of each of `tables`.

        Reads all items, because it needs their lengths; a source that stores statistics does not.

        Raises:
          UnimplementedError: If items of the source cannot be read.
        """
        total = sum(self.tables[table].current_size for table in tables)
        statistics: dict[str, TableStatistics] = {}
        done = 0
        for table in tables:

            def report(count: int, before: int = done) -> None:
                progress(before + count, max(total, before + count))

            statistics[table] = collect(self.scan(table), report)
            done += statistics[table].num_items
        return statistics

    @abc.abstractmethod
    def scan(self, table: str) -> Generator[StoredItem, None, None]:
        """Yields every item of a table once, oldest first.

        Raises:
          UnimplementedError: If items of the source cannot be read.
        """


class CheckpointSource(Source):
    """The tables of a checkpoint on disk."""

    kind = "checkpoint"

    def __init__(self, path: pathlib.Path) -> None:
        self._checkpoint = read(path)
        self.name = str(self._checkpoint.path)
        self.server_name = self._checkpoint.server_name
        self.tables = self._checkpoint.tables

    def statistics(
        self, tables: Sequence[str], progress: ProgressCallback
    ) -> Mapping[str, TableStatistics]:
        """See `Source`. Makes one pass over the files for all tables."""
        found = self._checkpoint.statistics(progress)
        return {table: found[table] for table in tables}

    def scan(self, table: str) -> Generator[StoredItem, None, None]:
        """See `Source`."""
        yield from map(_stored_item, self._checkpoint.scan(table, with_inserted_at=True))


class ServerSource(Source):
    """The tables of a running server, of this package or of dm-reverb, or of a group.

    With `partial`, those of a group have the items of the shards that answer.

    Raises:
      UnavailableError: If a shard of a group does not answer, without `partial`.
    """

    kind = "server"

    def __init__(self, client: Client, *, partial: bool) -> None:
        self.name = client.server_address
        self._client = client
        self._partial = partial
        self.tables = self._client.server_info()
        self.missing = self._missing()
        if self.missing and not partial:
            shown = missing_text(self.missing).removesuffix(".")
            raise UnavailableError(f"{shown}: export the items of the others with --partial")

    def scan(self, table: str) -> Generator[StoredItem, None, None]:
        """See `Source`."""
        items = self._client.scan(table, with_inserted_at=True, partial=self._partial)
        yield from map(_stored_item, items)
        if self._partial and not self.missing:
            self.missing = self._missing()  # One may have been lost before the scan began.

    def _missing(self) -> dict[int, str]:
        if not is_group(self.name):
            return {}
        try:
            shards = self._client.status().shards
        except (PermissionDeniedError, UnimplementedError):
            return {}  # The servers are of dm-reverb, or the token allows less than a scan needs.
        return {shard.index: shard.address for shard in shards if shard.status is None}


def missing_text(missing: Mapping[int, str]) -> str:
    """Returns a sentence about `missing` of a source, at least one shard."""
    names = ", ".join(f"{index} ({text.plain(address)})" for index, address in missing.items())
    if len(missing) == 1:
        return f"Shard {names} does not answer, so its items are missing."
    return f"Shards {names} do not answer, so their items are missing."


def check_table(source: Source, table: str) -> None:
    """Raises `TableNotFoundError`, with the names of all tables, if there is no such table."""
    _check_name(table, source.tables, f"{source.kind} {source.name}")


def table_of(client: Client, table: str) -> TableInfo:
    """Asks a server for the settings and counters of a table.

    Raises:
      TableNotFoundError: If there is no such table.
    """
    tables = client.server_info()
    _check_name(table, tables, f"server {client.server_address}")
    return tables[table]


def _check_name(table: str, tables: Mapping[str, TableInfo], place: str) -> None:
    if table not in tables:
        found = ", ".join(sorted(tables)) or "none"
        raise TableNotFoundError(
            f"{place} does not contain any table named {table}. Found: {found}."
        )


def _stored_item(timed_sample: tuple[float, ReplaySample]) -> StoredItem:
    inserted_at, sample = timed_sample
    info = sample.info
    return StoredItem(info.key, info.priority, info.times_sampled, inserted_at, sample.data)
