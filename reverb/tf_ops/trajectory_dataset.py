# SPDX-License-Identifier: Apache-2.0
"""A dataset of whole items, or of windows of them."""

from typing import Any

from reverb._client.window import Window
from reverb.tf_ops.dataset import SamplerDataset
from reverb.tf_ops.windows import checked_window

__all__ = ["TrajectoryDataset"]


class TrajectoryDataset(SamplerDataset):
    """A `tf.data.Dataset` of items, sampled from a table.

    An element is a `reverb.ReplaySample`: `info` has scalars (key uint64, probability float64,
    table_size int64, priority float64, times_sampled int32), `data` is nested like `dtypes`, with
    tuples for lists, and has the item's columns, `[T, ...]`, or `[...]` for a column that is a
    single step. With a window an element is a random window of an item: its columns are
    `[before + length, ...]`, and `info` is a `reverb.WindowInfo`.

    Each iterator has its own sampler, which prefetches items in the background and is closed with
    the iterator. `iter(dataset)` and `iter(dataset.take(n))` start it at once. Other datasets
    derived from this one (`dataset.map(...)`, `interleave`, ...) start theirs at the first `next`.
    With one worker and one server, items come in the order in which the table sampled them.

    `next` blocks until there is an item. The dataset ends after `max_samples`, or if the rate
    limiter allows no sample for `rate_limiter_timeout_ms`. Failures raise exceptions of
    `tf.errors`. If the server becomes unavailable, `next` waits for it. TensorFlow does not handle
    Ctrl-C inside `next`, so a program that must be interruptible needs a timeout.

    Example:
      >>> dataset = reverb.TrajectoryDataset(
      ...     server_address=client.server_address,
      ...     table="replay",
      ...     dtypes={"observation": tf.float32, "action": tf.int64},
      ...     shapes={"observation": tf.TensorShape([3, 4]), "action": tf.TensorShape([3])},
      ...     max_in_flight_samples_per_worker=100,
      ... )
      >>> for sample in dataset.batch(32, drop_remainder=True).take(1000):
      ...     loss = learn(sample.data["observation"], sample.data["action"])
    """

    def __init__(
        self,
        server_address: Any,
        table: Any,
        dtypes: Any,
        shapes: Any,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        max_samples: int = -1,
        *,
        batch_size: int | None = None,
        drop_remainder: bool = False,
        window: Window | None = None,
    ) -> None:
        """Makes a dataset; does not connect yet.

        Args:
          server_address: As for `reverb.Client`; a string, or a scalar string tensor.
          table: Name of the table; a string, or a scalar string tensor.
          dtypes: Nest of the dtypes of an element's data.
          shapes: Nest of their shapes, of the same structure; `tf.TensorShape` or `None`.
          max_in_flight_samples_per_worker: Number of items that a worker requests at once. It
            requests more when all of them were consumed.
          num_workers_per_iterator: Number of streams that fetch items for one iterator. With more
            than one, items come in no particular order. -1: one.
          max_samples_per_stream: Number of items after which a worker opens a new stream, possibly
            to another server behind the same address. -1: 10,000.
          rate_limiter_timeout_ms: The dataset ends if the table's rate limiter allows no sample for
            this long, in milliseconds; 0: as soon as there is nothing to sample; -1: never.
          max_samples: The dataset ends after this many items. -1: never.
          batch_size: Stacks this many items; the same as `.batch(batch_size)`. The sampler copies
            every item directly to its position in the batch. If items cannot be stacked, `next`
            raises `tf.errors.InvalidArgumentError`. The items stay in the table, and the dataset
            ends, if the table removes sampled items, the dataset has one worker, and the rate
            limiter allows the whole batch at once. Otherwise the items are dropped, as in
            `tf.data`.
          drop_remainder: Drops a last batch that is not full.
          window: Samples only these steps of each item, at a random position: see
            `reverb.Window`, here without spans. `shapes` are then those of the window: a first
            dimension `None` stands for `before + length`. A column that is a single step of the
            item comes whole; if its own first dimension is unknown, its shape is `None`. If no item
            has such a window, `next` waits, or raises `tf.errors.InvalidArgumentError` where the
            table can get none any more: it is full, or takes no inserts. A server that does not
            know windows (dm-reverb, or older) is a `tf.errors.UnimplementedError` of `iter`, and of
            `next` in pipelines derived from the dataset.

        Raises:
          InvalidArgumentError: If a number is out of its range, if an address or a table is not a
            single string, or if the window has spans.
          ValueError: If `dtypes` and `shapes` differ in structure.
          TypeError: If containers of `dtypes` and `shapes` differ in type, or an argument has the
            wrong type.
        """
        self._window = checked_window(window)
        super().__init__(
            server_address,
            table,
            dtypes,
            shapes,
            max_in_flight_samples_per_worker,
            num_workers_per_iterator,
            max_samples_per_stream,
            rate_limiter_timeout_ms,
            max_samples,
            batch_size=batch_size,
            drop_remainder=drop_remainder,
        )

    @classmethod
    def from_table_signature(
        cls,
        server_address: str,
        table: str,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        get_signature_timeout_secs: int | None = None,
        max_samples: int = -1,
        *,
        batch_size: int | None = None,
        drop_remainder: bool = False,
        window: Window | None = None,
    ) -> Any:
        """Makes a dataset with the dtypes and shapes of the table's signature.

        Blocks until the server has sent the signature.

        Args:
          server_address: As in the constructor, a string.
          table: Name of the table, a string.
          max_in_flight_samples_per_worker: As in the constructor.
          num_workers_per_iterator: As in the constructor.
          max_samples_per_stream: As in the constructor.
          rate_limiter_timeout_ms: As in the constructor.
          get_signature_timeout_secs: How long to wait for the server, in whole seconds; `None`: the
            default of `reverb.Client`.
          max_samples: As in the constructor.
          batch_size: As in the constructor.
          drop_remainder: As in the constructor.
          window: As in the constructor. First dimensions `None` of the signature become
            `before + length`.

        Raises:
          DeadlineExceededError: After `get_signature_timeout_secs`.
          InvalidArgumentError: If the table has no signature; with a window also if the signature
            has a column whose first dimension is fixed, which may be a number of steps, or belong
            to a single value. Otherwise as the constructor.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
        """
        options = {} if window is None else {"window": checked_window(window)}
        return cls._of_signature(
            server_address,
            table,
            get_signature_timeout_secs,
            max_in_flight_samples_per_worker=max_in_flight_samples_per_worker,
            num_workers_per_iterator=num_workers_per_iterator,
            max_samples_per_stream=max_samples_per_stream,
            rate_limiter_timeout_ms=rate_limiter_timeout_ms,
            max_samples=max_samples,
            batch_size=batch_size,
            drop_remainder=drop_remainder,
            **options,
        )

    def _more_options(self) -> dict[str, Any] | None:
        if type(self).__init__ is not TrajectoryDataset.__init__:
            return None
        return {} if self._window is None else {"window": self._window}
