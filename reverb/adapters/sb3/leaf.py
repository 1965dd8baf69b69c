# SPDX-License-Identifier: Apache-2.0
"""How one leaf of an observation is written: as a whole, or frame by frame."""

from typing import Any

import numpy as np

__all__ = ["Frames", "Leaf", "Rows"]


class Rows:
    """Writes rows of the history of each environment, and counts them.

    Attributes:
      writer: A batched trajectory writer.
      count: int64 `[num_envs]`, how many rows the episode of each environment has.
    """

    def __init__(self, writer: Any) -> None:
        self.writer = writer
        self.count = np.zeros(writer.batch_size, np.int64)

    def append(self, columns: dict[str, Any], where: Any = None) -> None:
        """Writes one row of the environments that `where` selects."""
        self.writer.append(columns, where=where)
        self.count += 1 if where is None else where

    def end_episode(self, where: Any) -> None:
        """Begins the rows of these environments again."""
        self.writer.end_episode(where)
        self.count[where] = 0


class Leaf:
    """A leaf of the observation, which is one cell of a row.

    Attributes:
      name: Of the column.
      places: int64 `[num_envs, k]`, the numbers of the rows that have the latest observation.
    """

    def __init__(self, name: str, num_envs: int, num_frames: int = 1) -> None:
        self.name = name
        self.places = np.zeros((num_envs, num_frames), np.int64)
        self._last: Any = None

    def continues(self, observation: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Whether the observation of each environment is the last one that was written, `[N]`."""
        if self._last is None:
            return np.zeros(len(self.places), np.bool_)
        return _rows_equal(self._last, observation)

    def begin(self, rows: Rows, observation: np.ndarray[Any, Any], where: Any) -> None:
        """Writes the first observation of an episode, in rows of its own."""
        self._write_frames(rows, list(self._frames(observation)), where)
        if self._last is None:
            self._last = observation.copy()
        self._last[where] = observation[where]

    def prepare(self, rows: Rows, observation: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Writes what the next observation needs before its row; returns the cells of that row."""
        frames = list(self._frames(observation))
        if len(frames) > 1:
            last = list(self._frames(self._last))
            is_moved = np.ones(len(self.places), np.bool_)
            for old, new in zip(last[1:], frames[:-1], strict=True):
                is_moved &= _rows_equal(old, new)
            # Where it is no stack that goes on, all frames are written again.
            self._write_frames(rows, frames[:-1], ~is_moved)
        np.copyto(self._last, observation)
        return np.ascontiguousarray(frames[-1])

    def is_written(self, rows: Rows) -> None:
        """Notes that the last row has the cells of `prepare`."""
        self._note(rows, np.ones(len(self.places), np.bool_))

    def column(self, writer: Any, places: list[int]) -> Any:
        """The observation in these rows, counted from the newest one."""
        return writer.history[self.name][places[0]]

    def restored(self, column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Observations `[B, ...]` of the column of a batch."""
        return column

    def stored(self, observations: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The column of a batch of observations `[B, ...]`."""
        return observations

    def _frames(self, observation: Any) -> Any:
        return [observation]

    def _write_frames(self, rows: Rows, frames: list[Any], where: Any) -> None:
        if where.any():
            for frame in frames:
                rows.append({self.name: np.ascontiguousarray(frame)}, where)
                self._note(rows, where)

    def _note(self, rows: Rows, where: Any) -> None:
        self.places[where, :-1] = self.places[where, 1:]
        self.places[where, -1] = rows.count[where]


class Frames(Leaf):
    """A leaf that is a stack of frames, each of which is a cell.

    Most stacks are the last one with a new frame instead of the oldest. That is found by comparing
    them, so it needs no word from the environment.
    """

    def __init__(self, name: str, num_envs: int, num_frames: int, axis: int) -> None:
        """Makes one.

        Args:
          name: Of the column.
          num_envs: Number of environments.
          num_frames: Number of frames of an observation, the oldest one first.
          axis: Of an observation, which has the frames: 0 or 2.
        """
        super().__init__(name, num_envs, num_frames)
        self._axis = axis

    def column(self, writer: Any, places: list[int]) -> Any:
        """As in `Leaf`: one row for each frame."""
        return writer.history[self.name][places]

    def restored(self, column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """As in `Leaf`, from frames `[B, k, ...]`."""
        return np.moveaxis(column, 1, 1 + self._axis)

    def stored(self, observations: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """As in `Leaf`: frames `[B, k, ...]`."""
        return np.moveaxis(observations, 1 + self._axis, 1)

    def _frames(self, observation: Any) -> Any:
        return np.moveaxis(observation, 1 + self._axis, 0)


def _rows_equal(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.fromiter(map(np.array_equal, a, b), np.bool_, len(a))
