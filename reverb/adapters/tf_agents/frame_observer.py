# SPDX-License-Identifier: Apache-2.0
"""What the observers of one environment share: frames come in, the newest become items."""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import tree

import reverb
from reverb import errors
from reverb.adapters.tf_agents.frame_layout import FrameLayout
from reverb.adapters.tf_agents.observer import Observer, number

__all__ = ["FrameObserver", "Priority"]

# A number, or what computes it from a nest of arrays `[T, ...]`: the frames of the item.
Priority = float | Callable[[Any], float]


class FrameObserver(Observer):
    """The base of the observers of one environment; not made by users."""

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
        """Takes the next frame, and writes the item that it completes.

        Where a boundary ends the episode, it blocks until the items are confirmed; a rate limiter
        may delay that.

        Args:
          trajectory: A nest of arrays `[...]` with an attribute `step_type`. It is copied.

        Raises:
          SignatureMismatchError: If fields, shapes or dtypes differ from those of the first frame,
            which leaves everything as it was, or if an item does not fit its table's signature. The
            text names the field. A `ValueError`.
          InvalidArgumentError: If the frame has no `step_type`, or a batch dimension; and see the
            class. A `ValueError`.
          ObserverClosedError: If the observer is closed; a `ValueError`.
          ReverbError: If the connection failed for good. The observer is closed then.
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
        """Ends the episode, writes what is left of it, and blocks until all items are confirmed.

        The next frame begins an episode. Opens a closed observer.

        Args:
          write_cached_steps: Whether to write what no item holds yet, as the class says; otherwise
            it is dropped.

        Raises:
          InvalidArgumentError: If the class says that what is left cannot be written. Nothing was
            reset then. A `ValueError`.
          ReverbError: If the connection failed for good. The observer is closed then; call again.
        """
        self.open()
        try:
            self._reset(write_cached_steps)
        except errors.ReverbError as error:
            self._fail(error)
            raise

    @abc.abstractmethod
    def _takes(self, is_last: bool) -> bool:
        """Whether the next frame is to be appended."""

    @abc.abstractmethod
    def _appended(self, is_last: bool) -> None:
        """Does what is to be done after a frame was appended."""

    @abc.abstractmethod
    def _reset(self, writes: bool) -> None:
        """Does what `reset` says."""

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
