# SPDX-License-Identifier: Apache-2.0
"""`flat_map`, `filter` and `unbatch` that do not initialise the eager context in graph programs.

Otherwise they are equal to those of `tf.data.Dataset`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports]

from reverb.tf_ops.graph_function import traced

__all__ = ["filtered", "flat_mapped", "unbatched"]


def flat_mapped(
    dataset: Any,
    make: Callable[..., Any],
    specs: Sequence[Any],
    *,
    on_one_device: bool = False,
) -> Any:
    """Applies `flat_map`: concatenates the datasets that a function makes of elements.

    The function gets the tensors of an element, and must capture none; `specs` are those of the
    tensors of an element of the new datasets.
    """

    def variant(*element: Any) -> Any:
        return tf.data.experimental.to_variant(make(*element))

    mapped = tf.raw_ops.FlatMapDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        other_arguments=[],
        f=traced(variant, tf.nest.flatten(dataset.element_spec), on_one_device=on_one_device),
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )
    return tf.data.experimental.from_variant(mapped, tuple(specs))


def filtered(dataset: Any, is_kept: Callable[..., Any], *, on_one_device: bool = False) -> Any:
    """Applies `filter` to tuples of tensors: keeps those for which a function returns true.

    The function returns a scalar bool, and must not capture tensors.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    kept = tf.raw_ops.FilterDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        other_arguments=[],
        predicate=traced(is_kept, specs, on_one_device=on_one_device),
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )
    return tf.data.experimental.from_variant(kept, dataset.element_spec)


def unbatched(dataset: Any, specs: Sequence[Any]) -> Any:
    """Applies `unbatch`: makes an element of each row, the first dimension of the tensors."""
    rows = tf.raw_ops.UnbatchDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )
    return tf.data.experimental.from_variant(rows, tuple(specs))
