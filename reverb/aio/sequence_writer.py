# SPDX-License-Identifier: Apache-2.0
"""The sequence writer of asyncio programs."""

from typing import Any

from reverb._checks.arguments import clamped_timeout_ms
from reverb._writers import sequence
from reverb.aio.awaited_writer import AwaitedWriter
from reverb.aio.event_loops import EventLoops
from reverb.core import native

__all__ = ["SequenceWriter"]


class SequenceWriter(AwaitedWriter[native.SequenceWriter]):
    """Appends steps of one environment or of `B`; every sequence of them becomes an item.

    Made by `reverb.aio.Client.sequence_writer`. The twin of `reverb.SequenceWriter`: `append`,
    `end_episode`, `flush` and `close` are awaited. For one task at a time. A writer that is deleted
    without `flush`, `close` or an `async with` block abandons its unconfirmed items; the log counts
    them.

    Example:
      >>> import asyncio
      >>> async def main(address):
      ...     async with reverb.aio.Client(address) as client:
      ...         async with client.sequence_writer("table", sequence_length=2) as writer:
      ...             for step in range(3):
      ...                 num_items = await writer.append({"observation": np.full(4, step)})
      ...                 print(num_items, writer.episode_steps)
      >>> asyncio.run(main(client.server_address))
      0 1
      1 2
      1 3
    """

    def __init__(
        self,
        event_loops: EventLoops,
        internal_writer: native.SequenceWriter,
        batch_size: int | None,
    ) -> None:
        super().__init__(event_loops, internal_writer)
        self._writer = sequence.SequenceWriter(internal_writer, batch_size)

    @property
    def batch_size(self) -> int | None:
        """Number of environments, `B`; `None`: one, whose steps have no batch dimension."""
        return self._writer.batch_size

    @property
    def episode_steps(self) -> Any:
        """Number of steps in each environment's episode, int64 `[B]`; an int without batch size."""
        return self._writer.episode_steps

    @property
    def num_dropped_episodes(self) -> int:
        """Number of episodes that were dropped because they exceeded `max_sequence_length`."""
        return self._writer.num_dropped_episodes

    async def close(self, *, flush: bool | None = True) -> None:
        """Flushes and closes, as `reverb.SequenceWriter.close`; see `AwaitedWriter.close`."""
        if flush and not self._native.closed:
            self._native.report_unwritten()
        await super().close(flush=flush)

    async def __aexit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        """Flushes and closes, as `reverb.SequenceWriter` does at the end of a `with` block."""
        if not self._native.closed:
            self._native.report_unwritten()
        await super().__aexit__(exc_type, *exc)

    async def append(
        self,
        step: object,
        *,
        is_last: object = False,
        priorities: object = 1.0,
        removal_priorities: object = None,
    ) -> int:
        """Appends one step of each environment, and queues the items that it completes.

        Waits only for back-pressure and at `max_pending_bytes`. The step is appended before the
        wait, so it stays appended if the wait is cancelled.

        Args:
          step: Nest of arrays `[B, ...]`, or `[...]` without batch size; see
            `reverb.SequenceWriter.append`.
          is_last: Whether the step is the last of its episode: bools `[B]`, or one bool for all.
          priorities: Priorities of the items that the step completes: numbers `[B]`, or one for
            all.
          removal_priorities: Priorities for the removers of the tables: numbers `[B]`, or one for
            all.

        Returns:
          Number of items that were queued.

        Raises:
          ReverbError: As `reverb.SequenceWriter.append`.
        """
        num_items = self._writer.append(
            step, is_last=is_last, priorities=priorities, removal_priorities=removal_priorities
        )
        await self._throttle()
        return num_items

    async def end_episode(self, where: object = None) -> None:
        """Drops unfinished sequences: the next step begins a new episode.

        Waits as `append` does if items are still held back; otherwise they are sent in the
        background. To end an episode normally, append its last step with `is_last`.

        Args:
          where: Bools `[B]`, or one bool for all: the environments whose episode ends; `None`: all.

        Raises:
          InvalidArgumentError: If `where` has another shape.
          FailedPreconditionError: If the writer is closed or failed earlier.
        """
        self._writer.end_episode(where)
        await self._throttle()

    async def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Sends all items, and waits until all but a few are confirmed by the server.

        Unfinished sequences stay in the writer. If the wait is cancelled, the items remain queued
        and are still sent.

        Args:
          block_until_num_items: How many items may still be unconfirmed on return.
          timeout_ms: How long to wait, in milliseconds; `None`: no limit; 0: do not wait.

        Raises:
          ReverbError: As `reverb.SequenceWriter.flush`.
        """
        await self._flush(block_until_num_items, clamped_timeout_ms(timeout_ms))
