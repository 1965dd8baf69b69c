# SPDX-License-Identifier: Apache-2.0
"""Trajectory writers, whose items are slices of the columns of their history."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from reverb._checks.arguments import as_rows, check_item, check_table, clamped_timeout_ms
from reverb._nests.flat import flatten_with_labels
from reverb._nests.nest_writer import NestWriter
from reverb._writers import leaving
from reverb.core import native

__all__ = ["BatchedTrajectoryWriter", "TrajectoryColumn", "TrajectoryWriter"]

TrajectoryColumn = native.TrajectoryColumn
# The types of constants, beside tensors of other libraries.
_CONSTANTS = (bool, int, float, complex, str, bytes, np.ndarray, np.generic)
# Programs use this name to check whether an object is a column of `history`.
_ColumnHistory = native.ColumnHistory


class TrajectoryWriter(NestWriter[native.TrajectoryWriter]):
    """Appends steps to a local history and makes items of slices of it.

    Made by `Client.trajectory_writer`. Not thread-safe, except for `close`. A writer that is
    deleted without `flush`, `end_episode` or a `with` block abandons its unconfirmed items; the
    log counts them.

    Example:
      >>> with client.trajectory_writer(num_keep_alive_refs=3) as writer:
      ...     for step in range(5):
      ...         writer.append({"observation": np.zeros(4), "action": step})
      ...         if step >= 2:
      ...             writer.create_item(
      ...                 table="table",
      ...                 priority=1.0,
      ...                 trajectory={
      ...                     "observation": writer.history["observation"][-3:],
      ...                     "action": writer.history["action"][-1],
      ...                 },
      ...             )
    """

    def __init__(self, internal_writer: native.TrajectoryWriter) -> None:
        super().__init__(internal_writer)
        self._create_item = internal_writer.create_item
        self._trajectories = native.NestFlattener(flatten_with_labels)
        leaving.report_at_exit(self)

    def __repr__(self) -> str:
        if "_writer" not in self.__dict__:
            return "TrajectoryWriter(not made)"
        writer = self._writer
        return f"TrajectoryWriter(episode_steps={writer.episode_steps}, closed={writer.closed})"

    @property
    def episode_steps(self) -> int:
        """Number of closed steps since the last `end_episode`."""
        return self._writer.episode_steps

    def create_item(
        self,
        table: str,
        priority: float,
        trajectory: object,
        *,
        removal_priority: float | None = None,
    ) -> None:
        """Queues an item for a table; it is sent in the background.

        The item is confirmed once `flush` or `end_episode` has returned. Blocks for back-pressure,
        while tens of megabytes are in transit to tables that accept them. A closed rate limiter
        does not block it, but slows it down, by some 10 s for a gigabyte. At `max_pending_bytes`
        of unconfirmed data it blocks in any case.

        Args:
          table: Name of the table.
          priority: Any number but NaN, or `reverb.MAX_PRIORITY`.
          trajectory: Nest of columns, each an index or slice of a leaf of `history`. A leaf may
            also be a constant, which is in no history: a number, a text, or an array `[...]`. It is
            sampled as a column that is a single step, `[...]`. A number of Python takes the dtype
            of the table's signature, if that can hold it (a float is rounded), else int64, float64
            or bool; an array keeps its own. Equal constants of items that follow each other in an
            episode are sent and stored once, up to 4 KiB.
          removal_priority: Priority that the table's remover uses instead of `priority`, if it is
            `MinHeap`, `MaxHeap` or `Prioritized`. Later updates of the priority do not change it.

        Raises:
          TypeError: If a leaf of the trajectory is neither a `TrajectoryColumn` nor a constant.
          InvalidArgumentError: If a column is empty or refers to values that have expired, or if
            the priority is NaN.
          SignatureMismatchError: If the columns do not match the table's signature. They are
            matched by position, as in dm-reverb; names that differ are logged once for each table.
            With `match_names` they are matched by name.
          TableNotFoundError: If the server has no such table and items are validated.
          FailedPreconditionError: If the writer is closed or failed earlier.
        """
        try:
            if not self._create_item(table, priority, trajectory, removal_priority):
                columns, names = self._trajectories.flatten(trajectory)
                _check_leaves(trajectory, columns, TrajectoryColumn, 'history["x"][-3:]')
                self._writer.create_item_flat(table, priority, columns, names, removal_priority)
        except TypeError:
            check_item(table, priority, removal_priority)
            raise

    def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:
        """Flushes, then starts a new episode; blocks until all items are confirmed.

        Args:
          clear_buffers: Clears the history. If False, later items may use steps of this episode.
          timeout_ms: How long to block, in milliseconds; `None`: no limit; 0: do not wait. (In
            `flush`, 0 means no limit.)

        Raises:
          DeadlineExceededError: After `timeout_ms`. The episode is unchanged; call again.
          ReverbError: If the connection failed permanently.
        """
        self._writer.end_episode(clear_buffers, clamped_timeout_ms(timeout_ms, allows_bool=True))

    def close(self, *, flush: bool | None = None) -> None:
        """Closes at once, without a flush, as in dm-reverb; unconfirmed items are abandoned.

        If there are any, the log counts them. May be called from any thread and more than once.

        Args:
          flush: `True`: flushes first, for at most 10 s, as the other writers do. `False`: says
            nothing about unconfirmed items.

        Raises:
          DeadlineExceededError: With `flush`, if items are not confirmed after 10 s.
          ReverbError: With `flush`, if the connection failed permanently.
        """
        leaving.close(self._writer, flush)

    def __enter__(self) -> "TrajectoryWriter":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        """Flushes. The writer stays open. Does nothing if the block closed it.

        Does not flush after a `ReverbError` or a `DeadlineExceededError`. Flushes for at most 2 s
        after any other `Exception`, and not at all after a `KeyboardInterrupt`, a `SystemExit` and
        the like; then the log says how many items are not confirmed.
        """
        if self._writer.closed:
            return
        if exc_type is None:
            self.flush()
        elif not leaving.skips_flush_as_dm_reverb(exc_type):
            leaving.leave(exc_type, self._writer, lambda limit: self._writer.flush(0, limit))


class BatchedTrajectoryWriter(NestWriter[native.BatchedTrajectoryWriter]):
    """A trajectory writer for `B` environments that are stepped together, without a loop in Python.

    Made by `Client.batched_trajectory_writer`. Row `i` of every leaf belongs to environment `i`,
    which has its own history and its own episodes. Use negative indices, which count from the
    newest step of each environment: `history["obs"][-3:]` is a batch of columns `[B, 3, ...]`, and
    so is `history["obs"][[-3, -2, -1]]`. A list, or an array `[K]` of integers, may have any order
    and repeat steps. `history["obs"].select(slice(-3, None), pad="first")` repeats the first step
    of an environment that has fewer, as stacks of frames do.

    `history["obs"].shape` is `[B, T, ...]`, where `T` is the number of steps of the environment
    that has the most.

    Example:
      >>> with client.batched_trajectory_writer(batch_size=2, num_keep_alive_refs=3) as writer:
      ...     for step in range(5):
      ...         writer.append({"observation": np.zeros((2, 4))})
      ...         num_items = writer.create_items(
      ...             table="table",
      ...             priorities=[1.0, 2.0],
      ...             trajectory={"observation": writer.history["observation"][-3:]},
      ...         )
      ...         print(num_items, writer.episode_steps)
      ...         writer.end_episode(where=[step == 2, False])
      0 [1 1]
      0 [2 2]
      2 [3 3]
      1 [1 4]
      1 [2 5]
    """

    def __init__(self, internal_writer: native.BatchedTrajectoryWriter, batch_size: int) -> None:
        super().__init__(internal_writer)
        self._batch_size = batch_size
        self._trajectories = native.NestFlattener(flatten_with_labels)
        leaving.report_at_exit(self)

    def __repr__(self) -> str:
        if "_batch_size" not in self.__dict__:
            return "BatchedTrajectoryWriter(not made)"
        is_closed = self._writer.closed
        return f"BatchedTrajectoryWriter(batch_size={self._batch_size}, closed={is_closed})"

    @property
    def batch_size(self) -> int:
        """Number of environments, `B`."""
        return self._batch_size

    @property
    def episode_steps(self) -> np.ndarray:
        """Number of closed steps in each environment's episode, int64 `[B]`."""
        return self._writer.episode_steps

    def append(self, data: object, *, partial_step: bool = False, where: object = None) -> None:
        """Appends one step, or a part of one, of each selected environment.

        Data is sent only when an item refers to it. Never blocks.

        Args:
          data: As in `TrajectoryWriter.append`; every leaf has shape `[B, ...]`, whatever `where`
            selects.
          partial_step: Leaves the step open, so that a later call can fill other columns of it.
          where: Booleans `[B]`, the environments that make a step; `None`: all.

        Raises:
          SignatureMismatchError: If a leaf's shape or dtype differs from its column's. Nothing was
            appended.
          InvalidArgumentError: If a leaf does not have `B` rows, if `where` has another shape, if a
            column already has a value in the open step, or if a leaf was a nest in an earlier step,
            or a nest a leaf. Nothing was appended.
          FailedPreconditionError: If the writer is closed or failed earlier.
        """
        mask = self._mask(where)
        if not self._append(data, partial_step, mask):
            self._append_new_structure(data, partial_step, mask)

    def create_items(
        self,
        table: str,
        priorities: object,
        trajectory: object,
        *,
        where: object = None,
        removal_priorities: object = None,
    ) -> int:
        """Queues one item for each selected environment; they are sent in the background.

        On an error no item is queued. Blocks as `TrajectoryWriter.create_item`.

        Args:
          table: Name of the table.
          priorities: Numbers `[B]`, or one for all; only those of selected environments are used.
          trajectory: Nest of columns, each an index, a slice or a list of indices of a leaf of
            `history`, or a result of its `select`. If a table's signature has the same names in
            another order, the columns are put into that order. A leaf may also be a constant, as in
            `TrajectoryWriter.create_item`: a number, a text or an array `[]` for all environments,
            or an array `[B, ...]` with a row for each.
          where: Booleans `[B]` that select environments; `None`: all whose episode has the steps
            that the columns refer to.
          removal_priorities: Numbers `[B]`, or one for all, used like `removal_priority` of
            `TrajectoryWriter.create_item`.

        Returns:
          Number of items.

        Raises:
          TypeError: If a leaf of the trajectory is neither a column of a batched history nor a
            constant.
          InvalidArgumentError: If an argument or a constant has another shape, if a selected
            environment has fewer steps than a column refers to (the text names it), if a column is
            empty, or if a priority is NaN.
          SignatureMismatchError: If the columns do not match the table's signature, or have other
            names.
          TableNotFoundError: If the server has no such table and items are validated.
        """
        check_table(table)
        columns, names = self._trajectories.flatten(trajectory)
        kind = native.BatchedTrajectoryColumn
        _check_leaves(trajectory, columns, kind, "slices of the history of this writer")
        removal = None
        if removal_priorities is not None:
            removal = as_rows(
                "removal_priorities", removal_priorities, np.float64, self._batch_size
            )
        rows = as_rows("priorities", priorities, np.float64, self._batch_size)
        items = [(columns, rows, removal, self._mask(where))]
        return self._create_all_items(table, items, names)

    def _create_all_items(
        self,
        table: str,
        items: Sequence[Any],
        names: native.ColumnNames | None = None,
        keep: bool = False,
    ) -> int:
        """Does several `create_items` in one call, all or none, without checking the arguments.

        Columns with `names` are put into the order of the table's signature. With `keep`, the items
        are not sent before those of a later call without it, or `flush`.
        """
        return self._writer.create_all_items(table, items, names, keep)

    def _is_confirmed_within(self, max_pending: int, timeout_ms: int) -> bool:
        """Whether at most so many items are unconfirmed after this time; blocks until then."""
        return self._writer.is_confirmed_within(max_pending, timeout_ms)

    def _report_unconfirmed(self) -> None:
        """Logs how many items are not confirmed at the end of a run, if any."""
        self._writer.report_unconfirmed(leaving.STOPPED)

    def _column_names(self, labels: Sequence[str]) -> native.ColumnNames:
        """The names of columns for `_create_all_items`: their paths, joined with `/`."""
        return native.ColumnNames(labels)

    def end_episode(self, where: object = None, *, clear_buffers: bool = True) -> None:
        """Starts a new episode in each selected environment.

        Never blocks, unlike `TrajectoryWriter.end_episode`: the other environments can continue.
        Queued items are sent in the background; `flush` waits for them.

        Args:
          where: Booleans `[B]`, the environments whose episode ends; `None`: all.
          clear_buffers: Clears their history.

        Raises:
          InvalidArgumentError: If `where` has another shape.
          FailedPreconditionError: If the writer is closed.
          ReverbError: If the connection failed permanently.
        """
        self._writer.end_episode(self._mask(where), clear_buffers)

    def close(self, *, flush: bool = True) -> None:
        """Flushes and closes; blocks until all items are confirmed, for at most 10 s.

        May be called from any thread and more than once.

        Args:
          flush: `False`: closes at once, also while another thread waits in a call of the writer.
            Unconfirmed items are abandoned.

        Raises:
          DeadlineExceededError: If items are not confirmed after 10 s. They are abandoned; the text
            counts them, and says what they wait for.
          ReverbError: If the connection failed permanently before all items were confirmed.
        """
        leaving.close(self._writer, flush)

    def __enter__(self) -> "BatchedTrajectoryWriter":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        """Flushes and closes.

        Only closes after a `ReverbError`, or if the block has closed the writer. Flushes for at
        most 2 s after any other `Exception`, and not at all after a `KeyboardInterrupt`, a
        `SystemExit` and the like; then the log says how many items are not confirmed.
        """
        leaving.leave_closing(exc_type, self._writer, self.flush)

    def _mask(self, where: object) -> np.ndarray | None:
        return None if where is None else as_rows("where", where, np.bool_, self._batch_size)


def _check_leaves(trajectory: object, leaves: Sequence[Any], column: type, example: str) -> None:
    """Checks that the leaves of a trajectory are columns or constants.

    Raises:
      TypeError: If one is not; the text names its path.
    """
    for at, leaf in enumerate(leaves):
        if type(leaf) is column or isinstance(leaf, _CONSTANTS):
            continue
        if not hasattr(leaf, "__dlpack__"):
            labels, _ = flatten_with_labels(trajectory)
            raise TypeError(
                f"all leaves of a trajectory must be {column.__name__} objects, such as {example}, "
                f"or constants (numbers, texts or arrays), got {type(leaf).__name__} for leaf "
                f"{labels[at]!r}"
            )
