# SPDX-License-Identifier: Apache-2.0
"""Single passes: every item of a table once, in a fixed order."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports]
import tree

import reverb
from reverb import errors
from reverb.adapters.tf_agents.data_spec import DataSpec
from reverb.adapters.tf_agents.experience_dataset import ItemSource

__all__ = [
    "all_items",
    "calling_first",
    "in_sampler_order",
    "is_deterministic",
    "scan_source",
    "stacked",
]

# Number of items of a scan that are handed to TensorFlow in one call, if there is no batch size.
# With single items the calls would take most of the time.
_ITEMS_PER_CALL = 64


def is_deterministic(info: Any) -> bool:
    """Whether a table's selectors are deterministic, by its `TableInfo`."""
    return info.sampler_options.is_deterministic and info.remover_options.is_deterministic


def in_sampler_order(samples: Iterator[Any], sampler_options: Any) -> Iterator[Any]:
    """Sorts `ReplaySample`s from their order of insertion into that of a deterministic sampler."""
    kind = sampler_options.WhichOneof("distribution")
    if kind == "fifo":
        return samples
    if kind == "lifo":
        return reversed(list(samples))
    if kind != "heap":
        raise NotImplementedError(f"the order of items for the deterministic selector {kind!r}")
    sign = 1.0 if sampler_options.heap.min_heap else -1.0
    # A stable sort: of equal priorities, the older item comes first, as in the heap.
    return iter(sorted(samples, key=lambda sample: sign * float(sample.info.priority)))


def scan_source(
    scan: Callable[[], Iterator[Any]], spec: DataSpec, table: str, sequence_length: int | None
) -> ItemSource:
    """Makes a source of the items of a scan; every iterator of its datasets starts a scan.

    `scan` returns an iterator of `ReplaySample`s in the desired order; `None` as a length means
    any.
    """

    def source(batch_size: int | None, drop_remainder: bool) -> Any:
        rows = batch_size or _ITEMS_PER_CALL

        def blocks() -> Iterator[Any]:
            block: list[Any] = []
            for sample in scan():
                item = sample._replace(
                    data=spec.nested(spec.checked_item(sample.data, table, sequence_length))
                )
                full = len(block) == rows
                # Without batches, an item of another shape begins a new block.
                if full or (block and not batch_size and _shapes(item) != _shapes(block[0])):
                    yield stacked(block, table)
                    block = []
                block.append(item)
            if block and (len(block) == rows or not (batch_size and drop_remainder)):
                yield stacked(block, table)

        leading = batch_size if batch_size and drop_remainder else None
        signature: Any = reverb.ReplaySample(
            info=reverb.SampleInfo._make(
                tf.TensorSpec([leading], dtype) for dtype in reverb.SampleInfo.tf_dtypes()
            ),
            data=tree.map_structure(
                tf.TensorSpec, spec.shapes(leading, sequence_length), spec.dtypes
            ),
        )
        dataset = tf.data.Dataset.from_generator(blocks, output_signature=signature)
        dataset = dataset.with_options(_without_sharding())
        # `unbatch` would crash the process if a tensor is empty.
        return dataset if batch_size else dataset.flat_map(_slices)

    return source


def all_items(
    samples: Iterator[Any], spec: DataSpec, table: str, sequence_length: int | None
) -> Any:
    """Stacks the data of all items of a scan, `[N, T, ...]`; `None` as a length means any.

    Raises:
      InvalidArgumentError: If the items differ in length.
    """
    items = [
        sample._replace(data=spec.checked_item(sample.data, table, sequence_length))
        for sample in samples
    ]
    if items:
        return spec.nested(stacked(items, table).data)
    return tree.map_structure(
        lambda shape, dtype: np.zeros([size or 0 for size in shape], dtype.as_numpy_dtype),
        spec.shapes(0, sequence_length),
        spec.dtypes,
    )


def calling_first(call: Callable[[], None], source: ItemSource) -> ItemSource:
    """Makes a source whose datasets call a function at the start of every iterator."""

    def call_and_return(value: Any) -> Any:
        call()
        return value

    def wrapped(batch_size: int | None, drop_remainder: bool) -> Any:
        dataset = source(batch_size, drop_remainder)
        zero = tf.data.Dataset.from_tensors(np.int64(0))
        first = zero.map(lambda value: tf.numpy_function(call_and_return, [value], tf.int64))
        return first.flat_map(lambda _: dataset).with_options(_without_sharding())

    return wrapped


def stacked(samples: list[Any], table: str) -> Any:
    """Stacks `ReplaySample`s along a new first dimension.

    Raises:
      InvalidArgumentError: If their shapes differ; the text names the lengths.
    """
    if any(_shapes(sample) != _shapes(samples[0]) for sample in samples):
        lengths = sorted({len(tree.flatten(sample.data)[0]) for sample in samples})
        raise errors.InvalidArgumentError(
            f"items of table {table} cannot be stacked, because their lengths differ: "
            f"{', '.join(map(str, lengths))}; read them one by one, with "
            "as_dataset(sample_batch_size=None), or cut them, with num_steps"
        )
    return tree.map_structure(lambda *leaves: np.stack(leaves), *samples)


def _shapes(sample: Any) -> list[Any]:
    return [column.shape for column in tree.flatten(sample.data)]


@tf.autograph.experimental.do_not_convert
def _slices(sample: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices(sample)


def _without_sharding() -> Any:
    options = tf.data.Options()
    # A table cannot be sharded among workers.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
