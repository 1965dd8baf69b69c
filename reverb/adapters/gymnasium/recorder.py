# SPDX-License-Identifier: Apache-2.0
"""A wrapper of vector environments that records their steps in a table."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import reverb
from reverb import errors
from reverb._recording.items import Items, Transitions
from reverb._recording.nests import check_space
from reverb._recording.step_writer import Priority
from reverb._recording.waiting import Stop, Waiting
from reverb.adapters.gymnasium import autoreset
from reverb.adapters.gymnasium.checks import as_row
from reverb.adapters.gymnasium.frame_stacks import check_frame_stack
from reverb.adapters.gymnasium.library import gymnasium
from reverb.adapters.gymnasium.step_recorder import StepRecorder

__all__ = ["Recorder"]


class Recorder(gymnasium.vector.VectorWrapper):
    """Records the steps of a vector environment in a table.

    The wrapped environment behaves as before. Each environment has its own episodes, and no item
    has steps of two episodes, in all autoreset modes. An observation is stored once, even if it is
    the observation of one item, the next observation of another, and a frame of several stacks.

    Observations and actions have the dtypes of their spaces. `Transitions`, `Sequences` and
    `Episodes` document the columns of their items. Use `extras` to add columns with values of the
    program, such as the probability of the action, and `keep_infos` for values of the environment.
    `signature` makes the table's signature, so that samples have the names of the columns.

    Example:
      >>> import gymnasium
      >>> from reverb.adapters.gymnasium import Recorder, Transitions
      >>> envs = gymnasium.make_vec("CartPole-v1", num_envs=2)
      >>> envs = Recorder(envs, client, tables="replay", items=Transitions(n_step=1))
      >>> observations, infos = envs.reset(seed=1)
      >>> observations, *_ = envs.step(np.array([0, 1]))
      >>> envs.flush()
      >>> client.server_info()["replay"].current_size
      2
      >>> envs.close()
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
          env: A `gymnasium.vector.VectorEnv` with `B` environments.
          client: The client to write through.
          tables: A table's name; or a dict of names, each with the priority of its items, or `None`
            for `priority`. Every item is inserted into all of them.
          items: `Transitions`, `Sequences` or `Episodes`.
          frame_stack: Number of frames of an observation, `k`. The environment returns single
            frames, `[...]`; an observation of an item is `[k, ...]`, the oldest frame first. At the
            start of an episode, its first frame is repeated. In `Sequences` the frames of all steps
            are one column `[k - 1 + T, ...]`: those of step `t` are `[t : t + k]`. `None`: no
            stacks.
          autoreset_mode: A `gymnasium.vector.AutoresetMode`, or its value; `None`: that of
            `env.metadata["autoreset_mode"]`.
          priority: A number; "max", which is `reverb.MAX_PRIORITY`; or a function. It is called
            with the step that completes the items, a dict with `next_observation`, `action`,
            `reward`, `discount`, `terminated`, `truncated`, the extras and the infos, arrays `[B,
            ...]`, and returns numbers `[B]`.
          keep_infos: Names of infos that become columns, with the values of an item's last step.
            Pass a dict to choose the value that is stored when an environment does not report the
            info. Without a dict the value is 0, and the first step must report the info.
          extras: Names of the values that `extras` gives with each step; `None`: the names that it
            gives with the first step.
          max_unconfirmed_items: `step` blocks while more items are unconfirmed, for example because
            of a rate limiter; after 10 s the log says why. `None`: 64 for each environment.
          stop: The end of the run: anything with `is_set()`, such as an event of `threading` or
            `multiprocessing`. Once it is set, `step` does not wait any more and returns what the
            environment returned, `close` waits for at most 2 s, and neither fails for the lack of a
            server. Items are sent in the background until then. If it is set before the server has
            answered the constructor, nothing is recorded. `None`: the run has no end.
          step_timeout_s: How long `step` waits, in seconds; `None`: no limit.

        Raises:
          InvalidArgumentError: If the environment does not declare how it resets, if a space has no
            arrays, if both the environment and the recorder stack frames, or if an argument is out
            of its range.
          TableNotFoundError: If the server has no such table.
          UnavailableError: If no server answers.
        """
        super().__init__(env)
        self._mode = autoreset.mode_of(env, autoreset_mode)
        check_space("observation_space", env.single_observation_space)
        check_space("action_space", env.single_action_space)
        check_frame_stack(env, frame_stack)
        self._steps = StepRecorder(
            client,
            tables,
            items,
            env.num_envs,
            env.single_observation_space,
            env.single_action_space,
            frame_stack,
            priority,
            keep_infos,
            extras,
            max_unconfirmed_items,
            Waiting(stop, step_timeout_s),
        )
        # Environments whose episode has ended, and whose next episode has not begun.
        self._ended = np.zeros(env.num_envs, np.bool_)

    @property
    def num_dropped_episodes(self) -> int:
        """Number of episodes that are in no item; see `Sequences` and `Episodes`."""
        return self._steps.num_dropped_episodes

    def extras(self, **values: Any) -> None:
        """Gives values that belong to the actions of the next `step`.

        They become columns beside `action`. May be called more than once for a step.

        Args:
          **values: Arrays `[B, ...]`, or nests of them, of the same names in each step.

        Raises:
          InvalidArgumentError: If a name is that of another column, or was missing in the first
            step, or if an array does not have `B` rows.
        """
        self._steps.give(values)

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Resets the environments, or those that `options["reset_mask"]` selects.

        An episode that has not ended is interrupted: it ends with its last step, which is neither
        terminated nor truncated.

        Args:
          seed: As in the environment.
          options: As in the environment.

        Returns:
          The result of the environment's own `reset`.

        Raises:
          InvalidArgumentError: If a value does not fit into the dtype of its space; reset the
            environment again.
          ReverbError: If the connection failed permanently.
        """
        where = autoreset.rows_to_reset(self.num_envs, options)
        observation, infos = self.env.reset(seed=seed, options=options)
        self._steps.begin(observation, where)
        self._ended &= ~where
        return observation, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Makes a step of all environments and records it.

        Blocks while more than `max_unconfirmed_items` items are unconfirmed, `stop` is not set and
        `step_timeout_s` has not passed.

        Args:
          actions: The actions, `[B, ...]`.

        Returns:
          The result of the environment's own `step`.

        Raises:
          DeadlineExceededError: After `step_timeout_s`. The step is recorded, and `result` of the
            error is what the environment returned; continue with it, or call `reset`.
          FailedPreconditionError: If the mode is DISABLED and an environment has ended and was not
            reset; the text names it. Nothing was done.
          InvalidArgumentError: If extras are missing; nothing was done. If infos are missing, if a
            value does not fit into the dtype of its space, or if rewards or flags have another
            shape than `[B]`; the environment made its step, and must be reset.
          SignatureMismatchError: If the items do not match a table's signature. The environment
            made its step, and must be reset.
          ReverbError: If the connection failed permanently.
        """
        if self._steps.is_over:
            return self.env.step(actions)
        self._check_next_step()
        return self._steps.recorded(
            lambda: self.env.step(actions), functools.partial(self._record, actions)
        )

    def flush(self) -> None:
        """Blocks until the server has confirmed all items; once `stop` is set for at most 2 s."""
        self._steps.flush()

    def close(self, **kwargs: Any) -> None:
        """Interrupts the episodes, waits for at most 10 s until the items are confirmed, closes.

        Once `stop` is set it waits for at most 2 s, and the log counts the items that are not
        confirmed.

        Args:
          **kwargs: As in the environment.

        Raises:
          DeadlineExceededError: If some items were not confirmed; the environment is closed.
        """
        # Gymnasium 1.0 closes a wrapper when it is garbage-collected. If the constructor has
        # failed, the environment still belongs to the program.
        if "_steps" not in self.__dict__:
            return
        try:
            self._steps.close()
        finally:
            super().close(**kwargs)

    def _record(
        self,
        actions: Any,
        observation: Any,
        rewards: Any,
        terminations: Any,
        truncations: Any,
        infos: dict[str, Any],
    ) -> None:
        reward = as_row("rewards", rewards, self.num_envs)
        terminated = as_row("terminations", terminations, self.num_envs).astype(
            np.bool_, copy=False
        )
        truncated = as_row("truncations", truncations, self.num_envs).astype(np.bool_, copy=False)
        ended = terminated | truncated
        resets = self._mode == autoreset.SAME_STEP and np.count_nonzero(ended) > 0
        led_to = observation
        if resets:
            led_to = autoreset.with_final_observations(observation, infos, ended)
        self._steps.step(
            led_to,
            actions,
            reward,
            terminated,
            truncated,
            ended,
            infos,
            begins=autoreset.rows_that_begin(self._mode, self._ended),
            final_infos=ended if resets else None,
        )
        if resets:
            self._steps.begin(observation, ended)
        else:
            self._ended = ended

    def _check_next_step(self) -> None:
        self._steps.check_next_step()
        if self._mode == autoreset.DISABLED and self._ended.any():
            raise errors.FailedPreconditionError(
                f"environment {np.flatnonzero(self._ended)[0]} has ended and does not reset by "
                "itself; call reset(options={'reset_mask': terminated | truncated}) before step()"
            )
