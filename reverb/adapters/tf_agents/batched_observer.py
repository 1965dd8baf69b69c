# SPDX-License-Identifier: Apache-2.0
"""An observer of environments that are stepped together."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import reverb
from reverb import errors, specs
from reverb.adapters.tf_agents.frame_layout import LAST, step_type_of
from reverb.adapters.tf_agents.observer import Observer, at_least_one

__all__ = ["BatchPriority", "ReverbBatchedTrajectoryObserver"]

_LOGGER = logging.getLogger(__name__)

# A number for all environments, numbers `[B]`, or a function that computes numbers `[B]` from the
# frames that complete the items, a nest of arrays `[B, ...]`.
BatchPriority = float | Sequence[float] | np.ndarray | Callable[[Any], Any]


class ReverbBatchedTrajectoryObserver(Observer):
    """Writes sequences, or whole episodes, of `B` environments, without a loop in Python.

    Called with a frame of all environments, a nest of arrays `[B, ...]`. Row `i` belongs to
    environment `i`, which has its own episodes; they end where its `step_type` is LAST. The items
    are the same as those of `B` objects `ReverbAddTrajectoryObserver` without padding, or
    `ReverbAddEpisodeObserver` if `sequence_length` is `None`.

    The end of one environment's episode does not block the others. A call blocks only while more
    than `max_in_flight_items` items are unconfirmed, so that a rate limiter slows the driver down.

    Example:
      >>> import collections
      >>> from reverb.adapters.tf_agents import reverb_utils
      >>> Frame = collections.namedtuple("Frame", ["step_type", "observation"])
      >>> with reverb_utils.ReverbBatchedTrajectoryObserver(
      ...     client, "replay", sequence_length=2, batch_size=3
      ... ) as observer:
      ...     for step_type in ([0, 0, 0], [1, 2, 1], [1, 0, 2]):
      ...         observer(Frame(np.array(step_type), np.zeros((3, 4))))
      >>> client.server_info()["replay"].current_size
      5
    """

    def __init__(
        self,
        py_client: reverb.Client,
        table_name: str | Sequence[str],
        sequence_length: int | None,
        batch_size: int,
        stride_length: int = 1,
        priority: BatchPriority = 1,
        *,
        max_sequence_length: int | None = None,
        bypass_partial_episodes: bool = False,
        cuts_at_boundaries: bool = True,
        max_in_flight_items: int | None = None,
    ) -> None:
        """Makes and opens an observer.

        Blocks until the server has sent its tables' signatures.

        Args:
          py_client: The client to write through.
          table_name: The table or tables to write each item to.
          sequence_length: Number of frames of an item; `None`: items are whole episodes.
          batch_size: Number of environments, `B`.
          stride_length: Number of frames from the start of an item to that of the next.
          priority: Priority of the items: a number, numbers `[B]`, or a function that returns
            numbers `[B]` for the frame that completes the items, a nest of arrays `[B, ...]`.
          max_sequence_length: Number of frames of the longest episode; for episodes only.
          bypass_partial_episodes: Skips longer episodes with a message in the log instead of
            raising an error; for episodes only.
          cuts_at_boundaries: Whether a boundary ends its episode. If False, items span the ends of
            episodes, as in `ReverbTrajectorySequenceObserver`.
          max_in_flight_items: Maximum number of unconfirmed items; `None`: 1000, or ten per
            environment if that is more.

        Raises:
          InvalidArgumentError: If a number is below 1, if arguments contradict each other, or if
            the priority is not a number; a `ValueError`.
          UnknownTableError: If the server has no such table; a `KeyError`.
          UnavailableError: If no server answers.
        """
        super().__init__(py_client, table_name)
        self._batch_size = at_least_one("batch_size", batch_size)
        self._sequence_length = sequence_length
        if sequence_length is not None:
            self._sequence_length = at_least_one("sequence_length", sequence_length)
        if max_sequence_length is not None:
            max_sequence_length = at_least_one("max_sequence_length", max_sequence_length)
        self._stride_length = at_least_one("stride_length", stride_length)
        self._cuts_at_boundaries = bool(cuts_at_boundaries)
        if sequence_length is None and not cuts_at_boundaries:
            raise errors.InvalidArgumentError(
                "cuts_at_boundaries must be True where sequence_length is None: items are episodes"
            )
        self._options = {
            "stride_length": self._stride_length,
            "max_sequence_length": max_sequence_length,
            "drop_long_episodes": bool(bypass_partial_episodes),
        }
        if max_in_flight_items is None:
            max_in_flight_items = max(1000, 10 * self._batch_size)
        self._max_in_flight_items = at_least_one("max_in_flight_items", max_in_flight_items)
        self.update_priority(priority)
        self.open()

    @property
    def batch_size(self) -> int:
        """Number of environments, `B`."""
        return self._batch_size

    def update_priority(self, priority: BatchPriority) -> None:
        """Sets the priorities of the items that are made from now on.

        Args:
          priority: As in the constructor.

        Raises:
          InvalidArgumentError: If it is neither numbers nor a function; a `ValueError`.
        """
        self._priority = priority if callable(priority) else self._numbers(priority)

    def __call__(self, trajectory: Any) -> None:
        """Appends the next frame of every environment, and writes the items that they complete.

        Blocks only while more than `max_in_flight_items` items are unconfirmed.

        Args:
          trajectory: A nest of arrays `[B, ...]` with an attribute `step_type`. It is copied.

        Raises:
          SignatureMismatchError: If shapes or dtypes differ from those of the first frame, or from
            a table's signature; the text names the field. A `ValueError`.
          InvalidArgumentError: If an array does not have `B` rows, or if fields differ from those
            of the first frame; nothing was appended. Also if an episode exceeds
            `max_sequence_length` and is not bypassed: the rest of it is ignored, and the other
            environments continue. A `ValueError`.
          ObserverClosedError: If the observer is closed; a `ValueError`.
          ReverbError: If the connection failed permanently; the observer is then closed.
        """
        writer = self._open_writer()
        step_type = np.asarray(step_type_of(trajectory))
        if step_type.shape != (self._batch_size,):
            raise errors.InvalidArgumentError(
                f"step_type of a frame must have shape [{self._batch_size}], one for each of "
                f"batch_size environments, got shape {list(step_type.shape)}"
            )
        is_last = step_type == LAST if self._cuts_at_boundaries else False
        priority = self._priority
        if callable(priority):
            priority = self._numbers(priority(trajectory))
        try:
            self._in_flight_items += writer.append(trajectory, is_last=is_last, priorities=priority)
            if self._in_flight_items > self._max_in_flight_items:
                self._wait_for_half()
        except errors.ReverbError as error:
            self._fail(error)
            raise
        if self._options["drop_long_episodes"] and writer.num_dropped_episodes > self._num_dropped:
            self._report_dropped(writer.num_dropped_episodes)

    def reset(self, write_cached_steps: bool = False) -> None:
        """Ends the episodes of all environments, and blocks until all items are confirmed.

        The next frame begins an episode in each environment. Opens a closed observer. Frames that
        are in no item yet are dropped, because a batch cannot be padded.

        Args:
          write_cached_steps: Raises an error instead of dropping frames.

        Raises:
          InvalidArgumentError: If `write_cached_steps` is set and frames would be lost; the text
            names the environments. Nothing was reset. A `ValueError`.
          ReverbError: If the connection failed permanently; the observer is closed. Call again.
        """
        self.open()
        if write_cached_steps:
            self._check_nothing_is_lost()
        self._finish()

    def _make_writer(self) -> Any:
        self._check_tables()
        self._num_dropped = 0
        return self._py_client.sequence_writer(
            self._table_names, self._sequence_length, self._batch_size, **self._options
        )

    def _start_episode(self) -> None:
        # An upper bound of the unconfirmed items. The exact number would take a call.
        self._in_flight_items = 0

    def _end_writer_episode(self) -> None:
        self._writer.end_episode()
        self._writer.flush()

    def _wait_for_half(self) -> None:
        """Blocks until at most half of `max_in_flight_items` items are unconfirmed."""
        half = self._max_in_flight_items // 2
        self._writer.flush(half)
        self._in_flight_items = half

    def _check_nothing_is_lost(self) -> None:
        steps = self._writer.episode_steps
        if self._sequence_length is None:
            lost = steps > 0
        else:
            beyond = steps - self._sequence_length
            # Frames since the last item. A stride longer than the item skips some of them.
            new = np.where(beyond < 0, steps, beyond % self._stride_length)
            gap = max(0, self._stride_length - self._sequence_length)
            lost = np.where(beyond < 0, new > 0, new > gap)
        if lost.any():
            raise errors.InvalidArgumentError(
                "write_cached_steps is True, but the newest frames of environments "
                f"{np.flatnonzero(lost).tolist()} are in no item: a batch cannot be padded; call "
                "reset(write_cached_steps=False) to drop them"
            )

    def _report_dropped(self, num_dropped: int) -> None:
        _LOGGER.error(
            "Episodes longer than max_sequence_length = %d were not written: %d",
            self._options["max_sequence_length"],
            num_dropped - self._num_dropped,
        )
        self._num_dropped = num_dropped

    def _numbers(self, value: Any) -> Any:
        """Returns priorities for the writer: a float, or float64 `[B]`."""
        if value is reverb.MAX_PRIORITY:
            return value
        array = specs.as_array("priority", value)
        if array.dtype.kind not in "iuf" or array.shape not in ((), (self._batch_size,)):
            raise errors.InvalidArgumentError(
                f"priority must be a number, or numbers of shape [{self._batch_size}], got dtype "
                f"{array.dtype} and shape {list(array.shape)}"
            )
        if np.isnan(array).any():
            raise errors.InvalidArgumentError(f"priority must not be NaN, got {value!r}")
        return array.astype(np.float64) if array.ndim else float(array)
