# SPDX-License-Identifier: Apache-2.0
"""The base of the observers of one environment, which make items of the newest frames."""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import tree

import reverb
from reverb import errors
from reverb.adapters.tf_agents.frame_layout import FrameLayout
from reverb.adapters.tf_agents.observer import Observer, number

__all__ = ["FrameObserver", "Priority"]

# A number, or a function that computes it from the frames of the item, a nest of arrays `[T, ...]`.
Priority = float | Callable[[Any], float]


class FrameObserver(Observer):
    """The base of the observers of one environment."""

    def __init__(
        self,
        py_client: reverb.Client,
        table_name: str | Sequence[str],
        max_item_length: int,
        priority: Priority,
    ) -> None:
        super().__init__(py_client, table_name)
        self._max_item_length = max_item_length
        self.update_priority(priority)
        self.open()

    def update_priority(self, priority: Priority) -> None:
        """Sets the priority of the items that are made from now on.

        Args:
          priority: As in the constructor.

        Raises:
          InvalidArgumentError: If it is neither a number nor a function; a `ValueError`.
        """
        self._priority = priority if callable(priority) else number("priority", priority)

    def __call__(self, trajectory: Any) -> None:
        """Appends the next frame, and writes the item that it completes.

        At the end of an episode it blocks until all items are confirmed; a rate limiter may delay
        that.

        Args:
          trajectory: A nest of arrays `[...]` with an attribute `step_type`. It is copied.

        Raises:
          SignatureMismatchError: If fields, shapes or dtypes differ from those of the first frame
            (nothing was appended), or if an item does not match its table's signature. The text
            names the field. A `ValueError`.
          InvalidArgumentError: If the frame has no `step_type`, or has a batch dimension; see also
            the class. A `ValueError`.
          ObserverClosedError: If the observer is closed; a `ValueError`.
          ReverbError: If the connection failed permanently; the observer is then closed.
        """
        writer = self._open_writer()
        layout = self._layout or FrameLayout(trajectory)
        if not layout.matches(trajectory):
            layout.check(trajectory)
        is_last = layout.is_last(trajectory)
        try:
            if self._takes(is_last):
                writer.append(trajectory)
                if self._layout is None:
                    self._layout = layout
                    self._columns = tree.flatten(writer.history)
                self._appended(is_last)
        except errors.ReverbError as error:
            self._fail(error)
            raise

    def reset(self, write_cached_steps: bool = True) -> None:
        """Ends the episode, writes the rest of it, and blocks until all items are confirmed.

        The next frame begins an episode. Opens a closed observer.

        Args:
          write_cached_steps: Whether to write frames that are in no item yet, as described in the
            class; otherwise they are dropped.

        Raises:
          InvalidArgumentError: If those frames cannot be written; see the class. Nothing was reset.
            A `ValueError`.
          ReverbError: If the connection failed permanently; the observer is closed. Call again.
        """
        self.open()
        try:
            self._reset(write_cached_steps)
        except errors.ReverbError as error:
            self._fail(error)
            raise

    @abc.abstractmethod
    def _takes(self, is_last: bool) -> bool:
        """Whether to append the next frame."""

    @abc.abstractmethod
    def _appended(self, is_last: bool) -> None:
        """Called after a frame was appended."""

    @abc.abstractmethod
    def _reset(self, writes: bool) -> None:
        """Implements `reset`."""

    def _make_writer(self) -> Any:
        self._check_tables()
        self._layout: FrameLayout | None = None
        self._columns: list[Any] = []
        return self._py_client.trajectory_writer(self._max_item_length)

    def _write(self, num_frames: int) -> None:
        """Makes an item of the newest frames in every table."""
        newest = slice(-num_frames, None)
        item = [column[newest] for column in self._columns]
        priority = self._priority
        if callable(priority):
            values = tree.map_structure(lambda h: h[newest].numpy(), self._writer.history)
            priority = number("priority", priority(values))
        try:
            for table in self._table_names:
                self._writer.create_item(table, priority, item)
        except errors.SignatureMismatchError as error:
            raise errors.SignatureMismatchError(
                f"an item of {num_frames} frames does not fit its table: {error}"
            ) from None
