# SPDX-License-Identifier: Apache-2.0
"""Observers that write sequences of a fixed number of frames."""

from collections.abc import Sequence

import reverb
from reverb import errors
from reverb.adapters.tf_agents.frame_observer import FrameObserver, Priority
from reverb.adapters.tf_agents.observer import at_least_one

__all__ = ["ReverbAddTrajectoryObserver", "ReverbTrajectorySequenceObserver"]


class ReverbAddTrajectoryObserver(FrameObserver):
    """Writes the last `sequence_length` frames as an item, every `stride_length` frames.

    Called with each frame of one environment, without a batch dimension. Items do not span two
    episodes: the frame whose `step_type` is LAST ends an episode, and the next item begins with the
    frame after it. The call with that frame blocks until the items of the episode are confirmed.

    Item `k` of an episode holds the frames `[k * stride_length, k * stride_length +
    sequence_length)`. At the end of an episode, items that would extend beyond it are

    * dropped by default;
    * with `pad_end_of_episodes`: the first of them is padded, if it has a frame that is in no other
      item, so that no frame is lost;
    * with `tile_end_of_episodes` too: all of them that begin with a frame of the episode are
      padded.

    A padding frame has step_type LAST, next_step_type FIRST and zeros everywhere else.

    `reset` ends an episode in the same way. Without padding it writes frames that are in no item as
    one more item of the newest `sequence_length` frames, regardless of the stride; if the episode
    is shorter, it raises an `InvalidArgumentError`. Frames that are skipped because the stride
    exceeds `sequence_length` are not written, and no item is written twice.

    Example:
      >>> import collections
      >>> from reverb.adapters.tf_agents import reverb_utils
      >>> Frame = collections.namedtuple("Frame", ["step_type", "observation", "next_step_type"])
      >>> with reverb_utils.ReverbAddTrajectoryObserver(client, "replay", 2) as observer:
      ...     for step_type in (0, 1, 1, 2):
      ...         observer(Frame(step_type, np.zeros(4), step_type + 1))
      >>> client.server_info()["replay"].current_size
      3
    """

    # Whether a boundary ends the episode.
    _cuts_at_boundaries = True

    def __init__(
        self,
        py_client: reverb.Client,
        table_name: str | Sequence[str],
        sequence_length: int,
        stride_length: int = 1,
        priority: Priority = 1,
        pad_end_of_episodes: bool = False,
        tile_end_of_episodes: bool = False,
    ) -> None:
        """Makes and opens an observer.

        Blocks until the server has sent its tables' signatures.

        Args:
          py_client: The client to write through.
          table_name: The table or tables to write each item to.
          sequence_length: Number of frames of an item.
          stride_length: Number of frames from the start of an item to that of the next. If it
            equals `sequence_length`, items do not overlap; if it is greater, the frames between
            them are skipped.
          priority: Priority of the items: a number, or a function of the item, a nest of arrays
            `[sequence_length, ...]`. A function requires that the item is decoded.
          pad_end_of_episodes: See the class.
          tile_end_of_episodes: See the class.

        Raises:
          InvalidArgumentError: If a length is below 1, if the priority is not a number, or if
            `tile_end_of_episodes` is set without `pad_end_of_episodes`; a `ValueError`.
          UnknownTableError: If the server has no such table; a `KeyError`.
          UnavailableError: If no server answers.
        """
        if tile_end_of_episodes and not pad_end_of_episodes:
            raise errors.InvalidArgumentError(
                "Must set `pad_end_of_episodes=True` when using `tile_end_of_episodes`"
            )
        self._sequence_length = at_least_one("sequence_length", sequence_length)
        self._stride_length = at_least_one("stride_length", stride_length)
        self._pads = bool(pad_end_of_episodes)
        self._tiles = bool(tile_end_of_episodes)
        super().__init__(py_client, table_name, self._sequence_length, priority)

    def _start_episode(self) -> None:
        # Number of frames of the episode so far, padding included.
        self._cached_steps = 0
        # Number of frames at which the next item is complete.
        self._next_end = self._sequence_length

    def _takes(self, is_last: bool) -> bool:
        return True

    def _appended(self, is_last: bool) -> None:
        try:
            self._count_frame()
        finally:
            if is_last and self._cuts_at_boundaries:
                self._end_episode(pads=self._pads)

    def _reset(self, writes: bool) -> None:
        if writes and not self._pads and self._has_tail():
            if self._cached_steps < self._sequence_length:
                raise errors.InvalidArgumentError(
                    "write_cached_steps is True, but not enough steps remain in the cache to write "
                    f"an item with sequence_length={self._sequence_length}, only "
                    f"{self._cached_steps}: consider enabling pad_end_of_episodes, or call "
                    "reset(write_cached_steps=False)"
                )
            self._write(self._sequence_length)
        self._end_episode(pads=writes and self._pads)

    def _count_frame(self) -> None:
        self._cached_steps += 1
        if self._cached_steps == self._next_end:
            self._next_end += self._stride_length
            self._write(self._sequence_length)

    def _has_tail(self) -> bool:
        """Whether the next item has begun with a frame that is in no item yet."""
        if self._next_end == self._sequence_length:
            return self._cached_steps > 0
        # A stride longer than the item skips the frames in between.
        return self._cached_steps > self._next_end - min(self._stride_length, self._sequence_length)

    def _end_episode(self, *, pads: bool) -> None:
        try:
            if pads and self._layout is not None:
                for _ in range(self._num_paddings()):
                    self._writer.append(self._layout.padding)
                    self._count_frame()
        finally:
            self._finish()

    def _num_paddings(self) -> int:
        if self._tiles:
            return self._sequence_length - 1 if self._cached_steps else 0
        return self._next_end - self._cached_steps if self._has_tail() else 0


class ReverbTrajectorySequenceObserver(ReverbAddTrajectoryObserver):
    """Like `ReverbAddTrajectoryObserver`, but items span the ends of episodes.

    The frames are one endless sequence: only `flush`, `reset` and `close` block, and only `reset`
    pads. If a rate limiter delays inserts, the queue of items grows without limit, unless one of
    these methods is called from time to time. A driver does not count boundary frames as steps: to
    get one item per `n` steps of a driver, add them to the stride.
    """

    _cuts_at_boundaries = False
