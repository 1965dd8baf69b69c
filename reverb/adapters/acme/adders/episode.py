# SPDX-License-Identifier: Apache-2.0
"""The adder of whole episodes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from reverb import errors
from reverb.adapters.acme.adders import base, steps
from reverb.client import Client

if TYPE_CHECKING:
    import dm_env  # pyright: ignore[reportMissingImports]

__all__ = ["EpisodeAdder"]

# Makes the padding values `[...]` of a leaf from its shape and dtype.
PaddingFn = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]


class EpisodeAdder(steps.StepsAdder):
    """Writes each episode as one item, when it ends.

    Items are a `Step` with leaves `[T, ...]`, where `T` is the number of observations. If an
    episode would exceed `max_sequence_length` observations, `add` raises an `InvalidArgumentError`
    and adds nothing.

    Example:
      >>> import dm_env
      >>> adder = EpisodeAdder(client, max_sequence_length=100, priority_fns={"table": None})
      >>> adder.add_first(dm_env.restart(np.zeros(4)))
      >>> for action in range(3):
      ...     adder.add(action, dm_env.transition(reward=1.0, observation=np.ones(4)))
      >>> adder.add(3, dm_env.termination(reward=1.0, observation=np.ones(4)))
    """

    def __init__(
        self,
        client: Client,
        max_sequence_length: int,
        delta_encoded: bool = False,
        priority_fns: base.PriorityFnMapping | None = None,
        max_in_flight_items: int | None = 1,
        padding_fn: PaddingFn | None = None,
        chunk_length: int | None = None,
    ) -> None:
        """Makes an adder.

        Args:
          client: Client of the server with the tables.
          max_sequence_length: Maximum number of observations in an episode, at least 2.
          delta_encoded: Ignored, as in Acme.
          priority_fns: See `ReverbAdder`.
          max_in_flight_items: See `ReverbAdder`.
          padding_fn: Makes values to pad shorter episodes, so that `T` is always
            `max_sequence_length`. It is called once per leaf at the end of an episode, with the
            shape `[...]` and the dtype. `None`: items differ in length.
          chunk_length: Ignored: the writer chooses it.

        Raises:
          InvalidArgumentError: If a number is out of its range.
        """
        del chunk_length
        if max_sequence_length < 2:
            raise errors.InvalidArgumentError(
                "max_sequence_length must be at least 2, an episode's first observation and its "
                f"last, got {max_sequence_length}"
            )
        super().__init__(
            client=client,
            max_sequence_length=max_sequence_length,
            max_in_flight_items=max_in_flight_items,
            delta_encoded=delta_encoded,
            priority_fns=priority_fns,
        )
        self._padding_fn = padding_fn

    def _add(self, action: Any, next_timestep: "dm_env.TimeStep", extras: Any) -> None:
        # Complete steps, the new step, and the observation after it.
        if self._num_steps + 2 > self._max_sequence_length:
            raise errors.InvalidArgumentError(
                "The number of observations within the same episode will exceed "
                f"max_sequence_length = {self._max_sequence_length} with the addition of this "
                "transition. Call reset() to abandon the episode, or raise max_sequence_length."
            )
        super()._add(action, next_timestep, extras)

    def _write(self) -> None:
        pass  # Writes only at the end of the episode.

    def _write_last(self) -> None:
        if self._padding_fn is not None:
            self._pad(self._max_sequence_length - self._num_steps, self._padding_fn)
        self._create_sequence(self._num_steps)
