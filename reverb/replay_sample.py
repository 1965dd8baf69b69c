# SPDX-License-Identifier: Apache-2.0
"""Samples: the data of an item, and its state at the moment it was sampled or scanned."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["ReplayBatch", "ReplaySample", "SampleInfo", "keep_samples", "replaced", "rows_of_batch"]


class SampleInfo(NamedTuple):
    """State of an item and its table at the moment the item was sampled.

    Fields are Python numbers in `Client.sample`, arrays `[B]` in `Client.sample_batch`, and tensors
    in TensorFlow datasets.

    Example:
      >>> info = client.sample_batch("table", 1).info
      >>> print(info.probability, info.table_size, info.times_sampled)
      [1.] [1] [1]

    Attributes:
      key: uint64 that identifies the item in its table.
      probability: float64, the probability of sampling this item at that moment; 0.0 in a scan.
      table_size: int64, number of items at that moment.
      priority: float64, the item's priority at that moment.
      times_sampled: int32, how often the item was sampled, this time included. A scan does not
        count.
    """

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    times_sampled: Any = 0

    @classmethod
    def tf_dtypes(cls) -> "SampleInfo":
        """The TensorFlow dtypes of the fields. Imports TensorFlow."""
        import tensorflow as tf  # pyright: ignore[reportMissingImports]

        return cls(tf.uint64, tf.float64, tf.int64, tf.float64, tf.int32)

    @classmethod
    def tf_shapes(cls) -> "SampleInfo":
        """The TensorFlow shapes of the fields, all scalar. Imports TensorFlow."""
        import tensorflow as tf  # pyright: ignore[reportMissingImports]

        return cls(*(tf.TensorShape([]) for _ in cls._fields))

    @classmethod
    def zeros(cls) -> "SampleInfo":
        """Returns an info with all fields zero, for data that does not come from a table."""
        return cls(0, 0.0, 0, 0.0, 0)


class ReplaySample(NamedTuple):
    """An item, or one step of it.

    Example:
      >>> sample = client.sample_batch("table", 1)
      >>> print(sample.data[0].shape, sample.info.priority)
      (1, 1, 4) [1.]

    Attributes:
      info: State of the item when it was sampled.
      data: Its columns: a flat list, or a nest like the table's signature.
    """

    info: SampleInfo
    data: Any


class ReplayBatch(ReplaySample):
    """A batch of items: a `ReplaySample` of arrays, with what was true for the whole table.

    `data` has columns `[B, T, ...]`, `info` arrays `[B]`; see `Client.sample_batch`.

    Example:
      >>> batch = client.sample_batch("table", 1)
      >>> print(batch.data[0].shape, batch.lengths)
      (1, 1, 4) None

    Attributes:
      min_probability: The smallest probability that an item of the table had, of those that could
        be sampled; `None` if the server does not tell it.
      epoch: How often the sampler had gone through the whole table, if it is one that does; else 0.
      lengths: Only of `ragged="pad"`: like `data`, with the number of steps of each item, int32
        `[B]`, for each column; `None` for a column that is a single step. Otherwise `None`.
    """

    min_probability: float | None = None
    epoch: int = 0
    lengths: Any = None


def replaced(batch: ReplaySample, **fields: Any) -> ReplayBatch:
    """Returns a batch with other fields, and with the other attributes that it has."""
    # Not `_replace`, which takes several times as long.
    other = ReplayBatch(fields.pop("info", batch.info), fields.pop("data", batch.data))
    if fields:
        raise TypeError(f"a batch has the fields info and data, got {', '.join(fields)}")
    other.__dict__.update(getattr(batch, "__dict__", {}))
    return other


def rows_of_batch(batch: ReplaySample, lengths: Sequence[Any] | None = None) -> list[ReplaySample]:
    """Splits a batch into items, as `Client.sample` yields them.

    Args:
      batch: Has arrays `[B]` as info, and as data a flat list of columns `[B, ...]`.
      lengths: Of each column, if the batch is padded: int32 `[B]`, or `None`.
    """
    infos = zip(*(field.tolist() for field in batch.info), strict=True)

    def item(at: int, row: int) -> np.ndarray:
        values = np.asarray(batch.data[at][row])
        of_column = None if lengths is None else lengths[at]
        return values if of_column is None else values[: of_column[row]]

    return [
        ReplaySample(SampleInfo(*info), [item(at, row) for at in range(len(batch.data))])
        for row, info in enumerate(infos)
    ]


def keep_samples(error: BaseException, samples: list[ReplaySample]) -> None:
    """Attaches items to an exception: they were sampled and cannot be returned.

    Args:
      error: Gets an attribute `samples`; see `ReverbError`.
      samples: The items, which are put before those that the exception already has.
    """
    error.__dict__["samples"] = [*samples, *getattr(error, "samples", ())]
