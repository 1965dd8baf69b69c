# SPDX-License-Identifier: Apache-2.0
"""What the items of a table are like, in numbers, from reading them one after another."""

import array
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from reverb.stored_checkpoint import TableStatistics

# A callback a batch of items, so that telling costs nothing beside reading.
_ITEMS_BETWEEN_CALLBACKS = 64


@dataclasses.dataclass(frozen=True)
class ScannedStatistics(TableStatistics):
    """Numbers about items that a server gave; it does not tell of the chunks beneath.

    Attributes:
      item_bytes: Size of all items decoded, where a step counts for each item that has it.
    """

    item_bytes: int


def collect(items: Iterable[Any], progress: Callable[[int], Any]) -> ScannedStatistics:
    """The statistics of items.

    Keeps 32 bytes for each.

    Args:
      items: `StoredItem`s.
      progress: Told now and then how many items were read.
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
    age, priority = _spread(inserted), _spread(priorities)
    sampled, length = _spread(times_sampled), _spread(lengths)
    return ScannedStatistics(
        num_items=len(priorities),
        num_chunks=None,
        chunk_bytes=None,
        decoded_bytes=None,
        oldest_inserted_at=age.min,
        newest_inserted_at=age.max,
        median_inserted_at=age.median,
        priority_min=priority.min,
        priority_median=priority.median,
        priority_mean=priority.mean,
        priority_max=priority.max,
        priority_zeros=int(np.count_nonzero(np.asarray(priorities) == 0)),
        times_sampled_min=sampled.min,
        times_sampled_mean=sampled.mean,
        times_sampled_max=sampled.max,
        length_min=length.min,
        length_median=length.median,
        length_mean=length.mean,
        length_max=length.max,
        item_bytes=item_bytes,
    )


def length_of(column: np.ndarray) -> int:
    """Number of rows of an item's column; a scalar is one."""
    return column.shape[0] if column.ndim else 1


def num_bytes(column: np.ndarray) -> int:
    """Size of a column's values; of strings, that of their bytes."""
    if column.dtype.kind == "O":
        return sum(map(len, column.ravel().tolist()))
    return column.nbytes


@dataclasses.dataclass(frozen=True)
class _Spread:
    """How numbers are spread; all `None` if there are none."""

    min: Any = None
    median: float | None = None
    mean: float | None = None
    max: Any = None


def _spread(values: Sequence[float]) -> _Spread:
    if not len(values):
        return _Spread()
    numbers = np.asarray(values)
    # Infinite priorities are allowed, and what lies between two of them may be NaN.
    with np.errstate(invalid="ignore"):
        median, mean = float(np.median(numbers)), float(np.mean(numbers))
    return _Spread(numbers.min().item(), median, mean, numbers.max().item())
