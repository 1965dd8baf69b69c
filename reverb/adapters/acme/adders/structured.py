# SPDX-License-Identifier: Apache-2.0
"""The adder over a structured writer, which makes items wherever a pattern applies."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tree

from reverb import errors
from reverb import structured_writer as sw
from reverb.adapters.acme import n_step_returns
from reverb.adapters.acme.adders import base
from reverb.adapters.acme.adders.sequence import EndBehavior
from reverb.adapters.acme.types import Transition
from reverb.client import Client

__all__ = [
    "SequencePattern",
    "StructuredAdder",
    "create_n_step_transition_config",
    "create_sequence_config",
    "create_step_spec",
    "n_step_from_trajectory",
]

# Makes the pattern of a sequence from a step and the number of steps.
SequencePattern = Callable[[Any, int], Any]


class StructuredAdder(base.ReverbAdder):
    """Writes the items that configs define.

    Steps are written unchanged, so configs can make arbitrary items of them. The priority of an
    item is that of its config. `reset` also writes the items that are due at the end of an episode.

    Example:
      >>> import dm_env
      >>> environment_spec = (np.zeros(4), np.int64, np.float64, np.float64)
      >>> step_spec = create_step_spec(environment_spec)
      >>> configs = create_n_step_transition_config(step_spec, n_step=2, table="table")
      >>> adder = StructuredAdder(client, 5, configs, step_spec)
      >>> adder.add_first(dm_env.restart(np.zeros(4)))
      >>> for action in range(3):
      ...     adder.add(action, dm_env.transition(reward=1.0, observation=np.ones(4)))
    """

    def __init__(
        self,
        client: Client,
        max_in_flight_items: int | None,
        configs: Sequence[Any],
        step_spec: Any,
    ) -> None:
        """Makes an adder.

        Args:
          client: Client of the server with the tables.
          max_in_flight_items: See `ReverbAdder`.
          configs: Configs of `reverb.structured.create_config`, `create_sequence_config` or
            `create_n_step_transition_config`.
          step_spec: Nest of specs of a step; see `create_step_spec`.

        Raises:
          InvalidArgumentError: If there is no config, or if the configs of a table do not match
            each other or the step.
        """
        super().__init__(
            client=client, max_sequence_length=1, max_in_flight_items=max_in_flight_items
        )
        if not configs:
            raise errors.InvalidArgumentError("configs must hold at least one config, got none")
        by_table = collections.defaultdict(list)
        for config in configs:
            by_table[config.table].append(config)
        for table, table_configs in by_table.items():
            try:
                sw.infer_signature(table_configs, step_spec)
            except (ValueError, IndexError) as error:
                raise errors.InvalidArgumentError(
                    f"The configs of table {table} have no common signature: {error}"
                ) from error
        self._configs = tuple(configs)
        absent: Any = tree.map_structure(lambda _: None, step_spec)
        self._absent = base.Step(*absent)

    def add_priority_table(self, table_name: str, priority_fn: base.PriorityFn | None) -> None:
        """Not supported: the configs name the tables.

        Raises:
          UnimplementedError: Always.
        """
        raise errors.UnimplementedError(
            f"a StructuredAdder gets its tables from its configs: add a config for {table_name}"
        )

    def _make_writer(self) -> sw.StructuredWriter:
        return self._client.structured_writer(self._configs)

    def _append(self, fields: dict[str, Any], *, is_open: bool) -> None:
        self._writer.append(self._absent._replace(**fields), partial_step=is_open)
        if self._max_in_flight_items is not None:
            self._writer.flush(self._max_in_flight_items)

    def _write(self) -> None:
        pass  # The writer makes the items.

    _write_last = _write


def create_step_spec(environment_spec: Any, extras_spec: Any = ()) -> base.Step:
    """Returns the specs of a step, for `StructuredAdder` and the functions that make configs.

    Args:
      environment_spec: An `EnvironmentSpec`, of this package or of Acme.
      extras_spec: Nest of specs of the `extras` of `add`.
    """
    return base.ReverbAdder.signature(environment_spec, extras_spec)


def _last_n(step_spec: Any, n: int) -> Any:
    step = sw.create_reference_step(step_spec)
    return tree.map_structure(lambda column: column[-n:], step)


def create_sequence_config(
    step_spec: base.Step,
    sequence_length: int,
    period: int,
    table: str = base.DEFAULT_PRIORITY_TABLE,
    end_of_episode_behavior: EndBehavior = EndBehavior.TRUNCATE,
    sequence_pattern: SequencePattern = _last_n,
) -> list[Any]:
    """Makes configs for the items of a `SequenceAdder`.

    Args:
      step_spec: See `create_step_spec`.
      sequence_length: See `SequenceAdder`.
      period: See `SequenceAdder`.
      table: Name of the table.
      end_of_episode_behavior: `TRUNCATE` or `WRITE`.
      sequence_pattern: Makes the pattern of a sequence from `step_spec` and its length; default:
        all columns of the last steps.

    Returns:
      List of configs.

    Raises:
      InvalidArgumentError: If a number is out of its range, or the behavior is not an
        `EndBehavior`.
      UnimplementedError: If a structured writer does not support the behavior.
    """
    for argument, value in (("sequence_length", sequence_length), ("period", period)):
        if value < 1:
            raise errors.InvalidArgumentError(f"{argument} must be at least 1, got {value}")
    if not isinstance(end_of_episode_behavior, EndBehavior):
        raise errors.InvalidArgumentError(
            "end_of_episode_behavior must be an instance of EndBehavior, received "
            f"{end_of_episode_behavior!r}"
        )
    if end_of_episode_behavior in (EndBehavior.ZERO_PAD, EndBehavior.CONTINUE):
        raise errors.UnimplementedError(
            f"a structured writer does not support {end_of_episode_behavior}: use TRUNCATE or "
            "WRITE, or a SequenceAdder"
        )

    def config(length: int, *conditions: Any) -> Any:
        return sw.create_config(sequence_pattern(step_spec, length), table, conditions)

    step, at_end = sw.Condition.step_index(), sw.Condition.is_end_episode()
    # The index of the last step of a sequence.
    last = sequence_length - 1
    configs = [config(sequence_length, step >= last, step % period == last % period)]
    if end_of_episode_behavior is EndBehavior.WRITE:
        # At these steps the first config has written the sequence.
        configs.append(
            config(sequence_length, at_end, step >= last, step % period != last % period)
        )
        return configs
    for length in range(1, sequence_length):
        configs.append(config(length, at_end, step == length - 1))
        num_missing = sequence_length - length
        if num_missing < period:
            configs.append(
                config(
                    length,
                    at_end,
                    step >= sequence_length,
                    step % period == (last - num_missing) % period,
                )
            )
    return configs


def create_n_step_transition_config(
    step_spec: base.Step, n_step: int, table: str = base.DEFAULT_PRIORITY_TABLE
) -> list[Any]:
    """Makes configs for the items of an `NStepTransitionAdder`, with rewards that are not summed.

    An item of `k` steps is a `Step` with the first and the last observation `[2, ...]`, the first
    action, start of episode and extras `[1, ...]`, and all rewards and discounts `[k, ...]`.
    `n_step_from_trajectory` converts it to a transition.

    Args:
      step_spec: See `create_step_spec`.
      n_step: Number of steps of a transition, at least 1; fewer at both ends of an episode.
      table: Name of the table.

    Returns:
      List of configs.

    Raises:
      InvalidArgumentError: If `n_step` is below 1.
    """
    if n_step < 1:
        raise errors.InvalidArgumentError(f"n_step must be at least 1, got {n_step}")

    def config(num_steps: int, *conditions: Any) -> Any:
        step = sw.create_reference_step(step_spec)
        first, every = slice(-num_steps - 1, -num_steps), slice(-num_steps - 1, -1)
        both_ends = slice(-num_steps - 1, None, num_steps)
        wanted = {"observation": both_ends, "reward": every, "discount": every}
        pattern = base.Step(
            **{
                field: tree.map_structure(
                    lambda column, field=field: column[wanted.get(field, first)], columns
                )
                for field, columns in step._asdict().items()
            }
        )
        return sw.create_config(pattern, table, conditions)

    step, at_end = sw.Condition.step_index(), sw.Condition.is_end_episode()
    shorter = range(1, n_step)
    return [
        *(config(num_steps, step == num_steps) for num_steps in shorter),
        config(n_step, step >= n_step),
        *(config(num_steps, at_end, step > num_steps) for num_steps in reversed(shorter)),
    ]


def n_step_from_trajectory(
    trajectory: base.Step, agent_discount: float, *, time_axis: int = 0
) -> Transition:
    """Converts an item of `create_n_step_transition_config` to a transition.

    Works with NumPy and JAX, also inside `jax.jit`. The number of steps is that of the rewards.

    Args:
      trajectory: A `Step` with a time axis.
      agent_discount: The agent's discount, a number.
      time_axis: 0 for items `[T, ...]`, 1 for batches `[B, T, ...]`.

    Returns:
      A `Transition` with leaves `[...]`, or `[B, ...]`.
    """

    def at(index: int) -> Callable[[Any], Any]:
        return lambda leaf: leaf[(slice(None),) * time_axis + (index,)]

    structure, pairs = n_step_returns.broadcast_nests(trajectory.reward, trajectory.discount)
    results = []
    for reward, discount in pairs:
        num_steps = reward.shape[time_axis]
        results.append(
            n_step_returns.n_step_return(
                [at(i)(reward) for i in range(num_steps)],
                [at(i)(discount) for i in range(num_steps)],
                np.result_type(reward.dtype, discount.dtype).type(agent_discount),
            )
        )
    return Transition(
        observation=tree.map_structure(at(0), trajectory.observation),
        action=tree.map_structure(at(0), trajectory.action),
        reward=tree.unflatten_as(structure, [result[0] for result in results]),
        discount=tree.unflatten_as(structure, [result[1] for result in results]),
        next_observation=tree.map_structure(at(-1), trajectory.observation),
        extras=tree.map_structure(at(0), trajectory.extras),
    )
