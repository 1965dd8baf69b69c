# SPDX-License-Identifier: Apache-2.0
"""The trajectory writer of asyncio programs."""

from collections.abc import Awaitable, Callable, Generator
from typing import Any

from reverb import trajectory_writer
from reverb._checks.arguments import check_not_negative, clamped_timeout_ms
from reverb.aio.event_loops import EventLoops
from reverb.core import native

__all__ = ["OpeningWriter", "TrajectoryWriter"]


class TrajectoryWriter:
    """Appends steps to a local history and makes items of slices of it; its waits are awaited.

    Made by `reverb.aio.Client.trajectory_writer`. The twin of `reverb.TrajectoryWriter`: `append`
    and `history` are the same, while `create_item`, `flush` and `end_episode` are awaited. For one
    task at a time. A writer that is deleted without `flush`, `end_episode` or an `async with` block
    abandons its unconfirmed items.

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
        self._event_loops = event_loops
        self._native = internal_writer
        # Its calls never block, as `AsyncClient` has made the native writer.
        self._writer = trajectory_writer.TrajectoryWriter(internal_writer)

    @property
    def history(self) -> Any:
        """Nest of the columns' histories; see `reverb.TrajectoryWriter.history`.

        Raises:
          FailedPreconditionError: Before the first column.
        """
        return self._writer.history

    @property
    def episode_steps(self) -> int:
        """Number of closed steps since the last `end_episode`."""
        return self._writer.episode_steps

    def append(self, data: Any, *, partial_step: bool = False) -> None:
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

    def configure(
        self, path: tuple[Any, ...], *, num_keep_alive_refs: int, max_chunk_length: int | None
    ) -> None:
        """Sets the options of one column; see `reverb.TrajectoryWriter.configure`.

        Args:
          path: Path of the column in the data, as in `tree.flatten_with_path`: `("obs", 0)`.
          num_keep_alive_refs: Number of newest values of the column that new items may use.
          max_chunk_length: Number of values per chunk; `None`: the writer chooses it.

        Raises:
          InvalidArgumentError: If a number is out of its range.
          FailedPreconditionError: If the column has an incomplete chunk.
        """
        self._writer.configure(
            path, num_keep_alive_refs=num_keep_alive_refs, max_chunk_length=max_chunk_length
        )

    async def create_item(
        self,
        table: str,
        priority: float,
        trajectory: Any,
        *,
        removal_priority: float | None = None,
    ) -> None:
        """Queues an item for a table; it is sent in the background.

        Waits where `reverb.TrajectoryWriter.create_item` blocks: for back-pressure, and for
        `max_pending_bytes`. The item is queued before that, also if the wait is cancelled.

        Args:
          table: Name of the table.
          priority: Any number but NaN, or `reverb.MAX_PRIORITY`.
          trajectory: Nest of columns, each an index or slice of a leaf of `history`.
          removal_priority: What the table's remover goes by instead of `priority`.

        Raises:
          TypeError: If a leaf of the trajectory is not a `TrajectoryColumn`.
          InvalidArgumentError: If a column is empty or refers to values that have expired, or if
            the priority is NaN.
          SignatureMismatchError: If the columns do not match the table's signature.
          TableNotFoundError: If the server has no such table and items are validated.
          FailedPreconditionError: If the writer is closed or failed earlier.
        """
        self._writer.create_item(table, priority, trajectory, removal_priority=removal_priority)
        if self._native.is_over_limit:
            await self._event_loops.call(native.AsyncClient.throttle, self._native)

    async def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Sends all items, and waits until all but a few are confirmed by the server.

        If it is cancelled, the items remain queued and are sent all the same.

        Args:
          block_until_num_items: How many items may still be unconfirmed on return.
          timeout_ms: How long to wait, in milliseconds; `None`, 0 or less: no limit.

        Raises:
          DeadlineExceededError: After `timeout_ms`; the text says what it waited for. The items
            remain queued.
          InvalidArgumentError: If `block_until_num_items` is negative.
          ReverbError: If the connection failed for good.
        """
        await self._event_loops.call(
            native.AsyncClient.flush,
            self._native,
            check_not_negative("block_until_num_items", block_until_num_items),
            None if timeout_ms is None or timeout_ms <= 0 else timeout_ms,
        )

    async def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:
        """Flushes, then starts a new episode.

        Args:
          clear_buffers: Clears the history. If False, later items may use steps of this episode.
          timeout_ms: How long to wait, in milliseconds; `None`: no limit; 0: do not wait. (In
            `flush`, 0 means no limit.)

        Raises:
          DeadlineExceededError: After `timeout_ms`. The episode is unchanged; call again.
          ReverbError: If the connection failed for good.
        """
        await self._event_loops.call(
            native.AsyncClient.end_episode,
            self._native,
            clear_buffers,
            clamped_timeout_ms(timeout_ms),
        )

    def close(self) -> None:
        """Closes at once, without a flush; unconfirmed items are abandoned.

        May be called from any thread and more than once.
        """
        self._writer.close()

    async def __aenter__(self) -> "TrajectoryWriter":
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        """Flushes, unless the block was cancelled or raised a `ReverbError` for a deadline.

        The writer stays open. Does nothing if the block closed it.
        """
        if self._native.closed:
            return
        if exc_type is None or (
            issubclass(exc_type, Exception) and not trajectory_writer.skips_flush(exc_type)
        ):
            await self.flush()


class OpeningWriter:
    """A writer that is about to be made: to be awaited, or for an `async with` block."""

    def __init__(self, make: Callable[[], Awaitable[TrajectoryWriter]]) -> None:
        self._make = make
        self._writer: TrajectoryWriter | None = None

    def __await__(self) -> Generator[Any, Any, TrajectoryWriter]:
        return self._make().__await__()

    async def __aenter__(self) -> TrajectoryWriter:
        self._writer = await self._make()
        return self._writer

    async def __aexit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        if self._writer is not None:
            await self._writer.__aexit__(exc_type, *exc)
