# SPDX-License-Identifier: Apache-2.0
"""Converts numbers of any library to float64 arrays."""

import sys
from typing import Any

import numpy as np

from reverb.errors import InvalidArgumentError
from reverb.shown_text import type_name

__all__ = ["as_array", "as_numbers", "dtype_name"]

# DLPack device types whose memory the processor can read: CPU, pinned for CUDA and for ROCm.
_CPU_DEVICES = (1, 3, 11)


def as_numbers(argument: str, value: object) -> np.ndarray:
    """Returns numbers of any float or integer dtype as float64.

    Accepts arrays and tensors in CPU memory, numbers, and lists of these. Dtypes that NumPy lacks,
    such as bfloat16 and floats of 8 bits, work with and without the package `ml_dtypes`.

    Raises:
      InvalidArgumentError: If a tensor is not in CPU memory.
      TypeError: If there are no numbers.
    """
    if isinstance(value, np.ndarray) and value.dtype.type is not np.void:
        return value.astype(np.float64, copy=False)
    if isinstance(value, float | int):
        return np.asarray(value, np.float64)
    if isinstance(value, list | tuple):
        try:
            return np.asarray(value, np.float64)
        except (TypeError, ValueError):  # NumPy does not know the dtype of some element.
            return np.asarray([as_numbers(argument, it) for it in value], np.float64)
    array = as_array(argument, value)
    if array.dtype.kind in "USOM":
        try:
            return array.astype(np.float64)
        except (TypeError, ValueError):
            raise TypeError(f"{argument} must be numbers, got {type_name(value)}") from None
    return array.astype(np.float64, copy=False)


def as_array(argument: str, value: object) -> np.ndarray:
    """Returns an array of NumPy; numbers of dtypes that NumPy does not have become float64.

    Args:
      argument: Name of the value in errors.
      value: Array or tensor of any library in CPU memory, a number, or a nest of lists of numbers.

    Raises:
      InvalidArgumentError: If a tensor is not in CPU memory.
      TypeError: If it is an array of raw bytes that represent no numbers.
    """
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        value = _of_tensor(argument, value)
    array = np.asarray(value)
    if array.dtype.type is np.void:
        with np.errstate(invalid="ignore"):  # NaN are no error here.
            return _of_bits(argument, array)
    # Some dtypes of `ml_dtypes` have the kind of raw bytes, but are numbers.
    return array.astype(np.float64) if array.dtype.kind == "V" else array


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Returns the name of a dtype, also if NumPy holds its numbers as raw bytes.

    In signatures, bfloat16 and the like are raw bytes if the package `ml_dtypes` is missing.
    """
    return (dtype.metadata or {}).get("reverb_dtype", dtype.name)


def _of_tensor(argument: str, tensor: Any) -> object:
    """Converts a tensor of another library to an array that NumPy accepts."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor) and tensor.is_cpu:
        tensor = tensor.detach()
        try:
            return tensor.numpy()
        except TypeError:  # NumPy does not know its dtype.
            return tensor.to(torch.float64).numpy()
    if type(tensor).__module__.partition(".")[0] == "tensorflow":
        return tensor  # NumPy reads these as they are; strings crash the process over DLPack.
    try:
        kind, _ = tensor.__dlpack_device__()
    except Exception:
        kind = 0  # A device that DLPack does not know.
    if kind not in _CPU_DEVICES:
        raise InvalidArgumentError(
            f"{argument} must be in CPU memory, got a tensor on {getattr(tensor, 'device', kind)}. "
            "Call .cpu() before"
        )
    if getattr(tensor, "requires_grad", False):
        tensor = tensor.detach()
    try:
        return np.asarray(tensor)
    except TypeError:
        return np.from_dlpack(tensor)


def _of_bits(argument: str, array: np.ndarray) -> np.ndarray:
    """Decodes raw bytes to the numbers that they represent, without `ml_dtypes`."""
    name = dtype_name(array.dtype)
    if name == "bfloat16":
        # The upper half of a float32.
        bits = array.view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).astype(np.float64)
    if name == "float8_e5m2":
        # The upper half of a float16.
        return (array.view(np.uint8).astype(np.uint16) << 8).view(np.float16).astype(np.float64)
    if name == "float8_e4m3fn":
        return _of_e4m3fn(array.view(np.uint8))
    if name in ("int4", "uint4"):
        low = array.view(np.uint8) & 15
        return (low ^ 8).astype(np.float64) - 8 if name == "int4" else low.astype(np.float64)
    raise TypeError(f"{argument} must be numbers, got an array of {array.dtype}")


def _of_e4m3fn(bits: np.ndarray) -> np.ndarray:
    """Decodes floats of 1 sign bit, 4 exponent bits (bias 7) and 3 mantissa bits; no infinity."""
    exponent, mantissa = (bits >> 3 & 15).astype(np.int64), (bits & 7).astype(np.float64)
    numbers = np.ldexp(np.where(exponent > 0, 8 + mantissa, mantissa), np.maximum(exponent, 1) - 10)
    numbers[(bits & 127) == 127] = np.nan
    return np.where(bits & 128, -numbers, numbers)
