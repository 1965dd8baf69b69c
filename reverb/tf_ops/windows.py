# SPDX-License-Identifier: Apache-2.0
"""Windows of a dataset: the check of the argument, the shapes of columns, attributes of the ops."""

from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports]
import tree

from reverb._client.window import Window, check_window
from reverb.errors import InvalidArgumentError
from reverb.replay_sample import SampleInfo, WindowInfo

__all__ = [
    "check_lengths_are_free",
    "checked_window",
    "info_specs",
    "info_type",
    "window_attributes",
    "window_column",
]


def checked_window(window: Any) -> Window | None:
    """Returns the argument `window` of a dataset.

    Raises:
      InvalidArgumentError: If it has spans.
      TypeError: If it is no window.
    """
    if window is None:
        return None
    check_window(window)
    if window.spans:
        raise InvalidArgumentError(
            f"window must have no spans in a TensorFlow dataset, got {window}: take whole windows, "
            "and slice the columns in `map`"
        )
    return window


def window_column(column: Any, window: Window | None) -> Any:
    """Returns the spec of a column of a window: an unknown first dimension is its length."""
    shape = column.shape
    if window is None or not shape.rank or shape[0] is not None:
        return column
    steps = tf.TensorShape([window.num_steps])
    return tf.TensorSpec(steps.concatenate(shape[1:]), column.dtype, column.name)


def check_lengths_are_free(signature: Any, owner: str) -> None:
    """Checks that a signature says which columns have steps: those whose first dimension is free.

    Raises:
      InvalidArgumentError: If a first dimension is fixed, which may be a number of steps, or belong
        to a single value.
    """
    for path, spec in tree.flatten_with_path(signature):
        if spec.shape.rank and spec.shape[0] is not None:
            name = "/".join(map(str, path)) or "the only one"
            raise InvalidArgumentError(
                f"{owner} has a signature whose column {name} has a fixed first dimension, "
                f"{spec.shape}. With a window this may be a number of steps, or belong to a single "
                "value. Give the dtypes and shapes of windows to TrajectoryDataset(...) instead"
            )


def info_type(window: Window | None) -> Any:
    """Class of the infos of a dataset's elements."""
    return SampleInfo if window is None else WindowInfo


def info_specs(window: Window | None) -> list[Any]:
    """Specs of the fields of the infos."""
    specs = [tf.TensorSpec([], dtype) for dtype in SampleInfo.tf_dtypes()]
    if window is None:
        return specs
    of_window = [tf.TensorSpec([], tf.int32)] * 2
    return [*specs, *of_window, tf.TensorSpec([window.num_steps], tf.bool)]


def window_attributes(window: Window | None) -> dict[str, Any]:
    """Attributes of the op that makes a sampler."""
    if window is None:
        return {}
    return {
        "window_length": window.length,
        "window_before": window.before,
        "window_pad": window.pads_left + 2 * window.pads_right,
    }
