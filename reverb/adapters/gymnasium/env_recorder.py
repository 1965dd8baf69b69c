# SPDX-License-Identifier: Apache-2.0
"""A wrapper of one environment that records its steps in a table."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import reverb
from reverb import errors
from reverb._recording.checks import check_choice
from reverb._recording.items import Items, Transitions
from reverb._recording.nests import check_space, map_nest
from reverb._recording.step_writer import Priority
from reverb._recording.waiting import Stop, Waiting
from reverb.adapters.gymnasium import autoreset
from reverb.adapters.gymnasium.checks import as_row
from reverb.adapters.gymnasium.frame_stacks import check_frame_stack
from reverb.adapters.gymnasium.library import gymnasium
from reverb.adapters.gymnasium.space_values import as_rows, dtypes_of
from reverb.adapters.gymnasium.step_recorder import StepRecorder

__all__ = ["EnvRecorder"]

ALL = np.ones(1, np.bool_)


class EnvRecorder(gymnasium.Wrapper):
    """Records the steps of one environment in a table.

    The items are those of `Recorder`. An environment below `gymnasium.wrappers.Autoreset` resets in
    the step after the end of an episode; the program must reset any other environment.

    Example:
      >>> import gymnasium
      >>> from reverb.adapters.gymnasium import EnvRecorder, Transitions
      >>> env = gymnasium.make("CartPole-v1")
      >>> env = EnvRecorder(env, client, tables="replay", items=Transitions(n_step=1))
      >>> observation, info = env.reset(seed=1)
      >>> observation, *_ = env.step(0)
      >>> env.flush()
      >>> client.server_info()["replay"].current_size
      1
      >>> env.close()
    """

    def __init__(
        self,
        env: Any,
        client: reverb.Client,
        tables: str | Mapping[str, Priority | None],
        items: Items = Transitions(),  # noqa: B008 - it is frozen
        frame_stack: int | None = None,
        autoreset_mode: Any = None,
        priority: Priority = 1.0,
        keep_infos: Iterable[str] | Mapping[str, Any] = (),
        extras: Iterable[str] | None = None,
        *,
        max_unconfirmed_items: int | None = None,
        stop: Stop | None = None,
        step_timeout_s: float | None = None,
    ) -> None:
        """Wraps an environment.

        Blocks until the server has sent its tables' signatures.

        Args:
          env: A `gymnasium.Env`.
          client: As in `Recorder`.
          tables: As in `Recorder`.
          items: As in `Recorder`.
          frame_stack: As in `Recorder`.
          autoreset_mode: "NextStep" or "Disabled"; `None`: "NextStep" below the wrapper
            `Autoreset`, else "Disabled".
          priority: As in `Recorder`; a function gets arrays `[1, ...]`.
          keep_infos: As in `Recorder`, without a dimension for environments.
          extras: As in `Recorder`.
          max_unconfirmed_items: As in `Recorder`, for one environment.
          stop: As in `Recorder`.
          step_timeout_s: As in `Recorder`.

        Raises:
          InvalidArgumentError: As in `Recorder`.
          TableNotFoundError: If the server has no such table.
          UnavailableError: If no server answers.
        """
        super().__init__(env)
        mode = getattr(autoreset_mode, "value", autoreset_mode)
        if mode is None:
            mode = autoreset.NEXT_STEP if _resets_itself(env) else autoreset.DISABLED
        check_choice("autoreset_mode", mode, (autoreset.NEXT_STEP, autoreset.DISABLED))
        self._mode = mode
        check_space("observation_space", env.observation_space)
        check_space("action_space", env.action_space)
        check_frame_stack(env, frame_stack)
        self._keep_infos = tuple(keep_infos)
        self._observation_dtypes = dtypes_of(env.observation_space)
        self._action_dtypes = dtypes_of(env.action_space)
        self._steps = StepRecorder(
            client,
            tables,
            items,
            1,
            env.observation_space,
            env.action_space,
            frame_stack,
            priority,
            keep_infos,
            extras,
            max_unconfirmed_items,
            Waiting(stop, step_timeout_s),
        )
        self._ended = False

    @property
    def num_dropped_episodes(self) -> int:
        """Number of episodes that are in no item; see `Sequences` and `Episodes`."""
        return self._steps.num_dropped_episodes

    def extras(self, **values: Any) -> None:
        """Gives values that belong to the action of the next `step`.

        Args:
          **values: Arrays `[...]`, or nests of them, of the same names in each step.

        Raises:
          InvalidArgumentError: If a name is that of another column, or was missing in the first
            step.
        """
        self._steps.give({name: map_nest(_as_row, value) for name, value in values.items()})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets the environment. An episode that has not ended is interrupted, as in `Recorder`.

        Args:
          seed: As in the environment.
          options: As in the environment.

        Returns:
          The result of the environment's own `reset`.

        Raises:
          InvalidArgumentError: As in `Recorder`.
          ReverbError: If the connection failed permanently.
        """
        observation, info = self.env.reset(seed=seed, options=options)
        self._steps.begin(as_rows(self._observation_dtypes, observation, "observation"), ALL)
        self._ended = False
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Makes a step and records it.

        Blocks while more than `max_unconfirmed_items` items are unconfirmed, `stop` is not set and
        `step_timeout_s` has not passed.

        Args:
          action: The action.

        Returns:
          The result of the environment's own `step`.

        Raises:
          DeadlineExceededError: As in `Recorder`.
          FailedPreconditionError: If the episode has ended and the environment does not reset
            itself. Nothing was done.
          InvalidArgumentError: As in `Recorder`; the reward and the flags are numbers, or arrays
            of shape `[1]`.
          SignatureMismatchError: As in `Recorder`.
          ReverbError: If the connection failed permanently.
        """
        if self._steps.is_over:
            return self.env.step(action)
        self._steps.check_next_step()
        if self._ended and self._mode == autoreset.DISABLED:
            raise errors.FailedPreconditionError(
                "the episode has ended; call reset() before step()"
            )
        return self._steps.recorded(
            lambda: self.env.step(action), functools.partial(self._record, action)
        )

    def flush(self) -> None:
        """Blocks until the server has confirmed all items; once `stop` is set for at most 2 s."""
        self._steps.flush()

    def close(self) -> None:
        """Interrupts the episode, waits for at most 10 s until the items are confirmed, closes.

        Once `stop` is set it waits for at most 2 s, and the log counts the items that are not
        confirmed.

        Raises:
          DeadlineExceededError: If some items were not confirmed; the environment is closed.
        """
        try:
            self._steps.close()
        finally:
            super().close()

    def __exit__(self, exc_type: type[BaseException] | None = None, *exc: object) -> bool:
        """Closes. After an exception in the block it flushes as a writer does.

        That is for 2 s at most, and not after a `ReverbError`, a `KeyboardInterrupt` and the like.
        """
        if exc_type is None:
            self.close()
            return False
        try:
            self._steps.leave(exc_type)
        finally:
            super().close()
        return False

    def _record(
        self,
        action: Any,
        observation: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        info: dict[str, Any],
    ) -> None:
        had_ended = np.array([self._ended])
        flags = as_row("terminated", terminated, 1), as_row("truncated", truncated, 1)
        is_terminated, is_truncated = (flag.astype(np.bool_, copy=False) for flag in flags)
        self._ended = bool(is_terminated | is_truncated)
        self._steps.step(
            as_rows(self._observation_dtypes, observation, "observation"),
            as_rows(self._action_dtypes, action, "action"),
            as_row("reward", reward, 1).astype(np.float64, copy=False),
            is_terminated,
            is_truncated,
            np.array([self._ended]),
            {key: _as_row(info[key]) for key in self._keep_infos if key in info},
            begins=autoreset.rows_that_begin(self._mode, had_ended),
        )


def _as_row(value: Any) -> np.ndarray:
    return np.asarray(value)[np.newaxis]


def _resets_itself(env: Any) -> bool:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.Autoreset):
            return True
        env = env.env
    return False
