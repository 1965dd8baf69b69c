# SPDX-License-Identifier: Apache-2.0
"""The trajectory writers of asyncio programs."""

from typing import Any, Generic, TypeVar

import numpy as np

from reverb import trajectory_writer
from reverb._checks.arguments import clamped_timeout_ms
from reverb._writers import leaving
from reverb.aio.awaited_writer import AwaitedWriter
from reverb.aio.event_loops import EventLoops
from reverb.core import native

__all__ = ["BatchedTrajectoryWriter", "TrajectoryWriter"]

_Native = TypeVar("_Native", native.TrajectoryWriter, native.BatchedTrajectoryWriter)
_Blocking = TypeVar(
    "_Blocking", trajectory_writer.TrajectoryWriter, trajectory_writer.BatchedTrajectoryWriter
)


class _HistoryWriter(AwaitedWriter[_Native], Generic[_Native, _Blocking]):
    """What both trajectory writers do with their history."""

    def __init__(
        self, event_loops: EventLoops, internal_writer: _Native, writer: _Blocking
    ) -> None:
        super().__init__(event_loops, internal_writer)
        self._writer = writer

    @property
    def history(self) -> Any:
        """Nest of the columns' histories; see that of the blocking twin.

        Raises:
          FailedPreconditionError: Before the first column.
        """
        return self._writer.history

    def configure(
        self, path: tuple[Any, ...], *, num_keep_alive_refs: int, max_chunk_length: int | None
    ) -> None:
        """Sets the options of one column; see `reverb.TrajectoryWriter.configure`.

        Args:
          path: Path of the column in the data, as in `tree.flatten_with_path`: `("obs", 0)`.
          num_keep_alive_refs: Number of newest values of the column that new items may use, for
            each environment.
          max_chunk_length: Number of values per chunk; `None`: the writer chooses it.

        Raises:
          InvalidArgumentError: If a number is out of its range.
          FailedPreconditionError: If the column has an incomplete chunk.
        """
        self._writer.configure(
            path, num_keep_alive_refs=num_keep_alive_refs, max_chunk_length=max_chunk_length
        )

    async def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Sends all items, and waits until all but a few are confirmed by the server.

        If it is cancelled, the items remain queued and are sent all the same.

        Args:
          block_until_num_items: How many items may still be unconfirmed on return.
          timeout_ms: How long to wait, in milliseconds; `None`, 0 or less: no limit, as in
            dm-reverb.

        Raises:
          DeadlineExceededError: After `timeout_ms`; the text says what it waited for. The items
            remain queued.
          InvalidArgumentError: If `block_until_num_items` is negative.
          ReverbError: If the connection failed permanently.
        """
        limit = None if timeout_ms is None or timeout_ms <= 0 else timeout_ms
        await self._flush(block_until_num_items, limit)


class TrajectoryWriter(_HistoryWriter[native.TrajectoryWriter, trajectory_writer.TrajectoryWriter]):
    """Appends steps to a local history and makes items of slices of it, for asyncio.

    Made by `reverb.aio.Client.trajectory_writer`. The twin of `reverb.TrajectoryWriter`: `append`
    and `history` are the same, while `create_item`, `flush` and `end_episode` are awaited. For one
    task at a time. A writer that is deleted without `flush`, `end_episode` or an `async with` block
    abandons its unconfirmed items; the log counts them.

    Example:
      >>> import asyncio
      >>> async def main(address):
      ...     async with reverb.aio.Client(address) as client:
      ...         async with client.trajectory_writer(num_keep_alive_refs=3) as writer:
      ...             for step in range(5):
      ...                 writer.append({"observation": np.zeros(4), "action": step})
      ...             trajectory = {"observation": writer.history["observation"][-3:]}
      ...             await writer.create_item("table", 1.0, trajectory)
      ...         return (await client.server_info())["table"].current_size
      >>> asyncio.run(main(client.server_address))
      2
    """

    def __init__(self, event_loops: EventLoops, internal_writer: native.TrajectoryWriter) -> None:
        writer = trajectory_writer.TrajectoryWriter(internal_writer)
        super().__init__(event_loops, internal_writer, writer)

    @property
    def episode_steps(self) -> int:
        """Number of closed steps since the last `end_episode`."""
        return self._writer.episode_steps

    def append(self, data: object, *, partial_step: bool = False) -> None:
        """Appends one step, or a part of one, to the local history.

        Not awaited: data is only copied, in the thread of the event loop, and sent when an item
        refers to it.

        Args:
          data: As in `reverb.TrajectoryWriter.append`.
          partial_step: Leaves the step open, so that a later call can fill other columns of it.

        Raises:
          SignatureMismatchError: If a leaf's shape or dtype differs from its column's. Nothing was
            appended.
          InvalidArgumentError: If a column already has a value in the open step, or if a leaf was a
            nest in an earlier step, or a nest a leaf. Nothing was appended.
          FailedPreconditionError: If the writer is closed or failed earlier.
        """
        self._writer.append(data, partial_step=partial_step)

    async def create_item(
        self,
        table: str,
        priority: float,
        trajectory: object,
        *,
        removal_priority: float | None = None,
    ) -> None:
        """Queues an item for a table; it is sent in the background.

        Waits where `reverb.TrajectoryWriter.create_item` blocks: for back-pressure, and at
        `max_pending_bytes`. The item is queued before, so it is sent even if the wait is cancelled.

        Args:
          table: Name of the table.
          priority: Any number but NaN, or `reverb.MAX_PRIORITY`.
          trajectory: Nest of columns, each an index or slice of a leaf of `history`, or constants;
            as in `reverb.TrajectoryWriter.create_item`.
          removal_priority: Priority for the table's remover, instead of `priority`.

        Raises:
          TypeError: If a leaf of the trajectory is neither a `TrajectoryColumn` nor a constant.
          InvalidArgumentError: If a column is empty or refers to values that have expired, or if
            the priority is NaN.
          SignatureMismatchError: If the columns do not match the table's signature.
          TableNotFoundError: If the server has no such table and items are validated.
          FailedPreconditionError: If the writer is closed or failed earlier.
        """
        self._writer.create_item(table, priority, trajectory, removal_priority=removal_priority)
        await self._throttle()

    async def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:
        """Flushes, then starts a new episode.

        Args:
          clear_buffers: Clears the history. If False, later items may use steps of this episode.
          timeout_ms: How long to wait, in milliseconds; `None`: no limit; 0: do not wait. (In
            `flush`, 0 means no limit.)

        Raises:
          DeadlineExceededError: After `timeout_ms`. The episode is unchanged; call again.
          ReverbError: If the connection failed permanently.
        """
        await self._event_loops.call(
            native.AsyncClient.end_episode,
            self._native,
            clear_buffers,
            clamped_timeout_ms(timeout_ms, allows_bool=True),
        )

    async def close(self, *, flush: bool | None = None) -> None:
        """Closes at once, without a flush, as `reverb.TrajectoryWriter.close`.

        Args:
          flush: `True`: flushes first, for at most 10 s. `False`: says nothing about unconfirmed
            items, which the log counts otherwise.

        Raises:
          DeadlineExceededError: With `flush`, if items are not confirmed after 10 s.
          ReverbError: With `flush`, if the connection failed permanently.
        """
        await super().close(flush=flush)

    async def __aexit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        """Flushes, as `reverb.TrajectoryWriter` does at the end of a `with` block.

        Does not flush after an `asyncio.CancelledError`.
        """
        if self._native.closed:
            return
        if exc_type is None:
            await self.flush()
        elif not leaving.skips_flush_as_dm_reverb(exc_type):
            await leaving.leave_awaited(exc_type, self._native, lambda limit: self._flush(0, limit))


class BatchedTrajectoryWriter(
    _HistoryWriter[native.BatchedTrajectoryWriter, trajectory_writer.BatchedTrajectoryWriter]
):
    """A trajectory writer for `B` environments that are stepped together, for asyncio.

    Made by `reverb.aio.Client.batched_trajectory_writer`. The twin of
    `reverb.BatchedTrajectoryWriter`: `create_items` and `flush` are awaited, the rest only copies.
    For one task at a time. A writer that is deleted without `flush` or an `async with` block
    abandons its unconfirmed items; the log counts them.

    Example:
      >>> import asyncio
      >>> async def main(address):
      ...     async with reverb.aio.Client(address) as client:
      ...         async with client.batched_trajectory_writer(2, 3) as writer:
      ...             for step in range(3):
      ...                 writer.append({"observation": np.full((2, 4), step)})
      ...             trajectory = {"observation": writer.history["observation"][-3:]}
      ...             return await writer.create_items("table", [1.0, 2.0], trajectory)
      >>> asyncio.run(main(client.server_address))
      2
    """

    def __init__(
        self,
        event_loops: EventLoops,
        internal_writer: native.BatchedTrajectoryWriter,
        batch_size: int,
    ) -> None:
        writer = trajectory_writer.BatchedTrajectoryWriter(internal_writer, batch_size)
        super().__init__(event_loops, internal_writer, writer)

    @property
    def batch_size(self) -> int:
        """Number of environments, `B`."""
        return self._writer.batch_size

    @property
    def episode_steps(self) -> np.ndarray:
        """Number of closed steps in each environment's episode, int64 `[B]`."""
        return self._writer.episode_steps

    def append(self, data: object, *, partial_step: bool = False, where: object = None) -> None:
        """Appends one step, or a part of one, of each selected environment.

        Not awaited, as `TrajectoryWriter.append`.

        Args:
          data: Nest of arrays `[B, ...]`, whatever `where` selects.
          partial_step: Leaves the step open, so that a later call can fill other columns of it.
          where: Booleans `[B]`, the environments that make a step; `None`: all.

        Raises:
          ReverbError: As `reverb.BatchedTrajectoryWriter.append`.
        """
        self._writer.append(data, partial_step=partial_step, where=where)

    async def create_items(
        self,
        table: str,
        priorities: object,
        trajectory: object,
        *,
        where: object = None,
        removal_priorities: object = None,
    ) -> int:
        """Queues one item for each selected environment; they are sent in the background.

        On an error no item is queued. Waits like `TrajectoryWriter.create_item`; the items are
        queued before, so they are sent even if the wait is cancelled.

        Args:
          table: Name of the table.
          priorities: Numbers `[B]`, or one for all; only those of selected environments are used.
          trajectory: Nest of columns, each an index, a slice or a list of indices of a leaf of
            `history`, or a result of its `select`, or constants; as in
            `reverb.BatchedTrajectoryWriter.create_items`.
          where: Booleans `[B]` that select environments; `None`: all whose episode has the steps
            that the columns refer to.
          removal_priorities: Priorities for the table's remover: numbers `[B]`, or one for all.

        Returns:
          Number of items.

        Raises:
          ReverbError: As `reverb.BatchedTrajectoryWriter.create_items`.
          TypeError: If a leaf of the trajectory is neither a column of a batched history nor a
            constant.
        """
        num_items = self._writer.create_items(
            table, priorities, trajectory, where=where, removal_priorities=removal_priorities
        )
        await self._throttle()
        return num_items

    def end_episode(self, where: object = None, *, clear_buffers: bool = True) -> None:
        """Starts a new episode in each selected environment.

        Not awaited, unlike `TrajectoryWriter.end_episode`: the other environments can continue, and
        queued items are sent in the background.

        Args:
          where: Booleans `[B]`, the environments whose episode ends; `None`: all.
          clear_buffers: Clears their history.

        Raises:
          ReverbError: As `reverb.BatchedTrajectoryWriter.end_episode`.
        """
        self._writer.end_episode(where, clear_buffers=clear_buffers)
