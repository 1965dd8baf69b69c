# SPDX-License-Identifier: Apache-2.0
"""Python values as the columns of an item, and back; only what is no plain value is pickled.

The first column is JSON, which names the others by their numbers.
"""

import io
import json
import pickle
import sys
from typing import Any

import numpy as np

from reverb.adapters.library import imported
from reverb.errors import DataLossError

__all__ = ["columns_of", "value_of"]

_ATOMS = frozenset([type(None), bool, int, float, str])
# Types of numbers that columns have.
_NUMBERS = frozenset("?bBhHiIlLqQefdFD")


def columns_of(value: object) -> list[np.ndarray]:
    """Returns the columns of a value, which keep its arrays and tensors without a copy."""
    columns: list[Any] = [None]
    try:
        text = json.dumps(_packed(value, columns), separators=(",", ":"))
    except (RecursionError, ValueError):
        # It contains itself, is very deep, or has an integer of thousands of digits.
        columns = [None]
        text = json.dumps(_pickled(value, columns))
    columns[0] = np.frombuffer(text.encode("ascii"), np.uint8)
    return columns


def value_of(columns: list[np.ndarray], table: str) -> Any:
    """Returns the value of the columns of an item; its arrays are these columns.

    Raises:
      DataLossError: If they are those of no value.
    """
    try:
        return _unpacked(json.loads(columns[0].tobytes()), columns)
    except (AttributeError, IndexError, TypeError, ValueError, pickle.UnpicklingError):
        raise DataLossError(
            f"an item of table {table} was not put by a Queue, and has left the table"
        ) from None


def _packed(value: Any, columns: list[Any]) -> Any:
    """Returns the JSON of a value, and adds its columns."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list:
        if _ATOMS.issuperset(map(type, value)):
            return value
        return [_packed(it, columns) for it in value]
    if kind is dict and {str}.issuperset(map(type, value)):
        return {"dict": {key: _packed(it, columns) for key, it in value.items()}}
    if kind is dict:
        return {"items": [_packed(it, columns) for it in value.items()]}
    if kind is tuple:
        return {"tuple": [_packed(it, columns) for it in value]}
    if kind is bytes:
        return {"bytes": _added(np.frombuffer(value, np.uint8), columns)}
    if kind is np.ndarray and value.dtype.isnative and value.dtype.char in _NUMBERS:
        return {"array": _added(value, columns)}
    if _is_tensor(value):
        array, dtype = _array_of(value)
        return {"tensor": [_added(array, columns), dtype]}
    return _pickled(value, columns)


def _unpacked(node: Any, columns: list[np.ndarray]) -> Any:
    """Returns the value of what `_packed` has returned."""
    if type(node) is list:
        return (
            node if _ATOMS.issuperset(map(type, node)) else [_unpacked(it, columns) for it in node]
        )
    if type(node) is not dict:
        return node
    ((kind, of),) = node.items()
    if kind == "dict":
        return {key: _unpacked(it, columns) for key, it in of.items()}
    if kind == "items":
        return dict(_unpacked(it, columns) for it in of)
    if kind == "tuple":
        return tuple(_unpacked(it, columns) for it in of)
    if kind == "bytes":
        return columns[of].tobytes()
    if kind == "array":
        return columns[of]
    if kind == "tensor":
        return _tensor_of(columns[of[0]], of[1])
    data, *buffers = (columns[it] for it in of)
    return pickle.loads(data, buffers=buffers)


def _added(column: np.ndarray, columns: list[Any]) -> int:
    columns.append(column)
    return len(columns) - 1


class _Pickler(pickle.Pickler):
    """Leaves the memory of arrays and tensors outside of the pickle."""

    def reducer_override(self, value: Any) -> Any:
        return (_tensor_of, _array_of(value)) if _is_tensor(value) else NotImplemented


def _pickled(value: object, columns: list[Any]) -> dict[str, list[int]]:
    file, buffers = io.BytesIO(), []
    _Pickler(file, 5, buffer_callback=buffers.append).dump(value)
    parts = [file.getbuffer(), *(it.raw() for it in buffers)]
    return {"pickle": [_added(np.frombuffer(it, np.uint8), columns) for it in parts]}


def _is_tensor(value: Any) -> bool:
    """Whether it is a tensor of the CPU that is its memory and nothing else."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and type(value) is torch.Tensor
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not (value.requires_grad or value.is_conj() or value.is_neg() or value.is_quantized)
    )


def _array_of(tensor: Any) -> tuple[np.ndarray, str]:
    """Returns the array of a tensor, of bytes where NumPy lacks its dtype, and its dtype."""
    torch = sys.modules["torch"]
    dtype = str(tensor.dtype).removeprefix("torch.")
    try:
        return tensor.numpy(), dtype
    except TypeError:
        size = tensor.element_size()
        return tensor.contiguous().view(getattr(torch, f"int{8 * size}")).numpy(), dtype


def _tensor_of(array: np.ndarray, dtype: str) -> Any:
    torch = imported("torch", "queue", "PyTorch", "torch>=2.3")
    return torch.from_numpy(array).view(getattr(torch, dtype))
