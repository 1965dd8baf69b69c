# SPDX-License-Identifier: Apache-2.0
"""Arrays as JSON, so that two processes with different NumPy versions can compare them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

# Longer arrays are compared by their hash.
_LITERAL_BYTES = 4096


def encode(array: Any) -> dict[str, Any]:
    """Returns dtype, shape and content of an array. Strings are object arrays of bytes."""
    array = np.asarray(array)
    if array.dtype == object:
        content = [_as_bytes(value).hex() for value in array.reshape(-1)]
        return {"dtype": "string", "shape": list(array.shape), "content": content}
    raw = np.ascontiguousarray(array).tobytes()
    content = raw.hex() if len(raw) <= _LITERAL_BYTES else hashlib.sha256(raw).hexdigest()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "content": content}


def _as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
