# SPDX-License-Identifier: Apache-2.0
"""Arrays of a batch as tensors, without a copy."""

from typing import Any

import numpy as np
import tree

from reverb import Ragged, specs
from reverb.adapters.torch.library import import_tensordict, torch
from reverb.replay_sample import BatchInfo, ReplayBatch, are_lengths

__all__ = [
    "as_is",
    "as_sample",
    "as_tensor",
    "as_tensordict",
    "dtype_of",
    "leaves",
    "moved",
    "on_cpu",
]

_SAME = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 "
    "float16 float32 float64 complex64 complex128"
)
_DTYPES = {
    name: dtype
    for name, dtype in vars(torch).items()
    # Many floats are none of NumPy's.
    if isinstance(dtype, torch.dtype) and (name in _SAME.split() or dtype.is_floating_point)
}


def as_is(batch: Any) -> Any:
    """Returns a batch unchanged: the `collate_fn` of a `DataLoader` over a `SampleDataset`.

    The `DataLoader`'s own function makes lists of tuples in the data, and fails for a `TensorDict`.
    """
    return batch


def dtype_of(dtype: np.dtype[Any]) -> Any:
    """The torch dtype of a NumPy dtype; `None` if tensors have no such dtype.

    For raw bytes that represent numbers, without the package `ml_dtypes`, it is the dtype of the
    numbers.
    """
    return _DTYPES.get(specs.dtype_name(dtype))


def as_tensor(array: Any) -> Any:
    """Makes a tensor of the same memory; values that tensors cannot hold, as strings, stay arrays.

    Items of different lengths become a nested tensor, or stay a `reverb.Ragged` of such values.
    `None`, a column that was left out, stays.
    """
    if array is None:
        return None
    if isinstance(array, Ragged):
        return array if dtype_of(array.values.dtype) is None else array.torch_nested()
    try:
        return torch.from_numpy(array)
    except TypeError:
        dtype = dtype_of(array.dtype)
        if dtype is None:
            return array
        bits = np.int16 if array.dtype.itemsize == 2 else np.uint8
        return torch.from_numpy(array.view(bits)).view(dtype)


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
    """Returns a tensor in CPU memory; other values are returned unchanged."""
    return values.detach().cpu() if isinstance(values, torch.Tensor) else values


def as_sample(sample: ReplayBatch) -> ReplayBatch:
    """Makes tensors of all arrays; keys become int64 with the same bits."""
    info = sample.info
    from_numpy = torch.from_numpy
    lengths = info.lengths
    windows = (it if isinstance(it, tuple) else from_numpy(it) for it in info[8:])
    numbers = map(from_numpy, info[1:7])
    info = BatchInfo._make([from_numpy(info.key.view(np.int64)), *numbers, (), *windows])
    if are_lengths(lengths):
        info = info.with_lengths(tree.map_structure(as_tensor, lengths))
    data = sample.data
    # Most tables have no signature, or one of dicts, whose values are leaves.
    if type(data) is list and not any(isinstance(it, list | tuple | dict) for it in data):
        data = list(map(as_tensor, data))
    else:
        data = tree.map_structure(as_tensor, data)
    return ReplayBatch(info, data)


def as_tensordict(sample: ReplayBatch, batch_dims: int) -> Any:
    """Makes a `TensorDict` of a sample of tensors.

    Dicts and named tuples in the data become nested dicts with their keys and fields, lists and
    tuples nested dicts with the keys "0", "1", and so on; data that is one tensor has the key
    "data". The fields of the info are below "reverb", with lengths and those of windows only if
    there are any.
    """
    TensorDict = import_tensordict().TensorDict
    data = _as_dict(sample.data)
    data = data if isinstance(data, dict) else {"data": data}
    first = next(it for it in tree.flatten(sample.data) if it is not None)
    size = (len(first),) if isinstance(first, Ragged) else first.shape[:batch_dims]
    # The info has one number for each item, except for the steps of windows.
    more = (1,) * (len(size) - 1)
    fields = {name: it for name, it in sample.info._asdict().items() if are_lengths(it)}
    info = {
        name: it
        if name == "window_mask"
        else tree.map_structure(lambda leaf: leaf.reshape(-1, *more).expand(size), _as_dict(it))
        for name, it in fields.items()
    }
    return TensorDict({**data, "reverb": TensorDict(info, size)}, size)


def _as_dict(nest: Any) -> Any:
    """Makes dicts of all containers; a column that was left out has no key."""
    if isinstance(nest, dict):
        fields = nest.items()
    elif isinstance(nest, tuple) and hasattr(nest, "_fields"):
        fields = zip(nest._fields, nest, strict=True)  # pyright: ignore
    elif isinstance(nest, list | tuple):
        fields = enumerate(nest)
    else:
        return nest
    return {str(key): _as_dict(value) for key, value in fields if value is not None}
