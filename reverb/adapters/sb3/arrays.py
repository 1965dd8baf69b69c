# SPDX-License-Identifier: Apache-2.0
"""The arrays of Stable-Baselines3's buffers, read from a table.

Its buffers keep step `t` of an environment in row `t % buffer_size`. Here the column `place` of
every item has the numbers of its step and environment, and an array is built from the items when a
program asks for it.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

import reverb
from reverb.adapters.sb3.leaf import Leaf
from reverb.adapters.sb3.step import TransitionSpec

__all__ = ["ARRAYS", "DONE", "NUMBERS", "TIMEOUT", "Dones", "StoredTransitions", "no_attribute"]

ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")

# The columns of an item after those of its observations and next observations.
NUMBERS = ("action", "reward", "done", "discount", "place", "end")
_ACTION, _REWARD, _, _, _PLACE, _END = range(-len(NUMBERS), 0)

# Bits of the column `end`: why the last step of a transition ended its episode.
DONE = 1
TIMEOUT = 2

Columns = list[np.ndarray[Any, Any]]


class StoredTransitions(NamedTuple):
    """Reads the transitions of a table by step and environment; each call reads the whole table.

    Attributes:
      client: Client of the server.
      table: Name of the table.
      spec: What a transition consists of.
      buffer_size: Number of rows of the arrays.
      num_added: Number of steps of each environment so far.
    """

    client: reverb.Client
    table: str
    spec: TransitionSpec
    buffer_size: int
    num_added: int

    def arrays(self, name: str) -> list[np.ndarray[Any, Any]]:
        """Returns the arrays of this name: one for each leaf of an observation, or the only one."""
        spec = self.spec
        if name == "actions":
            return [self._filled((spec.action_dim,), spec.action_dtype, lambda it: it[_ACTION])]
        numbers: dict[str, Callable[[Columns], Any]] = {
            "rewards": lambda columns: columns[_REWARD][0],
            "dones": lambda columns: columns[_END] & DONE > 0,
            "timeouts": lambda columns: columns[_END] & TIMEOUT > 0,
        }
        if name in numbers:
            return [self._filled((), np.float32, numbers[name])]
        first = len(spec.leaves) if name == "next_observations" else 0
        return [
            self._filled(leaf.shape, leaf.dtype, functools.partial(_observation, leaf, at))
            for at, leaf in enumerate(spec.leaves, first)
        ]

    def columns(self, steps: Iterable[int], envs: Iterable[int]) -> Columns:
        """Returns the columns `[B, ...]` of the transitions in these rows.

        Raises:
          IndexError: If a row has no transition.
        """
        chosen = [(step, env) for step, env in zip(steps, envs, strict=True)]
        wanted = set(chosen)
        found = {at: columns for at, columns in self._items() if at in wanted}
        for step, env in chosen:
            if (step, env) not in found:
                raise IndexError(f"there is no transition in row {step} of environment {env}")
        rows = [found[at] for at in chosen]
        return [np.stack(column) for column in zip(*rows, strict=True)]

    def _filled(
        self, shape: tuple[int, ...], dtype: Any, value: Callable[[Columns], Any]
    ) -> np.ndarray[Any, Any]:
        """Makes an array `[buffer_size, n_envs, ...]` of a value of each transition; else zeros."""
        array = np.zeros((self.buffer_size, self.spec.num_envs, *shape), dtype)
        for at, columns in self._items():
            array[at] = value(columns)
        # A copy: changes by the program would be lost.
        array.flags.writeable = False
        return array

    def _items(self) -> Iterator[tuple[tuple[int, int], Columns]]:
        """Yields row, environment and columns of each transition, the oldest one first."""
        for item in self.client.scan(self.table):
            step, env = divmod(int(item.data[_PLACE]), self.spec.num_envs)
            # Rows of older transitions belong to newer steps, which may not be items yet.
            if step >= self.num_added - self.buffer_size:
                yield (step % self.buffer_size, env), item.data


def _observation(leaf: Leaf, at: int, columns: Columns) -> Any:
    """The observation `[...]` in column `at` of an item."""
    return leaf.restored(columns[at][None])[0]


class Dones(np.lib.mixins.NDArrayOperatorsMixin):
    """The array `dones`, which Stable-Baselines3 also sets, to end the newest episodes."""

    def __init__(self, read: Callable[[], Any], end_episodes: Callable[[], None]) -> None:
        """Makes a view of the array.

        Args:
          read: Returns the array.
          end_episodes: Ends the episodes of all environments.
        """
        self._read = read
        self._end_episodes = end_episodes

    def __setitem__(self, chosen: Any, value: Any) -> None:
        """Ends the episodes of all environments, as a time limit does."""
        del chosen
        if value:
            self._end_episodes()

    def __getitem__(self, chosen: Any) -> Any:
        return self._read()[chosen]

    def __len__(self) -> int:
        return len(self._read())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The array, float32 `[buffer_size, n_envs]`."""
        del copy  # Each read makes a copy.
        return np.asarray(self._read(), dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = [self._read() if it is self else it for it in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"Dones has no attribute {name}")
        return getattr(self._read(), name)


def no_attribute(owner: str, name: str, reason: str = "") -> str:
    """Returns the text of the error about a missing attribute of `owner`."""
    if name not in ARRAYS:
        return f"{owner} has no attribute {name}"
    return (
        f"{owner} has no array {name}: {reason}. Call sample() for some of its transitions, or "
        "reverb.Client.scan for all items of a table"
    )
