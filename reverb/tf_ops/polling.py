# SPDX-License-Identifier: Apache-2.0
"""A dataset that asks an op for its elements, again and again, in the thread of who wants them."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports]

from reverb.tf_ops.graph_function import traced

__all__ = ["polling_dataset"]


def polling_dataset(owner: Any, take: Callable[[Any], Sequence[Any]], specs: Sequence[Any]) -> Any:
    """Makes a dataset of what an op returns.

    A call runs in the thread that wants an element, and not in the pool that the functions of a
    pipeline share: sources that wait so leave the others their turns, and a call costs no change of
    threads. The public `Dataset.map` has no word for that, the op beneath it has.

    Args:
      owner: Scalar int64 tensor that stands for the source of the elements, and lives until the
        iterator is dropped.
      take: Gets the owner, returns the tensors of the next element; ends the dataset by an
        `OutOfRangeError`. Traced once; must not capture tensors.
      specs: Specs of the tensors of an element.
    """
    variant = tf.raw_ops.MapDataset(
        input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.from_tensors(owner).repeat()),
        other_arguments=[],
        f=traced(take, [tf.TensorSpec([], tf.int64)]),
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
        use_inter_op_parallelism=False,
        # Else an `OutOfRangeError` is an error, and not the end.
        preserve_cardinality=False,
    )
    return tf.data.experimental.from_variant(variant, tuple(specs))
