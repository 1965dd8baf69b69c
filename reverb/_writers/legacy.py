# SPDX-License-Identifier: Apache-2.0
"""The legacy writer: an item is the last few steps, with the same length in all columns."""

import contextlib
import functools
import logging
import sys
from typing import TypeVar

from reverb._checks.arguments import check_at_least, check_item
from reverb._checks.pickles import OF_CLIENTS, not_pickled
from reverb._nests.flat import by_label, flatten_with_labels
from reverb._writers.leaving import leave
from reverb.core import native
from reverb.errors import FailedPreconditionError, InvalidArgumentError, ReverbError
from reverb.shown_text import shown

__all__ = ["Writer"]

_logger = logging.getLogger("reverb")

_W = TypeVar(
    "_W",
    native.Writer,
    native.TrajectoryWriter,
    native.BatchedTrajectoryWriter,
    native.SequenceWriter,
    native.StructuredWriter,
)


class Writer:
    """Appends whole steps and makes items of the last few of them.

    Made by `Client.writer`. Not thread-safe. Prefer `TrajectoryWriter`, which does all of this and
    more.

    Example:
      >>> with client.writer(max_sequence_length=2) as writer:
      ...     for step in range(3):
      ...         writer.append({"observation": np.zeros(4), "action": step})
      ...     writer.create_item("table", num_timesteps=2, priority=1.0)
    """

    def __init__(self, internal_writer: native.Writer) -> None:
        self._writer = internal_writer
        self._closed = False
        self._flattener = native.NestFlattener(flatten_with_labels)

    def append(self, data: object) -> None:
        """Appends one step.

        Blocks only while the limit of unconfirmed items is reached.

        Args:
          data: Nest of arrays; a leaf of shape `[...]` becomes a row of its column `[T, ...]`.

        Raises:
          InvalidArgumentError: If number, shape or dtype of the leaves differ from those of the
            other steps in the same chunk.
          FailedPreconditionError: If the writer is closed.
        """
        self._check_open("append")
        self._writer.append(*self._flattener.flatten(data))

    def append_sequence(self, sequence: object) -> None:
        """Appends several steps.

        Args:
          sequence: Nest of arrays `[T, ...]`; equal to `append` of each of the `T` slices.

        Raises:
          InvalidArgumentError: If there is no leaf, if a leaf is a scalar, or if leaves differ in
            `T`; otherwise as in `append`.
          FailedPreconditionError: If the writer is closed.
        """
        self._check_open("append_sequence")
        leaves, names = self._flattener.flatten(sequence)
        leaves = [native.as_array(leaf, f"column {at}") for at, leaf in enumerate(leaves)]
        if not leaves:
            raise InvalidArgumentError("sequence must have at least one leaf, got none")
        if any(leaf.ndim == 0 for leaf in leaves):
            raise InvalidArgumentError("leaves of a sequence must have a time axis, got a scalar")
        if len({len(leaf) for leaf in leaves}) > 1:
            raise InvalidArgumentError(
                "leaves of a sequence must have the same length, got "
                f"{by_label(sequence, [len(leaf) for leaf in leaves])}"
            )
        self._writer.append_sequence(leaves, names)

    def create_item(
        self,
        table: str,
        num_timesteps: int,
        priority: float,
        *,
        removal_priority: float | None = None,
    ) -> None:
        """Makes an item of the last steps.

        The item is sent when the chunk of its last step is complete, or by `flush` or `close`.

        Args:
          table: Name of the table.
          num_timesteps: Number of steps.
          priority: Any number but NaN, or `reverb.MAX_PRIORITY`.
          removal_priority: As in `TrajectoryWriter.create_item`.

        Raises:
          InvalidArgumentError: If fewer steps were appended, or if a priority is NaN.
          SignatureMismatchError: If the steps differ from the table's signature. Columns are
            matched by position; names that differ are logged once for each table.
          TableNotFoundError: If the server has no such table.
          FailedPreconditionError: If the writer is closed.
        """
        self._check_open("create_item")
        num_timesteps = check_at_least(1, "num_timesteps", num_timesteps, allows_bool=True)
        try:
            self._writer.create_item(table, num_timesteps, priority, removal_priority)
        except TypeError:
            check_item(table, priority, removal_priority)
            raise

    def flush(self) -> None:
        """Sends pending items; if there are none, blocks until all sent ones are confirmed.

        Raises:
          FailedPreconditionError: If the writer is closed.
          ReverbError: If the connection failed permanently.
        """
        self._check_open("flush")
        self._writer.flush()

    def close(self, retry_on_unavailable: bool = True) -> None:
        """Sends pending items, blocks until all are confirmed, and ends the connection.

        Args:
          retry_on_unavailable: Waits for a server that became unavailable to come back. If False,
            items that it has not confirmed are lost.

        Raises:
          InvalidArgumentError: If the writer is already closed.
        """
        if self._closed:
            raise InvalidArgumentError("close was called before: the writer is closed")
        self._closed = True
        self._writer.close(retry_on_unavailable)

    def __enter__(self) -> "Writer":
        if self._closed:
            raise InvalidArgumentError("a closed writer cannot be entered again")
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        """Flushes and closes, so that every item is confirmed.

        Flushes for at most 2 s after an `Exception`, and not at all after a `KeyboardInterrupt`, a
        `SystemExit` and the like; then the log says how many items are not confirmed.
        Does nothing if the block closed the writer.
        """
        if self._closed:
            return
        if exc_type is not None:
            try:
                leave(exc_type, self._writer, self._writer.confirm)
            finally:
                self._closed = True
                self._writer.abandon()
            return
        try:
            self.flush()
        except ReverbError:
            # An error of the flush makes the close fail too; it is raised only once.
            with contextlib.suppress(ReverbError):
                self.close(retry_on_unavailable=False)
            raise
        self.close()

    def __del__(self) -> None:
        if not self.__dict__.get("_closed", True):
            _warn_of_dropped()
            try:
                self.close()
            except ReverbError as error:
                _logger.warning("Items of a dropped writer were not confirmed: %s", error)

    __reduce__ = not_pickled(OF_CLIENTS)

    @shown
    def __repr__(self) -> str:
        return f"{self._writer!r}, closed: {self._closed}"

    def __str__(self) -> str:
        return f"{'closed' if self._closed else 'open'} Writer"

    def _check_open(self, method: str) -> None:
        if self._closed:
            raise FailedPreconditionError(f"{method} was called on a closed writer")


@functools.cache
def _warn_of_dropped() -> None:
    """Warns once in a process: a program may drop a writer in each episode."""
    _logger.warning(
        "A writer was dropped without close; it is closed now, which waits for its items. This is "
        "logged once."
    )


def with_pending_limit(writer: _W, max_pending_bytes: int | None) -> _W:
    """Sets the limit of unconfirmed bytes of a native writer, and returns the writer."""
    if max_pending_bytes is not None:
        writer.limit_pending(min(max_pending_bytes, sys.maxsize))
    return writer


# The public import path.
Writer.__module__ = "reverb.client"
