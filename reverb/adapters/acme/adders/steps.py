# SPDX-License-Identifier: Apache-2.0
"""The base of adders whose items are consecutive steps."""

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tree

from reverb.adapters.acme import specs
from reverb.adapters.acme.adders import base

if TYPE_CHECKING:
    import dm_env  # pyright: ignore[reportMissingImports]

__all__ = ["StepsAdder"]


class StepsAdder(base.ReverbAdder):
    """The base of adders whose items are a `Step` with a time axis `[T, ...]`.

    A row of the writer's history holds the arguments of one `add`: the outcome of a step and the
    observation after it. So a step is one call of the writer, and the observations of an item are
    one row before its actions, rewards and discounts.
    """

    _num_steps = 0
    _history: Any = None

    @classmethod
    def signature(
        cls, environment_spec: Any, extras_spec: Any = (), sequence_length: int | None = None
    ) -> Any:
        """Returns the signature of a table for sequences of an environment's steps.

        Args:
          environment_spec: An `EnvironmentSpec`, of this package or of Acme.
          extras_spec: Nest of specs of the `extras` of `add`.
          sequence_length: Number of steps `T`; `None`: items differ in length.

        Returns:
          A `Step` with leaves `reverb.specs.TensorSpec` of shape `[T, ...]`, or `tf.TensorSpec` if
          the program imported TensorFlow.
        """

        def leaf(path: tuple[Any, ...], value: Any) -> Any:
            return specs.tensor_spec(path, value, time_axis=(sequence_length,))

        step = base.Step(*environment_spec, start_of_episode=np.bool_, extras=extras_spec)
        return tree.map_structure_with_path(leaf, step)

    def _forget_steps(self) -> None:
        super()._forget_steps()
        self._num_steps = 0

    def _num_keep_alive_refs(self) -> int:
        return self._max_sequence_length + 1

    def _begin(self, observation: Any) -> None:
        # If the episode continues the previous sequence, `_finish` has left the row open.
        self._writer.append({"observation": observation, "start_of_episode": True})

    def _add(self, action: Any, next_timestep: "dm_env.TimeStep", extras: Any) -> None:
        row = {
            "observation": next_timestep.observation,
            "start_of_episode": False,
            "action": action,
            "reward": next_timestep.reward,
            "discount": next_timestep.discount,
        }
        if not base.is_empty(extras):
            row["extras"] = extras
        self._open_writer.append(row)  # pyright: ignore - made by `_begin`.
        self._num_steps += 1
        self._write()

    def _finish(self, action: Any, next_timestep: "dm_env.TimeStep", extras: Any) -> None:
        outcome = self._outcome(action, next_timestep, extras)
        self._close_step(tree.map_structure(base.zeros_like, outcome))
        self._write_last()

    def _close_step(self, outcome: Any) -> None:
        """Adds an outcome without an observation after it."""
        self._writer.append(outcome, partial_step=True)
        self._num_steps += 1

    def _pad(self, num_steps: int, fill: Callable[[tuple[int, ...], Any], np.ndarray]) -> None:
        """Adds padding steps; `fill` makes values of a leaf `[...]` from its shape and dtype."""
        history = self._writer.history
        step: Any = tree.map_structure(
            lambda column: fill(column.shape, column.dtype),
            # The newest observation is in the row before, the newest outcome in the open row.
            {
                name: tree.map_structure(operator.itemgetter(-1 - _is_early(name)), columns)
                for name, columns in history.items()
                if name != "start_of_episode"
            },
        )
        observation = {"observation": step.pop("observation"), "start_of_episode": False}
        for _ in range(num_steps):
            self._writer.append(observation)
            self._close_step(step)

    def _create_sequence(self, length: int) -> None:
        """Makes an item of the newest complete steps."""
        history = self._writer.history
        if history is not self._history:
            self._history = history
            self._step = base.Step(**({"extras": ()} | history))
            self._columns = [
                (column, _is_early(field))
                for field, columns in self._step._asdict().items()
                for column in tree.flatten(columns)
            ]
        early, late = slice(-length - 1, -1), slice(-length, None)
        self._create_items(
            self._step,
            [column[early if is_early else late] for column, is_early in self._columns],
        )


def _is_early(field: str) -> bool:
    """Whether the newest value of a field is in the row before the newest."""
    return field in ("observation", "start_of_episode")
