# SPDX-License-Identifier: Apache-2.0
"""What a sampler or a scan returns: an item as it was at the moment it was picked."""

from typing import Any, NamedTuple

import numpy as np

__all__ = ["ReplaySample", "SampleInfo", "keep_samples", "rows_of_batch"]


class SampleInfo(NamedTuple):
    """How an item was picked.

    Fields are Python numbers in `Client.sample`, arrays `[B]` in `Client.sample_batch`, and tensors
    in TensorFlow datasets.

    Attributes:
      key: uint64 that identifies the item in its table.
      probability: float64, the probability of picking this item at that moment; 0.0 in a scan.
      table_size: int64, number of items at that moment.
      priority: float64, the item's priority at that moment.
      times_sampled: int32, how often the item was picked, this time included. A scan picks none.
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
        """All fields zero, for data that came from no table."""
        return cls(0, 0.0, 0, 0.0, 0)


class ReplaySample(NamedTuple):
    """An item, or one step of it.

    Attributes:
      info: How it was picked.
      data: Its columns: a flat list, or a nest like the table's signature.
    """

    info: SampleInfo
    data: Any


def rows_of_batch(batch: ReplaySample) -> list[ReplaySample]:
    """The items of a batch, one by one, as `Client.sample` gives them.

    Args:
      batch: With arrays `[B]` in its info and a flat list of columns `[B, ...]`.
    """
    infos = zip(*(field.tolist() for field in batch.info), strict=True)
    return [
        ReplaySample(SampleInfo(*info), [np.asarray(column[row]) for column in batch.data])
        for row, info in enumerate(infos)
    ]


def keep_samples(error: BaseException, samples: list[ReplaySample]) -> None:
    """Hangs items on an exception that were sampled and cannot be returned.

    Args:
      error: What is being raised. Gets an attribute `samples`; see `ReverbError`.
      samples: The items. They come before those that the exception has already.
    """
    error.__dict__["samples"] = [*samples, *getattr(error, "samples", ())]
