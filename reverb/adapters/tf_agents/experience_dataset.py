# SPDX-License-Identifier: Apache-2.0
"""Datasets for learners: batches of sequences with their infos, made of sampled items."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports]

import reverb
from reverb import errors
from reverb.adapters.tf_agents.inline_map import inline_map
from reverb.adapters.tf_agents.observer import at_least_one

__all__ = [
    "ItemSource",
    "check_sizes",
    "experience_dataset",
    "make_reverb_dataset",
    "repeated_info",
    "sampler_source",
    "truncate_reshape_rows_by_num_steps",
]

# Makes a dataset of `ReplaySample`s: single items, data `[T, ...]` and info `[]`; or, with a batch
# size, batches of items, data `[B, T, ...]` and info `[B]`. The second argument is whether to drop
# a last batch that is not full.
ItemSource = Callable[[int | None, bool], Any]

# Number of batches to prefetch. A few hide the latency of the server; with more, priorities are
# older.
_BATCHES_IN_FLIGHT = 2

# Number of items to prefetch for a dataset without batches.
_ITEMS_IN_FLIGHT = 3

# Default number of streams for tables with random order, for batches of at least the size below.
# While one stream waits for the server, another has items.
_STREAMS = 2
_BATCH_FOR_STREAMS = 16

# Assumed number of fragments per item if it is unknown, for the size of a shuffle buffer.
_TYPICAL_FRAGMENTS = 100


def sampler_source(
    server_address: str,
    table: str,
    dtypes: Any,
    shapes: Any,
    *,
    max_in_flight: int | None = None,
    num_workers_per_iterator: int = -1,
    max_samples_per_stream: int = -1,
    rate_limiter_timeout_ms: int = -1,
    max_samples: int = -1,
    ordered: bool = True,
    window: reverb.Window | None = None,
) -> ItemSource:
    """Makes a source of items in the order of a table's sampler; see `reverb.TrajectoryDataset`.

    Without `max_in_flight` it prefetches two batches, or three items. `ordered` keeps their order.
    """

    def source(batch_size: int | None, drop_remainder: bool) -> Any:
        in_flight = max_in_flight or (
            _BATCHES_IN_FLIGHT * batch_size if batch_size else _ITEMS_IN_FLIGHT
        )
        workers = num_workers_per_iterator
        if workers == -1:
            workers = _STREAMS if not ordered and (batch_size or 0) >= _BATCH_FOR_STREAMS else 1
        dataset = reverb.TrajectoryDataset(
            server_address,
            table,
            dtypes,
            shapes,
            max_in_flight_samples_per_worker=max(1, in_flight // max(1, workers)),
            num_workers_per_iterator=workers,
            max_samples_per_stream=max_samples_per_stream,
            rate_limiter_timeout_ms=rate_limiter_timeout_ms,
            max_samples=max_samples,
            window=window,
        )
        return dataset if batch_size is None else dataset.batch(batch_size, drop_remainder)

    return source


def experience_dataset(
    source: ItemSource,
    *,
    sequence_length: int | None,
    batch_size: int | None,
    num_steps: int | None = None,
    preprocess_fn: Callable[[Any], Any] | None = None,
    num_parallel_calls: Any = None,
    shuffle: bool = False,
    drop_remainder: bool = True,
) -> Any:
    """Makes a dataset of items, or of fragments of `num_steps`, as pairs `(data, info)`.

    Without `sequence_length`, items differ in length; without `batch_size`, elements have no batch
    dimension. `preprocess_fn` is applied to the data of each item, `[T, ...]`, before it is cut, in
    `num_parallel_calls` at a time. `shuffle` shuffles the fragments of `batch_size` items.

    Returns:
      A `tf.data.Dataset` of pairs: data `[B, T, ...]`, and an info whose leaves are `[B, T]`.
    """
    if num_steps == sequence_length:
        num_steps = None
    if preprocess_fn is None and num_steps is None:
        with_info = _pair_of_batch if batch_size else _pair_of_item
        return inline_map(source(batch_size, drop_remainder), with_info)
    if preprocess_fn is None and sequence_length is not None and batch_size is not None:
        # The last batch of items is kept here; `rebatch` drops only fragments that fill no batch.
        blocks = inline_map(source(batch_size, False), _fragments(num_steps, shuffle))
        return blocks.rebatch(batch_size, drop_remainder)
    dataset = inline_map(source(None, False), _pair_of_item)
    if preprocess_fn is not None:
        calls = tf.data.AUTOTUNE if num_parallel_calls is None else num_parallel_calls
        dataset = dataset.map(
            lambda data, info: (preprocess_fn(data), info), num_parallel_calls=calls
        )
    if num_steps is not None:
        cut = functools.partial(_cut_pair, num_steps)
        dataset = _rows_of(inline_map(dataset, cut))
        if shuffle:
            count = sequence_length // num_steps if sequence_length else _TYPICAL_FRAGMENTS
            dataset = dataset.shuffle(count * (batch_size or 1))
    return dataset if batch_size is None else dataset.batch(batch_size, drop_remainder)


def check_sizes(
    sequence_length: int | None, batch_size: Any, num_steps: Any, num_parallel_calls: Any = None
) -> None:
    """Checks the sizes that a learner requests against the length of items.

    Raises:
      InvalidArgumentError: If items cannot have these sizes.
    """
    if batch_size is not None:
        at_least_one("sample_batch_size", batch_size)
        if num_parallel_calls is not None and num_parallel_calls > batch_size:
            raise errors.InvalidArgumentError(
                "num_parallel_calls cannot be bigger than sample_batch_size, got "
                f"{num_parallel_calls} > {batch_size}"
            )
    if num_steps is None:
        return
    at_least_one("num_steps", num_steps)
    if sequence_length is None:
        return
    if num_steps > sequence_length:
        raise errors.InvalidArgumentError(
            "num_steps must be at most the sequence_length of the buffer: num_steps > "
            f"sequence_length ({num_steps} vs. {sequence_length})"
        )
    if sequence_length % num_steps:
        raise errors.InvalidArgumentError(
            "items cannot be cut into fragments without a remainder: sequence_length is not a "
            f"multiple of num_steps ({sequence_length} vs. {num_steps})"
        )


def make_reverb_dataset(
    server_address: str,
    table: str,
    data_spec: Any,
    max_in_flight_samples_per_worker: int = 10,
    batch_size: int | None = None,
    prefetch_size: int | None = None,
    sequence_length: int | None = None,
    cycle_length: int | None = None,
    num_parallel_calls: Any = None,
    per_sequence_fn: Callable[[Any], Any] | None = None,
    dataset_transformation: Callable[[Any], Any] | None = None,
    num_workers_per_iterator: int = -1,
    max_samples_per_stream: int = -1,
    rate_limiter_timeout_ms: int = -1,
) -> Any:
    """Makes a dataset of items of a table, as `ReplaySample`s.

    Args:
      server_address: Address of the server.
      table: Name of the table.
      data_spec: Nest of specs of one frame.
      max_in_flight_samples_per_worker: Number of items that a worker prefetches.
      batch_size: Number of elements in a batch, `B`; a last batch that is not full is dropped.
        `None`: no batches.
      prefetch_size: Number of batches to prefetch.
      sequence_length: The length of the items, `T`; `None`: any.
      cycle_length: Ignored: one sampler does the work of several interleaved ones.
      num_parallel_calls: Number of parallel calls of `per_sequence_fn`; `None`: TensorFlow
        decides.
      per_sequence_fn: Maps the `ReplaySample` of one item, data `[T, ...]` and info `[T]`.
      dataset_transformation: Maps the dataset of items, before batches are made.
      num_workers_per_iterator: As in `reverb.TrajectoryDataset`.
      max_samples_per_stream: As in `reverb.TrajectoryDataset`.
      rate_limiter_timeout_ms: As in `reverb.TrajectoryDataset`.

    Returns:
      A `tf.data.Dataset` of `ReplaySample`s: data `[B, T, ...]`, info `[B, T]`.
    """
    del cycle_length
    source = sampler_source(
        server_address,
        table,
        tf.nest.map_structure(lambda spec: spec.dtype, data_spec),
        tf.nest.map_structure(
            lambda spec: tf.TensorShape([sequence_length]).concatenate(spec.shape), data_spec
        ),
        max_in_flight=max_in_flight_samples_per_worker * max(1, num_workers_per_iterator),
        num_workers_per_iterator=num_workers_per_iterator,
        max_samples_per_stream=max_samples_per_stream,
        rate_limiter_timeout_ms=rate_limiter_timeout_ms,
    )
    if per_sequence_fn is None and dataset_transformation is None:
        with_info = _pair_of_batch if batch_size else _pair_of_item
        dataset = inline_map(source(batch_size, True), lambda sample: _as_sample(with_info(sample)))
    else:
        dataset = inline_map(source(None, False), lambda sample: _as_sample(_pair_of_item(sample)))
        if per_sequence_fn is not None:
            calls = tf.data.AUTOTUNE if num_parallel_calls is None else num_parallel_calls
            dataset = dataset.map(per_sequence_fn, num_parallel_calls=calls)
        if dataset_transformation is not None:
            dataset = dataset_transformation(dataset)
        if batch_size:
            dataset = dataset.batch(batch_size, drop_remainder=True)
    return dataset.prefetch(prefetch_size) if prefetch_size else dataset


def truncate_reshape_rows_by_num_steps(sample: Any, num_steps: int) -> Any:
    """Cuts sequences into fragments; the remainder at their end is dropped.

    Args:
      sample: Nest of tensors `[T, ...]`.
      num_steps: Length of a fragment.

    Returns:
      Nest of tensors `[T // num_steps, num_steps, ...]`, where `T` is the length of the first leaf.
    """
    rows = tf.shape(tf.nest.flatten(sample)[0])[0] // num_steps
    static_length = tf.nest.flatten(sample)[0].shape[0]
    static_rows = None if static_length is None else static_length // num_steps

    def fragments(tensor: Any) -> Any:
        shape = tf.concat([[rows, num_steps], tf.shape(tensor)[1:]], axis=0)
        cut = tf.reshape(tensor[: rows * num_steps], shape)
        cut.set_shape(tf.TensorShape([static_rows, num_steps]).concatenate(tensor.shape[1:]))
        return cut

    return tf.nest.map_structure(fragments, sample)


def repeated_info(info: Any, length: Any) -> Any:
    """Repeats the leaves `[...]` of an info to `[..., T]`."""

    def repeated(leaf: Any) -> Any:
        return tf.tile(tf.expand_dims(leaf, -1), [1] * leaf.shape.rank + [length])

    return tf.nest.map_structure(repeated, info)


def _pair_of_batch(sample: Any) -> Any:
    return sample.data, repeated_info(sample.info, _length(sample.data, 1))


def _pair_of_item(sample: Any) -> Any:
    return sample.data, repeated_info(sample.info, _length(sample.data, 0))


def _cut_pair(num_steps: int, pair: Any) -> Any:
    return truncate_reshape_rows_by_num_steps(pair, num_steps)


def _as_sample(pair: Any) -> Any:
    return reverb.ReplaySample(info=pair[1], data=pair[0])


def _length(data: Any, axis: int) -> Any:
    first = tf.nest.flatten(data)[0]
    static = first.shape[axis]
    return tf.shape(first)[axis] if static is None else static


def _fragments(num_steps: Any, shuffle: bool) -> Callable[[Any], Any]:
    """Returns a function that cuts a batch of items `[B, T, ...]` into a batch of fragments."""

    def fragments(sample: Any) -> Any:
        rows_per_item = _length(sample.data, 1) // num_steps
        count = tf.shape(sample.info.key)[0] * rows_per_item
        order = tf.random.shuffle(tf.range(count)) if shuffle else None

        def cut(tensor: Any) -> Any:
            shape = tf.concat([[count, num_steps], tf.shape(tensor)[2:]], axis=0)
            rows = tf.reshape(tensor, shape)
            rows.set_shape(tf.TensorShape([None, num_steps]).concatenate(tensor.shape[2:]))
            return rows if order is None else tf.gather(rows, order)

        def spread(leaf: Any) -> Any:  # [B] to [B * rows_per_item, num_steps]
            rows = tf.repeat(leaf, rows_per_item)
            rows = rows if order is None else tf.gather(rows, order)
            return tf.tile(rows[:, tf.newaxis], [1, num_steps])

        data = tf.nest.map_structure(cut, sample.data)
        return data, tf.nest.map_structure(spread, sample.info)

    return fragments


def _rows_of(blocks: Any) -> Any:
    """Makes a dataset of the rows of tensors `[R, ...]`; `R` may be 0."""
    leaves = tf.nest.flatten(blocks.element_spec)
    if any(not spec.shape[1:].is_fully_defined() or 0 in spec.shape[1:] for spec in leaves):
        # TensorFlow's `unbatch` is faster, but crashes the process if a tensor is empty.
        return blocks.flat_map(lambda *pair: tf.data.Dataset.from_tensor_slices(pair))
    return blocks.filter(lambda *pair: tf.shape(tf.nest.flatten(pair)[0])[0] > 0).unbatch()
