# SPDX-License-Identifier: Apache-2.0
"""The base of the datasets of sampled items: arguments, batches, iterators."""

import dataclasses
import weakref
from typing import Any

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports]
import tree

from reverb import specs as reverb_specs
from reverb._client.window import Window
from reverb.client import Client
from reverb.core import native
from reverb.errors import InvalidArgumentError, TableNotFoundError
from reverb.replay_sample import ReplaySample
from reverb.tf_ops import ops
from reverb.tf_ops.arguments import checked_batch_size, checked_sampler_options, one_string
from reverb.tf_ops.pipeline import SamplerPipeline, SpecifiedDataset, on_cpu
from reverb.tf_ops.windows import check_lengths_are_free, info_type, window_column

__all__ = ["SamplerDataset", "without_lists"]


class SamplerDataset(SpecifiedDataset):
    """The base of `TrajectoryDataset` and `TimestepDataset`; see there."""

    _TIMESTEPS = False

    # Window of each item, set by a subclass before the constructor.
    _window: Window | None = None

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
          batch_size: Stacks this many elements (items, or steps of a `TimestepDataset`); the same
            as `.batch(batch_size)`. The sampler copies every element directly to its position in
            the batch. If items cannot be stacked, `next` raises `tf.errors.InvalidArgumentError`.
            The items stay in the table, and the dataset ends, if the table removes sampled items,
            the dataset has one worker, and the rate limiter allows the whole batch at once.
            Otherwise the items are dropped, as in `tf.data`.
          drop_remainder: Drops a last batch that is not full.

        Raises:
          InvalidArgumentError: If a number is out of its range, or if an address or a table is not
            a single string.
          ValueError: If `dtypes` and `shapes` differ in structure.
          TypeError: If containers of `dtypes` and `shapes` differ in type.
        """
        tree.assert_same_structure(dtypes, shapes, check_types=False)
        self._types = (dtypes, shapes)
        self._sampler_options = checked_sampler_options(
            max_in_flight_samples_per_worker=max_in_flight_samples_per_worker,
            num_workers_per_iterator=num_workers_per_iterator,
            max_samples_per_stream=max_samples_per_stream,
            rate_limiter_timeout_ms=rate_limiter_timeout_ms,
            max_samples=max_samples,
        )
        self._source = (one_string("server_address", server_address), one_string("table", table))
        self._batch = (checked_batch_size(batch_size, drop_remainder), bool(drop_remainder))
        columns = [
            window_column(tf.TensorSpec(tf.TensorShape(shape), tf.as_dtype(dtype)), self._window)
            for dtype, shape in zip(tree.flatten(dtypes), tree.flatten(shapes), strict=True)
        ]
        self._pipeline = SamplerPipeline(
            columns, self._TIMESTEPS, self._sampler_options, *self._batch, self._window
        )
        # Python iterators run a pipeline of their own, that of their sampler. What makes it is
        # traced on first use, for those that make a batch ahead and the others.
        self._readers: dict[bool, Any] = {}
        super().__init__(self._pipeline.dataset(*self._source), self._make_element_spec(dtypes))

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

        Raises:
          DeadlineExceededError: After `get_signature_timeout_secs`.
          InvalidArgumentError: If the table has no signature; otherwise as the constructor.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
        """
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
        )

    @classmethod
    def _of_signature(
        cls, server_address: str, table: str, timeout_secs: int | None, **options: Any
    ) -> Any:
        """Makes a dataset with the dtypes and shapes of the table's signature."""
        tables = Client(server_address).server_info(timeout_secs)
        if table not in tables:
            raise TableNotFoundError(
                f"Server at {server_address} does not contain any table named {table}. "
                f"Found: {', '.join(sorted(tables))}."
            )
        signature = tables[table].signature
        if signature is None:
            raise InvalidArgumentError(
                f"Table {table} at {server_address} does not have a signature."
            )
        signature = tree.map_structure(_tensorflow_spec, signature)
        if options.get("window") is not None:
            check_lengths_are_free(signature, f"Table {table} at {server_address}")
        return cls(
            server_address=server_address,
            table=table,
            dtypes=tree.map_structure(lambda spec: spec.dtype, signature),
            shapes=tree.map_structure(lambda spec: spec.shape, signature),
            **options,
        )

    def batch(
        self,
        batch_size: Any,
        drop_remainder: Any = False,
        num_parallel_calls: Any = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Any:
        """Stacks elements, as `tf.data.Dataset.batch` does.

        If `batch_size` is a number and the last three arguments are not given, the sampler copies
        every element directly to its position in the batch. The batches are the same.

        Args:
          batch_size: Number of elements in a batch, `B`.
          drop_remainder: Drops a last batch that is not full.
          num_parallel_calls: As in `tf.data.Dataset.batch`.
          deterministic: As in `tf.data.Dataset.batch`.
          name: As in `tf.data.Dataset.batch`.
        """
        size = tf.get_static_value(batch_size) if tf.is_tensor(batch_size) else batch_size
        more_options = self._more_options()
        if (
            self._batch[0] is None
            and isinstance(size, int | np.integer)
            and size >= 1
            and isinstance(drop_remainder, bool)
            and num_parallel_calls is None
            and deterministic is None
            and name is None
            and more_options is not None
        ):
            return type(self)(
                *self._source,
                *self._types,
                **dataclasses.asdict(self._sampler_options),
                batch_size=int(size),
                drop_remainder=drop_remainder,
                **more_options,
            )
        return super().batch(batch_size, drop_remainder, num_parallel_calls, deterministic, name)

    def take(self, count: Any, name: str | None = None) -> Any:
        """Makes a dataset of the first elements, as `tf.data.Dataset.take` does.

        Python iterators over it start at once and cost little, as those over this dataset.

        Args:
          count: Number of elements; -1: all.
          name: As in `tf.data.Dataset.take`.
        """
        first, number = super().take(count, name), tf.get_static_value(count)
        return first if number is None else _FirstElements(first, self, int(number))

    def _more_options(self) -> dict[str, Any] | None:
        """Options of the constructor that this class does not have; `None` if it is not known."""
        return {} if type(self).__init__ is SamplerDataset.__init__ else None

    def __iter__(self) -> Any:
        """Starts a sampler, and returns an iterator over its items.

        Blocks until dtypes and shapes were compared with the table's signature, 30 seconds at most.
        If the server does not answer, a warning is logged and they are not compared.

        Raises:
          tf.errors.InvalidArgumentError: If they do not match the signature.
          tf.errors.UnimplementedError: If there is a window, and the server does not know windows
            (dm-reverb, or older).
        """
        return self._first(-1) if tf.executing_eagerly() else super().__iter__()

    def _first(self, count: int) -> Any:
        """An iterator over the first elements; -1: all. See `__iter__`."""
        ahead = self._batch[0] is not None and count != 1
        if ahead not in self._readers:
            self._readers[ahead] = self._pipeline.reader(ahead=ahead)
        with on_cpu():
            sampler = self._pipeline.create(*self._source, park=True)
            try:
                while not ops.reverb_replay_sampler_check(sampler):
                    pass  # Ctrl-C is handled between two calls.
                flat = self._readers[ahead](sampler, tf.constant(count, tf.int64))
                iterator = iter(tf.data.experimental.from_variant(flat, self.element_spec))
            except BaseException:
                ops.reverb_replay_sampler_close(sampler)
                raise
        weakref.finalize(iterator, native.close_sampler, int(sampler)).atexit = False
        return iterator

    def _make_element_spec(self, dtypes: Any) -> ReplaySample:
        batch_size, drop_remainder = self._batch
        leading = [] if batch_size is None else [batch_size if drop_remainder else None]
        specs, info = self._pipeline.specs(leading), info_type(self._window)
        columns = specs[len(info._fields) :]
        return ReplaySample(
            info(*specs[: len(info._fields)]), without_lists(tree.unflatten_as(dtypes, columns))
        )


class _FirstElements(SpecifiedDataset):
    """The first elements of a dataset of sampled items."""

    def __init__(self, flat: Any, dataset: SamplerDataset, count: int) -> None:
        self._dataset = dataset
        self._count = count
        super().__init__(flat, dataset.element_spec)

    def __iter__(self) -> Any:
        if tf.executing_eagerly():
            return self._dataset._first(self._count)
        return super().__iter__()


def without_lists(nest: Any) -> Any:
    """Replaces lists by tuples, because datasets convert lists to tensors."""
    return tree.traverse(
        lambda node: tuple(node) if isinstance(node, list) else None, nest, top_down=False
    )


def _tensorflow_spec(spec: Any) -> Any:
    """Returns a leaf of a signature as a `tf.TensorSpec`."""
    if isinstance(spec, reverb_specs.TensorSpec):
        return reverb_specs.to_tensorflow_if_imported(spec)
    return spec
