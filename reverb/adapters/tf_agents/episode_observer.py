# SPDX-License-Identifier: Apache-2.0
"""An observer that writes whole episodes."""

import logging
from collections.abc import Sequence

import reverb
from reverb import errors
from reverb.adapters.tf_agents.frame_observer import FrameObserver, Priority
from reverb.adapters.tf_agents.observer import at_least_one

__all__ = ["ReverbAddEpisodeObserver"]

_LOGGER = logging.getLogger(__name__)


class ReverbAddEpisodeObserver(FrameObserver):
    """Writes every episode as one item, with the length of the episode.

    Called with each frame of one environment, without a batch dimension. The frame whose
    `step_type` is LAST is the last of the item; that call blocks until the item is confirmed. Only
    `reset` writes an unfinished episode. If an episode exceeds `max_sequence_length`, the call
    raises an `InvalidArgumentError`, or with `bypass_partial_episodes` logs an error. No frame of
    the episode is written, and the next episode begins after its boundary.

    Example:
      >>> import collections
      >>> from reverb.adapters.tf_agents import reverb_utils
      >>> Frame = collections.namedtuple("Frame", ["step_type", "observation"])
      >>> with reverb_utils.ReverbAddEpisodeObserver(client, "replay", 100) as observer:
      ...     for step_type in (0, 1, 2, 0, 2):
      ...         observer(Frame(step_type, np.zeros(4)))
      >>> [len(item.data[0]) for item in client.sample("replay", 1, emit_timesteps=False)]
      [3]
    """

    def __init__(
        self,
        py_client: reverb.Client,
        table_name: str | Sequence[str],
        max_sequence_length: int,
        priority: Priority = 1,
        bypass_partial_episodes: bool = False,
    ) -> None:
        """Makes and opens an observer.

        Blocks until the server has sent its tables' signatures.

        Args:
          py_client: The client to write through.
          table_name: The table or tables to write each episode to.
          max_sequence_length: Number of frames of the longest episode, which are kept in memory.
          priority: Priority of the items: a number, or a function of the episode, a nest of arrays
            `[T, ...]`. A function requires that the episode is decoded.
          bypass_partial_episodes: Skips longer episodes with a message in the log instead of
            raising an error.

        Raises:
          InvalidArgumentError: If `max_sequence_length` is below 1, or if the priority is not a
            number; a `ValueError`.
          UnknownTableError: If the server has no such table; a `KeyError`.
          UnavailableError: If no server answers.
        """
        self._max_sequence_length = at_least_one("max_sequence_length", max_sequence_length)
        self._bypasses = bool(bypass_partial_episodes)
        super().__init__(py_client, table_name, self._max_sequence_length, priority)

    def _start_episode(self) -> None:
        self._cached_steps = 0
        # Whether the rest of the episode is ignored.
        self._overflowed = False

    def _takes(self, is_last: bool) -> bool:
        if self._overflowed:
            self._overflowed = not is_last
            return False
        if self._cached_steps == self._max_sequence_length:
            self._overflow(is_last)
            return False
        return True

    def _appended(self, is_last: bool) -> None:
        self._cached_steps += 1
        if is_last:
            self._reset(writes=True)

    def _reset(self, writes: bool) -> None:
        try:
            if writes and self._cached_steps:
                self._write(self._cached_steps)
        finally:
            self._finish()

    def _overflow(self, is_last: bool) -> None:
        """Drops an episode that is too long."""
        self._finish()
        self._overflowed = not is_last
        message = (
            "The number of trajectories within the same episode exceeds `max_sequence_length` = "
            f"{self._max_sequence_length}; the episode is not written"
        )
        if self._bypasses:
            _LOGGER.error(message)
            return
        raise errors.InvalidArgumentError(
            f"{message}. Consider increasing the `max_sequence_length` or set "
            "`bypass_partial_episodes` to true to bypass the episodes with length more than "
            "`max_sequence_length`."
        )
