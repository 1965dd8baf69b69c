# SPDX-License-Identifier: Apache-2.0
"""The columns of a packed batch of episodes, found by their names."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tree

from reverb._client.ragged import Ragged
from reverb._nests.flat import fields, flatten_with_path
from reverb.errors import InvalidArgumentError
from reverb.shown_text import type_name

__all__ = ["EpisodeColumns"]

Path = tuple[Any, ...]


class EpisodeColumns:
    """Columns whose rows are the steps of the same episodes.

    A column and the one that has the same value after the step are *twins*: their paths differ by
    `next`, which is a part of a path, or begins one as `next_`.

    Attributes:
      offsets: int64 `[B + 1]`: episode `i` has the steps `offsets[i]` to `offsets[i + 1] - 1`.
    """

    def __init__(self, nest: object) -> None:
        """Checks the data of a batch with `ragged="packed"`, a nest of columns.

        A column that is a single step of each item, `[B, ...]`, has the same value at all steps of
        an episode.

        Raises:
          InvalidArgumentError: If there are no packed columns, if the items of two of them differ
            in length, or if there is no step.
          TypeError: If a column is no array.
        """
        self._nest = nest
        flat = flatten_with_path(nest)
        self._paths = [path for path, _ in flat]
        self._kinds = [_without_next(path) for path in self._paths]  # Equal for twins.
        self._columns = [column for _, column in flat]
        packed = [at for at, column in enumerate(self._columns) if isinstance(column, Ragged)]
        if not packed:
            raise InvalidArgumentError(
                "batch must have packed columns, reverb.Ragged; sample it with ragged='packed' by "
                "Client.sample_batch or reverb.batches, not by a loader of another library. "
                f"Its columns are {self._shown(self._paths)}"
            )
        first = self._columns[packed[0]]
        for at, column in enumerate(self._columns):
            if isinstance(column, Ragged):
                self._check_lengths(packed[0], at)
            elif column is not None and np.shape(column)[:1] != (len(first),):
                raise TypeError(
                    f"column {_name(self._paths[at])} of batch must be a reverb.Ragged, or an array"
                    f" with a row for each of {len(first)} episodes, got {type_name(column)}"
                )
        self.offsets = first.offsets.astype(np.int64)
        if not self.num_steps:
            raise InvalidArgumentError("batch must have at least one step, got none")

    @property
    def num_steps(self) -> int:
        """Number of steps of all episodes."""
        return int(self.offsets[-1])

    def parts(self, argument: str, column: object) -> dict[Path, list[int]]:
        """Returns the positions of the parts of a field, and of their twins, by path in the field.

        A field is a column or a nest of them, by its path or the last name of it; or a list of
        such fields, whose paths begin with the number in the list.

        Raises:
          InvalidArgumentError: If there is no such field, or several that are no twins.
          TypeError: If it is none of them.
        """
        if isinstance(column, list) and column:
            return {
                (number, *path): twins
                for number, it in enumerate(column)
                for path, twins in self.parts(f"{argument}[{number}]", it).items()
            }
        if not isinstance(column, str | tuple):
            raise TypeError(
                f"{argument} must be a name, a tuple of names that is a path, or a list of these, "
                f"got {type_name(column)}"
            )
        heads = self._heads(column)
        if not heads:
            raise InvalidArgumentError(
                f"{argument} is {column!r}, which is no column of batch; its columns are "
                f"{self._shown(self._paths)}{self._hint()}"
            )
        if len({_without_next(head) for head in heads.values()}) > 1:
            paths = list(dict.fromkeys(heads.values()))
            raise InvalidArgumentError(
                f"{argument} is {column!r}, which may be any of {self._shown(paths)}; pass the path"
                f" of one of them, such as {argument}={min(paths, key=_is_after)!r}"
            )
        parts: dict[Path, list[int]] = {}
        for at, head in heads.items():
            parts.setdefault(self._kinds[at][len(_without_next(head)) :], []).append(at)
        return parts

    def before(self, twins: Sequence[int]) -> int:
        """Returns the twin with the value before the step, or the only one."""
        return min(twins, key=lambda at: _is_after(self._paths[at]))

    def after(self, argument: str, column: object) -> dict[Path, int]:
        """Returns the position of each part of a field with the value after the step.

        A path is also a column without a twin, as it is.

        Raises:
          InvalidArgumentError: If a part has no such column, or several; see also `parts`.
          TypeError: See `parts`.
        """
        if isinstance(column, list) and column:
            return {
                (number, *path): at
                for number, it in enumerate(column)
                for path, at in self.after(f"{argument}[{number}]", it).items()
            }
        return {
            path: self._one_after(argument, column, twins)
            for path, twins in self.parts(argument, column).items()
        }

    def _one_after(self, argument: str, column: object, twins: list[int]) -> int:
        after = [at for at in twins if _is_after(self._paths[at])]
        if isinstance(column, tuple) and len(twins) == 1:
            after = twins
        if len(after) == 1:
            return after[0]
        paths = [self._paths[at] for at in after or twins]
        if after:
            raise InvalidArgumentError(
                f"{argument} is {column!r}, and several columns are its value after the step: "
                f"{self._shown(paths)}; leave others out by columns= of sample_batch"
            )
        raise InvalidArgumentError(
            f"{argument} is {column!r}, and no column has its value after the step: its name, or "
            f"that of a nest around it, would begin with 'next'. If {_name(paths[0])} has it, pass "
            f"its path, {argument}={paths[0]!r}; the columns of batch are "
            f"{self._shown(self._paths)}"
        )

    def reward(self) -> int | None:
        """Returns the position of the column `reward`; `None` if there is none.

        Raises:
          InvalidArgumentError: If there are several.
        """
        found = [
            at
            for at, kind in enumerate(self._kinds)
            if self._columns[at] is not None and kind[-1:] == ("reward",)
        ]
        if len(found) > 1:
            paths = self._shown([self._paths[at] for at in found])
            raise InvalidArgumentError(
                f"batch must have one column 'reward', got {paths}; leave others out by columns= "
                "of sample_batch"
            )
        if not found and not isinstance(self._nest, Mapping):
            raise InvalidArgumentError(
                "batch must have a column 'reward', or be a dict, to which it is added; its "
                f"columns are {self._shown(self._paths)}{self._hint()}"
            )
        return found[0] if found else None

    def rows(self, at: int, steps: np.ndarray, episodes: np.ndarray) -> Any:
        """Returns rows of a column, `[N, ...]`, a copy; `None` for one that the batch lacks.

        `steps` and `episodes`, `[N]`, are the place of each row.
        """
        column = self._columns[at]
        if column is None:
            return None
        if isinstance(column, Ragged):
            return column.values.take(steps, axis=0)
        return np.asarray(column).take(episodes, axis=0)

    def all_rows(self, steps: np.ndarray, episodes: np.ndarray) -> list[Any]:
        """Returns rows of all columns, as `rows` does."""
        return [self.rows(at, steps, episodes) for at in range(len(self._columns))]

    def info(self, rows: Sequence[Any], count: int) -> Any:
        """Returns the first `count` rows of the field `info` of the nest; `{}` if there is none."""
        within = [
            row if row is None else row[:count]
            for path, row in zip(self._paths, rows, strict=True)
            if path[:1] == ("info",)
        ]
        return tree.unflatten_as((fields(self._nest) or {})["info"], within) if within else {}

    def nested(self, rows: Sequence[Any]) -> Any:
        """Returns rows of all columns in a nest like that of the columns."""
        return tree.unflatten_as(self._nest, rows)

    def name(self, at: int) -> str:
        """Returns the name of a column for errors."""
        return _name(self._paths[at])

    def _heads(self, field: str | Path) -> dict[int, Path]:
        """Returns the columns of a field, each with its path cut after the name of the field."""
        wanted = _without_next(field if isinstance(field, tuple) else (field,))
        heads = {}
        for at, (path, kind) in enumerate(zip(self._paths, self._kinds, strict=True)):
            length = 0
            if isinstance(field, tuple):
                length = len(wanted) if kind[: len(wanted)] == wanted else 0
            elif wanted and wanted[0] in kind:
                length = kind.index(wanted[0]) + 1
            if length and self._columns[at] is not None:
                end = len(path)
                while len(_without_next(path[:end])) > length:
                    end -= 1
                heads[at] = path[:end]
        return heads

    def _check_lengths(self, first: int, at: int) -> None:
        expected, offsets = self._columns[first].offsets, self._columns[at].offsets
        if offsets is expected or np.array_equal(offsets, expected):
            return
        raise InvalidArgumentError(
            "the columns of batch must have the same number of steps in each item; "
            f"{self.name(first)} and {self.name(at)} differ. Leave one of them out by columns= of "
            "sample_batch"
        )

    def _hint(self) -> str:
        """The remedy where columns have no names."""
        if any(isinstance(part, str) for path in self._paths for part in path):
            return ""
        return (
            ". They have no names: sample a table with a signature with "
            "unpack_as_table_signature=True, or pass positions, such as (0,)"
        )

    @staticmethod
    def _shown(paths: Iterable[Path]) -> str:
        return ", ".join(map(_name, paths))


def _name(path: Path) -> str:
    return repr(path[0] if len(path) == 1 else path)


def _is_after(path: Path) -> bool:
    return path != _without_next(path)


def _without_next(path: Path) -> Path:
    """Returns a path as it is for the value before the step."""
    return tuple(
        part.removeprefix("next_") if isinstance(part, str) else part
        for part in path
        if part != "next"
    )
