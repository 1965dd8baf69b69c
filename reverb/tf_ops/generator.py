# SPDX-License-Identifier: Apache-2.0
"""A dataset whose elements are the results of an op, with TensorFlow's public API only."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports]

from reverb.tf_ops.graph_function import traced

__all__ = ["generator_dataset"]


def generator_dataset(
    arguments: Sequence[Any],
    start: Callable[..., Any],
    take: Callable[[Any], Sequence[Any]],
    stop: Callable[[Any], Any],
    specs: Sequence[Any],
) -> Any:
    """Makes a dataset of the results of an op, which is called for each element.

    Unlike `Dataset.from_generator`, it runs no Python code. `start` is called once for each
    iterator; it gets the arguments, and returns its state, a tensor like the first of them. `take`
    gets the state and returns the tensors of the next element; it ends the dataset with an
    `OutOfRangeError`. `stop` gets the state when the iterator ends or is deleted; it returns any
    tensor.
    """
    argument_specs = [tf.TensorSpec(argument.shape, argument.dtype) for argument in arguments]
    state_specs = argument_specs[:1]
    variant = tf.raw_ops.GeneratorDataset(
        init_func_other_args=list(arguments),
        next_func_other_args=[],
        finalize_func_other_args=[],
        init_func=traced(start, argument_specs),
        next_func=traced(take, state_specs),
        finalize_func=traced(stop, state_specs),
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )
    return tf.data.experimental.from_variant(variant, tuple(specs))
