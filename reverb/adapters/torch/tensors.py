# SPDX-License-Identifier: Apache-2.0
"""Arrays of a batch as tensors, without a copy."""

from typing import Any

import numpy as np
import tree

from reverb._client.ragged import Ragged
from reverb.adapters.torch.library import import_tensordict, torch
from reverb.replay_sample import ReplaySample, SampleInfo, replaced

__all__ = ["as_sample", "as_tensor", "as_tensordict", "dtype_of", "leaves", "moved", "on_cpu"]

_SAME = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 "
    "float16 float32 float64 complex64 complex128"
)
# Dtypes that NumPy itself does not have, with one of the same size that both libraries have.
_BITS = {"bfloat16": np.int16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}

_DTYPES = {name: getattr(torch, name, None) for name in (*_SAME.split(), *_BITS)}


def dtype_of(dtype: np.dtype[Any]) -> Any:
    """The torch dtype of a NumPy dtype, or `None`: tensors have no such values."""
    return _DTYPES.get(dtype.name)


def as_tensor(array: Any) -> Any:
    """Makes a tensor of the same memory; what tensors cannot hold, as strings, stays an array.

    Items of different lengths become a nested tensor.
    """
    if isinstance(array, Ragged):
        return array.torch_nested()
    try:
        return torch.from_numpy(array)
    except TypeError:
        dtype = dtype_of(array.dtype)
        if dtype is None:
            return array
        return torch.from_numpy(array.view(_BITS[array.dtype.name])).view(dtype)


def moved(data: Any, device: Any) -> Any:
    """Moves the tensors of a nest to a device."""
    return tree.map_structure(
        lambda it: it.to(device) if isinstance(it, torch.Tensor) else it, data
    )


def leaves(batch: Any) -> list[Any]:
    """Returns the tensors of a nest or of a `TensorDict`."""
    if hasattr(batch, "batch_size") and hasattr(batch, "values"):
        return list(batch.values(include_nested=True, leaves_only=True))
    return tree.flatten(batch)


def on_cpu(values: Any) -> Any:
    """Returns the values of a tensor as an array; what is no tensor is returned as it is."""
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values


def as_sample(sample: ReplaySample) -> ReplaySample:
    """Makes tensors of all arrays; keys become int64 with the same bits."""
    info = sample.info
    from_numpy = torch.from_numpy
    info = SampleInfo(from_numpy(info.key.view(np.int64)), *map(from_numpy, info[1:]))
    data = sample.data
    # Most tables have no signature, or one of dicts, whose values are leaves.
    if type(data) is list and not any(isinstance(it, list | tuple | dict) for it in data):
        data = list(map(as_tensor, data))
    else:
        data = tree.map_structure(as_tensor, data)
    return replaced(sample, info=info, data=data)


def as_tensordict(sample: ReplaySample, batch_dims: int) -> Any:
    """Makes a `TensorDict` of a sample of tensors.

    Dicts and named tuples in the data become nested dicts with their keys and fields, lists and
    tuples such with the keys "0", "1", and so on; data that is one tensor has the key "data". What
    is in the info is below "reverb".
    """
    TensorDict = import_tensordict().TensorDict
    data = _as_dict(sample.data)
    data = data if isinstance(data, dict) else {"data": data}
    size = next(iter(tree.flatten(sample.data))).shape[:batch_dims]
    # The info has one number for each item.
    more = (1,) * (len(size) - 1)
    fields = sample.info._asdict()
    min_probability = getattr(sample, "min_probability", None)
    if min_probability is not None:
        smallest = torch.as_tensor(min_probability, dtype=torch.float64)
        fields["min_probability"] = smallest.expand(size[0])
    info = {name: field.reshape(-1, *more).expand(size) for name, field in fields.items()}
    return TensorDict({**data, "reverb": TensorDict(info, size)}, size)


def _as_dict(nest: Any) -> Any:
    if isinstance(nest, dict):
        return {str(key): _as_dict(value) for key, value in nest.items()}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return {name: _as_dict(getattr(nest, name)) for name in nest._fields}  # pyright: ignore
    if isinstance(nest, list | tuple):
        return {str(index): _as_dict(value) for index, value in enumerate(nest)}
    return nest
