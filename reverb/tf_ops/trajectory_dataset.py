# SPDX-License-Identifier: Apache-2.0
"""A dataset of whole items."""

from reverb.tf_ops.dataset import SamplerDataset

__all__ = ["TrajectoryDataset"]


class TrajectoryDataset(SamplerDataset):
    """A `tf.data.Dataset` of items, sampled from a table.

    An element is a `reverb.ReplaySample`: `info` has scalars (key uint64, probability float64,
    table_size int64, priority float64, times_sampled int32), `data` is nested like `dtypes`, with
    tuples for lists, and has the item's columns, `[T, ...]`, or `[...]` for a column that is a
    single step.

    Each iterator has its own sampler, which prefetches items in the background and is closed with
    the iterator. `iter(dataset)` starts it at once. Datasets derived from this one
    (`dataset.map(...)`, `interleave`, ...) start theirs at the first `next`. With one worker and
    one server, items come in the order in which the table sampled them.

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
