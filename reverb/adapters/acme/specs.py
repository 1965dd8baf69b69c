# SPDX-License-Identifier: Apache-2.0
"""What an environment looks like, and the signatures of tables that follow from it."""

from typing import Any, NamedTuple

from reverb import specs

__all__ = ["EnvironmentSpec", "make_environment_spec", "tensor_spec"]


class EnvironmentSpec(NamedTuple):
    """The specs of an environment; field by field the same as `acme.specs.EnvironmentSpec`.

    Leaves are anything with a `shape` and a `dtype`.

    Attributes:
      observations: Nest of specs.
      actions: Nest of specs.
      rewards: Nest of specs.
      discounts: Nest of specs.
    """

    observations: Any
    actions: Any
    rewards: Any
    discounts: Any


def make_environment_spec(environment: Any) -> EnvironmentSpec:
    """The specs that a `dm_env.Environment` tells of itself."""
    return EnvironmentSpec(
        observations=environment.observation_spec(),
        actions=environment.action_spec(),
        rewards=environment.reward_spec(),
        discounts=environment.discount_spec(),
    )


def tensor_spec(
    path: tuple[Any, ...], value: Any, *, time_axis: tuple[int | None, ...] = ()
) -> Any:
    """The leaf of a signature for a leaf of an environment's specs.

    Args:
      path: Where the leaf is; becomes the name, joined by slashes.
      value: Anything with a shape and a dtype.
      time_axis: Dimensions to put in front of the shape.

    Returns:
      A `reverb.specs.TensorSpec`; the `tf.TensorSpec` for it if the program imported TensorFlow.

    Raises:
      InvalidArgumentError: If `value` has no shape or no dtype that can be stored.
    """
    spec = specs.as_spec(value)
    shape = None if spec.shape is None else (*time_axis, *spec.shape)
    name = "/".join(str(key) for key in path)
    return specs.to_tensorflow_if_imported(specs.TensorSpec(shape, spec.dtype, name))
