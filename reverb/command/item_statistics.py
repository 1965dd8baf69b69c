# SPDX-License-Identifier: Apache-2.0
"""What the items of a table are like, in numbers."""

import array
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

# A callback a batch of items, so that telling costs nothing beside reading.
_ITEMS_BETWEEN_CALLBACKS = 64


@dataclasses.dataclass(frozen=True)
class Spread:
    """How the values of a column of numbers are spread."""

    min: float
    median: float
    mean: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """The spread of some numbers; `None` if there are none."""
        if not len(values):
            return None
        numbers = np.asarray(values)
        # An infinite priority is allowed, and the mean of two infinities may be NaN.
        with np.errstate(invalid="ignore"):
            middle, mean = float(np.median(numbers)), float(np.mean(numbers))
        return cls(numbers.min().item(), middle, mean, numbers.max().item())


@dataclasses.dataclass(frozen=True)
class ItemStatistics:
    """What the items of a table are like; fields are `None` where the source does not tell.

    Attributes:
      num_items: Number of items.
      num_chunks: Number of chunks that the items refer to.
      encoded_bytes: Their size as they are stored.
      decoded_bytes: Their size decoded.
      item_bytes: Size of the decoded items, where a step counts for each item that has it.
      oldest_inserted_at: Seconds since 1970.
      median_inserted_at: Seconds since 1970.
      newest_inserted_at: Seconds since 1970.
      priority: Spread of the priorities.
      num_zero_priorities: Number of items whose priority is 0.
      times_sampled: Spread of how often items were sampled; no median from a checkpoint.
      length: Spread of the items' lengths in steps, that of the longest column.
    """

    num_items: int
    num_chunks: int | None
    encoded_bytes: int | None
    decoded_bytes: int | None
    item_bytes: int | None
    oldest_inserted_at: float | None
    median_inserted_at: float | None
    newest_inserted_at: float | None
    priority: Spread | None
    num_zero_priorities: int
    times_sampled: Spread | None
    length: Spread | None


def collect(items: Iterable[Any], progress: Callable[[int], None]) -> ItemStatistics:
    """The statistics of items that are read one after another.

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
        times_sampled.append(item.times_sampled)
        lengths.append(max((length_of(column) for column in item.columns), default=0))
        item_bytes += sum(num_bytes(column) for column in item.columns)
        if item.inserted_at is not None:
            inserted.append(item.inserted_at)
        if len(priorities) % _ITEMS_BETWEEN_CALLBACKS == 0:
            progress(len(priorities))
    age = Spread.of(inserted)
    return ItemStatistics(
        num_items=len(priorities),
        num_chunks=None,
        encoded_bytes=None,
        decoded_bytes=None,
        item_bytes=item_bytes,
        oldest_inserted_at=age and age.min,
        median_inserted_at=age and age.median,
        newest_inserted_at=age and age.max,
        priority=Spread.of(priorities),
        num_zero_priorities=int(np.count_nonzero(np.asarray(priorities) == 0)),
        times_sampled=Spread.of(times_sampled),
        length=Spread.of(lengths),
    )


def length_of(column: np.ndarray) -> int:
    """Number of steps of an item's column; a scalar is one step."""
    return column.shape[0] if column.ndim else 1


def num_bytes(column: np.ndarray) -> int:
    """Size of a column's values; of strings, that of their bytes."""
    if column.dtype.kind == "O":
        return sum(map(len, column.ravel().tolist()))
    return column.nbytes
