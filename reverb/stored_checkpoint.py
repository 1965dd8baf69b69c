# SPDX-License-Identifier: Apache-2.0
"""A checkpoint on disk, read without a server."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

from reverb.core import native
from reverb.replay_sample import ReplaySample, SampleInfo
from reverb.reverb_types import TableInfo

__all__ = ["Checkpoint", "TableStatistics", "read"]


@dataclasses.dataclass(frozen=True)
class TableStatistics:
    """Numbers about the items of a table; `None` where there are no items, or nobody knows.

    Attributes:
      num_items: Number of items.
      num_chunks: Number of distinct chunks that they refer to.
      chunk_bytes: Bytes of those chunks as they are stored, each once.
      decoded_bytes: Bytes of the same chunks decoded.
      oldest_inserted_at: When the first item was inserted, in seconds since 1970.
      newest_inserted_at: The last.
      median_inserted_at: The one in the middle.
      priority_min: Smallest priority.
      priority_median: The one in the middle.
      priority_mean: Their mean.
      priority_max: The largest.
      priority_zeros: Number of items with priority 0.
      times_sampled_min: How often the item was sampled that was sampled least.
      times_sampled_mean: The mean.
      times_sampled_max: The item that was sampled most.
      length_min: Steps of the longest column of the shortest item.
      length_median: The one in the middle.
      length_mean: Their mean.
      length_max: That of the longest item.
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
    """A complete checkpoint.

    Example:
      >>> checkpoint = reverb.checkpointers.read(client.checkpoint())
      >>> for sample in checkpoint.scan("table"):
      ...     print(sample.info.priority, sample.data)
      1.0 [array([[0., 0., 0., 0.]]), array([1.])]

    Attributes:
      path: Its directory.
      server_name: Name of the server that saved it, see `DefaultCheckpointer`; `None`: it had none.
      tables: Settings and counters of its tables as they were stored, by name. What a checkpoint
        does not tell, the number of episodes, is 0.
    """

    def __init__(self, path: str | os.PathLike[str], server_name: str | None = None) -> None:
        self._stored = native.StoredCheckpoint(path, server_name)
        self.server_name = self._stored.server_name()
        self.path = os.fspath(self._stored.path())
        infos = [TableInfo.from_serialized_proto(proto) for proto in self._stored.tables()]
        self.tables = {info.name: info for info in infos}

    def statistics(
        self, progress: Callable[[int, int], Any] | None = None
    ) -> dict[str, TableStatistics]:
        """Numbers about each table. Reads and checks the whole checkpoint; blocks meanwhile.

        Args:
          progress: Is called a few times a second with the number of items read so far and of all
            items; the second is 0 if it is not known.

        Raises:
          DataLossError: If the checkpoint is damaged; names the file and the place.
        """
        return {row[0]: _statistics(*row[1:]) for row in self._stored.statistics(progress)}

    def scan(self, table: str, *, with_inserted_at: bool = False) -> Iterator[Any]:
        """Reads the items of a table in the order of their insertion.

        A generator. All chunks of the checkpoint are kept in memory while it runs.

        Args:
          table: Name of the table.
          with_inserted_at: Yields pairs of the time of insertion, a float in seconds since 1970,
            and the sample.

        Yields:
          A `ReplaySample` as `Client.scan` gives it, with a flat list of columns.

        Raises:
          TableNotFoundError: If there is no such table.
          DataLossError: If the checkpoint is damaged; names the file and the place.
        """
        yield from self._stored.scanner(table, with_inserted_at, SampleInfo, ReplaySample, None)

    def __repr__(self) -> str:
        return f"Checkpoint(path={self.path!r}, tables={sorted(self.tables)})"


def read(path: str | os.PathLike[str], *, server_name: str | None = None) -> Checkpoint:
    """Opens a checkpoint, or the latest complete one in a directory of checkpoints.

    Args:
      path: A checkpoint, or a directory of them.
      server_name: In a directory, the latest that a server of this name saved; `None`: of all.

    Raises:
      FailedPreconditionError: If there is none.
      DataLossError: If its tables are damaged; names the file and the place.
    """
    return Checkpoint(path, server_name)


def _statistics(
    num_items: int,
    num_chunks: int,
    chunk_bytes: int,
    decoded_bytes: int,
    summaries: list[tuple[float, float, float, float] | None],
    priority_zeros: int,
) -> TableStatistics:
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
