# SPDX-License-Identifier: Apache-2.0
"""Samples: the data of an item, and its state at the moment it was sampled or scanned."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

__all__ = [
    "BatchInfo",
    "ReplayBatch",
    "ReplaySample",
    "SampleInfo",
    "WindowInfo",
    "are_lengths",
    "keep_samples",
    "rows_of_batch",
]


def _shapes_of(value: Any) -> str:
    """Returns a nest in one line, with dtypes and shapes in place of arrays."""
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and names:
        fields = list(zip(names, value, strict=True))
        if isinstance(value, BatchInfo) and not are_lengths(value.num_windows):
            fields = fields[: names.index("window_start")]
        return f"{type(value).__name__}({', '.join(f'{k}={_shapes_of(it)}' for k, it in fields)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_shapes_of(it)}' for key, it in value.items())}}}"
    if type(value) in (list, tuple):
        text = ", ".join(map(_shapes_of, value))
        return f"[{text}]" if isinstance(value, list) else f"({text})"
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", ())
    if dtype is not None and len(shape):
        return f"{dtype} {list(shape)}"
    return " ".join(repr(value).split())


class SampleInfo(NamedTuple):
    """State of an item and its table at the moment the item was sampled.

    Fields are Python numbers in `Client.sample` and `Client.scan`, as annotated, and tensors in
    TensorFlow datasets. A batch has a `BatchInfo`.

    Example:
      >>> (sample,) = client.sample("table", emit_timesteps=False)
      >>> print(sample.info.probability, sample.info.table_size, sample.info.times_sampled)
      1.0 1 1

    Attributes:
      key: uint64 that identifies the item in its table.
      probability: float64, the probability of sampling this item at that moment; 0.0 in a scan.
      table_size: int64, number of items at that moment.
      priority: float64, the item's priority at that moment.
      times_sampled: int32, how often the item was sampled, this time included. A scan does not
        count.
    """

    key: int
    probability: float
    table_size: int
    priority: float
    times_sampled: int = 0

    @classmethod
    def tf_dtypes(cls) -> Any:
        """The TensorFlow dtypes of the fields, in a `SampleInfo`. Imports TensorFlow."""
        import tensorflow as tf  # pyright: ignore[reportMissingImports]

        return cls._make((tf.uint64, tf.float64, tf.int64, tf.float64, tf.int32))

    @classmethod
    def tf_shapes(cls) -> Any:
        """The TensorFlow shapes of the fields, in a `SampleInfo`. Imports TensorFlow."""
        import tensorflow as tf  # pyright: ignore[reportMissingImports]

        return cls._make(tf.TensorShape([]) for _ in cls._fields)

    @classmethod
    def zeros(cls) -> "SampleInfo":
        """Returns an info with all fields zero, for data that does not come from a table."""
        return cls(0, 0.0, 0, 0.0, 0)


class WindowInfo(NamedTuple):
    """State of an item, and the window of its steps that was sampled.

    The first five fields are those of `SampleInfo`. Fields are Python numbers and a mask of NumPy
    in `Client.sample`, and tensors in TensorFlow datasets, where those of a batch have a first
    dimension `[B]` more.

    Example:
      >>> print(reverb.WindowInfo._fields[5:])
      ('window_start', 'num_windows', 'window_mask')

    Attributes:
      key: uint64 that identifies the item in its table.
      probability: float64, the probability of sampling this item at that moment.
      table_size: int64, number of items at that moment.
      priority: float64, the item's priority at that moment.
      times_sampled: int32, how often the item was sampled, this time included.
      window_start: int32, the first step of the window in its item; below 0 if the window begins
        with padding.
      num_windows: int32, number of windows that the item has, each with the same probability.
      window_mask: bool `[before + length]`, `False` for padding.
    """

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    times_sampled: Any
    window_start: Any
    num_windows: Any
    window_mask: Any


class BatchInfo(NamedTuple):
    """State of the items of a batch, and of their table, at the moment they were sampled.

    The first five fields are those of `SampleInfo`. All are arrays `[B]`, or tensors where the data
    consists of tensors: a function that maps over the leaves of a batch keeps every field.

    Example:
      >>> info = client.sample_batch("table", 1).info
      >>> print(info.probability, info.min_probability, info.epoch, info.lengths)
      [1.] [1.] [0] ()

    Attributes:
      key: uint64 `[B]` that identifies the items in their table; int64 with the same bits as a
        tensor of PyTorch.
      probability: float64 `[B]`, the probability of sampling each item at that moment.
      table_size: int64 `[B]`, number of items at that moment.
      priority: float64 `[B]`, the priorities at that moment.
      times_sampled: int32 `[B]`, how often each item was sampled, this time included.
      min_probability: float64 `[B]`, the smallest probability among all items of the table that
        could be sampled at that moment. 0: unknown, because the server does not report it
        (dm-reverb), or because the sampler is `Recent`, whose oldest items have almost none.
      epoch: int64 `[B]`, how often a `Shuffle` sampler had gone through the whole table; 0 for
        other samplers.
      lengths: With `ragged="pad"` a nest like the data, with the number of steps of each item in
        each column, int32 `[B]`; 1 for a column that is a single step. Otherwise `()`.
      window_start: With `window=` int32 `[B]`, the first step of each window in its item; below 0
        if the window begins with padding. Otherwise `()`.
      num_windows: With `window=` int32 `[B]`, number of windows that each item has. Otherwise `()`.
      window_mask: With `window=` bool `[B, before + length]`, `False` for padding. Otherwise `()`.
    """

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    times_sampled: Any
    min_probability: Any
    epoch: Any
    lengths: Any = ()
    window_start: Any = ()
    num_windows: Any = ()
    window_mask: Any = ()

    def __repr__(self) -> str:
        return _shapes_of(self)

    def with_lengths(self, lengths: object) -> "BatchInfo":
        """Returns the info with other lengths."""
        # Not `_replace`, which takes several times as long.
        return BatchInfo(*self[:7], lengths, *self[8:])  # pyright: ignore[reportCallIssue]

    def with_window_mask(self, mask: Callable[[Any, Any], Any]) -> "BatchInfo":
        """Returns the info with the mask of its windows, if it has any.

        Args:
          mask: Makes it of `window_start` and `num_windows`.
        """
        if not len(self.num_windows):
            return self
        return self._replace(window_mask=mask(self.window_start, self.num_windows))


class ReplaySample(NamedTuple):
    """An item, or one step of it.

    Example:
      >>> (sample,) = client.sample("table", emit_timesteps=False)
      >>> print(sample.data[0].shape, sample.info.priority)
      (1, 4) 1.0

    Attributes:
      info: State of the item when it was sampled; `BatchInfo` of a batch, `WindowInfo` of a
        window.
      data: Columns of the item: a flat list, or a nest like the table's signature.
    """

    info: SampleInfo
    data: Any


class ReplayBatch(ReplaySample):
    """A batch of items: a `ReplaySample` of arrays, whose `info` is a `BatchInfo`.

    `data` has columns `[B, T, ...]`; see `Client.sample_batch`.

    Example:
      >>> batch = client.sample_batch("table", 1)
      >>> print(batch.data[0].shape, batch.min_probability, batch.lengths)
      (1, 1, 4) [1.] ()
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return _shapes_of(self)

    if TYPE_CHECKING:

        @property
        def info(self) -> BatchInfo:  # pyright: ignore[reportIncompatibleVariableOverride]
            """State of the items."""
            ...

        def __new__(cls, info: BatchInfo, data: object) -> "ReplayBatch":
            """Makes a batch."""
            ...

    @property
    def min_probability(self) -> Any:
        """`info.min_probability`."""
        return self.info.min_probability

    @property
    def epoch(self) -> Any:
        """`info.epoch`."""
        return self.info.epoch

    @property
    def lengths(self) -> Any:
        """`info.lengths`."""
        return self.info.lengths

    @property
    def window_start(self) -> Any:
        """`info.window_start`."""
        return self.info.window_start

    @property
    def num_windows(self) -> Any:
        """`info.num_windows`."""
        return self.info.num_windows

    @property
    def window_mask(self) -> Any:
        """`info.window_mask`."""
        return self.info.window_mask


def are_lengths(lengths: object) -> bool:
    """Returns whether the field `lengths` of a batch has any: it is not `()`."""
    return bool(lengths) if isinstance(lengths, tuple | list) else True


def rows_of_batch(batch: ReplayBatch) -> list[ReplaySample]:
    """Splits a batch into items, as `Client.sample` yields them.

    A flat batch: its info has arrays `[B]`, its data is a flat list of columns `[B, ...]`. The
    lengths of a padded batch are a flat list too, with `None` for a column that is a single step.
    """
    lengths = batch.lengths
    infos = zip(*(field.tolist() for field in batch.info[:5]), strict=True)

    def item(at: int, row: int) -> np.ndarray:
        values = np.asarray(batch.data[at][row])
        of_column = lengths[at] if lengths else None
        return values if of_column is None else values[: of_column[row]]

    return [
        ReplaySample(SampleInfo(*info), [item(at, row) for at in range(len(batch.data))])
        for row, info in enumerate(infos)
    ]


def keep_samples(error: BaseException, samples: list[ReplaySample]) -> None:
    """Attaches items to an exception: they were sampled and cannot be returned.

    They are placed before those that its attribute `samples` already has, see `ReverbError`.
    """
    error.__dict__["samples"] = [*samples, *getattr(error, "samples", ())]
