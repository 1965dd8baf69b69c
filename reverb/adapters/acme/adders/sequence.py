# SPDX-License-Identifier: Apache-2.0
"""The adder of sequences of one length."""

import enum
from typing import Any

import numpy as np

from reverb import errors
from reverb.adapters.acme.adders import base, steps
from reverb.client import Client

__all__ = ["EndBehavior", "SequenceAdder"]


class EndBehavior(enum.Enum):
    """How the last steps of an episode are written if they do not fill a sequence.

    With `sequence_length=3`, `period=2` and an episode with the observations 0 to 5, the items
    `0 1 2` and `2 3 4` are written during the episode. At its end follows:

    * WRITE: `3 4 5`, the last steps, whatever they overlap; nothing if the episode has fewer than 3
      observations.
    * CONTINUE: `4 5` and the first observation of the next episode.
    * ZERO_PAD: `4 5` and a step of zeros.
    * TRUNCATE: `4 5`.

    If the period exceeds the sequence length, the steps between two sequences are in no item, also
    at the end of an episode. (There, Acme's TRUNCATE fails or writes too much.)
    """

    WRITE = "write_buffer"
    CONTINUE = "continue_to_next_episode"
    ZERO_PAD = "zero_pad_til_next_write"
    TRUNCATE = "write_truncated_buffer"


class SequenceAdder(steps.StepsAdder):
    """Writes the last `sequence_length` steps, every `period` steps.

    Items are a `Step` with leaves `[sequence_length, ...]`.

    Example:
      >>> import dm_env
      >>> adder = SequenceAdder(client, sequence_length=3, period=2, priority_fns={"table": None})
      >>> adder.add_first(dm_env.restart(np.zeros(4)))
      >>> for action in range(3):
      ...     adder.add(action, dm_env.transition(reward=1.0, observation=np.ones(4)))
      >>> adder.add(3, dm_env.termination(reward=1.0, observation=np.ones(4)))
    """

    def __init__(
        self,
        client: Client,
        sequence_length: int,
        period: int,
        *,
        delta_encoded: bool = False,
        priority_fns: base.PriorityFnMapping | None = None,
        max_in_flight_items: int | None = 2,
        end_of_episode_behavior: EndBehavior | None = None,
        chunk_length: int | None = None,
        pad_end_of_episode: bool | None = None,
        break_end_of_episode: bool | None = None,
        validate_items: bool = True,
        get_signature_timeout_ms: int | None = None,
    ) -> None:
        """Makes an adder.

        Args:
          client: Client of the server with the tables.
          sequence_length: Number of steps of an item, at least 1.
          period: Number of steps from the start of an item to that of the next, at least 1.
          delta_encoded: Ignored, as in Acme.
          priority_fns: See `ReverbAdder`.
          max_in_flight_items: See `ReverbAdder`.
          end_of_episode_behavior: See `EndBehavior`; `None`: `ZERO_PAD`.
          chunk_length: Ignored: the writer chooses it.
          pad_end_of_episode: Deprecated. True: `ZERO_PAD`; False: `TRUNCATE`.
          break_end_of_episode: Deprecated. False: `CONTINUE`.
          validate_items: See `ReverbAdder`.
          get_signature_timeout_ms: See `ReverbAdder`.

        Raises:
          InvalidArgumentError: If a number is out of its range, or if the arguments about the end
            of an episode contradict each other.
        """
        del chunk_length
        for argument, value in (("sequence_length", sequence_length), ("period", period)):
            if value < 1:
                raise errors.InvalidArgumentError(f"{argument} must be at least 1, got {value}")
        self._end_of_episode_behavior = _end_behavior(
            end_of_episode_behavior, pad_end_of_episode, break_end_of_episode
        )
        super().__init__(
            client=client,
            max_sequence_length=sequence_length,
            max_in_flight_items=max_in_flight_items,
            delta_encoded=delta_encoded,
            priority_fns=priority_fns,
            validate_items=validate_items,
            get_signature_timeout_ms=get_signature_timeout_ms,
        )
        self._sequence_length = sequence_length
        self._period = period
        # The number of steps at which the next item is due.
        self._next_item = sequence_length
        self._is_between_episodes = False

    def reset(self, timeout_ms: int | None = None) -> None:
        """Abandons the episode in progress.

        Does nothing between two episodes if the next one continues the sequence.

        Args:
          timeout_ms: See `ReverbAdder.reset`.

        Raises:
          ReverbError: See `ReverbAdder.reset`.
        """
        if self._is_between_episodes and self._end_of_episode_behavior is EndBehavior.CONTINUE:
            self._add_first_called = False
            return
        super().reset(timeout_ms)

    def _forget_steps(self) -> None:
        super()._forget_steps()
        self._next_item = self._sequence_length
        self._is_between_episodes = False

    def _begin(self, observation: Any) -> None:
        super()._begin(observation)
        self._is_between_episodes = False

    def _write(self) -> None:
        if self._num_steps == self._next_item:
            self._create_sequence(self._sequence_length)
            self._next_item += self._period

    def _write_last(self) -> None:
        self._is_between_episodes = True
        behavior = self._end_of_episode_behavior
        if self._num_steps < self._next_item:
            if behavior is EndBehavior.ZERO_PAD:
                self._pad(self._next_item - self._num_steps, np.zeros)
            elif behavior is EndBehavior.TRUNCATE:
                num_missing = self._next_item - self._num_steps
                if num_missing < self._sequence_length:
                    self._create_sequence(self._sequence_length - num_missing)
            elif behavior is EndBehavior.WRITE and self._num_steps >= self._sequence_length:
                self._create_sequence(self._sequence_length)
        self._write()


def _end_behavior(behavior: Any, pad: bool | None, breaks: bool | None) -> EndBehavior:
    if pad and breaks is False:
        raise errors.InvalidArgumentError(
            "Can't set pad_end_of_episode=True and break_end_of_episode=False at the same time: an "
            "episode that continues in the next one is not padded."
        )
    if behavior is None:
        if breaks is False:
            return EndBehavior.CONTINUE
        return EndBehavior.TRUNCATE if pad is False else EndBehavior.ZERO_PAD
    if pad is not None or breaks is not None:
        raise errors.InvalidArgumentError(
            "Using end_of_episode_behavior and either pad_end_of_episode or break_end_of_episode "
            "is not permitted. Please use only end_of_episode_behavior instead."
        )
    if not isinstance(behavior, EndBehavior):
        raise errors.InvalidArgumentError(
            f"end_of_episode_behavior must be an instance of EndBehavior, received {behavior!r}"
        )
    return behavior
