# SPDX-License-Identifier: Apache-2.0
"""Signatures as lines of a config: `columns: "obs float32[?,4]"`."""

import re
from collections.abc import Iterable
from typing import Any

import tree

from reverb import specs
from reverb._nests import dtypes, structured_value
from reverb.core import native
from reverb.errors import InvalidArgumentError

__all__ = ["columns_text", "signature_of"]

_COLUMN = re.compile(r"(?P<path>[^\s\[\]]+)\s+(?P<dtype>\w+)(?:\[(?P<shape>[\d?,\s]*)\])?")

# Both names of each dtype, NumPy's and TensorFlow's. NumPy has plain integers for quantized ones.
_NUMBERS = {
    name: number
    for number, *names, _, _ in native.DTYPES
    for name in names
    if name != "object" and not names[0].startswith("q")
}


def signature_of(columns: Iterable[str]) -> Any:
    """Makes the `StructuredValue` of a signature.

    Args:
      columns: Texts such as `obs/image uint8[?,84,84]`: a path in nested dicts, a dtype, and the
        shape of the column `[T, ...]`, with `?` for any length; without a shape any shape fits.

    Raises:
      InvalidArgumentError: For the first text that is no column, or whose path is taken.
    """
    signature: dict[str, Any] = {}
    for text in columns:
        match = _COLUMN.fullmatch(text.strip())
        if match is None:
            raise InvalidArgumentError(
                f'must be a path, a dtype and a shape, such as "obs float32[?,4]", got {text!r}'
            )
        number = _NUMBERS.get(match["dtype"])
        if number is None:
            known = ", ".join(sorted(_NUMBERS))
            raise InvalidArgumentError(f"has no dtype in {text!r}: it must be one of {known}")
        *parents, leaf = match["path"].split("/")
        nest = signature
        for name in parents:
            nest = nest.setdefault(name, {})
            if not isinstance(nest, dict):
                break
        if not isinstance(nest, dict) or leaf in nest or "" in (*parents, leaf):
            raise InvalidArgumentError(f"has a path that is taken or has an empty name: {text!r}")
        nest[leaf] = specs.TensorSpec(_shape(match["shape"], text), dtypes.from_number(number))
    return structured_value.encode_signature(signature)


def _shape(text: str | None, column: str) -> list[int | None] | None:
    if text is None:
        return None
    sizes = [size.strip() for size in text.split(",")] if text.strip() else []
    if not all(size == "?" or size.isdigit() for size in sizes):
        raise InvalidArgumentError(f"has a shape that is no list of sizes: {column!r}")
    return [None if size == "?" else int(size) for size in sizes]


def columns_text(signature: object) -> str:
    """Returns a signature as such texts, in one line."""
    nest = structured_value.decode(signature)
    columns = tree.flatten_with_path(nest)
    return ", ".join(_column_text("/".join(map(str, path)), spec) for path, spec in columns)


def _column_text(path: str, spec: object) -> str:
    spec = specs.as_spec(spec)
    dtype = "string" if spec.dtype.hasobject else specs.dtype_name(spec.dtype)
    sizes = None if spec.shape is None else ["?" if it is None else str(it) for it in spec.shape]
    return f"{path} {dtype}" + ("" if sizes is None else f"[{','.join(sizes)}]")
