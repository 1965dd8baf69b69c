# SPDX-License-Identifier: Apache-2.0
"""Hindsight experience replay: transitions of episodes, with goals that were reached in them."""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from reverb._batches.episode_columns import EpisodeColumns
from reverb._checks.arguments import check_at_least, check_number
from reverb._checks.number_arrays import as_array
from reverb.errors import InvalidArgumentError
from reverb.replay_sample import ReplaySample
from reverb.shown_text import type_name

__all__ = ["hindsight"]

_STRATEGIES = ("future", "final", "episode")


def hindsight(
    batch: object,
    num_transitions: int,
    *,
    reward: Callable[[Any, Any, Any], Any],
    goal: str | tuple[Any, ...] | list[Any] = "desired_goal",
    achieved: str | tuple[Any, ...] | list[Any] = "achieved_goal",
    strategy: Literal["future", "final", "episode"] = "future",
    ratio: float = 0.8,
    seed: int | np.random.Generator | None = None,
) -> Any:
    """Draws transitions of a batch of episodes, and gives some of them goals that were reached.

    Each of the `N` transitions is a step of the batch, all steps with the same probability. The
    first `round(ratio * N)` of them are *relabelled*: their goal becomes one that their episode
    has reached, and their reward is computed again. Source: "Hindsight Experience Replay",
    arXiv:1707.01495.

    The *achieved goal* of a step is the one after it. Its column has the name `achieved` with
    `next_` before it, in it, or before the name of a nest around it: `next_achieved_goal`,
    `("next_observation", "achieved_goal")` as a recorder for Gymnasium writes it, or
    `("next", "achieved_goal")`. Goals are found in the same way; both, that of the observation and
    that of the next one, are replaced. No other column is: `terminated` and `discount` stay those
    of the step. If an episode ends at its goal, compute them from the reward.

    A goal may have several columns. If it is a nest, such as a dict with a position and an angle,
    the achieved goal is a nest with the same parts. If they are columns of their own, such as the
    goal for the reward and its encoding for the policy, pass two lists: `goal=["goal", "code"],
    achieved=["place", "place_code"]`. All parts of a new goal come from the same step.

    Calls no server, and changes no array of the batch.

    Example:
      >>> positions = np.arange(6.0, dtype=np.float32)
      >>> offsets = [0, 4, 6]  # Two episodes, which walk from 0 to 4 and from 4 to 6.
      >>> episodes = {
      ...     "position": reverb.Ragged(positions, offsets),
      ...     "next_position": reverb.Ragged(positions + 1, offsets),
      ...     "goal": reverb.Ragged(np.full(6, 99, np.float32), offsets),
      ... }
      >>> steps = reverb.hindsight(
      ...     episodes,
      ...     3,
      ...     reward=lambda achieved, goal, info: achieved == goal,
      ...     goal="goal",
      ...     achieved="position",
      ...     strategy="final",
      ...     ratio=1.0,
      ...     seed=2,
      ... )
      >>> for name, column in steps.items():
      ...     print(name, column)
      position [5. 1. 0.]
      next_position [6. 2. 1.]
      goal [6. 4. 4.]
      reward [1. 0. 0.]

    Args:
      batch: A batch of whole episodes, as `Client.sample_batch(table, B, ragged="packed",
        unpack_as_table_signature=True)` returns it, or its data: columns `[sum T, ...]` with the
        same offsets. A column that is a single step, `[B, ...]`, belongs to all steps of an
        episode.
      num_transitions: Number of transitions, `N`. They may repeat.
      reward: The function `reward(achieved, goal, info)` that computes the rewards `[K]`, or `[K,
        1]`, of `K` transitions at once, from the achieved goals `[K, ...]` and the new goals `[K,
        ...]`, as `compute_reward` of Gymnasium-Robotics does. It is called once, with the
        relabelled transitions; the others keep the rewards that the batch has. If the batch has no
        column `reward`, it is called with all transitions, and float32 `[N]` is added to the data.
        Goals of several columns are dicts by name, or tuples, of arrays `[K, ...]`; a list of
        columns is a tuple. `info` is the field `info` of the data, with rows `[K, ...]`; `{}` if
        there is none.
      goal: Name of the column with the goals, or of the nest of columns, the last one of its path;
        or its path, a tuple, if several have that name. The path of one part of a nest replaces
        this part alone. A list has a name or path for each part.
      achieved: Name of the column or nest with the achieved goals, its path, or a list, with the
        same parts as `goal`. A path of a column without `next` in it, and without a twin that has
        it, is taken as it is.
      strategy: Steps of the episode whose achieved goal may become the goal of a step. "future":
        this step and those after it. "final": the last one. "episode": any.
      ratio: Share of transitions that are relabelled, from 0 to 1. The paper's `k` goals for each
        transition are a ratio of `k / (k + 1)`.
      seed: A number, for the same draw each time; a generator, for one draw after another; `None`,
        for any draw.

    Returns:
      A nest like the data of the batch, of arrays `[N, ...]`. The relabelled transitions are the
      first ones.

    Raises:
      InvalidArgumentError: If `num_transitions` is below 1, `ratio` or `strategy` has another
        value, `batch` has no packed columns, columns of different lengths or no steps, if no column
        or more than one fits `goal` or `achieved`, if these have different parts, if one cannot
        take the values of the other, or if the rewards have another shape or dtype. The text names
        the columns that there are.
      TypeError: If an argument has another type.
    """
    count = check_at_least(1, "num_transitions", num_transitions)
    if not callable(reward):
        raise TypeError(
            f"reward must be a function of (achieved, goal, info), got {type_name(reward)}"
        )
    if strategy not in _STRATEGIES:
        raise InvalidArgumentError(
            f'strategy must be "future", "final" or "episode", got {strategy!r}'
        )
    if not 0.0 <= check_number("ratio", ratio) <= 1.0:
        raise InvalidArgumentError(f"ratio must be from 0 to 1, got {ratio!r}")
    columns = EpisodeColumns(batch.data if isinstance(batch, ReplaySample) else batch)
    goals, reached = columns.parts("goal", goal), columns.after("achieved", achieved)
    _check_parts(columns, goals, reached)
    rewards = columns.reward()

    random = _generator(seed)
    steps = random.integers(columns.num_steps, size=count)
    episodes = np.searchsorted(columns.offsets, steps, side="right") - 1
    num_relabelled = round(float(ratio) * count)
    first = slice(num_relabelled)
    rows = columns.all_rows(steps, episodes)
    others = _other_steps(random, strategy, columns.offsets, steps[first], episodes[first])
    for part, twins in goals.items():
        new = columns.rows(reached[part], others, episodes[first])
        for at in twins:
            _check_fit("achieved", columns.name(reached[part]), new, columns.name(at), rows[at])
            rows[at][first] = new

    num_rewards = count if rewards is None else num_relabelled
    found = np.zeros(0, np.float32)
    if num_rewards:
        # Copies, which the function may change.
        of_goal = {part: rows[columns.before(at)] for part, at in goals.items()}
        of_step = {part: rows[at] for part, at in reached.items()}
        made, wanted = (_first_rows(it, num_rewards) for it in (of_step, of_goal))
        found = as_array("reward", reward(made, wanted, columns.info(rows, num_rewards)))
    if rewards is None:
        return {**columns.nested(rows), "reward": _rewards(found, np.empty(count, np.float32))}
    rows[rewards][first] = _rewards(found, rows[rewards][first])
    return columns.nested(rows)


def _generator(seed: int | np.random.Generator | None) -> np.random.Generator:
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"seed must be a number of at least 0, a numpy.random.Generator or None, got {seed!r}"
        ) from None


def _other_steps(
    random: np.random.Generator,
    strategy: str,
    offsets: np.ndarray,
    steps: np.ndarray,
    episodes: np.ndarray,
) -> np.ndarray:
    """Draws a step `[K]` for each step, whose achieved goal becomes its goal."""
    ends = offsets[episodes + 1]
    if strategy == "final":
        return ends - 1
    return random.integers(steps if strategy == "future" else offsets[episodes], ends)


def _check_parts(
    columns: EpisodeColumns,
    goals: dict[tuple[Any, ...], list[int]],
    reached: dict[tuple[Any, ...], int],
) -> None:
    """Checks that each part of a goal has an achieved one, and no column is in two parts."""
    taken = [at for twins in goals.values() for at in twins]
    if goals.keys() != reached.keys():
        shown = [
            ", ".join(map(columns.name, found))
            for found in (map(columns.before, goals.values()), reached.values())
        ]
        raise InvalidArgumentError(
            f"goal and achieved must have the same parts; goal is {shown[0]}, and achieved is "
            f"{shown[1]}. Pass a list of columns for each, in the same order"
        )
    if both := set(taken) & set(reached.values()):
        raise InvalidArgumentError(
            f"goal and achieved must be different columns, got {columns.name(min(both))} in both"
        )
    if twice := [at for at in taken if taken.count(at) > 1]:
        raise InvalidArgumentError(
            f"goal must name a column once, got {columns.name(twice[0])} twice"
        )


def _first_rows(parts: dict[tuple[Any, ...], np.ndarray], count: int) -> object:
    """Returns copies of rows of columns by path, in dicts, or in tuples if they are numbered."""
    if () in parts:
        return parts[()][:count].copy()
    fields: dict[Any, dict[tuple[Any, ...], np.ndarray]] = {}
    for (name, *path), column in parts.items():
        fields.setdefault(name, {})[tuple(path)] = column
    nest = {name: _first_rows(of, count) for name, of in fields.items()}
    return tuple(nest.values()) if list(nest) == list(range(len(nest))) else nest


def _check_fit(argument: str, name: str, values: np.ndarray, goal: str, rows: np.ndarray) -> None:
    """Checks that achieved goals can be written to a column of goals."""
    if values.shape[1:] == rows.shape[1:] and _is_castable(values.dtype, rows.dtype):
        return
    raise InvalidArgumentError(
        f"{argument} must be a column with the shape and the kind of dtype of the goals; "
        f"{name} has steps of {values.dtype} {list(values.shape[1:])}, and {goal} of {rows.dtype} "
        f"{list(rows.shape[1:])}"
    )


def _rewards(found: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Returns computed rewards in the shape and dtype of their column, `[K, ...]`."""
    count = len(column)
    if not count:
        return column
    if found.shape[:1] != (count,) or found.size != math.prod(column.shape):
        raise InvalidArgumentError(
            f"reward must return a number for each of {count} transitions, [{count}], got shape "
            f"{list(found.shape)}; it gets arrays [{count}, ...], and is called once"
        )
    if not _is_castable(found.dtype, column.dtype):
        raise InvalidArgumentError(
            f"reward must return numbers that fit into {column.dtype}, the dtype of rewards, got "
            f"{found.dtype}"
        )
    return found.reshape(column.shape).astype(column.dtype)


def _is_castable(given: np.dtype, to: np.dtype) -> bool:
    return given == to or np.can_cast(given, to, "same_kind")
