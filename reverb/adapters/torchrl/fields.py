# SPDX-License-Identifier: Apache-2.0
"""The fields of the TensorDicts in a table, and conversions to columns and back."""

import functools
import json
from typing import Any

import numpy as np

from reverb.adapters.torchrl.library import tensordict, torch
from reverb.errors import InvalidArgumentError, SignatureMismatchError

__all__ = ["Fields", "columns_of"]

# The field of a sample with the index of its item.
INDEX = "index"
_DTYPES = {
    str(dtype).partition(".")[2]: dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}
# Dtypes that NumPy itself lacks, with a dtype of NumPy of the same size.
_BITS = {
    dtype: np.int16 if dtype.itemsize == 2 else np.uint8
    for name, dtype in _DTYPES.items()
    if dtype.is_floating_point and not hasattr(np, name)
}

_CPU = torch.device("cpu")
# Skips checks of the shapes, which are right, if this release allows it.
_make = getattr(tensordict.TensorDict, "_new_unsafe", tensordict.TensorDict)

Path = tuple[str, ...]


class Fields:
    """Paths, dtypes and shapes of the tensors of an item, in the order of the columns.

    Attributes:
      paths: Paths of the tensors, as ("next", "reward").
      batch_dims: Number of dimensions of an item's own batch: 1 for trajectories `[T, ...]`.
      dim_names: Names of these dimensions, or `None` if they have none.
      signature_shapes: If the fields come only from the table's signature: its shapes, each with or
        without the time, or `None` if unknown. There are no dtypes then.
    """

    def __init__(
        self,
        paths: list[Path],
        dtypes: list[Any],
        shapes: list[Any],
        batch_dims: int,
        dim_names: list[str | None] | None = None,
        signature_shapes: list[Any] | None = None,
    ) -> None:
        self.paths = paths
        self.batch_dims = batch_dims
        self.dim_names = dim_names
        self.signature_shapes = signature_shapes
        self._dtypes = dtypes
        self._shapes = shapes

    @functools.cached_property
    def _tree(self) -> dict[str, Any]:
        """Nested dicts whose leaves are the numbers of the columns."""
        root: dict[str, Any] = {}
        for number, path in enumerate(self.paths):
            at = root
            for name in path[:-1]:
                at = at.setdefault(name, {})
            at[path[-1]] = number
        return root

    @classmethod
    def of_signature(cls, signature: Any) -> "Fields":
        """Reads the fields from a signature that is a nest of dicts and named tuples.

        Raises:
          InvalidArgumentError: If it is another one.
        """
        found: list[tuple[Path, Any]] = []

        def visit(nest: Any, path: Path) -> None:
            if isinstance(nest, dict):
                for name in sorted(nest):
                    visit(nest[name], (*path, name))
            elif isinstance(nest, tuple) and (names := getattr(nest, "_fields", ())):
                for name, inner in zip(names, nest, strict=True):
                    visit(inner, (*path, name))
            elif hasattr(nest, "shape") and path:
                found.append((path, nest))
            else:
                raise InvalidArgumentError(
                    "the signature of the table must be a dict of specs, as a TensorDict is, or a "
                    "named tuple; got "
                    f"{type(nest).__name__} at {'.'.join(path) or 'its root'}"
                )

        visit(signature, ())
        unknown = [None] * len(found)
        shapes = [_shape_of(spec) for _, spec in found]
        return cls([path for path, _ in found], unknown, unknown, 0, None, shapes)

    @classmethod
    def of_json(cls, text: str) -> "Fields":
        """Reads the result of `to_json`."""
        value = json.loads(text)
        paths, dtypes, shapes = zip(*value["fields"], strict=True)
        return cls(
            [tuple(path) for path in paths],
            [_DTYPES[dtype] for dtype in dtypes],
            [tuple(shape) for shape in shapes],
            value["batch_dims"],
            value["dim_names"],
        )

    def to_json(self) -> str:
        """Returns the fields as text."""
        rows = [
            (path, str(dtype).partition(".")[2], shape)
            for path, dtype, shape in zip(self.paths, self._dtypes, self._shapes, strict=True)
        ]
        return json.dumps(
            {"fields": rows, "batch_dims": self.batch_dims, "dim_names": self.dim_names}
        )

    def of_steps(self) -> "Fields":
        """Returns the fields of one step, from those of `[T, N]` data."""
        shapes = [shape[1:] for shape in self._shapes]
        return Fields(self.paths, self._dtypes, shapes, 0)

    def without_dim_names(self) -> "Fields":
        """Returns the fields without names of dimensions."""
        return Fields(self.paths, self._dtypes, self._shapes, self.batch_dims)

    def have_time(self, num_dims: list[int]) -> list[bool]:
        """Whether each column of so many dimensions is a sequence, whose first one is the time.

        If only a signature is known, a column is a sequence if it has one dimension more than in
        the signature, or if its length is unknown there.
        """
        if self.signature_shapes is None:
            return [dims > len(own) for dims, own in zip(num_dims, self._shapes, strict=True)]
        return [
            spec is None or dims > len(spec) or spec[:1] == (None,)
            for dims, spec in zip(num_dims, self.signature_shapes, strict=True)
        ]

    def order_of(self, other: "Fields", table: str) -> list[int] | None:
        """Compares fields with these by their names.

        Returns:
          The position of each of these fields among the others; `None` if the order is the same.

        Raises:
          SignatureMismatchError: If the names differ; the text has both lists.
        """
        if self.paths == other.paths:
            return None
        places = {path: at for at, path in enumerate(other.paths)}
        if len(places) != len(self.paths) or not all(path in places for path in self.paths):
            wanted, got = (sorted(map(".".join, it.paths)) for it in (self, other))
            raise SignatureMismatchError(
                f"data for table {table} must have the fields of its items, {wanted}, got {got}: "
                f"{[it for it in wanted if it not in got]} are missing, "
                f"{[it for it in got if it not in wanted]} are new"
            )
        return [places[path] for path in self.paths]

    def in_order(self, order: list[int] | None) -> "Fields":
        """Returns the fields in the order that `order_of` found."""
        if order is None:
            return self
        paths, dtypes, shapes = (
            [values[at] for at in order] for values in (self.paths, self._dtypes, self._shapes)
        )
        return Fields(paths, dtypes, shapes, self.batch_dims, self.dim_names)

    def check(self, other: "Fields", table: str) -> None:
        """Compares dtypes and shapes with those of fields of the same names and order.

        Raises:
          SignatureMismatchError: If they differ; the text names the field.
        """
        if self.batch_dims != other.batch_dims:
            raise SignatureMismatchError(
                f"items of table {table} have {self.batch_dims} dimensions in the batch size of "
                f"their own, got {other.batch_dims}"
            )
        if self._dtypes == other._dtypes and self._shapes == other._shapes:
            return
        for path, *pairs in zip(
            self.paths, self._dtypes, other._dtypes, self._shapes, other._shapes, strict=True
        ):
            dtype, new_dtype, shape, new_shape = pairs
            if (dtype, shape) != (new_dtype, new_shape):
                raise SignatureMismatchError(
                    f"field {'.'.join(path)} of table {table} has items of {dtype} {list(shape)}, "
                    f"got {new_dtype} {list(new_shape)}"
                )

    def to_tensordict(self, columns: list[Any], batch_size: Any, device: Any) -> Any:
        """Makes a TensorDict of columns `[N, ...]` of the fields, on the CPU without a copy."""
        tensors = [
            _tensor(column, dtype) for column, dtype in zip(columns, self._dtypes, strict=True)
        ]
        made = _built(self._tree, tensors, torch.Size(batch_size))
        if self.dim_names is not None and len(batch_size) == len(self.dim_names) + 1:
            made.names = [None, *self.dim_names]
        return made if device.type == "cpu" else made.to(device)


def columns_of(data: Any) -> tuple[Fields, list[Any]]:
    """Returns the fields of a TensorDict `[B, ...]`, and their columns for writers.

    A column is an array of the same memory, if NumPy has the dtype, else a tensor.

    Raises:
      InvalidArgumentError: If a value is no tensor, or if there is no tensor.
    """
    found: list[tuple[Path, Any]] = []
    _collect(data, (), found)
    if not found:
        raise InvalidArgumentError("data must have at least one tensor, got none")
    fields = Fields(
        [path for path, _ in found],
        [tensor.dtype for _, tensor in found],
        [tensor.shape[1:] for _, tensor in found],
        len(data.batch_size) - 1,
        _dim_names(data),
    )
    return fields, [
        tensor.detach().cpu() if tensor.dtype in _BITS else tensor.numpy(force=True)
        for _, tensor in found
    ]


def _collect(data: Any, path: Path, found: list[tuple[Path, Any]]) -> None:
    for name, value in sorted(data.items()):
        if isinstance(value, torch.Tensor) and not value.is_nested:
            if path or name != INDEX:
                found.append(((*path, name), value))
        elif tensordict.is_tensor_collection(value) and not tensordict.is_non_tensor(value):
            _collect(value, (*path, name), found)
        else:
            raise InvalidArgumentError(
                f"field {'.'.join((*path, name))} must be a tensor to be stored, got "
                f"{type(value).__name__}; leave it out with data.exclude(...)"
            )


def _shape_of(spec: Any) -> Any:
    """The shape of a spec of this package or of TensorFlow; `None` if its rank is unknown."""
    shape = spec.shape
    return None if shape is None or getattr(shape, "rank", 0) is None else tuple(shape)


def _dim_names(data: Any) -> list[str | None] | None:
    """Names of the dimensions of each row of a TensorDict."""
    if data.ndim < 2:
        return None
    names = list(data.names[1:])
    return names if any(name is not None for name in names) else None


def _built(tree: dict[str, Any], tensors: list[Any], batch_size: Any) -> Any:
    source = {
        name: tensors[it] if isinstance(it, int) else _built(it, tensors, batch_size)
        for name, it in tree.items()
    }
    return _make(source=source, batch_size=batch_size, device=_CPU)


def _tensor(array: np.ndarray[Any, Any], dtype: Any) -> Any:
    if dtype is None:
        dtype = _DTYPES.get(array.dtype.name)
    bits = _BITS.get(dtype)
    if bits is not None:
        return torch.from_numpy(array.view(bits)).view(dtype)
    return torch.from_numpy(array)
