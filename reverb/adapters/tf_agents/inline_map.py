# SPDX-License-Identifier: Apache-2.0
"""`Dataset.map` for a few small ops, without the cost of a thread pool."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports]

__all__ = ["inline_map"]


def inline_map(dataset: Any, fn: Callable[[Any], Any]) -> Any:
    """Maps elements on the consumer's thread.

    `Dataset.map` hands every op to a thread pool, and TensorFlow's optimizer makes it prefetch
    elements. For sampled items this costs more than the map itself (some 2 us per item in batches
    of 64), and priorities are older. `fn` gets an element as one argument; it is traced once, and
    must not capture tensors.
    """
    element_spec = dataset.element_spec
    structure: Any = None

    @tf.autograph.experimental.do_not_convert
    def flat(*leaves: Any) -> list[Any]:
        nonlocal structure
        result = fn(tf.nest.pack_sequence_as(element_spec, leaves))
        structure = tf.nest.map_structure(
            lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), result
        )
        return tf.nest.flatten(result)

    traced = tf.function(flat).get_concrete_function(*tf.nest.flatten(element_spec))
    specs = tf.nest.flatten(structure)
    variant = tf.raw_ops.MapDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        other_arguments=[],
        f=traced,
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
        use_inter_op_parallelism=False,
        preserve_cardinality=True,
    )
    return _Mapped(variant, dataset, structure).with_options(_unparallelized())


class _Mapped(tf.data.Dataset):
    """A dataset with the options of its source."""

    def __init__(self, variant: Any, source: Any, element_spec: Any) -> None:
        self._source = source
        self._specified = element_spec
        super().__init__(variant)  # pyright: ignore[reportCallIssue]

    def _inputs(self) -> list[Any]:
        return [self._source]

    @property
    def element_spec(self) -> Any:
        """Nest of `tf.TensorSpec` like the elements."""
        return self._specified


def _unparallelized() -> Any:
    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    return options
