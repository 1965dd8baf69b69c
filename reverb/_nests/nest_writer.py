# SPDX-License-Identifier: Apache-2.0
"""The base of the trajectory writers: turns nests into columns.

Python flattens each new structure once. Then the native writer recognises the structure, and
`append` is one native call.
"""

from typing import Any, Generic, TypeVar

from reverb._checks.arguments import check_at_least, clamped_timeout_ms
from reverb._checks.pickles import OF_CLIENTS, not_pickled
from reverb._nests import column_nest
from reverb._nests.flat import flatten_with_path
from reverb.core import native
from reverb.errors import FailedPreconditionError, InvalidArgumentError

_NativeWriter = TypeVar("_NativeWriter", native.TrajectoryWriter, native.BatchedTrajectoryWriter)


class NestWriter(Generic[_NativeWriter]):
    """The base of the writers with a history."""

    def __init__(self, internal_writer: _NativeWriter) -> None:
        self._writer = internal_writer
        # Looked up once, because `append` is the hottest call of an actor.
        self._append = internal_writer.append
        self._columns: Any = ()
        self._history: object = None

    @property
    def history(self) -> Any:
        """Nest of the columns' histories, with the structure of the data appended so far.

        Leaf `name` has shape `[T, ...]`. Index it with an int, a slice or a list of ints to get a
        column of a trajectory. Histories grow as steps are appended.

        Raises:
          FailedPreconditionError: Before the first column.
        """
        if self._history is None:
            raise FailedPreconditionError(
                "history has no columns yet: append a step with at least one value first"
            )
        return self._history

    def append(self, data: object, *, partial_step: bool = False) -> None:
        """Appends one step, or a part of one, to the local history.

        Data is sent only when an item refers to it. Never blocks.

        Args:
          data: Nest of arrays, or of values that NumPy converts to arrays. A leaf of shape `[...]`
            becomes the newest row of its column `[T, ...]`. A field may be missing or `None`, which
            means no value in this step, and may first appear after the first step.
          partial_step: Leaves the step open, so that a later call can fill other columns of it.

        Raises:
          SignatureMismatchError: If a leaf's shape or dtype differs from its column's. Nothing was
            appended.
          InvalidArgumentError: If a column already has a value in the open step, or if a leaf was a
            nest in an earlier step, or a nest a leaf. Nothing was appended.
          FailedPreconditionError: If the writer is closed or failed earlier.
        """
        if not self._append(data, partial_step):
            self._append_new_structure(data, partial_step)

    def configure(
        self, path: tuple[Any, ...], *, num_keep_alive_refs: int, max_chunk_length: int | None
    ) -> None:
        """Sets the options of one column.

        Call it before the column's first value. Later it is only allowed while the column has no
        incomplete chunk.

        Args:
          path: Path of the column in the data, as in `tree.flatten_with_path`: `("obs", 0)`.
          num_keep_alive_refs: Number of newest values of the column that new items may use.
          max_chunk_length: Number of values per chunk; `None`: the writer chooses it.

        Raises:
          InvalidArgumentError: If a number is out of its range.
          FailedPreconditionError: If the column has an incomplete chunk.
        """
        num_keep_alive_refs = check_at_least(
            1, "num_keep_alive_refs", num_keep_alive_refs, allows_bool=True
        )
        if max_chunk_length is not None:
            max_chunk_length = check_at_least(
                1, "max_chunk_length", max_chunk_length, allows_bool=True
            )
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
          timeout_ms: How long to block, in milliseconds; `None`, 0 or less: no limit. Only this
            method treats 0 this way, like dm-reverb; in all others 0 means "do not wait".

        Raises:
          DeadlineExceededError: After `timeout_ms`; the text says what it waited for: rate
            limiters, or an unavailable server. The items remain queued.
          InvalidArgumentError: If `block_until_num_items` is negative.
          ReverbError: If the connection failed permanently.
        """
        self._writer.flush(
            check_at_least(0, "block_until_num_items", block_until_num_items, allows_bool=True),
            clamped_timeout_ms(timeout_ms, allows_bool=True) or None,
        )

    __reduce__ = not_pickled(OF_CLIENTS)

    def _append_new_structure(self, data: Any, *options: Any) -> None:
        """Appends by paths; `options` are the arguments of the native `append` after the data."""
        columns = column_nest.merge(self._columns, data)
        paths_and_leaves = flatten_with_path(data)
        leaves = [leaf for _, leaf in paths_and_leaves]
        numbers = self._writer.register_columns([path for path, _ in paths_and_leaves])
        self._writer.append_flat(numbers, leaves, *options)
        if columns is not self._columns:
            self._columns = columns
            if flatten_with_path(columns):
                self._history = column_nest.map_columns(self._column_history, columns)
        self._writer.remember_structure(data, numbers, leaves)

    def _column_history(self, column: column_nest.Column) -> object:
        (number,) = self._writer.register_columns([column.path])
        return self._writer.column_history(number)
