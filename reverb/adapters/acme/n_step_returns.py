# SPDX-License-Identifier: Apache-2.0
"""n-step returns: their computation, their specs, and the last steps of an episode.

With rewards `r`, discounts of the environment `d` and the agent's discount `g`, `k` steps have

    return = r[0] + g d[0] r[1] + ... + g^(k-1) d[0] ... d[k-2] r[k-1]
    total discount = g^(k-1) d[0] ... d[k-1]

as in "Rainbow: Combining Improvements in Deep Reinforcement Learning", section 3.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tree

from reverb import specs
from reverb.errors import InvalidArgumentError, SignatureMismatchError

__all__ = ["LastSteps", "broadcast_nests", "n_step_return", "return_specs"]


def n_step_return(rewards: Sequence[Any], discounts: Sequence[Any], agent_discount: Any) -> Any:
    """Computes the return and the total discount of one leaf over `k` steps.

    Args:
      rewards: `k` arrays or scalars.
      discounts: `k` arrays or scalars, of shapes that broadcast against those of the rewards.
      agent_discount: A scalar, of the dtype to compute in.

    Returns:
      The pair `(return, total discount)`.
    """
    # The order of the operations affects rounding; it is that of Acme.
    total, weight = rewards[0], discounts[0]
    for i in range(1, len(rewards)):
        weight = weight * agent_discount
        total = total + rewards[i] * weight
        weight = weight * discounts[i]
    return total, weight


def return_specs(rewards: Any, discounts: Any) -> tuple[Any, Any]:
    """Returns the specs of returns and total discounts.

    A return has the shape of reward and discount broadcast against each other. Both results have
    the dtype of the computation.

    Args:
      rewards: Nest of specs, or one spec for every leaf of `discounts`.
      discounts: Nest of specs, or one spec for every leaf of `rewards`.

    Returns:
      Two nests of specs of the same structure.

    Raises:
      InvalidArgumentError: If both are nests and differ in structure.
      ValueError: If shapes cannot be broadcast.
    """
    structure, pairs = broadcast_nests(rewards, discounts)
    returns, totals = [], []
    for reward, discount in pairs:
        reward, discount = specs.as_spec(reward), specs.as_spec(discount)
        if reward.shape is None or discount.shape is None:
            raise InvalidArgumentError(
                f"specs of rewards and discounts must have shapes, got {reward}, {discount}"
            )
        dtype = _computed_dtype(reward.dtype, discount.dtype)
        shape = np.broadcast_shapes(reward.shape, discount.shape)  # pyright: ignore
        returns.append(specs.TensorSpec(shape, dtype))
        totals.append(specs.TensorSpec(discount.shape, dtype))
    return tree.unflatten_as(structure, returns), tree.unflatten_as(structure, totals)


def broadcast_nests(*nests: Any) -> tuple[Any, list[tuple[Any, ...]]]:
    """Groups the corresponding leaves of nests; a single leaf is repeated for all leaves.

    Returns:
      A nest of the common structure, and one tuple of leaves for each of its leaves.

    Raises:
      InvalidArgumentError: If two nests differ in structure.
    """
    structure = next((nest for nest in nests if tree.is_nested(nest)), nests[0])
    paths = _paths(structure)
    columns = []
    for nest in nests:
        if not tree.is_nested(nest):
            columns.append([nest] * len(paths))
            continue
        if _paths(nest) != paths:
            raise InvalidArgumentError(
                "rewards, discounts and the agent's discount must have the same structure, or be "
                f"single values, got leaves at {paths} and at {_paths(nest)}"
            )
        columns.append(tree.flatten(nest))
    return structure, list(zip(*columns, strict=True))


class LastSteps:
    """The last rewards and discounts of an episode, and the returns over them.

    Rewards and discounts are nests. If one of them is a single leaf, it is used for each leaf of
    the other. The first step determines the dtypes.
    """

    def __init__(self, length: int, agent_discount: Any) -> None:
        self._length = length
        self._agent_discount = agent_discount
        self._structure: Any = None
        self._leaves: list[_Leaf] = []
        # Whether rewards and discounts are scalars; then structures need not be compared.
        self._takes_scalars = False

    def __len__(self) -> int:
        return len(self._leaves[0].rewards) if self._leaves else 0

    def clear(self) -> None:
        """Removes all steps."""
        for leaf in self._leaves:
            leaf.rewards.clear()
            leaf.discounts.clear()

    def append(self, reward: Any, discount: Any) -> None:
        """Adds a step, and removes the oldest one if there are more than `length`.

        Raises:
          SignatureMismatchError: If dtype or structure differ from those of the first step.
          InvalidArgumentError: If the two do not match, or are not numbers.
        """
        if self._takes_scalars and type(reward) is type(discount) is self._leaves[0].scalar_type:
            self._leaves[0].push(reward, discount, self._length)
            return
        structure, groups = broadcast_nests(reward, discount, self._agent_discount)
        if not self._leaves:
            self._leaves = [_Leaf(*group) for group in groups]
            self._structure = structure
            self._takes_scalars = not tree.is_nested(structure)
        elif _paths(structure) != _paths(self._structure):
            raise SignatureMismatchError(
                f"reward and discount have leaves at {_paths(structure)}, but in the first step "
                f"they had {_paths(self._structure)}"
            )
        for leaf, group in zip(self._leaves, groups, strict=True):
            leaf.append(group[0], group[1], self._length)

    def drop_oldest(self) -> None:
        """Removes the oldest step."""
        for leaf in self._leaves:
            del leaf.rewards[0], leaf.discounts[0]

    def returns(self) -> tuple[Any, Any]:
        """Returns the return and the total discount of all steps, as nests."""
        if self._takes_scalars:
            return self._leaves[0].returns()
        pairs = [leaf.returns() for leaf in self._leaves]
        return (
            tree.unflatten_as(self._structure, [pair[0] for pair in pairs]),
            tree.unflatten_as(self._structure, [pair[1] for pair in pairs]),
        )


class _Leaf:
    """One leaf of the rewards with its discounts, oldest first."""

    __slots__ = ("agent_discount", "discounts", "dtype", "dtypes", "rewards", "scalar_type")

    def __init__(self, reward: Any, discount: Any, agent_discount: Any) -> None:
        self.dtypes = (np.asarray(reward).dtype, np.asarray(discount).dtype)
        for name, dtype in zip(("reward", "discount"), self.dtypes, strict=True):
            if not np.issubdtype(dtype, np.number) and dtype != np.bool_:
                raise InvalidArgumentError(f"the {name} of a step must be numbers, got {dtype}")
        self.dtype = _computed_dtype(*self.dtypes)
        # Scalars of this type are immutable and need no conversion.
        self.scalar_type = self.dtype.type if self.dtypes == (self.dtype, self.dtype) else None
        self.agent_discount = self.dtype.type(agent_discount)
        self.rewards: list[Any] = []
        self.discounts: list[Any] = []

    def push(self, reward: Any, discount: Any, length: int) -> None:
        if len(self.rewards) == length:
            del self.rewards[0], self.discounts[0]
        self.rewards.append(reward)
        self.discounts.append(discount)

    def append(self, reward: Any, discount: Any, length: int) -> None:
        # Copies, because environments may reuse an array for every step.
        reward, discount = np.array(reward), np.array(discount)
        if (reward.dtype, discount.dtype) != self.dtypes:
            raise SignatureMismatchError(
                f"reward and discount have dtypes {reward.dtype} and {discount.dtype}, but in the "
                f"first step they had {self.dtypes[0]} and {self.dtypes[1]}"
            )
        if reward.shape != discount.shape:
            shape = np.broadcast_shapes(reward.shape, discount.shape)
            reward = np.broadcast_to(reward, shape)
        # The index converts arrays without dimensions to scalars.
        self.push(
            reward.astype(self.dtype, copy=False)[()],
            discount.astype(self.dtype, copy=False)[()],
            length,
        )

    def returns(self) -> tuple[Any, Any]:
        return n_step_return(self.rewards, self.discounts, self.agent_discount)


def _paths(nest: Any) -> list[tuple[Any, ...]]:
    return [path for path, _ in tree.flatten_with_path(nest)]


def _computed_dtype(reward: np.dtype[Any], discount: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the computation of returns; never integer, because discounts are fractions."""
    dtype = np.result_type(reward, discount)
    return dtype if np.issubdtype(dtype, np.inexact) else np.result_type(dtype, np.float32)
