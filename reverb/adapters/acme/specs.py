# SPDX-License-Identifier: Apache-2.0
"""Specs of environments, and the specs of table signatures made from them."""

from typing import Any, NamedTuple

from reverb import specs

__all__ = ["EnvironmentSpec", "make_environment_spec", "tensor_spec"]


class EnvironmentSpec(NamedTuple):
    """The specs of an environment, with the fields of `acme.specs.EnvironmentSpec`.

    Leaves are any objects with a `shape` and a `dtype`.

    Example:
      >>> spec = reverb.specs.TensorSpec
      >>> environment_spec = EnvironmentSpec(
      ...     observations=spec([4], np.float32),
      ...     actions=spec([], np.int32),
      ...     rewards=spec([], np.float32),
      ...     discounts=spec([], np.float32),
      ... )

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
    """Returns the specs of a `dm_env.Environment`."""
    return EnvironmentSpec(
        observations=environment.observation_spec(),
        actions=environment.action_spec(),
        rewards=environment.reward_spec(),
        discounts=environment.discount_spec(),
    )


def tensor_spec(
    path: tuple[Any, ...], value: Any, *, time_axis: tuple[int | None, ...] = ()
) -> Any:
    """Returns the leaf of a signature for a leaf of an environment's specs.

    Args:
      path: Path of the leaf; becomes the name, joined by slashes.
      value: Any object with a shape and a dtype.
      time_axis: Leading dimensions to add to the shape.

    Returns:
      A `reverb.specs.TensorSpec`; a `tf.TensorSpec` if the program imported TensorFlow.

    Raises:
      InvalidArgumentError: If `value` has no shape or no dtype that can be stored.
    """
    spec = specs.as_spec(value)
    shape = None if spec.shape is None else (*time_axis, *spec.shape)
    name = "/".join(str(key) for key in path)
    return specs.to_tensorflow_if_imported(specs.TensorSpec(shape, spec.dtype, name))
