# SPDX-License-Identifier: Apache-2.0
"""Statistics of items, computed while they are read."""

import array
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from reverb._checkpoints.stored import TableStatistics, statistics_of

# One callback per batch of items, so that its cost is negligible.
_ITEMS_BETWEEN_CALLBACKS = 64


@dataclasses.dataclass(frozen=True)
class ScannedStatistics(TableStatistics):
    """Statistics of items that were read from a server, which does not report chunks.

    Attributes:
      item_bytes: Size of all items decoded, in bytes; a shared step counts once per item.
    """

    item_bytes: int


def collect(items: Iterable[Any], progress: Callable[[int], Any]) -> ScannedStatistics:
    """Computes statistics of items. Needs 32 bytes of memory per item.

    Args:
      items: `StoredItem`s.
      progress: Called from time to time with the number of items read so far.
    """
    priorities, inserted = array.array("d"), array.array("d")
    times_sampled, lengths = array.array("q"), array.array("q")
    item_bytes = 0
    for item in items:
        priorities.append(item.priority)
        inserted.append(item.inserted_at)
        times_sampled.append(item.times_sampled)
        lengths.append(max((length_of(column) for column in item.columns), default=0))
        item_bytes += sum(num_bytes(column) for column in item.columns)
        if len(priorities) % _ITEMS_BETWEEN_CALLBACKS == 0:
            progress(len(priorities))
    statistics = statistics_of(
        num_items=len(priorities),
        num_chunks=None,
        chunk_bytes=None,
        decoded_bytes=None,
        summaries=map(_summary, (inserted, priorities, times_sampled, lengths)),
        priority_zeros=int(np.count_nonzero(np.asarray(priorities) == 0)),
    )
    return ScannedStatistics(**vars(statistics), item_bytes=item_bytes)


def length_of(column: np.ndarray) -> int:
    """Returns the number of rows of an item's column; 1 for a scalar."""
    return column.shape[0] if column.ndim else 1


def num_bytes(column: np.ndarray) -> int:
    """Returns the size of a column's values, in bytes; for strings that of their bytes."""
    if column.dtype.kind == "O":
        return sum(map(len, column.ravel().tolist()))
    return column.nbytes


def _summary(values: Sequence[float]) -> tuple[float, float, float, float] | None:
    if not len(values):
        return None
    numbers = np.asarray(values)
    # Infinite priorities are allowed, and the mean of two infinities may be NaN.
    with np.errstate(invalid="ignore"):
        median, mean = float(np.median(numbers)), float(np.mean(numbers))
    return numbers.min().item(), median, mean, numbers.max().item()
