# SPDX-License-Identifier: Apache-2.0
"""Fields of TensorDicts as arrays for tables, and arrays of tables as fields.

A field is `dense`, a tensor `[B, ...]`, or a list of `B` rows. Rows that have the same *form* are
stored and read together: `(dtype, shape, is_sequence)`. Rows of a dense field are single steps. A
tensor `[L, ...]` by itself is a sequence of `L` steps, so that rows of many lengths are read as one
packed array. Values that are no tensors are bytes, `_PLAIN`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from reverb import Ragged, specs
from reverb.adapters.transfer_queue.library import tensordict, torch
from reverb.adapters.transfer_queue.plain_values import pack, unpack

__all__ = ["Form", "Rows", "as_field", "fields_of", "group_of", "rows_of", "schema_of"]

Form = tuple[str, tuple[int, ...], bool]

_PLAIN: Form = ("object", (), False)
_DTYPES = {name: dtype for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype)}


class Rows:
    """Rows of a field, in arrays as tables take them.

    Attributes:
      forms: The form of each row.
      steps: Pairs `(indices, array [n, ...])`: rows that are single steps.
      sequences: Pairs `(index, array [L, ...])`.
    """

    def __init__(self, value: Any) -> None:
        self.forms: list[Form] = []
        self.steps: list[tuple[Any, Any]] = []
        self.sequences: list[tuple[int, Any]] = []
        if isinstance(value, torch.Tensor):
            self._add_dense(value)
        else:
            self._add_list(value)

    def _add_dense(self, tensor: Any) -> None:
        array = _as_array(tensor)
        form: Form = (_name(tensor.dtype), tuple(tensor.shape[1:]), False)
        if len(tensor) == 1 and tensor.ndim > 1 and tensor.shape[1]:
            form = (form[0], form[1], True)
            self.sequences.append((0, array[0]))
        else:
            self.steps.append((slice(None), array))
        self.forms = [form] * len(tensor)

    def _add_list(self, values: list[Any]) -> None:
        self.forms = [_form(value) for value in values]
        by_form: dict[Form, list[int]] = {}
        for index, form in enumerate(self.forms):
            if form[2]:
                self.sequences.append((index, _as_array(values[index])))
            else:
                by_form.setdefault(form, []).append(index)
        for form, indices in by_form.items():
            if form == _PLAIN:
                array: Any = np.empty(len(indices), object)
                array[:] = [pack(values[index]) for index in indices]
            else:
                array = _as_array(torch.stack([values[index] for index in indices]))
            self.steps.append((np.array(indices), array))


def fields_of(fields: Any) -> dict[str, Any]:
    """Returns the fields of a TensorDict: tensors `[B, ...]`, or lists of `B` rows.

    Raises:
      TypeError: If a field is a TensorDict.
    """
    return {name: _rows_in(name, value) for name, value in fields.items()}


def rows_of(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of one sample, a dict of values, with a batch dimension of 1."""
    return {
        name: value.unsqueeze(0) if isinstance(value, torch.Tensor) else [value]
        for name, value in values.items()
    }


def group_of(form: Form) -> Form:
    """Returns what rows have in common that are read together: the length may differ."""
    dtype, shape, is_sequence = form
    return (dtype, shape[1:], True) if is_sequence else form


def as_field(parts: Sequence[tuple[Any, Any]], count: int) -> Any:
    """Makes a field of parts `(indices, rows)`, where rows are an array or a `Ragged`.

    Rows of the same shape are stacked, `[B, ...]`. Others become a jagged nested tensor, a strided
    one if they differ in more than a length, and else a `NonTensorStack`.
    """
    if len(parts) == 1:
        rows = parts[0][1]
        if isinstance(rows, Ragged):
            lengths = rows.lengths
            if (lengths != lengths[0]).any():
                return rows.torch_nested()
            rows = rows.values.reshape(count, lengths[0], *rows.values.shape[1:])
        if rows.dtype != object:
            return _as_tensor(rows)
    values: list[Any] = [None] * count
    for indices, rows in parts:
        plain = not isinstance(rows, Ragged) and rows.dtype == object
        each: Any = rows
        for index, row in zip(indices, each, strict=True):
            values[index] = unpack(row) if plain else _as_tensor(np.asarray(row))
    return _combined(values)


def schema_of(forms: list[Form]) -> dict[str, Any]:
    """Returns dtype and shape of a field's rows, as `BatchMeta.field_schema` has them."""
    dtype, shape, _ = forms[0]
    is_nested = any(form[:2] != forms[0][:2] for form in forms)
    schema = {
        "dtype": _DTYPES.get(dtype),
        "shape": None if is_nested else shape,
        "is_nested": is_nested,
        "is_non_tensor": forms[0] == _PLAIN,
    }
    return schema | {"per_sample_shapes": [form[1] for form in forms]} if is_nested else schema


def _combined(values: list[Any]) -> Any:
    if all(isinstance(value, torch.Tensor) for value in values):
        if len({(value.shape, value.dtype) for value in values}) == 1:
            return torch.stack(values)
        for layout in (torch.jagged, torch.strided):
            try:
                return torch.nested.as_nested_tensor(values, layout=layout)
            except (RuntimeError, ValueError):
                continue
    return tensordict.NonTensorStack(*(tensordict.NonTensorData(value) for value in values))


def _rows_in(name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return list(value.unbind()) if value.is_nested else value
    if tensordict.is_non_tensor(value) or isinstance(value, list):
        return list(value) if isinstance(value, list) else value.tolist()
    raise TypeError(
        f"field {name} must be a tensor, or values that are no tensors, got "
        f"{type(value).__name__}; put its entries as fields of their own"
    )


def _form(value: Any) -> Form:
    if not isinstance(value, torch.Tensor) or value.is_nested:
        return _PLAIN
    return _name(value.dtype), tuple(value.shape), value.ndim > 0 and len(value) > 0


def _name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


def _as_array(tensor: Any) -> Any:
    """Returns the memory of a tensor as an array; a tensor that NumPy does not know stays one."""
    tensor = tensor.detach().cpu().contiguous()
    try:
        return tensor.numpy()
    except TypeError:
        return tensor


def _as_tensor(array: Any) -> Any:
    """Returns a tensor of the memory of an array."""
    try:
        return torch.from_numpy(array)
    except TypeError:
        bits = {1: np.uint8, 2: np.int16}[array.dtype.itemsize]
        return torch.from_numpy(array.view(bits)).view(_DTYPES[specs.dtype_name(array.dtype)])
