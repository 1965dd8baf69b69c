# SPDX-License-Identifier: Apache-2.0
"""Converts nests of specs to `tensorflow.StructuredValue` messages, and back.

Signatures and the structures of patterns are sent in this form. It is the encoding of TensorFlow's
saved models, implemented here so that TensorFlow is not required.
"""

import collections
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.message import Message

from reverb import specs
from reverb._nests import dtypes
from reverb.core import protos
from reverb.errors import DataLossError, InvalidArgumentError
from reverb.shown_text import type_name, without_tokens

# Protobuf reads at most 100 messages in each other; a dict takes three, and a spec and the answer
# with the table the rest.
_MAX_DEPTH = 30

# Longest text of a leaf in an error.
_MAX_SHOWN = 60

# The fields of `TensorProto` that hold single values, by dtype number.
_VALUE_FIELDS = {
    1: "float_val",
    2: "double_val",
    3: "int_val",
    4: "int_val",
    5: "int_val",
    6: "int_val",
    7: "string_val",
    9: "int64_val",
    10: "bool_val",
    17: "int_val",
    22: "uint32_val",
    23: "uint64_val",
}
# Fields that hold the bits of values, by dtype number, with the integer type of that width.
_BITS_FIELDS = {
    14: ("half_val", np.uint16),
    19: ("half_val", np.uint16),
    24: ("float8_val", np.uint8),
    25: ("float8_val", np.uint8),
    29: ("int_val", np.int8),
    30: ("int_val", np.uint8),
}
# Fields that hold complex numbers as pairs.
_PAIR_FIELDS = {8: "scomplex_val", 18: "dcomplex_val"}


def encode(nest: object) -> Message:
    """Returns the `StructuredValue` of a nest of specs.

    Dicts, lists, tuples and named tuples keep their kind; `None` is a value too.

    Raises:
      InvalidArgumentError: If a leaf is not a spec (the text names its path), if tensors of its
        dtype cannot be stored, if a dict has a key that is not a string, or if it is too deep.
    """
    return _encode(nest, (), allows_none=True)


def encode_signature(nest: object) -> Message:
    """Like `encode`, for the signature of a table, in which `None` is no value.

    Raises:
      InvalidArgumentError: As `encode`.
    """
    return _encode(nest, (), allows_none=False)


def decode(value: Any) -> object:
    """Returns the nest of specs of a `StructuredValue`.

    Leaves are `tf.TensorSpec` if TensorFlow was imported, else `reverb.specs.TensorSpec`. A named
    tuple becomes a new class with the same name and fields.

    Raises:
      DataLossError: If the message holds something that is not a nest of specs.
    """
    kind = value.WhichOneof("kind")
    if kind is None or kind == "none_value":
        return None
    if kind == "list_value":
        return [decode(item) for item in value.list_value.values]
    if kind == "tuple_value":
        return tuple(decode(item) for item in value.tuple_value.values)
    if kind == "dict_value":
        fields = value.dict_value.fields
        return {key: decode(fields[key]) for key in sorted(fields)}
    if kind == "named_tuple_value":
        pairs = value.named_tuple_value.values
        cls = collections.namedtuple(value.named_tuple_value.name, [pair.key for pair in pairs])
        return cls(*(decode(pair.value) for pair in pairs))
    if kind == "tensor_spec_value":
        return _decode_spec(value.tensor_spec_value)
    if kind == "bounded_tensor_spec_value":
        return _decode_bounded_spec(value.bounded_tensor_spec_value)
    raise DataLossError(f"a signature holds a value of kind {kind}, which is no nest of specs")


def is_named_tuple(nest: object) -> bool:
    """Whether a nest is a named tuple, of `collections` or of `typing`."""
    return isinstance(nest, tuple) and hasattr(nest, "_fields")


def _encode(nest: Any, path: tuple[Any, ...], *, allows_none: bool) -> Message:
    if len(path) > _MAX_DEPTH:
        text = f"a nest of a signature or pattern may be at most {_MAX_DEPTH} deep, got more"
        raise InvalidArgumentError(f"{text} below {path[:3]}")
    value = protos.StructuredValue()
    encode_child = functools.partial(_encode, allows_none=allows_none)
    if nest is None:
        if not allows_none:
            raise _no_spec(nest, path)
        value.none_value.SetInParent()
    elif isinstance(nest, Mapping):
        value.dict_value.SetInParent()
        for key, item in nest.items():
            if not isinstance(key, str):
                raise InvalidArgumentError(f"keys of a signature must be strings, got {key!r}")
            value.dict_value.fields[key].CopyFrom(encode_child(item, (*path, key)))
    elif is_named_tuple(nest):
        value.named_tuple_value.name = type(nest).__name__
        for key, item in zip(nest._fields, nest, strict=True):
            value.named_tuple_value.values.add(key=key, value=encode_child(item, (*path, key)))
    elif isinstance(nest, list | tuple):
        items = value.list_value if isinstance(nest, list) else value.tuple_value
        items.SetInParent()
        items.values.extend(encode_child(item, (*path, i)) for i, item in enumerate(nest))
    else:
        _encode_spec(_leaf_spec(nest, path), value)
    return value


def _leaf_spec(leaf: object, path: tuple[Any, ...]) -> specs.TensorSpec:
    """Returns the spec of a leaf. A value of Python is none, although `as_spec` takes it."""
    is_type = isinstance(leaf, np.dtype) or (
        isinstance(leaf, type) and issubclass(leaf, np.generic)
    )
    if not is_type and not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        raise _no_spec(leaf, path)
    try:
        return specs.as_spec(leaf)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{_location(path)}: {error}") from None


def _no_spec(leaf: object, path: tuple[Any, ...]) -> InvalidArgumentError:
    shown = without_tokens(repr(leaf)) if len(repr(leaf)) <= _MAX_SHOWN else "..."
    return InvalidArgumentError(  # As in dm-reverb a `ValueError`, although its type is wrong.
        f"{_location(path)} must be a spec, such as reverb.specs.TensorSpec((), np.float32), got "
        f"{type_name(leaf)} {shown}"
    )


def _location(path: tuple[Any, ...]) -> str:
    return f"leaf {path} of the signature" if path else "the signature"


def _encode_spec(spec: specs.TensorSpec, value: Any) -> None:
    if isinstance(spec, specs.BoundedTensorSpec):
        message = value.bounded_tensor_spec_value
        _encode_tensor(spec.minimum, message.minimum)
        _encode_tensor(spec.maximum, message.maximum)
    else:
        message = value.tensor_spec_value
    message.dtype = dtypes.to_number(spec.dtype)
    message.name = spec.name or ""
    message.shape.SetInParent()
    if spec.shape is None:
        message.shape.unknown_rank = True
    else:
        for size in spec.shape:
            message.shape.dim.add(size=-1 if size is None else size)


def _encode_tensor(array: np.ndarray, message: Any) -> None:
    message.dtype = dtypes.to_number(array.dtype)
    message.tensor_shape.SetInParent()
    for size in array.shape:
        message.tensor_shape.dim.add(size=size)
    if array.dtype == object:
        message.string_val.extend(
            item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()
        )
    else:
        message.tensor_content = np.ascontiguousarray(array).tobytes()


def _decode_tensor(message: Any) -> np.ndarray:
    dtype = _decode_dtype(message.dtype)
    shape = tuple(dim.size for dim in message.tensor_shape.dim)
    if message.tensor_content:
        return np.frombuffer(message.tensor_content, dtype).reshape(shape)
    values = _decode_values(message, dtype)
    size = int(np.prod(shape, dtype=np.int64))
    if len(values) < size:
        # The encoding omits trailing repetitions of the last value; no value at all means zeros.
        last = values[-1:] if len(values) else np.zeros(1, dtype)
        values = np.concatenate([values, np.repeat(last, size - len(values))])
    return values.reshape(shape)


def _decode_values(message: Any, dtype: np.dtype[Any]) -> np.ndarray:
    number = message.dtype
    if number in _BITS_FIELDS:
        field, bits = _BITS_FIELDS[number]
        return np.array(list(getattr(message, field)), np.int64).astype(bits).view(dtype)
    if number in _PAIR_FIELDS:
        pairs = np.asarray(getattr(message, _PAIR_FIELDS[number]), np.float64).reshape(-1, 2)
        return (pairs[:, 0] + 1j * pairs[:, 1]).astype(dtype)
    if number in _VALUE_FIELDS:
        return np.asarray(list(getattr(message, _VALUE_FIELDS[number])), dtype)
    raise DataLossError(f"a bound of dtype {dtype} without its bytes cannot be read")


def _decode_shape(message: Any) -> specs.Shape | None:
    if message.unknown_rank:
        return None
    return tuple(None if dim.size < 0 else dim.size for dim in message.dim)


def _decode_dtype(number: int) -> np.dtype[Any]:
    try:
        return dtypes.from_number(number)
    except KeyError:
        raise DataLossError(f"a signature holds the unknown dtype number {number}") from None


def _decode_spec(message: Any) -> object:
    return specs.to_tensorflow_if_imported(
        specs.TensorSpec(
            _decode_shape(message.shape), _decode_dtype(message.dtype), message.name or None
        )
    )


def _decode_bounded_spec(message: Any) -> object:
    return specs.to_tensorflow_if_imported(
        specs.BoundedTensorSpec(
            _decode_shape(message.shape),
            _decode_dtype(message.dtype),
            _decode_tensor(message.minimum),
            _decode_tensor(message.maximum),
            message.name or None,
        )
    )
