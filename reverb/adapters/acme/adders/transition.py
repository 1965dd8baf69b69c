# SPDX-License-Identifier: Apache-2.0
"""The adder of transitions over one step or several."""

from typing import TYPE_CHECKING, Any

import numpy as np
import tree

from reverb import errors
from reverb.adapters.acme import n_step_returns, specs
from reverb.adapters.acme.adders import base
from reverb.adapters.acme.types import Transition
from reverb.client import Client

if TYPE_CHECKING:
    import dm_env  # pyright: ignore[reportMissingImports]

__all__ = ["NStepTransitionAdder"]


class NStepTransitionAdder(base.ReverbAdder):
    """Writes a transition after each step: from the observation `n` steps ago to the current one.

    With observations `s`, actions `a`, rewards `r`, discounts `d` and extras `e`, the item after
    step `t + n` is `Transition(s[t], a[t], R, D, s[t + n], e[t])`, where with the agent's discount
    `g`

        R = r[t] + g d[t] r[t+1] + ... + g^(n-1) d[t] ... d[t+n-2] r[t+n-1]
        D = g^(n-1) d[t] ... d[t+n-1]

    At the beginning of an episode it also writes transitions over fewer steps from the first
    observation, and at the end transitions over fewer steps to the last observation.

    Rewards and discounts may be nests. If one of them is a single array, it is used for each leaf
    of the other. Returns are computed by NumPy in the common dtype of rewards and discounts,
    float32 in most programs. (Acme computes returns in the rewards' dtype, which does not match its
    own signature if discounts have another dtype.)

    Example:
      >>> import dm_env
      >>> adder = NStepTransitionAdder(client, 5, discount=0.99, priority_fns={"table": None})
      >>> adder.add_first(dm_env.restart(np.zeros(4)))
      >>> for action in range(3):
      ...     adder.add(action, dm_env.transition(reward=1.0, observation=np.ones(4)))
      >>> adder.add(3, dm_env.termination(reward=1.0, observation=np.ones(4)))
    """

    def __init__(
        self,
        client: Client,
        n_step: int,
        discount: float,
        *,
        priority_fns: base.PriorityFnMapping | None = None,
        max_in_flight_items: int | None = 5,
        transition_type: type = Transition,
    ) -> None:
        """Makes an adder.

        Args:
          client: Client of the server with the tables.
          n_step: Number of steps of a transition, at least 1.
          discount: The agent's discount, a scalar or a nest of scalars like the rewards; rounded to
            float32, as in Acme.
          priority_fns: See `ReverbAdder`.
          max_in_flight_items: See `ReverbAdder`.
          transition_type: The class of the argument of priority functions, with the fields of
            `Transition`, for example `acme.types.Transition`.

        Raises:
          InvalidArgumentError: If a number is out of its range, or if `discount` is an array.
        """
        if n_step < 1:
            raise errors.InvalidArgumentError(f"n_step must be at least 1, got {n_step}")
        discounts = tree.map_structure(np.asarray, discount)
        if any(leaf.ndim for leaf in tree.flatten(discounts)):
            raise errors.InvalidArgumentError(
                f"discount must be a number or a nest of numbers, got {discount!r}"
            )
        super().__init__(
            client=client,
            max_sequence_length=n_step + 1,
            max_in_flight_items=max_in_flight_items,
            priority_fns=priority_fns,
        )
        self.n_step = n_step
        self._transition_type = transition_type
        self._steps = n_step_returns.LastSteps(n_step, tree.map_structure(np.float32, discount))
        self._history: Any = None

    @classmethod
    def signature(
        cls, environment_spec: Any, extras_spec: Any = (), *, transition_type: type = Transition
    ) -> Any:
        """Returns the signature of a table for transitions of an environment.

        Args:
          environment_spec: An `EnvironmentSpec`, of this package or of Acme.
          extras_spec: Nest of specs of the `extras` of `add`.
          transition_type: The class of the result.

        Returns:
          A `Transition` with leaves `reverb.specs.TensorSpec`, or `tf.TensorSpec` if the
          program imported TensorFlow.
        """
        observations, actions, rewards, discounts = environment_spec
        returns, total_discounts = n_step_returns.return_specs(rewards, discounts)
        transition = transition_type(
            observation=observations,
            action=actions,
            reward=returns,
            discount=total_discounts,
            next_observation=observations,
            extras=extras_spec,
        )
        return tree.map_structure_with_path(specs.tensor_spec, transition)

    def _forget_steps(self) -> None:
        super()._forget_steps()
        self._steps.clear()

    def _begin(self, observation: Any) -> None:
        self._writer.append({"observation": observation})

    def _add(self, action: Any, next_timestep: "dm_env.TimeStep", extras: Any) -> None:
        self._steps.append(next_timestep.reward, next_timestep.discount)
        returns, total_discounts = self._steps.returns()
        # Items consist of written data, so returns are written beside the steps.
        row = {
            "observation": next_timestep.observation,
            "action": action,
            "n_step_return": returns,
            "total_discount": total_discounts,
        }
        if not base.is_empty(extras):
            row["extras"] = extras
        self._writer.append(row)
        self._create_transition(len(self._steps), next_observation=-1)

    def _finish(self, action: Any, next_timestep: "dm_env.TimeStep", extras: Any) -> None:
        # Each row has only a return. It shifts the steps by one row, and the next transition begins
        # one step later, so the first step of every transition has the same distance to the newest
        # row.
        num_steps = len(self._steps)
        for num_dropped in range(1, num_steps):
            self._steps.drop_oldest()
            returns, total_discounts = self._steps.returns()
            self._writer.append({"n_step_return": returns, "total_discount": total_discounts})
            self._create_transition(num_steps, next_observation=-1 - num_dropped)

    def _create_transition(self, first_step: int, *, next_observation: int) -> None:
        """Makes an item of the newest return; steps are counted from the end of the history."""
        history = self._writer.history
        if history is not self._history:
            self._history = history
            self._transition = self._transition_type(
                observation=history["observation"],
                action=history["action"],
                reward=history["n_step_return"],
                discount=history["total_discount"],
                next_observation=history["observation"],
                extras=history.get("extras", ()),
            )
            self._fields = [tree.flatten(field) for field in self._transition]
        observation, action, reward, discount, _, extras = self._fields
        columns = [column[-first_step - 1] for column in observation]
        columns += [column[-first_step] for column in action]
        columns += [column[-1] for column in reward]
        columns += [column[-1] for column in discount]
        columns += [column[next_observation] for column in observation]
        columns += [column[-first_step] for column in extras]
        self._create_items(self._transition, columns)
