# SPDX-License-Identifier: Apache-2.0
"""Converts between NumPy dtypes and the numbers of TensorFlow's `DataType`."""

import functools
import importlib
from typing import Any

import numpy as np

from reverb._checks.number_arrays import dtype_name
from reverb.core import native

# TensorFlow's quantized types; NumPy holds their bits as ordinary integers.
_QUANTIZED = ("qint8", "quint8", "qint16", "quint16", "qint32")
# The types of NumPy itself. Strings of any kind are stored as bytes and sampled as `object` arrays
# of `bytes`, hence `object`.
_NUMPY_NAMES = {
    number: numpy_name
    for number, name, numpy_name, _, is_extension in native.DTYPES
    if not is_extension and name not in _QUANTIZED
}
# The types that the package `ml_dtypes` adds to NumPy.
_EXTENSION_NUMBERS = {number for number, *_, is_extension in native.DTYPES if is_extension}
# Both kinds that NumPy lacks, with their width in bytes.
_OPAQUE_NAMES = {
    number: (name, width)
    for number, name, _, width, _ in native.DTYPES
    if number not in _NUMPY_NAMES
}
_OPAQUE_NUMBERS = {name: number for number, (name, _) in _OPAQUE_NAMES.items()}
_NUMBERS = {name: number for number, name in _NUMPY_NAMES.items()} | _OPAQUE_NUMBERS


@functools.cache
def from_number(number: int) -> np.dtype[Any]:
    """Returns the NumPy dtype for a `DataType` number.

    A type that neither NumPy nor `ml_dtypes` has becomes raw bytes of its width, with its name in
    the dtype's metadata, so that a signature with this type can still be read and written.

    Raises:
      KeyError: If tensors of that type cannot be stored.
    """
    if number in _NUMPY_NAMES:
        return np.dtype(_NUMPY_NAMES[number])
    name, width = _OPAQUE_NAMES[number]
    if number in _EXTENSION_NUMBERS:
        try:
            return np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
        except ImportError:
            pass
    return np.dtype(f"V{width}", metadata={"reverb_dtype": name})


def to_number(dtype: np.dtype[Any]) -> int:
    """Returns the `DataType` number of a NumPy dtype.

    Raises:
      KeyError: If tensors of that type cannot be stored.
    """
    return _NUMBERS[dtype_name(dtype)]


def as_dtype(value: Any) -> np.dtype[Any]:
    """Returns the NumPy dtype of a dtype of NumPy, TensorFlow, jax or torch.

    Raises:
      TypeError: If `value` is not a dtype.
    """
    number = getattr(value, "as_datatype_enum", None)  # A TensorFlow dtype.
    if isinstance(number, int):
        try:
            return from_number(number)
        except KeyError:
            raise TypeError(f"a tensor of dtype {value!r} cannot be stored") from None
    try:
        dtype = np.dtype(value)
    except TypeError:
        # The text of `torch.float32` names the dtype after the last dot.
        name = str(value).rpartition(".")[2]
        dtype = from_number(_OPAQUE_NUMBERS[name]) if name in _OPAQUE_NUMBERS else np.dtype(name)
    return np.dtype(object) if dtype.kind in "USTO" else dtype
