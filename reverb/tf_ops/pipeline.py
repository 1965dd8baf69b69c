# SPDX-License-Identifier: Apache-2.0
"""The pipeline of a dataset of sampled items: one sampler that returns many rows per call."""

import math
from typing import Any

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports]

from reverb._client.window import Window
from reverb.replay_sample import SampleInfo
from reverb.tf_ops import ops
from reverb.tf_ops.arguments import SamplerOptions
from reverb.tf_ops.polling import polling_dataset
from reverb.tf_ops.transformations import filtered, flat_mapped, unbatched
from reverb.tf_ops.windows import info_specs, window_attributes

__all__ = ["SamplerPipeline", "SpecifiedDataset", "on_cpu", "rows_of"]

# A call of the op costs some 15 us, however many rows it returns. So it returns up to a megabyte of
# rows, but no more than this number, beyond which there is no gain.
_MAX_ROWS = 64
_MAX_BYTES = 1 << 20

# Number of tensors about each item that are not about its window.
_NUM_INFOS = len(SampleInfo._fields)

# Assumed size of an unknown dimension, usually time, when the size of a row is estimated.
_TYPICAL_DIMENSION = 16

_NOT_UNBATCHED = {"float8_e5m2", "float8_e4m3fn", "int4", "uint4"}


class SpecifiedDataset(tf.compat.v1.data.Dataset):
    """A dataset of flat elements with another structure or more precise shapes."""

    def __init__(self, flat: Any, element_spec: Any) -> None:
        self._flat = flat
        self._specified = element_spec
        super().__init__()

    def _as_variant_tensor(self) -> Any:
        return tf.data.experimental.to_variant(self._flat)

    def _inputs(self) -> list[Any]:
        return [self._flat]

    @property
    def element_spec(self) -> Any:
        """Nest of `tf.TensorSpec`, like the elements."""
        return self._specified


class SamplerPipeline:
    """Makes samplers of one kind, and datasets that read them."""

    def __init__(
        self,
        columns: list[Any],
        timesteps: bool,
        options: SamplerOptions,
        batch_size: int | None,
        drop_remainder: bool,
        window: Window | None,
    ) -> None:
        """Makes no sampler yet. `columns` are specs of the data, flat; `timesteps` splits items.

        Without `batch_size` elements are single rows, without a window whole items.
        """
        self._dtypes = [column.dtype for column in columns]
        self._shapes = [column.shape for column in columns]
        self._timesteps = timesteps
        self._options = options
        self._batch_size = batch_size
        self._drop_remainder = drop_remainder
        self._window = window
        self._specs = [*info_specs(window), *columns]

    def create(self, server_address: Any, table: Any, *, park: bool = False) -> Any:
        """Starts a sampler; returns its handle.

        The sampler is closed with the last tensor of the handle; with `park` only by the caller.
        """
        return ops.reverb_replay_sampler_create(
            server_address=server_address,
            table=table,
            dataset_key=np.int64(0),
            dtypes=self._dtypes,
            shapes=self._shapes,
            timesteps=self._timesteps,
            max_in_flight_samples_per_worker=self._options.max_in_flight_samples_per_worker,
            num_workers=self._options.num_workers_per_iterator,
            max_samples_per_stream=self._options.max_samples_per_stream,
            rate_limiter_timeout_ms=self._options.rate_limiter_timeout_ms,
            max_samples=self._options.max_samples,
            batch_size=self._stacked_batch_size(),
            park=park,
            **window_attributes(self._window),
        )

    def dataset(self, server_address: Any, table: Any) -> Any:
        """The dataset of flat elements: the tensors of the info, then the columns."""

        def poll(*source: Any) -> Any:
            return self._batches(self.create(*source))

        # Inside a function, so that every iterator makes its own sampler.
        source = tf.data.Dataset.from_tensors((server_address, table))
        batches = flat_mapped(source, poll, self.specs([None]))
        return self._elements(batches).with_options(_without_sharding())

    def reader(self, *, ahead: bool) -> Any:
        """Traces what makes the dataset of one iterator, for eager programs.

        The function gets the handle of a sampler, which the caller closes, and the number of
        elements, -1 for all. It returns the variant tensor of a dataset of flat elements, which
        makes the next batch while the program uses this one if it works `ahead`.
        """

        def read(sampler: Any, count: Any) -> Any:
            with on_cpu():
                elements = self._elements(self._batches(sampler, True), True).take(count)
                if ahead:
                    elements = elements.prefetch(1)
                return tf.data.experimental.to_variant(elements.with_options(_as_built()))

        graph_only = tf.autograph.experimental.do_not_convert(read)
        number = tf.TensorSpec([], tf.int64)
        return tf.function(graph_only).get_concrete_function(number, number)

    def _batches(self, sampler: Any, on_one_device: bool = False) -> Any:
        """The dataset of the batches of rows that a sampler returns; some have no rows."""
        specs, num_infos = self.specs([None]), len(info_specs(self._window))
        batch_size = self._batch_size
        attributes = {
            "Toutput_list": self._dtypes,
            "rows": self._rows_per_call() if batch_size is None else batch_size,
            "exact": batch_size is not None,
            "drop_remainder": self._drop_remainder,
            "Twindow_list": [spec.dtype for spec in specs[_NUM_INFOS:num_infos]],
        }

        def take(handle: Any) -> list[Any]:
            batch = ops.reverb_replay_sampler_next(handle, **attributes)
            tensors = [*batch[:_NUM_INFOS], *batch.window, *batch.data]
            for tensor, spec in zip(tensors, specs, strict=True):
                tensor.set_shape(spec.shape)
            return tensors

        return polling_dataset(sampler, take, specs, on_one_device=on_one_device)

    def _elements(self, batches: Any, on_one_device: bool = False) -> Any:
        if self._batch_size is None:
            return rows_of(batches, self._specs, on_one_device)
        # The op returns batches without rows when its wait ends without an item.
        return filtered(batches, _has_rows, on_one_device=on_one_device)

    def specs(self, leading: list[int | None]) -> list[Any]:
        """Specs of info and columns with leading dimensions."""
        leading_shape = tf.TensorShape(leading)
        return [
            tf.TensorSpec(leading_shape.concatenate(spec.shape), spec.dtype) for spec in self._specs
        ]

    def _stacked_batch_size(self) -> int:
        """Size of batches whose items may differ in shape, else 0.

        A table that removes what it samples keeps the items of such a batch if they cannot be
        stacked.
        """
        if self._timesteps or all(shape.is_fully_defined() for shape in self._shapes):
            return 0
        return self._batch_size or 0

    def _rows_per_call(self) -> int:
        bytes_ = sum(_estimated_bytes(spec) for spec in self._specs)
        return max(1, min(_MAX_ROWS, _MAX_BYTES // bytes_))


def rows_of(batches: Any, specs: list[Any], on_one_device: bool = False) -> Any:
    """Makes a dataset of the rows of batches, flat tensors whose first dimension is the row."""
    # TensorFlow's `unbatch` is faster, but crashes the process if a tensor is empty, and does not
    # support all dtypes.
    if any(_may_be_empty(spec) or spec.dtype.name in _NOT_UNBATCHED for spec in specs):
        return flat_mapped(batches, _slices, specs, on_one_device=on_one_device)
    return unbatched(batches, specs)


def on_cpu() -> Any:
    """Returns a context manager that places ops on the CPU."""
    return tf.device("CPU:0")


def _slices(*columns: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices(columns)


def _has_rows(key: Any, *_: Any) -> Any:
    return tf.size(key) > 0


def _may_be_empty(spec: Any) -> bool:
    return not spec.shape.is_fully_defined() or 0 in spec.shape.as_list()


def _without_sharding() -> Any:
    options = tf.data.Options()
    # A table cannot be sharded among workers; each of them samples from the whole table.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


def _as_built() -> Any:
    """Options of a dataset that TensorFlow does not change for each iterator."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    # Nothing is left to tune, and often an iterator waits 20 ms for the end of the tuner's thread.
    options.autotune.enabled = False
    return options


def _estimated_bytes(spec: Any) -> int:
    shape = [None] if spec.shape.rank is None else spec.shape.as_list()
    values = math.prod(_TYPICAL_DIMENSION if size is None else size for size in shape)
    return max(1, values * (spec.dtype.size or 1))
