# SPDX-License-Identifier: Apache-2.0
"""Reads checkpoints on disk without a server. Public names: `reverb.checkpointers`."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from reverb.core import native
from reverb.reverb_types import TableInfo
from reverb.shown_text import hidden, shown

__all__ = ["Checkpoint", "TableStatistics", "absolute_path", "read", "statistics_of"]


@dataclasses.dataclass(frozen=True)
class TableStatistics:
    """Statistics of the items of a table.

    A value is `None` if there are no items, or if it is unknown. The length of an item is the
    number of steps of its longest column.

    Example:
      >>> statistics = reverb.checkpointers.read(client.checkpoint()).statistics()["table"]
      >>> print(statistics.num_items, statistics.priority_max)
      1 1.0

    Attributes:
      num_items: Number of items.
      num_chunks: Number of distinct chunks that the items refer to.
      chunk_bytes: Size of those chunks as stored, in bytes; each chunk counts once.
      decoded_bytes: Size of those chunks decoded, in bytes.
      oldest_inserted_at: Earliest time of insertion, in seconds since 1970.
      newest_inserted_at: Latest time of insertion, in seconds since 1970.
      median_inserted_at: Median time of insertion, in seconds since 1970.
      priority_min: Minimum priority.
      priority_median: Median priority.
      priority_mean: Mean priority.
      priority_max: Maximum priority.
      priority_zeros: Number of items with priority 0.
      times_sampled_min: Minimum number of times that an item was sampled.
      times_sampled_mean: Mean number of times that an item was sampled.
      times_sampled_max: Maximum number of times that an item was sampled.
      length_min: Minimum length, in steps.
      length_median: Median length, in steps.
      length_mean: Mean length, in steps.
      length_max: Maximum length, in steps.
    """

    num_items: int
    num_chunks: int | None
    chunk_bytes: int | None
    decoded_bytes: int | None
    oldest_inserted_at: float | None
    newest_inserted_at: float | None
    median_inserted_at: float | None
    priority_min: float | None
    priority_median: float | None
    priority_mean: float | None
    priority_max: float | None
    priority_zeros: int
    times_sampled_min: int | None
    times_sampled_mean: float | None
    times_sampled_max: int | None
    length_min: int | None
    length_median: float | None
    length_mean: float | None
    length_max: int | None


class Checkpoint:
    """A complete checkpoint on disk.

    Example:
      >>> checkpoint = reverb.checkpointers.read(client.checkpoint())
      >>> for sample in checkpoint.scan("table"):
      ...     print(sample.info.priority, sample.data)
      1.0 [array([[0., 0., 0., 0.]]), array([1.])]

    Attributes:
      path: Directory of the checkpoint.
      server_name: Name of the server that saved it, see `DefaultCheckpointer`; `None`: no name.
      taken_at: Time of its snapshot, in seconds since 1970; `None` if dm-reverb or an earlier
        release wrote it.
      place: Group of the server, index of its shard, and number of shards; `None` if the server was
        in no group, or if an earlier release wrote the checkpoint.
      tables: Stored settings and counters of the tables, by name. The number of episodes is not
        stored, and is 0.
    """

    def __init__(self, path: str | os.PathLike[str], server_name: str | None = None) -> None:
        path = hidden(path)
        self._stored = native.StoredCheckpoint(path, server_name)
        self.server_name = self._stored.server_name()
        self.taken_at = self._stored.taken_at()
        self.place = self._stored.place()
        self.path = os.fspath(self._stored.path())
        infos = [TableInfo.from_serialized_proto(proto) for proto in self._stored.tables()]
        self.tables = {info.name: info for info in infos}

    def statistics(
        self, progress: Callable[[int, int], Any] | None = None
    ) -> dict[str, TableStatistics]:
        """Computes statistics of each table; blocks while it reads and checks the whole checkpoint.

        Args:
          progress: Called a few times per second with the number of items read so far and the total
            number of items; the latter is 0 if it is not known.

        Raises:
          DataLossError: If the checkpoint is damaged; names the file and the position.
        """
        return {row[0]: statistics_of(*row[1:]) for row in self._stored.statistics(progress)}

    def scan(self, table: str, *, with_inserted_at: bool = False) -> Iterator[Any]:
        """Reads the items of a table in the order of insertion.

        A generator. It holds all chunks of the checkpoint in memory while it runs.

        Args:
          table: Name of the table.
          with_inserted_at: Yields pairs `(inserted_at, sample)`, with the time of insertion as a
            float in seconds since 1970.

        Yields:
          A `ReplaySample` as from `Client.scan`, with a flat list of columns.

        Raises:
          TableNotFoundError: If there is no such table.
          DataLossError: If the checkpoint is damaged; names the file and the position.
        """
        yield from self._stored.scanner(table, with_inserted_at)

    @shown
    def __repr__(self) -> str:
        return f"Checkpoint(path={self.path!r}, tables={sorted(self.tables)})"


def absolute_path(path: str | bytes | os.PathLike[str]) -> str:
    """Returns a path from the root, with the home directory for `~`."""
    found = pathlib.Path(os.fsdecode(path)).expanduser().absolute()
    return hidden(os.path.normpath(found))


def read(path: str | os.PathLike[str], *, server_name: str | None = None) -> Checkpoint:
    """Opens a checkpoint, or the latest complete one in a directory of checkpoints.

    Args:
      path: A checkpoint, or a directory of checkpoints; `~` is the home directory.
      server_name: In a directory, opens the latest checkpoint that a server of this name saved;
        `None`: the latest of all.

    Raises:
      FailedPreconditionError: If there is no checkpoint.
      DataLossError: If its tables are damaged; names the file and the position.
    """
    path = absolute_path(path)
    return Checkpoint(path, server_name)


def statistics_of(
    num_items: int,
    num_chunks: int | None,
    chunk_bytes: int | None,
    decoded_bytes: int | None,
    summaries: Iterable[tuple[float, float, float, float] | None],
    priority_zeros: int,
) -> TableStatistics:
    """Returns statistics whose summaries are minimum, median, mean and maximum.

    They are those of times of insertion, priorities, times sampled and lengths; `None`: no items.
    """
    none = (None, None, None, None)
    inserted_at, priority, times_sampled, length = (summary or none for summary in summaries)
    return TableStatistics(
        num_items=num_items,
        num_chunks=num_chunks,
        chunk_bytes=chunk_bytes,
        decoded_bytes=decoded_bytes,
        oldest_inserted_at=inserted_at[0],
        newest_inserted_at=inserted_at[3],
        median_inserted_at=inserted_at[1],
        priority_min=priority[0],
        priority_median=priority[1],
        priority_mean=priority[2],
        priority_max=priority[3],
        priority_zeros=priority_zeros,
        times_sampled_min=_whole(times_sampled[0]),
        times_sampled_mean=times_sampled[2],
        times_sampled_max=_whole(times_sampled[3]),
        length_min=_whole(length[0]),
        length_median=length[1],
        length_mean=length[2],
        length_max=_whole(length[3]),
    )


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


# The public import path.
Checkpoint.__module__ = TableStatistics.__module__ = "reverb.checkpointers"
