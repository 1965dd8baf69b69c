# SPDX-License-Identifier: Apache-2.0
"""Specs of tensors: shape and dtype, optionally a name and bounds.

Signatures take these classes, or any object that has a `shape` and a `dtype`: `dm_env` specs, NumPy
arrays, TensorFlow specs.
"""

import importlib
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from reverb._checks.number_arrays import as_array, dtype_name
from reverb._nests import dtypes
from reverb.errors import InvalidArgumentError
from reverb.shown_text import shown

__all__ = [
    "BoundedTensorSpec",
    "Shape",
    "TensorSpec",
    "as_array",
    "as_spec",
    "dtype_name",
    "to_tensorflow_if_imported",
]

Shape = tuple[int | None, ...]


class TensorSpec:
    """Shape, dtype and name of a tensor.

    Example:
      >>> TensorSpec([None, 84, 84], np.uint8, name="pixels")
      TensorSpec(shape=(None, 84, 84), dtype=uint8, name='pixels')

    Attributes:
      shape: Sizes of the dimensions, each `None` if unknown; `None` if the rank is unknown.
      dtype: NumPy dtype; `object` for strings.
      name: A name, or `None`.
    """

    __slots__ = ("_dtype", "_name", "_shape")

    def __init__(
        self, shape: Iterable[int | None] | None, dtype: Any = np.float32, name: str | None = None
    ) -> None:
        self._shape = _as_shape(shape)
        self._dtype = dtypes.as_dtype(dtype)
        self._name = name

    @property
    def shape(self) -> Shape | None:
        """Sizes of the dimensions; see the class."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype; `object` for strings."""
        return self._dtype

    @property
    def name(self) -> str | None:
        """A name, or `None`."""
        return self._name

    def replace(self, **changes: Any) -> "TensorSpec":
        """Returns a copy with some constructor arguments changed."""
        return type(self)(**(self._arguments() | changes))

    def _arguments(self) -> dict[str, Any]:
        return {"shape": self._shape, "dtype": self._dtype, "name": self._name}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorSpec) or type(self) is not type(other):
            return NotImplemented
        return (self._shape, self._dtype, self._name) == (other._shape, other._dtype, other._name)

    def __hash__(self) -> int:
        return hash((type(self), self._shape, self._dtype, self._name))

    @shown
    def __repr__(self) -> str:
        arguments = self._arguments() | {"dtype": self._dtype.name}
        text = ", ".join(
            f"{key}={value if key == 'dtype' else repr(value)}" for key, value in arguments.items()
        )
        return f"{type(self).__name__}({text})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), tuple(self._arguments().values()))


class BoundedTensorSpec(TensorSpec):
    """A `TensorSpec` with an inclusive lower and upper bound of the values.

    The bounds are documentation; values are not checked against them.

    Example:
      >>> spec = BoundedTensorSpec([2], np.float32, minimum=0.0, maximum=1.0)
      >>> spec.maximum
      array(1., dtype=float32)

    Attributes:
      minimum: Array of the spec's dtype, of its shape or broadcastable to it.
      maximum: Array of the spec's dtype, of its shape or broadcastable to it.
    """

    __slots__ = ("_maximum", "_minimum")

    def __init__(
        self,
        shape: Iterable[int | None] | None,
        dtype: object,
        minimum: object,
        maximum: object,
        name: str | None = None,
    ) -> None:
        super().__init__(shape, dtype, name)
        self._minimum = np.asarray(minimum, self._dtype)
        self._maximum = np.asarray(maximum, self._dtype)

    @property
    def minimum(self) -> np.ndarray:
        """The lower bound."""
        return self._minimum

    @property
    def maximum(self) -> np.ndarray:
        """The upper bound."""
        return self._maximum

    def _arguments(self) -> dict[str, Any]:
        return {
            "shape": self._shape,
            "dtype": self._dtype,
            "minimum": self._minimum,
            "maximum": self._maximum,
            "name": self._name,
        }

    def __eq__(self, other: object) -> bool:
        equal = super().__eq__(other)
        if equal is not True or not isinstance(other, BoundedTensorSpec):
            return equal
        return np.array_equal(self._minimum, other._minimum) and np.array_equal(
            self._maximum, other._maximum
        )

    __hash__ = TensorSpec.__hash__


def as_spec(value: Any) -> TensorSpec:
    """Returns the spec of anything that has a shape and a dtype.

    Args:
      value: A spec of this module, of `dm_env` or of TensorFlow, an array, a NumPy dtype or scalar
        type (shape `()`), or a Python number or string. Bounds are kept if `value` has a `minimum`
        and a `maximum`.

    Raises:
      InvalidArgumentError: If `value` has no shape or no dtype, or if tensors of that dtype cannot
        be stored.
    """
    if isinstance(value, TensorSpec):
        return value
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return TensorSpec((), _storable(value))
    if isinstance(value, bool | int | float | complex | str | bytes):
        return TensorSpec((), _storable(np.asarray(value).dtype))
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        raise InvalidArgumentError(
            f"a spec must have a shape and a dtype, got {value!r} of type {type(value).__name__}"
        )
    dtype = _storable(value.dtype)
    name = getattr(value, "name", None)
    name = name if isinstance(name, str) and name else None
    # Only specs have these two attributes; an array has methods `min` and `max`.
    minimum, maximum = getattr(value, "minimum", None), getattr(value, "maximum", None)
    if minimum is not None and maximum is not None:
        return BoundedTensorSpec(value.shape, dtype, minimum, maximum, name)
    return TensorSpec(value.shape, dtype, name)


def to_tensorflow_if_imported(spec: TensorSpec) -> Any:
    """Returns the `tf.TensorSpec` of a spec if the program imported TensorFlow, else the spec."""
    tf: Any = sys.modules.get("tensorflow")
    if not (hasattr(tf, "TensorSpec") and hasattr(tf, "as_dtype")):  # It may still be loading.
        return spec
    dtype = tf.as_dtype(dtypes.to_number(spec.dtype))
    if isinstance(spec, BoundedTensorSpec):
        module = importlib.import_module("tensorflow.python.framework.tensor_spec")
        return module.BoundedTensorSpec(spec.shape, dtype, spec.minimum, spec.maximum, spec.name)
    return tf.TensorSpec(spec.shape, dtype, spec.name)


def _storable(value: object) -> np.dtype[Any]:
    try:
        dtype = dtypes.as_dtype(value)
        dtypes.to_number(dtype)
    except (TypeError, KeyError):
        raise InvalidArgumentError(f"no tensor of dtype {value!r} can be stored") from None
    return dtype


def _as_shape(shape: Any) -> Shape | None:
    if hasattr(shape, "as_list"):  # A TensorFlow shape; `as_list` raises if the rank is unknown.
        shape = None if shape.rank is None else shape.as_list()
    if shape is None:
        return None
    if isinstance(shape, int):
        shape = (shape,)
    sizes = tuple(_as_size(size) for size in shape)
    if any(size is not None and size < 0 for size in sizes):
        raise InvalidArgumentError(f"a dimension must be at least 0 or None, got shape {sizes}")
    return sizes


def _as_size(size: Any) -> int | None:
    size = getattr(size, "value", size)  # A dimension of TensorFlow 1.
    return None if size is None else int(size)
