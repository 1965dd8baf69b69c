# SPDX-License-Identifier: Apache-2.0
"""The common part of both recorders: the steps of `B` environments, and their items."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

import reverb
from reverb import errors
from reverb._recording import item_makers, nests
from reverb._recording.item_columns import COLUMNS, ItemColumns
from reverb._recording.items import Items
from reverb._recording.step_writer import Priority, StepWriter
from reverb._recording.waiting import SERVER_IS_GONE, Waiting
from reverb.adapters.gymnasium import space_values
from reverb.adapters.gymnasium.infos import KeptInfos

__all__ = ["StepRecorder"]


class StepRecorder:
    """Records steps as rows, and makes items. Most arguments are those of `Recorder`.

    A row has a step's action and outcome. The first row of an episode has its first observation and
    zeros. See `ItemColumns`. The spaces are those of one environment; without `extras`, their names
    are those that the program gives with the first step.
    """

    def __init__(
        self,
        client: reverb.Client,
        tables: str | Mapping[str, Priority | None],
        items: Items,
        num_envs: int,
        observation_space: Any,
        action_space: Any,
        frame_stack: int | None,
        priority: Priority,
        keep_infos: Iterable[str] | Mapping[str, Any],
        extras: Iterable[str] | None,
        max_unconfirmed_items: int | None,
        waiting: Waiting,
    ) -> None:
        self._num_envs = num_envs
        self._infos = KeptInfos(keep_infos, num_envs)
        self._extras = None if extras is None else _names("extras", extras)
        _check_names("keep_infos", self._infos.keys)
        _check_names("extras", self._extras or ())
        self._frame_stack = frame_stack
        num_rows = item_makers.num_rows(items, frame_stack)
        self._writer = StepWriter(
            client, tables, priority, num_envs, num_rows, max_unconfirmed_items, waiting
        )
        self._maker = item_makers.make_item_maker(items, self._writer, self._columns)
        self._given: dict[str, Any] = {}
        self._observation_dtypes = space_values.dtypes_of(observation_space)
        self._action_dtypes = space_values.dtypes_of(action_space)
        self._first_row = {
            "action": nests.map_space(
                lambda space: np.zeros((num_envs, *space.shape), space.dtype), action_space
            ),
            "reward": np.zeros(num_envs, np.float32),
            "discount": np.zeros(num_envs, np.float32),
            "terminated": np.zeros(num_envs, np.bool_),
            "truncated": np.zeros(num_envs, np.bool_),
        }
        self._row: dict[str, Any] = {}
        self._item_columns: ItemColumns | None = None
        # Number of steps in each episode; -1: no episode has begun.
        self._steps = np.full(num_envs, -1)
        self._all_begun = False
        # True once the run has ended and no server takes steps.
        self.is_over = self._writer.has_no_run

    @property
    def num_dropped_episodes(self) -> int:
        """Number of episodes that are in no item because of their length."""
        return self._maker.num_dropped_episodes

    def give(self, values: Mapping[str, Any]) -> None:
        """Sets the extras of the next step, arrays `[B, ...]`.

        Raises:
          InvalidArgumentError: If a name is a column already, or is not one of `extras`.
        """
        if self._extras is not None and not self._extras >= values.keys():
            unknown = sorted(values.keys() - self._extras)
            raise errors.InvalidArgumentError(
                f"extras has no {unknown}; its names are {sorted(self._extras)}, and cannot change "
                "after the first step"
            )
        _check_names("extras", [*values, *self._infos.keys])
        # A copy, because the program may reuse its arrays.
        given = nests.map_nest(lambda leaf: np.array(leaf), dict(values))
        for name, value in given.items():
            nests.map_nest(lambda leaf, name=name: self._check_rows(name, leaf), value)
        self._given |= given

    def begin(self, observation: Any, where: np.ndarray) -> None:
        """Begins episodes with these observations, `[B, ...]`, of the selected environments.

        An episode that has not ended is interrupted: it ends with its last step, which is neither
        a termination nor a truncation.

        Raises:
          InvalidArgumentError: If an observation does not match the space. No episode has begun
            then.
        """
        if self.is_over:
            return
        try:
            self._begin(observation, where)
        except SERVER_IS_GONE as error:
            self._end_without_server(error)

    def check_next_step(self) -> None:
        """Checks that the environments may make a step.

        Raises:
          FailedPreconditionError: If one has no episode, or the recorder is closed.
          InvalidArgumentError: If extras are missing, or if an episode would be too long.
        """
        if self._writer.closed:
            raise errors.FailedPreconditionError("the recorder is closed: it records no more steps")
        if not self._all_begun and self._steps.min() < 0:
            raise errors.FailedPreconditionError(
                f"environment {np.flatnonzero(self._steps < 0)[0]} has no episode; call reset() "
                "before the first step(), and after one that failed"
            )
        self._all_begun = True
        if self._extras is None:
            self._extras = frozenset(self._given)
        if self._given.keys() != self._extras:
            raise errors.InvalidArgumentError(
                f"extras of this step lack {sorted(self._extras - self._given.keys())}; call "
                "extras(...) with all of them before each step"
            )
        self._maker.check_next_step(self._steps)

    def step(
        self,
        observation: Any,
        actions: Any,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        ended: np.ndarray,
        infos: Mapping[str, Any],
        begins: np.ndarray | None = None,
        final_infos: np.ndarray | None = None,
    ) -> None:
        """Records one step of all environments: nests of arrays `[B, ...]`, numbers `[B]`.

        The observation is copied. Environments in `begins` began an episode instead of making a
        step; those in `final_infos` have infos in `final_info`. `None`: none.

        Raises:
          InvalidArgumentError: If an observation or an action does not match its space. Nothing was
            recorded.
        """
        observation = space_values.of_dtypes(self._observation_dtypes, observation, "observation")
        action = space_values.of_dtypes(self._action_dtypes, actions, "action")
        reward, discount = self._maker.sums(rewards, terminated)
        row = {
            "observation": observation,
            "action": action,
            "reward": reward,
            "discount": discount,
            "terminated": terminated,
            "truncated": truncated,
        }
        if self._infos.keys:
            row |= self._infos.of_step(infos, final_infos)
        if self._given:
            row |= self._taken_extras()
        self._writer.append(row)
        self._row = row
        self._steps += 1
        if begins is not None:
            self._steps[begins] = 0
        self._maker.after_step(row, self._steps)
        if np.count_nonzero(ended):  # Faster than `any()`.
            self._end(ended, interrupted=False)

    def recorded(self, make_step: Callable[[], Any], record: Callable[..., None]) -> Any:
        """Makes a step of the environment, and records its result, which it returns.

        Blocks while too many items are unconfirmed. `record` is called with the parts of the
        result.

        Raises:
          DeadlineExceededError: After the time of `Waiting`; its `result` is that of the step.
          ReverbError: If the connection failed permanently; a step is lost.
        """
        try:
            result = make_step()
            try:
                record(*result)
            except SERVER_IS_GONE as error:
                self._end_without_server(error)
                return result
        except BaseException:
            self._lose_step()
            raise
        try:
            self._writer.settle()
        except errors.DeadlineExceededError as error:
            error.result = result
            raise
        except BaseException:
            self._lose_step()
            raise
        return result

    def _lose_step(self) -> None:
        """Marks that a step is missing. No item may span it, so the next call must be `reset`."""
        self._steps[:] = -1
        self._all_begun = False

    def _end_without_server(self, error: errors.ReverbError) -> None:
        """Ends the record, if the run has ended; otherwise raises the error.

        From then on `is_over` is true, and the environment is not recorded any more.
        """
        if not self._writer.is_stopped:
            raise error
        self.is_over = True

    def flush(self) -> None:
        """Blocks until all items are confirmed."""
        self._writer.flush()

    def close(self) -> None:
        """Interrupts the episodes, waits until the items are confirmed, and closes."""
        if self._writer.closed:
            return
        try:
            going = self._steps > 0
            if going.any() and not self.is_over:
                self._end(going, interrupted=True)
        except SERVER_IS_GONE as error:
            self._end_without_server(error)
        finally:
            self._writer.close()

    def leave(self, exc_type: type[BaseException]) -> None:
        """Closes at the end of a block that an exception has left."""
        try:
            going = self._steps > 0
            if not self._writer.closed and going.any() and issubclass(exc_type, Exception):
                # The program sees the exception that it raised, not one of here.
                with contextlib.suppress(Exception):
                    self._end(going, interrupted=True)
        finally:
            self._writer.leave(exc_type)

    def _begin(self, observation: Any, where: np.ndarray) -> None:
        interrupted = where & (self._steps > 0)
        if interrupted.any():
            self._end(interrupted, interrupted=True)
        rest = where & ~interrupted
        if rest.any():
            self._writer.end_episode(rest)
        self._steps[where], self._all_begun = -1, False
        observation = space_values.of_dtypes(
            self._observation_dtypes, observation, "observation", where
        )
        first_row = {"observation": observation} | self._first_row | self._infos.of_reset()
        self._writer.append(first_row, where)
        self._steps[where] = 0

    def _end(self, where: np.ndarray, interrupted: bool) -> None:
        """Ends episodes; the next rows of these environments begin new ones."""
        self._maker.at_end(self._row, self._steps, where, interrupted)
        self._writer.end_episode(where)
        self._steps[where] = 0

    def _taken_extras(self) -> dict[str, Any]:
        """Returns the extras of this step, and clears them for the next one."""
        given, self._given = self._given, {}
        for name in given.keys() - self._first_row.keys():
            self._first_row[name] = nests.map_nest(np.zeros_like, given[name])
        return given

    def _check_rows(self, name: str, array: np.ndarray) -> None:
        if array.shape[:1] != (self._num_envs,):
            raise errors.InvalidArgumentError(
                f"extras {name} must have a row for each of {self._num_envs} environments, got "
                f"shape {list(array.shape)}"
            )

    def _columns(self) -> ItemColumns:
        """The columns of items, which are known after the first step."""
        if self._item_columns is None:
            extras = sorted(self._extras or ())
            columns = ItemColumns(self._writer.history, self._frame_stack, extras, self._infos.keys)
            self._writer.name_columns(columns.paths)
            self._item_columns = columns
        return self._item_columns


def _names(argument: str, names: Iterable[str]) -> frozenset[str]:
    if isinstance(names, str):
        raise errors.InvalidArgumentError(f"{argument} must be a tuple of names, got {names!r}")
    return frozenset(names)


def _check_names(argument: str, names: Iterable[str]) -> None:
    names = list(names)
    for name in names:
        if name in COLUMNS or names.count(name) > 1:
            raise errors.InvalidArgumentError(
                f"{argument} has the name {name!r}, which another column already has"
            )
