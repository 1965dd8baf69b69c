# SPDX-License-Identifier: Apache-2.0
"""A dataset that polls an op for elements on the consumer's thread."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports]

from reverb.tf_ops.graph_function import traced

__all__ = ["polling_dataset"]


def polling_dataset(
    owner: Any,
    take: Callable[[Any], Sequence[Any]],
    specs: Sequence[Any],
    *,
    on_one_device: bool = False,
) -> Any:
    """Makes a dataset of the results of an op.

    A call runs on the consumer's thread, not in the thread pool that the functions of a pipeline
    share. So a source that waits does not block others, and a call needs no change of threads. The
    public `Dataset.map` has no option for this, but its op has.

    `owner`, a scalar int64 tensor, identifies the source of the elements, and exists until the
    iterator is deleted. `take` gets it and returns the tensors of the next element; it ends the
    dataset with an `OutOfRangeError`. It is traced once, and must not capture tensors.
    """
    variant = tf.raw_ops.MapDataset(
        input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.from_tensors(owner).repeat()),
        other_arguments=[],
        f=traced(take, [tf.TensorSpec([], tf.int64)], on_one_device=on_one_device),
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
        use_inter_op_parallelism=False,
        # Otherwise an `OutOfRangeError` would be an error, not the end of the dataset.
        preserve_cardinality=False,
    )
    return tf.data.experimental.from_variant(variant, tuple(specs))
