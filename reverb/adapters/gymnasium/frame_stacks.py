# SPDX-License-Identifier: Apache-2.0
"""Finds environments whose observations already are stacks of frames."""

from collections.abc import Iterator
from typing import Any

from reverb import errors
from reverb._recording.checks import check_at_least
from reverb.adapters.gymnasium.library import gymnasium

__all__ = ["check_frame_stack"]


def check_frame_stack(env: Any, frame_stack: int | None) -> None:
    """Checks that a recorder with `frame_stack` gets single frames.

    Raises:
      InvalidArgumentError: If `frame_stack` is below 1, or if the environment stacks.
    """
    if frame_stack is None:
        return
    check_at_least(1, "frame_stack", frame_stack)
    num_frames = _frames_of(env)
    if num_frames is not None:
        raise errors.InvalidArgumentError(
            f"the environment already stacks {num_frames} frames; record below the wrapper, or "
            "leave frame_stack out"
        )


def _frames_of(env: Any) -> int | None:
    """Number of frames that an environment, or the first one of several, stacks."""
    for layer in _layers(env):
        if isinstance(layer, gymnasium.wrappers.FrameStackObservation):
            return layer.observation_space.shape[0]
        # ALE stacks in its own code: observations are `[stack_num, height, width]`.
        if type(layer).__name__ == "AtariVectorEnv":
            num_frames = layer.single_observation_space.shape[0]
            return num_frames if num_frames > 1 else None
        # The environments are in other processes, which end when a missing attribute is read.
        # `stack_size` is an attribute of FrameStackObservation.
        is_async = isinstance(layer, gymnasium.vector.AsyncVectorEnv)
        if is_async and layer.call("has_wrapper_attr", "stack_size")[0]:
            return layer.get_attr("stack_size")[0]
    return None


def _layers(env: Any) -> Iterator[Any]:
    """The environment and those below it, from the outside in."""
    while env is not None:
        yield env
        inner = getattr(env, "envs", None)
        below = inner[0] if inner else env.__dict__.get("env")
        env = below if below is not env else None
