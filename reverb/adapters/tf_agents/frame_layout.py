# SPDX-License-Identifier: Apache-2.0
"""The structure of an observer's frames, which the first frame defines.

A frame is one step of an environment, without a batch dimension: usually a `Trajectory` of
TF-Agents, or any nest whose outermost container has an attribute `step_type`. Its leaves are values
that NumPy converts to arrays, eager tensors included. This module does not need TensorFlow.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tree

from reverb.errors import InvalidArgumentError, SignatureMismatchError

__all__ = ["FIRST", "LAST", "FrameLayout", "step_type_of"]

# Values of `step_type` and `next_step_type`, as in `tf_agents.trajectories.StepType`.
FIRST = 0
LAST = 2


class FrameLayout:
    """The structure of an observer's frames.

    Attributes:
      matches: Function that returns True only for frames of this structure. It is fast, because it
        runs for every frame; if it returns False, `check` decides.
      is_last: Function that returns whether a frame is a boundary, which ends its episode.
    """

    matches: Callable[[Any], bool]
    is_last: Callable[[Any], bool]

    def __init__(self, frame: Any) -> None:
        """Takes the structure of a frame.

        Raises:
          InvalidArgumentError: If the frame has no `step_type`, or more than one.
        """
        shape = np.shape(step_type_of(frame))
        if any(size != 1 for size in shape):
            raise _not_single(frame)
        self.matches = _matcher(frame)
        self.is_last = _is_last_of_one if shape else _is_last
        self._paths = _paths(frame)
        self._zeros = tree.map_structure_with_path(_padding_leaf, frame)

    def check(self, frame: Any) -> None:
        """Raises an error unless a frame has exactly the fields of the first one.

        The writer checks dtypes and shapes.

        Raises:
          SignatureMismatchError: If fields are missing or new; the text names them.
          InvalidArgumentError: If the frame has no `step_type`.
        """
        step_type_of(frame)
        paths = _paths(frame)
        missing = [path for path in self._paths if path not in paths]
        unknown = [path for path in paths if path not in self._paths]
        if missing or unknown:
            raise SignatureMismatchError(
                "a frame must have the fields of the first frame"
                + (f"; it has no value for {_names(missing)}" if missing else "")
                + (f"; new is {_names(unknown)}" if unknown else "")
            )

    @property
    def padding(self) -> Any:
        """The frame for padding after the end of an episode: a boundary with zeros elsewhere."""
        return self._zeros


def step_type_of(frame: Any) -> Any:
    """Returns the `step_type` of a frame.

    Raises:
      InvalidArgumentError: If it has none.
    """
    try:
        return frame.step_type
    except AttributeError:
        raise InvalidArgumentError(
            "a frame must be a Trajectory, or another nest with an attribute step_type, got "
            f"{type(frame).__name__}"
        ) from None


def _is_last(frame: Any) -> bool:
    try:
        # Several times faster than comparing a NumPy scalar.
        return int(frame.step_type) == LAST
    except TypeError:
        raise _not_single(frame) from None


def _is_last_of_one(frame: Any) -> bool:
    return np.asarray(frame.step_type).item() == LAST


def _not_single(frame: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        "a frame must be one step of one environment, got a step_type of shape "
        f"{list(np.shape(frame.step_type))}; ReverbBatchedTrajectoryObserver takes batches"
    )


def _matcher(nest: Any) -> Callable[[Any], bool]:
    """Returns a test for nests of the same types, lengths and keys with a value at every leaf."""
    kind = type(nest)
    if isinstance(nest, dict):
        keys = frozenset(nest)
        inner = [(key, _matcher(value)) for key, value in nest.items() if tree.is_nested(value)]

        def matches_dict(other: Any) -> bool:
            if type(other) is not kind or other.keys() != keys:
                return False
            if type(None) in map(type, other.values()):
                return False
            return _all_match(inner, other)

        return matches_dict
    if isinstance(nest, tuple | list):
        size = len(nest)
        inner = [(i, _matcher(value)) for i, value in enumerate(nest) if tree.is_nested(value)]

        def matches_sequence(other: Any) -> bool:
            if type(other) is not kind or len(other) != size:
                return False
            if type(None) in map(type, other):
                return False
            return _all_match(inner, other)

        return matches_sequence
    return lambda other: False


def _all_match(inner: list[tuple[Any, Callable[[Any], bool]]], nest: Any) -> bool:
    for key, matches in inner:  # noqa: SIM110 - A generator costs more than the tests.
        if not matches(nest[key]):
            return False
    return True


def _paths(frame: Any) -> list[tuple[Any, ...]]:
    return [path for path, leaf in tree.flatten_with_path(frame) if leaf is not None]


def _names(paths: list[tuple[Any, ...]]) -> str:
    return ", ".join("/".join(map(str, path)) for path in paths)


def _padding_leaf(path: tuple[Any, ...], leaf: Any) -> Any:
    if leaf is None:
        return None
    value = np.asarray(leaf)
    if path == ("step_type",):
        return np.full_like(value, LAST)
    if path == ("next_step_type",):
        return np.full_like(value, FIRST)
    if value.dtype == object:  # Strings, for which a zero would be a number.
        return np.full_like(value, b"")
    return np.zeros_like(value)
