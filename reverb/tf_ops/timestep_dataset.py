# SPDX-License-Identifier: Apache-2.0
"""A dataset of single steps."""

from reverb.tf_ops.dataset import SamplerDataset

__all__ = ["TimestepDataset"]


class TimestepDataset(SamplerDataset):
    """A `tf.data.Dataset` of the steps of items, sampled from a table.

    Like `TrajectoryDataset`, but an element is one step of an item, `[...]`, with the item's
    `info`. All steps of an item come before those of the next item; the end of an item is not
    marked. The columns of an item must have the same length; otherwise `next` raises
    `tf.errors.InvalidArgumentError`. `max_samples` counts items, `batch_size` and `.batch(n)` count
    steps: a batch continues where the previous one ended, also within an item.

    Example:
      >>> dataset = reverb.TimestepDataset(
      ...     server_address=client.server_address,
      ...     table="replay",
      ...     dtypes={"observation": tf.float32, "action": tf.int64},
      ...     shapes={"observation": tf.TensorShape([4]), "action": tf.TensorShape([])},
      ...     max_in_flight_samples_per_worker=100,
      ... )
      >>> for step in dataset.take(1000):
      ...     print(step.info.key, step.data["action"])
    """

    _TIMESTEPS = True
