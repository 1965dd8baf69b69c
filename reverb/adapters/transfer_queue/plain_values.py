# SPDX-License-Identifier: Apache-2.0
"""Values that are no tensors, as bytes: msgpack, and pickle for what msgpack does not know.

Whoever may write to the tables may run code in the processes that read: pickles are executed.
"""

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

from reverb.adapters.transfer_queue.library import msgpack

__all__ = ["pack", "unpack", "unpack_all"]

# The type of an extension of msgpack that holds a pickle.
_PICKLE = 1


def pack(value: Any) -> bytes:
    """Returns a value as bytes; tuples, sets, tensors and objects in it are pickled."""
    try:
        return msgpack.packb(value, default=_pickled, strict_types=True)
    except (OverflowError, TypeError, ValueError):  # An integer of 65 bits, a lone surrogate.
        return msgpack.packb(_pickled(value))


def unpack(packed: bytes) -> Any:
    """Returns the value of bytes that `pack` made."""
    return msgpack.unpackb(packed, ext_hook=_unpickled, strict_map_key=False)


def unpack_all(packed: Iterable[bytes]) -> Iterator[Any]:
    """Yields the values of many bytes that `pack` made."""
    joined = b"".join(packed)
    unpacker = msgpack.Unpacker(
        ext_hook=_unpickled, strict_map_key=False, max_buffer_size=len(joined) + 1
    )
    unpacker.feed(joined)
    return iter(unpacker)


def _pickled(value: Any) -> Any:
    return msgpack.ExtType(_PICKLE, pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))


def _unpickled(code: int, data: bytes) -> Any:
    return pickle.loads(data) if code == _PICKLE else msgpack.ExtType(code, data)
