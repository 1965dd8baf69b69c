# SPDX-License-Identifier: Apache-2.0
"""The data of the benchmarks: small steps, Atari-like frames and large arrays.

Every step contains its number, so that samples can be checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Step = dict[str, np.ndarray]

FRAME_SHAPE = (84, 84)
FRAMES_PER_ITEM = 5
LARGE_LENGTH = 100_000


@dataclasses.dataclass(frozen=True)
class Payload:
    """A kind of step and how many of them make an item.

    Attributes:
      name: Its name on the command line and in the report.
      bytes_per_step: Size of the data of one step.
      steps_per_item: Length `T` of an item's trajectory.
      make: Returns step number `i`.
      check: Returns whether columns `[T, ...]`, in the order of the sorted keys, hold such steps.
    """

    name: str
    bytes_per_step: int
    steps_per_item: int
    make: Callable[[int], Step]
    check: Callable[[Sequence[np.ndarray]], bool]

    def steps(self, count: int) -> list[Step]:
        """Returns `count` different steps, which are reused so that making them is not measured."""
        return [self.make(i) for i in range(count)]

    def require(self, columns: Sequence[Any]) -> None:
        """Raises `ValueError` if `columns` differ from what was written."""
        arrays = [np.asarray(column) for column in columns]
        if not self.check(arrays):
            raise ValueError(f"wrong data came back for payload {self.name!r}: {arrays}")


def by_name(name: str) -> Payload:
    """Returns the payload called `name`."""
    return {payload.name: payload for payload in _ALL}[name]


def _small_step(i: int) -> Step:
    return {
        "action": np.asarray(i, np.int32),
        "observation": np.arange(i, i + 4, dtype=np.float32),
        "reward": np.asarray(i, np.float32),
    }


def _check_small(columns: Sequence[np.ndarray]) -> bool:
    action, observation, reward = columns
    first = action.reshape(-1)[0]
    expected = np.arange(first, first + len(action))
    return (
        observation.shape == (len(action), 4)
        and (action.dtype, observation.dtype, reward.dtype) == (np.int32, np.float32, np.float32)
        and np.array_equal(action, expected)
        and np.array_equal(reward, expected)
        and np.array_equal(observation, expected[:, None] + np.arange(4))
    )


def _random_frame(i: int) -> Step:
    frame = np.random.default_rng(i).integers(0, 256, FRAME_SHAPE, np.uint8)
    return _numbered_frame(i, frame)


def _sparse_frame(i: int) -> Step:
    """A black screen with a paddle and a ball, like many Atari games."""
    frame = np.zeros(FRAME_SHAPE, np.uint8)
    frame[78:80, (7 * i) % 70 : (7 * i) % 70 + 12] = 142
    frame[(5 * i) % 76 : (5 * i) % 76 + 2, (3 * i) % 82 : (3 * i) % 82 + 2] = 236
    return _numbered_frame(i, frame)


def _numbered_frame(i: int, frame: np.ndarray) -> Step:
    frame[0, :4] = np.frombuffer(np.uint32(i).tobytes(), np.uint8)
    return {
        "action": np.asarray(i % 18, np.int32),
        "frame": frame,
        "reward": np.asarray(i, np.float32),
    }


def _check_frames(columns: Sequence[np.ndarray]) -> bool:
    action, frame, reward = columns
    if frame.shape != (FRAMES_PER_ITEM, *FRAME_SHAPE) or frame.dtype != np.uint8:
        return False
    numbers = [int(np.frombuffer(row[0, :4].tobytes(), np.uint32)[0]) for row in frame]
    return np.array_equal(reward, numbers) and np.array_equal(action, np.asarray(numbers) % 18)


def _large_step(i: int) -> Step:
    values = np.random.default_rng(i).standard_normal(LARGE_LENGTH, np.float32)
    values[0] = i
    return {"number": np.asarray(i, np.int32), "values": values}


def _check_large(columns: Sequence[np.ndarray]) -> bool:
    number, values = columns
    expected = np.stack([_large_step(int(i))["values"] for i in number])
    return values.dtype == np.float32 and np.array_equal(values, expected)


SMALL = Payload("small", 24, 1, _small_step, _check_small)
SMALL_TWO_STEPS = Payload("small_two_steps", 24, 2, _small_step, _check_small)
ATARI_RANDOM = Payload("atari_random", 84 * 84 + 8, FRAMES_PER_ITEM, _random_frame, _check_frames)
ATARI_SPARSE = Payload("atari_sparse", 84 * 84 + 8, FRAMES_PER_ITEM, _sparse_frame, _check_frames)
LARGE = Payload("large", 4 * LARGE_LENGTH + 4, 1, _large_step, _check_large)

_ALL = (SMALL, SMALL_TWO_STEPS, ATARI_RANDOM, ATARI_SPARSE, LARGE)
