# SPDX-License-Identifier: Apache-2.0
"""Files of Arrow, which Hugging Face and Minari write: a stream of record batches.

The data is mapped, and not copied. Only what a batch claims to inflate to takes memory, and it is
compared with the limit first.
"""

import contextlib
import pathlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from reverb import errors
from reverb.datasets.formats.damage import reading
from reverb.datasets.formats.limits import BATCH_BYTES, MAX_ROWS, Limits

__all__ = ["ArrowFile", "pieces"]

# The format of files is the one of streams after these bytes and two more, with a list of the
# batches at its end.
_MAGIC = b"ARROW1"
_RECORD_BATCH = "record batch"


class ArrowFile:
    """A file or a stream of record batches.

    Attributes:
      schema: Its schema.

    Raises:
      DataLossError: If it is damaged.
    """

    def __init__(self, pa: Any, path: pathlib.Path, limits: Limits) -> None:
        self._pa = pa
        self._path = path
        self._limits = limits
        self._damages = (pa.ArrowException, OSError, ValueError, struct.error, StopIteration)
        with self._open("is not a complete file of Arrow") as messages:
            message = messages.read_next_message()
            if message.type != "schema":  # The library takes any message for one.
                raise ValueError(f"it begins with a message of the type {message.type}")
            self.schema = pa.ipc.read_schema(message)
            _ = self.schema.names  # Some may be no text.

    def __enter__(self) -> "ArrowFile":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yields these columns of the batches, in pieces of few rows.

        Raises:
          InvalidArgumentError: If a batch is too large when it is inflated.
          DataLossError: If one is damaged.
        """
        with self._open("is damaged") as messages:
            messages.read_next_message()
            for message in messages:
                if message.type != _RECORD_BATCH:
                    raise errors.InvalidArgumentError(
                        f"{self._path}: has a {message.type}, and record batches are read"
                    )
                self._limits.check(str(self._path), "a record batch", _inflated_bytes(message))
                batch = self._pa.ipc.read_record_batch(message, self.schema)
                batch.validate(full=True)
                yield from pieces(batch.select(list(columns)))

    @property
    def num_rows(self) -> int:
        """The number of rows of all batches, as they claim it."""
        with self._open("is damaged") as messages:
            return sum(
                _Table(it.metadata.to_pybytes()).table(2).number(0, "<q")
                for it in messages
                if it.type == _RECORD_BATCH
            )

    @contextlib.contextmanager
    def _open(self, problem: str) -> Iterator[Any]:
        """The messages of the file; errors say this problem."""
        with (
            reading(str(self._path), self._damages, problem),
            self._pa.memory_map(str(self._path)) as source,
        ):
            source.seek(8 if source.read(len(_MAGIC)) == _MAGIC else 0)
            yield self._pa.ipc.MessageReader.open_stream(source)


def pieces(batch: Any) -> Iterator[Any]:
    """Yields a batch in pieces of few rows."""
    size = max(batch.nbytes, 1)
    step = max(1, min(MAX_ROWS, batch.num_rows * BATCH_BYTES // size))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _inflated_bytes(message: Any) -> int:
    """The bytes that the compressed buffers of a record batch claim to have; 0 without any.

    Raises:
      ValueError: If a number of the message is out of its range.
    """
    batch = _Table(message.metadata.to_pybytes()).table(2)
    if not batch.has(3):  # It is not compressed.
        return 0
    body = message.body
    total = 0
    for offset, length in batch.pairs(2):
        if length >= 8 and 0 <= offset <= body.size - 8:
            total += max(0, struct.unpack("<q", body.slice(offset, 8).to_pybytes())[0])
    return total


class _Table:
    """A table of a message of Arrow, in the encoding of FlatBuffers, which Arrow has verified."""

    def __init__(self, data: bytes, at: int | None = None) -> None:
        self._data = data
        self._at = self._get("<I", 0) if at is None else at
        self._fields = self._at - self._get("<i", self._at)

    def has(self, field: int) -> bool:
        """Whether a field is there."""
        return self._place(field) is not None

    def number(self, field: int, form: str) -> int:
        """The number in a field; 0 if it is not there."""
        at = self._place(field)
        return 0 if at is None else self._get(form, at)

    def table(self, field: int) -> "_Table":
        """The table in a field."""
        at = self._place(field)
        if at is None:
            raise ValueError("a message has no content")
        return _Table(self._data, at + self._get("<I", at))

    def pairs(self, field: int) -> Iterator[tuple[int, int]]:
        """The pairs of numbers in a vector."""
        at = self._place(field)
        if at is not None:
            at += self._get("<I", at)
            count = self._get("<I", at)
            yield from struct.iter_unpack("<qq", self._data[at + 4 : at + 4 + 16 * count])

    def _place(self, field: int) -> int | None:
        at = 4 + 2 * field
        if at >= self._get("<H", self._fields):
            return None
        offset = self._get("<H", self._fields + at)
        return self._at + offset if offset else None

    def _get(self, form: str, at: int) -> int:
        if at < 0:
            raise ValueError("an offset is negative")
        return struct.unpack_from(form, self._data, at)[0]
