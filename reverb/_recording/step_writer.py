# SPDX-License-Identifier: Apache-2.0
"""The writer of a recorder: tables, priorities, and the limit of unconfirmed items."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from reverb import errors, specs
from reverb._batches.importance import MAX_PRIORITY
from reverb._recording.nests import map_nest
from reverb._recording.waiting import STOPPED_CLOSE_TIMEOUT_MS, Waiting
from reverb.client import Client
from reverb.core import native

__all__ = ["NewItems", "Priority", "Step", "StepWriter"]


# The columns of a row, each a nest of arrays `[B, ...]`.
Step = dict[str, Any]

# A number, the text "max", or a function that computes numbers `[B]` from the step that completes
# the items.
Priority = float | str | Callable[[dict[str, Any]], Any]


class NewItems(NamedTuple):
    """One item for each selected environment.

    `columns` is the flat list of an item's columns, in the order of `name_columns`; `where` are
    booleans `[B]`; functions compute priorities from `step`.
    """

    columns: list[Any]
    where: np.ndarray
    step: Step


class StepWriter:
    """Appends rows to the histories of `B` environments, and makes items of them.

    `tables` is a table's name, or a dict of names with the priority of each; others have
    `priority`. Items refer to the latest `num_rows` rows. `settle` waits while more than
    `max_unconfirmed_items` are unconfirmed; `None`: 64 for each environment.

    Attributes:
      has_no_run: Whether the run had ended before the server answered. Then it takes no rows.

    Raises:
      InvalidArgumentError: If there is no table, or a priority is neither a number nor a function.
      TableNotFoundError: If the server has no such table.
    """

    def __init__(
        self,
        client: Client,
        tables: str | Mapping[str, Priority | None],
        priority: Priority,
        num_envs: int,
        num_rows: int,
        max_unconfirmed_items: int | None,
        waiting: Waiting,
    ) -> None:
        self._waiting = waiting.checked()
        given = {tables: None} if isinstance(tables, str) else dict(tables)
        if not given:
            raise errors.InvalidArgumentError("tables must name at least one table, got none")
        self._priorities = {
            table: _checked_priority(priority if own is None else own, num_envs)
            for table, own in given.items()
        }
        known = waiting.tables_of(client)
        self._names: native.ColumnNames | None = None
        if known is None:
            self._closed = self.has_no_run = True
            return
        for table in given:
            if table not in known:
                raise errors.TableNotFoundError(
                    f"the server has no table {table!r}; it has {sorted(known)}"
                )
        self._num_envs = num_envs
        if max_unconfirmed_items is None:
            max_unconfirmed_items = 64 * num_envs
        self._max_unconfirmed_items = max_unconfirmed_items
        self._writer = client.batched_trajectory_writer(num_envs, num_rows)
        # An upper bound. The exact number would take a call.
        self._unconfirmed_items = 0
        self._closed = self.has_no_run = False

    @property
    def history(self) -> Any:
        """The history of the columns so far."""
        return self._writer.history

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def name_columns(self, paths: Sequence[tuple[Any, ...]]) -> None:
        """Sets the names of the items' columns, before the first item."""
        labels = ["/".join(map(str, path)) for path in paths]
        self._names = self._writer._column_names(labels)

    def append(self, row: dict[str, Any], where: np.ndarray | None = None) -> None:
        """Appends a row to the history of each selected environment."""
        self._writer.append(row, where=where)

    def create_items(self, items: Sequence[NewItems]) -> None:
        """Makes items in every table, with the columns in the order of its signature.

        Never waits for confirmations; see `settle`.

        Raises:
          SignatureMismatchError: If a table has other columns.
        """
        # Faster than `any()`.
        items = [new for new in items if np.count_nonzero(new.where)]
        if not items:
            return
        for table, priority in self._priorities.items():
            self._unconfirmed_items += self._writer._create_all_items(
                table,
                [
                    (new.columns, _numbers(priority, new.step, self._num_envs), None, new.where)
                    for new in items
                ],
                self._names,
            )

    def settle(self) -> None:
        """Blocks while too many items are unconfirmed, and the run continues.

        Raises:
          DeadlineExceededError: After the time of `Waiting`; the items are sent later.
          ReverbError: If the connection failed for good.
        """
        if self._unconfirmed_items <= self._max_unconfirmed_items:
            return
        num_items = self._max_unconfirmed_items // 2
        if self._waiting.until_confirmed(self._writer, num_items):
            self._unconfirmed_items = num_items

    @property
    def is_stopped(self) -> bool:
        """Whether the run has ended."""
        return self._waiting.is_stopped

    def end_episode(self, where: np.ndarray) -> None:
        """Starts a new history in each selected environment."""
        self._writer.end_episode(where)

    def flush(self) -> None:
        """Blocks until all items are confirmed; after the end of the run for at most 2 s."""
        if self.has_no_run:
            return
        if self._waiting.until_flushed(self._writer):
            self._unconfirmed_items = 0
        else:
            self._wait_after_the_run()

    def close(self) -> None:
        """Waits for at most 10 s until all items are confirmed, and closes.

        After the end of the run it waits for at most 2 s and raises nothing; the log counts the
        items that are not confirmed.

        Raises:
          DeadlineExceededError: If some were not; the text has the reason.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._flush_at_the_end()
        finally:
            self._writer.close(flush=False)

    def _flush_at_the_end(self) -> None:
        if self._waiting.until_all_confirmed(self._writer):
            return
        self._wait_after_the_run()
        self._writer._report_unconfirmed()

    def _wait_after_the_run(self) -> None:
        with contextlib.suppress(errors.ReverbError):
            self._writer._is_confirmed_within(0, STOPPED_CLOSE_TIMEOUT_MS)

    def leave(self, exc_type: type[BaseException]) -> None:
        """Closes at the end of a block that an exception has left, as a writer does."""
        if not self._closed:
            self._closed = True
            self._writer.__exit__(exc_type)


def _checked_priority(
    priority: Priority, num_envs: int
) -> np.ndarray | Callable[[dict[str, Any]], Any]:
    """A function, or numbers `[B]`."""
    if callable(priority):
        return priority
    if priority is MAX_PRIORITY or priority == "max":
        return np.full(num_envs, MAX_PRIORITY)
    try:
        number = float(priority)
    except (TypeError, ValueError):
        raise errors.InvalidArgumentError(
            f'priority must be a number, "max" or a function, got {priority!r}'
        ) from None
    if np.isnan(number):
        raise errors.InvalidArgumentError(f"priority must not be NaN, got {priority!r}")
    return np.full(num_envs, number)


def _columns_of(step: dict[str, Any]) -> dict[str, Any]:
    """Renames the values of a row to the column names of an item."""
    row = dict(step)
    row["next_observation"] = map_nest(np.asarray, row.pop("observation"))
    return row


def _numbers(priority: np.ndarray | Callable[[Step], Any], step: Step, num_envs: int) -> np.ndarray:
    """The priorities of the items that a step completes, `[B]`."""
    if not callable(priority):
        return priority
    array = specs.as_array("priority", priority(_columns_of(step)))
    if array.dtype.kind not in "biuf" or array.shape not in ((), (num_envs,)):
        raise errors.InvalidArgumentError(
            f"priority must return a number, or numbers of shape [{num_envs}], got dtype "
            f"{array.dtype} and shape {list(array.shape)}"
        )
    return np.broadcast_to(array.astype(np.float64), (num_envs,))
