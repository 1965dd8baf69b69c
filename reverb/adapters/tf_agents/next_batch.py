# SPDX-License-Identifier: Apache-2.0
"""Samples one batch, eagerly or in a graph; the implementation of `get_next`."""

import functools
from typing import Any

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports]
import tree

import reverb
from reverb import errors
from reverb.adapters.tf_agents.data_spec import DataSpec
from reverb.adapters.tf_agents.experience_dataset import (
    experience_dataset,
    repeated_info,
    sampler_source,
)
from reverb.adapters.tf_agents.inline_map import inline_map
from reverb.adapters.tf_agents.remote_table import RemoteTable
from reverb.adapters.tf_agents.single_pass import stacked

__all__ = ["sampled_eagerly", "sampled_in_graph", "unstacked"]


def sampled_eagerly(
    table: RemoteTable,
    spec: DataSpec,
    *,
    sequence_length: int | None,
    batch_size: int | None,
    num_steps: int | None,
    timeout_ms: int | None,
) -> Any:
    """Samples items; blocks while the table's rate limiter allows no sample, for `timeout_ms`.

    Items have `sequence_length` or any, of which `num_steps` consecutive steps are taken from a
    random start. Without `batch_size`, there is one, without a batch dimension.

    Returns:
      A pair: data `[B, T, ...]`, and an info whose leaves are `[B, T]`.
    """
    window = None if num_steps is None else table.window(num_steps)
    if window is not None:
        return _sampled_windows(
            table,
            spec,
            window,
            sequence_length=sequence_length,
            batch_size=batch_size,
            timeout_ms=timeout_ms,
        )
    samples = []
    for sample in table.client.sample(
        table.name, batch_size or 1, emit_timesteps=False, timeout_ms=timeout_ms
    ):
        columns = spec.checked_item(sample.data, table.name, sequence_length)
        if num_steps is not None:
            length = len(columns[0])
            if length < num_steps:
                raise errors.InvalidArgumentError(
                    f"num_steps must be at most the length of an item, {length} of one that was "
                    f"sampled from table {table.name}, got {num_steps}"
                )
            start = int(_random_start(length, num_steps))
            columns = [column[start : start + num_steps] for column in columns]
        samples.append(sample._replace(data=spec.nested(columns)))
    return _as_pair(stacked(samples, table.name), spec, batch_size)


def _sampled_windows(
    table: RemoteTable,
    spec: DataSpec,
    window: reverb.Window,
    *,
    sequence_length: int | None,
    batch_size: int | None,
    timeout_ms: int | None,
) -> Any:
    """Like `sampled_eagerly`, of a server that cuts the items."""
    batches, missing = [], batch_size or 1
    while missing > 0:
        batch = table.client.sample_batch(table.name, missing, window=window, timeout_ms=timeout_ms)
        columns = tree.flatten(batch.data)
        spec.checked_item([column[0] for column in columns], table.name, window.length)
        _check_lengths(batch.num_windows + (window.length - 1), table.name, sequence_length)
        info = reverb.SampleInfo(*batch.info[: len(reverb.SampleInfo._fields)])
        batches.append(reverb.ReplaySample(info=info, data=spec.nested(columns)))
        missing -= len(columns[0])
    whole = batches[0]
    if len(batches) > 1:
        whole = tree.map_structure(lambda *leaves: np.concatenate(leaves), *batches)
    return _as_pair(whole, spec, batch_size)


def _check_lengths(lengths: Any, table: str, sequence_length: int | None) -> None:
    others = [] if sequence_length is None else sorted(set(lengths.tolist()) - {sequence_length})
    if others:
        raise errors.SignatureMismatchError(
            f"items of table {table} must have the sequence_length of the buffer, "
            f"{sequence_length}, got one of {others[0]} steps"
        )


def _as_pair(batch: Any, spec: DataSpec, batch_size: int | None) -> Any:
    """Converts a batch `[B, T, ...]` of arrays to tensors, and its info to `[B, T]`."""
    length = np.shape(tree.flatten(batch.data)[0])[1]
    if batch_size is None:
        batch = tree.map_structure(lambda leaf: leaf[0], batch)
    dtypes = reverb.ReplaySample(info=reverb.SampleInfo.tf_dtypes(), data=spec.dtypes)
    tensors: Any = tree.map_structure(tf.constant, batch, dtypes)
    return tensors.data, repeated_info(tensors.info, length)


def sampled_in_graph(
    table: RemoteTable,
    spec: DataSpec,
    *,
    sequence_length: int | None,
    batch_size: int | None,
    num_steps: int | None,
    rate_limiter_timeout_ms: int,
) -> Any:
    """Like `sampled_eagerly`, as ops of a graph that sample whenever they run.

    Blocks until the server has said, once, whether it knows windows.
    """
    window = None if num_steps is None else table.window(num_steps)
    source = sampler_source(
        table.server_address,
        table.name,
        spec.dtypes,
        spec.shapes(sequence_length if window is None else num_steps),
        rate_limiter_timeout_ms=rate_limiter_timeout_ms,
        max_in_flight=batch_size or 1,
        max_samples=batch_size or 1,
        window=window,
    )
    if window is not None:
        pair_of = functools.partial(_pair_of_windows, table.name, sequence_length, window.length)
        return inline_map(source(batch_size, True), pair_of).get_single_element()
    dataset = experience_dataset(
        source,
        sequence_length=sequence_length,
        batch_size=batch_size if num_steps is None else None,
    )
    if num_steps is not None:
        dataset = inline_map(dataset, functools.partial(_random_steps, num_steps))
        if batch_size is not None:
            dataset = dataset.batch(batch_size, drop_remainder=True)
    return dataset.get_single_element()


def unstacked(pair: Any, axis: int) -> Any:
    """Splits a pair `(data, info)` of a known length into its time steps, along `axis`.

    Returns:
      A tuple of `T` nests of data; and an info whose leaves are tuples of `T` tensors.

    Raises:
      InvalidArgumentError: If the length is unknown in a graph.
    """
    data, info = pair
    leaves = [*tf.nest.flatten(data), *tf.nest.flatten(info)]
    if any(leaf.shape[axis] is None for leaf in leaves):
        raise errors.InvalidArgumentError(
            "time_stacked must be True, or num_steps given, if the length of the items is unknown "
            "in the graph"
        )
    steps = [tf.unstack(leaf, axis=axis) for leaf in tf.nest.flatten(data)]
    by_time = tuple(tf.nest.pack_sequence_as(data, leaves) for leaves in zip(*steps, strict=True))
    return by_time, type(info)(*(tuple(tf.unstack(leaf, axis=axis)) for leaf in info))


def _pair_of_windows(table: str, sequence_length: int | None, num_steps: int, sample: Any) -> Any:
    """Makes a pair of data and info, `[B, T]` or `[T]`, of windows."""
    checks = []
    if sequence_length is not None:
        text = f"items of table {table} must have the sequence_length of the buffer"
        lengths = sample.info.num_windows + (num_steps - 1)
        checks.append(tf.debugging.assert_equal(lengths, sequence_length, message=text))
    with tf.control_dependencies(checks):
        info = reverb.SampleInfo(*map(tf.identity, sample.info[: len(reverb.SampleInfo._fields)]))
    return sample.data, repeated_info(info, num_steps)


def _random_start(length: Any, num_steps: int) -> Any:
    return tf.random.uniform([], maxval=length - num_steps + 1, dtype=tf.int32)


def _random_steps(num_steps: int, pair: Any) -> Any:
    """Takes consecutive steps, from a random start, of an item and its info, `[T, ...]`."""
    start = _random_start(tf.shape(tf.nest.flatten(pair)[0])[0], num_steps)

    def steps_of(leaf: Any) -> Any:
        steps = leaf[start : start + num_steps]
        steps.set_shape([num_steps, *leaf.shape[1:]])
        return steps

    return tf.nest.map_structure(steps_of, pair)
