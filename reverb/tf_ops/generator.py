# SPDX-License-Identifier: Apache-2.0
"""A dataset whose elements come from an op, in TensorFlow's public API alone."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports]

__all__ = ["generator_dataset"]


def generator_dataset(
    arguments: Sequence[Any],
    start: Callable[..., Any],
    take: Callable[[Any], Sequence[Any]],
    stop: Callable[[Any], Any],
    specs: Sequence[Any],
) -> Any:
    """Makes a dataset of what an op returns, called again and again.

    Unlike `Dataset.from_generator`, no Python runs when the dataset does.

    Args:
      arguments: Tensors, given to `start`.
      start: Called once for each iterator; returns its state, one tensor.
      take: Gets the state, returns the tensors of the next element; ends the dataset by an
        `OutOfRangeError`.
      stop: Gets the state when the iterator ends or is dropped; returns some tensor.
      specs: Specs of the tensors of an element.
    """
    traced_start = _trace(start, arguments)
    state = traced_start.outputs
    variant = tf.raw_ops.GeneratorDataset(
        init_func_other_args=list(arguments),
        next_func_other_args=[],
        finalize_func_other_args=[],
        init_func=traced_start,
        next_func=_trace(take, state),
        finalize_func=_trace(stop, state),
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )
    return tf.data.experimental.from_variant(variant, tuple(specs))


def _trace(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """The graph of a function, which must not capture tensors."""
    graph_only = tf.autograph.experimental.do_not_convert(function)
    specs = [tf.TensorSpec(argument.shape, argument.dtype) for argument in arguments]
    return tf.function(graph_only).get_concrete_function(*specs)
