# SPDX-License-Identifier: Apache-2.0
"""A leaf of an observation, which is stored as a whole or frame by frame."""

import math
from typing import Any

import numpy as np

from reverb.adapters.sb3.library import spaces

__all__ = ["Leaf", "Values", "make_leaf"]

Array = np.ndarray[Any, Any]

# An observation with more channels than this is no stack of frames.
_MAX_FRAMES = 16


class Values:
    """A leaf of the observations of all environments, in a form that is quick to compare.

    Attributes:
      memory: The bytes of all arrays, which one `memcmp` compares.
      frames: `[N, k, ...]` of the space's dtype, the oldest frame first.
      array: The same memory with the axes of the space, `[N, ...]`.
      newest: The newest frame of each environment, `[N, ...]`.
      words: The same memory as unsigned integers, `[N, k, ...]`.
    """

    __slots__ = ("array", "frames", "memory", "newest", "words")

    def __init__(self, shape: tuple[int, ...], dtype: Any, axis: int) -> None:
        """Makes zeros.

        Args:
          shape: Shape `[N, k, ...]` of `frames`.
          dtype: Dtype of the space.
          axis: Axis of `array` that has the frames.
        """
        frame_bytes = int(np.prod(shape[2:], dtype=np.int64)) * np.dtype(dtype).itemsize
        word = next(size for size in (8, 4, 2, 1) if frame_bytes % size == 0)
        self.memory = bytearray(shape[0] * shape[1] * frame_bytes)
        self.frames: Array = np.ndarray(shape, dtype, self.memory)
        self.newest: Array = self.frames[:, -1]
        self.array: Array = np.moveaxis(self.frames, 1, axis) if shape[1] > 1 else self.newest
        words = (*shape[:2], frame_bytes // word)
        self.words: Array = np.ndarray(words, f"u{word}", self.memory)


class Leaf:
    """A leaf of the observation, `k` cells of a column.

    Most stacks are the last one with a new frame instead of the oldest. This is detected by
    comparison, without help from the environment. A leaf that is no stack has one frame: the whole
    observation.

    Attributes:
      name: Name of the column.
      shape: Shape `[...]` in the arrays of Stable-Baselines3.
      dtype: Dtype of the space.
      num_frames: Number of frames, `k`.
      frame_bytes: Bytes of a frame.
    """

    def __init__(
        self, name: str, space: Any, shape: tuple[int, ...], num_frames: int, axis: int
    ) -> None:
        """Makes a leaf.

        Args:
          name: Name of the column.
          space: Space of the leaf.
          shape: Shape `[...]` in the arrays of Stable-Baselines3.
          num_frames: Number of frames; 1: it is no stack.
          axis: Axis of the frames in `shape`, if there are several.
        """
        self.name = name
        self.shape, self.dtype = shape, np.dtype(space.dtype)
        self.num_frames = num_frames
        self._axis = axis
        self.frame_bytes = math.prod(shape) * self.dtype.itemsize // num_frames
        # Discrete observations are passed as [n_envs], and have the shape [1] in arrays.
        self._is_discrete = isinstance(space, spaces.Discrete)

    def values(self, num_envs: int) -> Values:
        """Allocates memory for the observations of all environments."""
        if self.num_frames == 1:
            return Values((num_envs, 1, *self.shape), self.dtype, 1)
        rest = self.shape[: self._axis] + self.shape[self._axis + 1 :]
        return Values((num_envs, self.num_frames, *rest), self.dtype, 1 + self._axis)

    def store(self, values: Values, observation: Any) -> None:
        """Casts observations into `values`, like assignments to arrays of Stable-Baselines3.

        Raises:
          ValueError: If the shape differs.
        """
        observation = np.asarray(observation)
        if self._is_discrete:
            observation = observation.reshape(values.array.shape)
        values.array[...] = observation

    def column(self, history: Any, row: int) -> Any:
        """The observation whose newest frame is in this row, and the others in those before it."""
        if self.num_frames == 1:
            return history[self.name][row]
        return history[self.name][list(range(row - self.num_frames + 1, row + 1))]

    def restored(self, column: Array) -> Array:
        """Observations `[B, ...]` of the column of a batch, whose frames are `[B, k, ...]`."""
        return np.moveaxis(column, 1, 1 + self._axis) if self.num_frames > 1 else column

    def stored(self, observations: Array) -> Array:
        """The column of a batch of observations `[B, ...]`."""
        return np.moveaxis(observations, 1 + self._axis, 1) if self.num_frames > 1 else observations


def make_leaf(name: str, space: Any, shape: tuple[int, ...]) -> Leaf:
    """Returns a leaf; stacks of frames are images of bytes with some channels.

    Args:
      name: Name of the column.
      space: Space of the leaf.
      shape: Shape of the space in Stable-Baselines3.
    """
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(shape) == 3:
        axis = 0 if shape[0] == min(shape) else 2
        if 2 <= shape[axis] <= _MAX_FRAMES:
            return Leaf(name, space, shape, shape[axis], axis)
    return Leaf(name, space, shape, 1, 0)
