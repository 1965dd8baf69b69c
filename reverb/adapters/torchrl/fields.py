# SPDX-License-Identifier: Apache-2.0
"""The fields of the TensorDicts in a table, and their way to columns and back."""

import json
from typing import Any

import numpy as np

from reverb.adapters.torchrl.library import tensordict, torch
from reverb.errors import InvalidArgumentError

__all__ = ["Fields", "as_values"]

# A field with this name tells in a sample which item it is.
INDEX = "index"
_DTYPES = {
    str(dtype).partition(".")[2]: dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}
# Dtypes that NumPy itself does not have, with one of the same size that it has.
_BITS = {torch.bfloat16: np.int16, torch.float8_e4m3fn: np.uint8, torch.float8_e5m2: np.uint8}

_CPU = torch.device("cpu")
# Without checks of the shapes, which are right, if this release can do that.
_make = getattr(tensordict.TensorDict, "_new_unsafe", tensordict.TensorDict)

Path = tuple[str, ...]


class Fields:
    """Paths, dtypes and shapes of the tensors of an item, in the order of the columns.

    Attributes:
      paths: Of the tensors, as ("next", "reward").
      batch_dims: Number of dimensions of an item's own batch: 1 for trajectories `[T, ...]`.
    """

    def __init__(
        self, paths: list[Path], dtypes: list[Any], shapes: list[Any], batch_dims: int
    ) -> None:
        self.paths = paths
        self.batch_dims = batch_dims
        self._dtypes = dtypes
        self._shapes = shapes
        self._tree = _tree_of(paths)

    @classmethod
    def of(cls, data: Any) -> "tuple[Fields, list[Any]]":
        """Returns the fields of a TensorDict `[B, ...]`, and its tensors on the CPU.

        Raises:
          InvalidArgumentError: If something in it is no tensor, or if there is no tensor.
        """
        found: list[tuple[Path, Any]] = []
        _collect(data, (), found)
        if not found:
            raise InvalidArgumentError("data must have at least one tensor, got none")
        tensors = [tensor.detach().cpu() for _, tensor in found]
        fields = cls(
            [path for path, _ in found],
            [tensor.dtype for tensor in tensors],
            [tuple(tensor.shape[1:]) for tensor in tensors],
            len(data.batch_size) - 1,
        )
        return fields, tensors

    @classmethod
    def of_signature(cls, signature: Any, batch_dims: int = 0) -> "Fields":
        """Reads the fields from a signature that is a nest of dicts.

        Raises:
          InvalidArgumentError: If it is none.
        """
        found: list[tuple[Path, Any]] = []

        def visit(nest: Any, path: Path) -> None:
            if isinstance(nest, dict):
                for name in sorted(nest):
                    visit(nest[name], (*path, name))
            elif hasattr(nest, "shape") and path:
                found.append((path, nest))
            else:
                raise InvalidArgumentError(
                    "the signature of the table must be a dict of specs, as a TensorDict is; got "
                    f"{type(nest).__name__} at {'.'.join(path) or 'its root'}"
                )

        visit(signature, ())
        # Shapes in signatures may be open, and may have the time or not.
        return cls(
            [path for path, _ in found], [None] * len(found), [None] * len(found), batch_dims
        )

    @classmethod
    def of_json(cls, text: str) -> "Fields":
        """Reads what `to_json` wrote."""
        value = json.loads(text)
        paths, dtypes, shapes = zip(*value["fields"], strict=True)
        return cls(
            [tuple(path) for path in paths],
            [_DTYPES[dtype] for dtype in dtypes],
            [tuple(shape) for shape in shapes],
            value["batch_dims"],
        )

    def to_json(self) -> str:
        """Returns the fields as text."""
        rows = [
            (path, str(dtype).partition(".")[2], shape)
            for path, dtype, shape in zip(self.paths, self._dtypes, self._shapes, strict=True)
        ]
        return json.dumps({"fields": rows, "batch_dims": self.batch_dims})

    def of_steps(self) -> "Fields":
        """Returns the fields of one step, if these are those of `[T, N]` data."""
        shapes = [shape[1:] for shape in self._shapes]
        return Fields(self.paths, self._dtypes, shapes, 0)

    def check(self, other: "Fields", table: str) -> None:
        """Compares the fields of new data with these.

        Raises:
          InvalidArgumentError: If they differ; names the field.
        """
        if self.paths != other.paths:
            missing = [".".join(it) for it in self.paths if it not in other.paths]
            new = [".".join(it) for it in other.paths if it not in self.paths]
            raise InvalidArgumentError(
                f"data for table {table} must have the fields of its items: {missing} are missing, "
                f"{new} are new"
            )
        if self._dtypes == other._dtypes and self._shapes == other._shapes:
            return
        for path, *pairs in zip(
            self.paths, self._dtypes, other._dtypes, self._shapes, other._shapes, strict=True
        ):
            dtype, new_dtype, shape, new_shape = pairs
            if dtype is not None and (dtype, shape) != (new_dtype, new_shape):
                raise InvalidArgumentError(
                    f"field {'.'.join(path)} of table {table} has items of {dtype} {list(shape)}, "
                    f"got {new_dtype} {list(new_shape)}"
                )

    def to_tensordict(self, columns: list[Any], batch_size: Any, device: Any) -> Any:
        """Makes a TensorDict of the columns; on the CPU nothing is copied.

        Args:
          columns: Arrays `[N, ...]`, one for each field.
          batch_size: `[N, ...]`.
          device: Where the tensors go.
        """
        tensors = [
            _tensor(column, dtype) for column, dtype in zip(columns, self._dtypes, strict=True)
        ]
        made = _built(self._tree, tensors, torch.Size(batch_size))
        return made if device.type == "cpu" else made.to(device)


def as_values(tensor: Any) -> Any:
    """Returns what writers take: an array of the same memory, if NumPy has the dtype."""
    return tensor if tensor.dtype in _BITS else tensor.numpy()


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


def _tree_of(paths: list[Path]) -> dict[str, Any]:
    """Nested dicts whose leaves are the numbers of the columns."""
    root: dict[str, Any] = {}
    for number, path in enumerate(paths):
        at = root
        for name in path[:-1]:
            at = at.setdefault(name, {})
        at[path[-1]] = number
    return root


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
