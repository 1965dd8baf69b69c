# SPDX-License-Identifier: Apache-2.0
"""What the trajectory writers share: how nests become columns.

A structure is looked at once, in Python. From then on the compiled writer recognises it, and a call
of `append` is one native call.
"""

from typing import Any, Generic, TypeVar

import tree

from reverb._nests import column_nest
from reverb.arguments import check_at_least_one, check_not_negative
from reverb.core import native
from reverb.errors import FailedPreconditionError, InvalidArgumentError

_NativeWriter = TypeVar("_NativeWriter", native.TrajectoryWriter, native.BatchedTrajectoryWriter)


class NestWriter(Generic[_NativeWriter]):
    """The base of the writers that have a history; not made by users."""

    def __init__(self, internal_writer: _NativeWriter) -> None:
        self._writer = internal_writer
        # Looked up once: `append` is the hottest call of an actor.
        self._append = internal_writer.append
        self._columns: Any = ()
        self._history: Any = None

    @property
    def history(self) -> Any:
        """Nest of the columns' histories, in the structure of the data appended so far.

        Leaf `name` has shape `[T, ...]`: index it with an int, a slice or a list of ints to get a
        column of a trajectory. The histories are live: they grow as steps are appended.

        Raises:
          FailedPreconditionError: Before the first column.
        """
        if self._history is None:
            raise FailedPreconditionError(
                "history has no columns yet: append a step with at least one value first"
            )
        return self._history

    def append(self, data: Any, *, partial_step: bool = False) -> None:
        """Appends one step, or a part of one, to the local history.

        Nothing is sent before an item refers to it. Never blocks.

        Args:
          data: Nest of arrays, or of whatever NumPy turns into arrays. A leaf of shape `[...]`
            becomes the newest row of its column `[T, ...]`. Fields may be left out, may be `None`
            (both mean: no value in this step), and may appear later than the first step.
          partial_step: Leaves the step open, so that a later call may fill other columns of it.

        Raises:
          SignatureMismatchError: If a leaf's shape or dtype differs from its column's.
          InvalidArgumentError: If a column already has a value in the open step, or if a leaf
            meets a nest. Nothing was appended in all these cases.
          FailedPreconditionError: If the writer is closed or failed earlier.
        """
        if not self._append(data, partial_step):
            self._append_new_structure(data, partial_step)

    def configure(
        self, path: tuple[Any, ...], *, num_keep_alive_refs: int, max_chunk_length: int | None
    ) -> None:
        """Sets the options of one column.

        Best called before the column's first value; later only while no value of it waits for its
        chunk to become complete.

        Args:
          path: The column's path in the data, as `tree.flatten_with_path` gives it: `("obs", 0)`.
          num_keep_alive_refs: How many values of the column stay within reach of new items.
          max_chunk_length: Number of values stored together; `None` lets the writer tune it.

        Raises:
          InvalidArgumentError: If a number is out of its range.
          FailedPreconditionError: If values of the column are waiting.
        """
        num_keep_alive_refs = check_at_least_one("num_keep_alive_refs", num_keep_alive_refs)
        if max_chunk_length is not None:
            max_chunk_length = check_at_least_one("max_chunk_length", max_chunk_length)
            if max_chunk_length > num_keep_alive_refs:
                raise InvalidArgumentError(
                    f"max_chunk_length must be at most num_keep_alive_refs = {num_keep_alive_refs},"
                    f" got {max_chunk_length}"
                )
        self._writer.configure(tuple(path), num_keep_alive_refs, max_chunk_length)

    def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Sends all items, and blocks until all but a few are confirmed by the server.

        Args:
          block_until_num_items: How many items may still be unconfirmed on return.
          timeout_ms: How long to block, in milliseconds; `None`, 0 or less: as long as it takes.
            Only here does 0 mean that, as it did in the original; elsewhere it is: not at all.

        Raises:
          DeadlineExceededError: After `timeout_ms`, with what it waited for: rate limiters, or a
            server that is gone. The items remain queued.
          InvalidArgumentError: If `block_until_num_items` is negative.
          ReverbError: If the connection failed for good.
        """
        self._writer.flush(
            check_not_negative("block_until_num_items", block_until_num_items),
            None if timeout_ms is None or timeout_ms <= 0 else timeout_ms,
        )

    def close(self) -> None:
        """Stops at once, without a flush: what is not confirmed is abandoned.

        May be called from any thread and more than once.
        """
        self._writer.close()

    def _append_new_structure(self, data: Any, partial_step: bool) -> None:
        columns = column_nest.merge(self._columns, data)
        paths_and_leaves = tree.flatten_with_path(data)
        numbers = self._writer.register_columns([path for path, _ in paths_and_leaves])
        self._writer.append_flat(numbers, [leaf for _, leaf in paths_and_leaves], partial_step)
        if columns is not self._columns:
            self._columns = columns
            if tree.flatten(columns):
                self._history = column_nest.map_columns(self._column_history, columns)
        self._writer.remember_structure(data, numbers)

    def _column_history(self, column: column_nest.Column) -> Any:
        (number,) = self._writer.register_columns([column.path])
        return self._writer.column_history(number)
