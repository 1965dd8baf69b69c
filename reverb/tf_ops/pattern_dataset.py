# SPDX-License-Identifier: Apache-2.0
"""Datasets of the items that the patterns of a structured writer make of a dataset of steps."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports]
import tree

from reverb._client.connecting import DEFAULT_OPTIONS
from reverb._writers.patterns import infer_signature
from reverb.core import native, protos
from reverb.errors import InvalidArgumentError
from reverb.replay_sample import ReplaySample, SampleInfo
from reverb.tf_ops import ops
from reverb.tf_ops.dataset import without_lists
from reverb.tf_ops.pipeline import rows_of

__all__ = ["PatternDataset", "pattern_dataset_with_info"]

# The writer that checks configs requires an address, but does not connect.
_UNUSED_ADDRESS = "localhost:1"


class PatternDataset(tf.data.Dataset):
    """A `tf.data.Dataset` of the items that patterns make of the steps of another dataset.

    Equal to writing the steps with a structured writer and sampling the items in order, without a
    server. Priorities and tables of the configs are ignored. Steps at the end of the input that
    complete no pattern are dropped. Works in eager mode only.

    As in dm-reverb, a config makes no item before the episode has as many steps as its patterns,
    and those of all configs before it, refer back to. For this, `buffer_length` conditions are
    appended to the given configs.

    Example:
      >>> steps = tf.data.Dataset.range(6)
      >>> reference = reverb.structured.create_reference_step(steps.element_spec)
      >>> config = reverb.structured.create_config(reference[-2:], table="unused")
      >>> pairs = reverb.PatternDataset(steps, [config], True, lambda step: step == 2)
      >>> [pair.tolist() for pair in pairs.as_numpy_iterator()]
      [[0, 1], [1, 2], [3, 4], [4, 5]]
    """

    def __init__(
        self,
        input_dataset: Any,
        configs: Sequence[Any],
        respect_episode_boundaries: bool,
        is_end_of_episode: Callable[..., Any],
    ) -> None:
        """Makes a dataset.

        Args:
          input_dataset: `tf.data.Dataset` of steps.
          configs: Patterns and conditions; see `reverb.structured.create_config`. All patterns must
            have the same structure.
          respect_episode_boundaries: Whether items hold steps of one episode only.
          is_end_of_episode: Returns whether a step is the last of its episode, as a scalar bool. It
            gets the step, or the members of a step that is a tuple, as in `Dataset.map`.

        Raises:
          InvalidArgumentError: If a config is invalid, if configs differ in structure, or if
            `is_end_of_episode` does not return a scalar bool.
        """
        signature = infer_signature(configs, input_dataset.element_spec)
        native.Client(_UNUSED_ADDRESS, **DEFAULT_OPTIONS).structured_writer(
            [config.SerializeToString() for config in configs], compresses=True
        )
        _append_buffer_conditions(configs)
        specs = [_unnamed(spec) for spec in tree.flatten(signature)]
        self._input_dataset = input_dataset
        self._specified = without_lists(tree.unflatten_as(signature, specs))
        self._items = _items(
            input_dataset,
            [config.SerializeToString() for config in configs],
            bool(respect_episode_boundaries),
            _checked_end(is_end_of_episode, input_dataset.element_spec),
            specs,
        )
        variant = tf.data.experimental.to_variant(self._items)
        super().__init__(variant)  # pyright: ignore[reportCallIssue]

    def _inputs(self) -> list[Any]:
        return [self._items]

    @property
    def element_spec(self) -> Any:
        """Nest of `tf.TensorSpec` like the patterns."""
        return self._specified


def pattern_dataset_with_info(
    input_dataset: Any,
    configs: Sequence[Any],
    respect_episode_boundaries: bool,
    is_end_of_episode: Callable[..., Any],
) -> Any:
    """Makes a `PatternDataset` whose elements have the structure of `TrajectoryDataset`'s.

    Args:
      input_dataset: As in `PatternDataset`.
      configs: As in `PatternDataset`.
      respect_episode_boundaries: As in `PatternDataset`.
      is_end_of_episode: As in `PatternDataset`.

    Returns:
      A dataset of `reverb.ReplaySample`, with zeros in `info` (int32, and float32 for probability
      and priority).

    Raises:
      InvalidArgumentError: As `PatternDataset`.
    """
    items = PatternDataset(input_dataset, configs, respect_episode_boundaries, is_end_of_episode)

    @tf.autograph.experimental.do_not_convert
    def with_info(*element: Any) -> ReplaySample:
        return ReplaySample(SampleInfo.zeros(), _whole(items.element_spec, element))

    return items.map(with_info)


def _items(
    steps: Any,
    configs: list[bytes],
    clear_after_episode: bool,
    is_end_of_episode: Callable[..., Any],
    specs: list[Any],
) -> Any:
    """The dataset of flat items."""
    dtypes = [spec.dtype for spec in specs]
    # Items of equal shape leave the op as one batch, others one by one.
    stack = all(spec.shape.is_fully_defined() for spec in specs)

    @tf.autograph.experimental.do_not_convert
    def append(engine: Any, step: Any) -> tuple[Any, Any]:
        made = ops.reverb_replay_pattern_append(
            engine,
            is_end_of_episode(step),
            tf.nest.flatten(step),
            Toutput_list=dtypes,
            configs=configs,
            clear_after_episode=clear_after_episode,
            stack=stack,
        )
        made.handle.set_shape([])
        made.count.set_shape([])
        if not stack:
            return made.handle, (made.handle, made.count)
        # If there is no item, the op does not know the shapes.
        items = (
            tf.reshape(column, [made.count, *spec.shape.as_list()])
            for column, spec in zip(made.items, specs, strict=True)
        )
        return made.handle, tuple(items)

    @tf.autograph.experimental.do_not_convert
    def pop(engine: Any, count: Any) -> Any:
        def item(_: Any) -> tuple[Any, ...]:
            tensors = ops.reverb_replay_pattern_pop(engine, Toutput_list=dtypes)
            for tensor, spec in zip(tensors, specs, strict=True):
                tensor.set_shape(spec.shape)
            return tuple(tensors)

        return tf.data.Dataset.range(count).map(tf.autograph.experimental.do_not_convert(item))

    made = steps.scan(tf.constant(0, tf.int64), append)
    items = rows_of(made, specs) if stack else made.flat_map(pop)
    if tf.data.experimental.cardinality(steps) == tf.data.INFINITE_CARDINALITY:
        return items.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    return items


def _append_buffer_conditions(configs: Sequence[Any]) -> None:
    reach = 0
    for config in configs:
        for node in config.flat:
            reach = max(reach, -(node.start if node.HasField("start") else node.stop))
            if not any(
                condition.WhichOneof("left") == "buffer_length" and condition.ge >= reach
                for condition in config.conditions
            ):
                config.conditions.append(protos.Condition(buffer_length=True, ge=reach))


def _checked_end(is_end_of_episode: Callable[..., Any], step_spec: Any) -> Callable[[Any], Any]:
    """Converts the caller's function to a function of one argument, the step, and checks it."""

    def call(step: Any) -> Any:
        return is_end_of_episode(*step) if _is_plain_tuple(step) else is_end_of_episode(step)

    traced = tf.function(call)
    returned = traced.get_concrete_function(step_spec).structured_outputs
    returned = tf.nest.map_structure(_unnamed, returned)
    if not tf.TensorSpec([], tf.bool).is_compatible_with(returned):
        raise InvalidArgumentError(
            "Invalid `is_end_of_episode`. `is_end_of_episode` must return `bool`, but its return "
            f"type is {returned}."
        )
    return traced


def _whole(element_spec: Any, arguments: tuple[Any, ...]) -> Any:
    """Returns the element that `Dataset.map` passed as arguments."""
    return arguments if _is_plain_tuple(element_spec) else arguments[0]


def _is_plain_tuple(nest: Any) -> bool:
    return isinstance(nest, tuple) and not hasattr(nest, "_fields")


def _unnamed(spec: Any) -> Any:
    return tf.TensorSpec(spec.shape, spec.dtype)
