# SPDX-License-Identifier: Apache-2.0
"""The signatures of tables that a recorder writes to."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reverb import specs
from reverb._recording.item_makers import time_of
from reverb._recording.items import Items
from reverb._recording.nests import check_space, map_nest, map_space

__all__ = ["signature"]


def signature(
    env: Any,
    items: Items,
    *,
    frame_stack: int | None = None,
    keep_infos: Mapping[str, Any] | None = None,
    extras: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the signature of a table for the items of a recorder.

    Args:
      env: The environment that will be recorded, or a vector environment of several.
      items: As in `Recorder`.
      frame_stack: As in `Recorder`.
      keep_infos: An example of each kept info, from one environment.
      extras: An example of each extra, from one environment: a nest of arrays `[...]`.

    Raises:
      InvalidArgumentError: If a space has no arrays of one shape.

    Example:
      >>> import gymnasium as gym
      >>> from reverb.adapters import gymnasium
      >>> items = gymnasium.Transitions()
      >>> gymnasium.signature(gym.make("CartPole-v1"), items)["observation"].shape
      (4,)
    """
    observation_space = getattr(env, "single_observation_space", env.observation_space)
    action_space = getattr(env, "single_action_space", env.action_space)
    check_space("observation_space", observation_space)
    check_space("action_space", action_space)
    time = time_of(items)
    frames: list[int | None] = [] if frame_stack is None else [frame_stack]
    if time:
        # A sequence has the frames of the stack before its first step.
        frames = [None if size is None else size + (frame_stack or 1) - 1 for size in time]

    def spec(name: str, leaf: Any, leading: list[int | None]) -> specs.TensorSpec:
        return specs.TensorSpec((*leading, *leaf.shape), np.dtype(leaf.dtype), name)

    def scalar(name: str, dtype: Any) -> specs.TensorSpec:
        return specs.TensorSpec(tuple(time), np.dtype(dtype), name)

    columns = {
        "observation": map_space(lambda leaf: spec("observation", leaf, frames), observation_space),
        "action": map_space(lambda leaf: spec("action", leaf, time), action_space),
        "reward": scalar("reward", np.float32),
        "discount": scalar("discount", np.float32),
        "next_observation": map_space(
            lambda leaf: spec("next_observation", leaf, frames), observation_space
        ),
        "terminated": scalar("terminated", np.bool_),
        "truncated": scalar("truncated", np.bool_),
    }
    for name, example in {**(keep_infos or {}), **(extras or {})}.items():
        columns[name] = map_nest(
            lambda leaf, name=name: spec(name, np.asarray(leaf), time), example
        )
    return columns
