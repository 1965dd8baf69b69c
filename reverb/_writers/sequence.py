# SPDX-License-Identifier: Apache-2.0
"""The sequence writer, which makes an item of every sequence of steps."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from reverb._checks.arguments import check_at_least, check_table, clamped_timeout_ms
from reverb._checks.number_arrays import as_numbers
from reverb._checks.pickles import OF_CLIENTS, not_pickled
from reverb._nests.flat import flatten_with_path
from reverb._writers import leaving
from reverb.core import native
from reverb.errors import InvalidArgumentError
from reverb.shown_text import type_name

__all__ = ["SequenceWriter"]


class SequenceWriter:
    """Appends steps of one environment or of `B`; every sequence of them becomes an item.

    Made by `Client.sequence_writer`. The items of an episode are sequences of `sequence_length`
    steps, or the whole episode; no item spans two episodes. Row `i` of every leaf belongs to
    environment `i`, which has its own episodes. Thread-safe. `reverb.TFSequenceWriter` uses the
    same writer inside a `tf.function`. A writer that is deleted without `flush`, `close` or a
    `with` block abandons its unconfirmed items; the log counts them.

    Example:
      >>> with client.sequence_writer("table", sequence_length=2, batch_size=2) as writer:
      ...     for step in range(3):
      ...         num_items = writer.append(
      ...             {"observation": np.zeros((2, 4)), "action": np.array([step, step])},
      ...             is_last=[step == 1, False],
      ...         )
      ...         print(num_items, writer.episode_steps)
      0 [1 1]
      2 [0 2]
      1 [1 3]
    """

    def __init__(self, internal_writer: native.SequenceWriter, batch_size: int | None) -> None:
        self._writer = internal_writer
        # Looked up once: `append` is the hottest call of an actor.
        self._append = internal_writer.append
        self._batch_size = batch_size
        leaving.report_at_exit(self)

    __reduce__ = not_pickled(OF_CLIENTS)

    def __repr__(self) -> str:
        if "_batch_size" not in self.__dict__:
            return "SequenceWriter(not made)"
        is_closed = self._writer.closed
        return f"SequenceWriter(batch_size={self._batch_size}, closed={is_closed})"

    @property
    def batch_size(self) -> int | None:
        """Number of environments, `B`; `None`: one, whose steps have no batch dimension."""
        return self._batch_size

    @property
    def episode_steps(self) -> Any:
        """Number of steps in each environment's episode, int64 `[B]`; an int without batch size."""
        steps = self._writer.episode_steps
        return int(steps[0]) if self._batch_size is None else steps

    @property
    def num_dropped_episodes(self) -> int:
        """Number of episodes that were dropped because they exceeded `max_sequence_length`."""
        return self._writer.num_dropped_episodes

    def append(
        self,
        step: Any,
        *,
        is_last: Any = False,
        priorities: Any = 1.0,
        removal_priorities: Any | None = None,
    ) -> int:
        """Appends one step of each environment, and queues the items that it completes.

        Items are sent in the background; they are confirmed once `flush` has returned. Blocks only
        for back-pressure, while tens of megabytes are in transit to tables that accept them; never
        for a rate limiter.

        Args:
          step: Nest of arrays `[B, ...]`, or `[...]` without batch size; a column of an item is
            `[L, ...]`. Structure, dtypes and shapes must equal those of the first step. Columns are
            put into the order of a table's signature by their names, if both have names.
          is_last: Whether the step is the last of its episode: bools `[B]`, or one bool for all.
            The next step then begins a new episode.
          priorities: Priorities of the items that the step completes: numbers `[B]`, or one for
            all; `reverb.MAX_PRIORITY` is one.
          removal_priorities: Numbers `[B]`, or one for all, used like `removal_priority` of
            `TrajectoryWriter.create_item`.

        Returns:
          Number of items that were queued.

        Raises:
          SignatureMismatchError: If a dtype or shape differs from the first step or from a table's
            signature, or if the signature has no column of a name. Nothing was appended.
          InvalidArgumentError: If the structure differs from the first step, if an argument has
            another number of rows, or if a priority is NaN; nothing was appended. Also if an
            episode is longer than `max_sequence_length`: the other rows were appended, and the rest
            of that episode is ignored.
          FailedPreconditionError: If the writer is closed or failed earlier.
          ReverbError: If the connection failed permanently.
        """
        if is_last is not False and is_last is not True:
            is_last = self._mask("is_last", is_last)
        if type(priorities) is not float:
            priorities = self._per_row("priorities", as_numbers("priorities", priorities))
        removal = removal_priorities
        if removal is not None:
            removal = self._per_row("removal_priorities", as_numbers("removal_priorities", removal))
        num_items = self._append(step, is_last, priorities, removal)
        if num_items is None:
            return self._append_new_structure(step, is_last, priorities, removal)
        return num_items

    def end_episode(self, where: object = None) -> None:
        """Drops unfinished sequences: the next step begins a new episode. Never blocks.

        Items that are already queued are sent. To end an episode normally, append its last step
        with `is_last`; if items are episodes, only that writes the episode.

        Args:
          where: Bools `[B]`, or one bool for all: the environments whose episode ends; `None`: all.

        Raises:
          InvalidArgumentError: If `where` has another shape.
          FailedPreconditionError: If the writer is closed or failed earlier.
        """
        self._writer.end_episode(True if where is None else self._mask("where", where))

    def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Sends all items, and blocks until all but a few are confirmed by the server.

        Unfinished sequences stay in the writer.

        Args:
          block_until_num_items: How many items may still be unconfirmed on return.
          timeout_ms: How long to block, in milliseconds; `None`: no limit; 0: do not wait.

        Raises:
          DeadlineExceededError: After `timeout_ms`; the text has the state of the rate limiters
            that it waited for. The items remain queued.
          InvalidArgumentError: If `block_until_num_items` is negative.
          ReverbError: If the connection failed permanently.
        """
        self._writer.flush(
            check_at_least(0, "block_until_num_items", block_until_num_items),
            clamped_timeout_ms(timeout_ms),
        )

    def close(self, *, flush: bool = True) -> None:
        """Flushes and closes; blocks until all items are confirmed, for at most 10 s.

        The steps that are in no item are lost. If items are episodes and none has ended, the log
        warns. May be called from any thread and more than once.

        Args:
          flush: `False`: closes at once, also while another thread waits in a call of the writer.
            Unconfirmed items are abandoned.

        Raises:
          DeadlineExceededError: If items are not confirmed after 10 s. They are abandoned; the text
            counts them, and says what they wait for.
          ReverbError: If the connection failed permanently before all items were confirmed.
        """
        if flush and not self._writer.closed:
            self._writer.report_unwritten()
        leaving.close(self._writer, flush)

    def _tensorflow_handle(self) -> int:
        return self._writer.tensorflow_handle()

    def _columns(self) -> list[tuple[str, int, list[int]]]:
        return self._writer.columns()

    def __enter__(self) -> "SequenceWriter":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        """Flushes and closes.

        Only closes after a `ReverbError`, or if the block has closed the writer. Flushes for at
        most 2 s after any other `Exception`, and not at all after a `KeyboardInterrupt`, a
        `SystemExit` and the like; then the log says how many items are not confirmed.
        """
        if not self._writer.closed:
            self._writer.report_unwritten()
        leaving.leave_closing(exc_type, self._writer, self.flush)

    def _append_new_structure(self, step: Any, is_last: Any, priorities: Any, removal: Any) -> int:
        paths_and_leaves = flatten_with_path(step)
        labels = [column_label(path) for path, _ in paths_and_leaves]
        leaves = [leaf for _, leaf in paths_and_leaves]
        num_items = self._writer.append_flat(labels, leaves, is_last, priorities, removal)
        self._writer.remember_structure(step, leaves)
        return num_items

    def _mask(self, argument: str, value: object) -> Any:
        mask = np.asarray(value)
        if mask.dtype != np.bool_:
            raise TypeError(f"{argument} must be bool, got dtype {mask.dtype}: {value!r}")
        return self._per_row(argument, mask)

    def _per_row(self, argument: str, array: np.ndarray) -> Any:
        """One value per row, `[B]`, or a Python scalar for all rows."""
        if array.ndim == 0:
            return array.item()
        if self._batch_size is None:
            raise InvalidArgumentError(
                f"{argument} must be one value, because the writer has no batch_size, got shape "
                f"{list(array.shape)}"
            )
        if array.shape != (self._batch_size,):
            raise InvalidArgumentError(
                f"{argument} must have shape [{self._batch_size}], one value for each row of the "
                f"batch, or be one value for all, got shape {list(array.shape)}"
            )
        return np.ascontiguousarray(array)


def column_label(path: tuple[Any, ...]) -> str:
    """Path of a column in the step, joined with `/`; empty for a step that is no nest."""
    return "/".join(str(key) for key in path)


@dataclasses.dataclass(frozen=True)
class SequenceOptions:
    """Options of the items of a sequence writer; see `Client.sequence_writer`."""

    tables: list[str]
    sequence_length: int | None
    batch_size: int | None
    stride_length: int
    max_sequence_length: int
    drop_long_episodes: bool


def sequence_options(
    tables: str | Sequence[str],
    sequence_length: int | None,
    batch_size: int | None,
    stride_length: int,
    max_sequence_length: int | None,
    drop_long_episodes: bool,
) -> SequenceOptions:
    """Checks the arguments of `Client.sequence_writer`."""
    if not isinstance(tables, str | Iterable):
        raise TypeError(f"tables must be names of tables, got {type_name(tables)}")
    names = [tables] if isinstance(tables, str) else list(tables)
    for name in names:
        check_table(name, "tables")
    if not names:
        raise InvalidArgumentError("tables must name at least one table, got none")
    if batch_size is not None:
        batch_size = check_at_least(1, "batch_size", batch_size)
    stride_length = check_at_least(1, "stride_length", stride_length)
    if max_sequence_length is not None:
        max_sequence_length = check_at_least(1, "max_sequence_length", max_sequence_length)
    if sequence_length is None:
        if max_sequence_length is None:
            raise InvalidArgumentError(
                "max_sequence_length must be given where sequence_length is None: it bounds the "
                "memory of an episode"
            )
        if stride_length != 1:
            raise InvalidArgumentError(
                "stride_length must be 1 where sequence_length is None, because an episode is one "
                f"item, got {stride_length}"
            )
    else:
        sequence_length = check_at_least(1, "sequence_length", sequence_length)
        if max_sequence_length is not None or drop_long_episodes:
            raise InvalidArgumentError(
                "max_sequence_length and drop_long_episodes are for sequence_length=None, where "
                f"items are episodes, got sequence_length={sequence_length}"
            )
    return SequenceOptions(
        tables=names,
        sequence_length=sequence_length,
        batch_size=batch_size,
        stride_length=stride_length,
        max_sequence_length=max_sequence_length or 0,
        drop_long_episodes=bool(drop_long_episodes),
    )


# The public import path.
SequenceWriter.__module__ = "reverb"
