# SPDX-License-Identifier: Apache-2.0
"""Episodes of rows that are steps."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

__all__ = ["split_steps"]

Columns = dict[str, np.ndarray]


def split_steps(
    batches: Iterable[Columns], number_field: str | None, flags: Sequence[str]
) -> Iterator[Columns]:
    """Joins and splits rows, so that each result has those of one episode.

    Args:
      batches: Columns of consecutive rows, `[R, ...]` each.
      number_field: A column with the number of the episode; `None`: flags tell the ends.
      flags: Columns that are true in the last step of an episode.
    """
    # Rows since the last end, oldest first.
    pending: list[Columns] = []
    for columns in batches:
        num_rows = len(next(iter(columns.values())))
        if not num_rows:
            continue
        if pending and number_field is not None:
            # The number of the first row tells whether the episode before it has ended.
            before = pending[-1][number_field][-1]
            if before != columns[number_field][0]:
                yield _joined(pending)
                pending = []
        begin = 0
        for end in _ends(columns, num_rows, number_field, flags).tolist():
            pending.append({name: it[begin:end] for name, it in columns.items()})
            yield _joined(pending)
            pending = []
            begin = end
        if begin < num_rows:
            pending.append({name: it[begin:] for name, it in columns.items()})
    if pending:
        yield _joined(pending)


def _ends(
    columns: Columns, num_rows: int, number_field: str | None, flags: Sequence[str]
) -> np.ndarray:
    """The rows before which an episode ends, as far as these rows tell it."""
    if number_field is not None:
        numbers = columns[number_field]
        return np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    either = np.zeros(num_rows, np.bool_)
    for field in flags:
        either |= columns[field].astype(np.bool_).reshape(num_rows, -1).any(axis=1)
    return np.flatnonzero(either) + 1


def _joined(parts: Sequence[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([it[name] for it in parts]) for name in parts[0]}
