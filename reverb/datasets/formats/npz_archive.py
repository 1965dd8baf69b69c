# SPDX-License-Identifier: Apache-2.0
"""An open `.npz` file: a zip archive with an array in each member.

Whatever the archive claims is checked before memory is taken for it.
"""

import ast
import contextlib
import pathlib
import re
import struct
import zipfile
import zlib
from typing import Any

import numpy as np

from reverb import errors
from reverb.datasets.episode import row_problem
from reverb.datasets.formats.damage import reading
from reverb.datasets.formats.fields import INDEX, Names
from reverb.datasets.formats.limits import MAX_EPISODES, MAX_HEADER_BYTES
from reverb.datasets.left_out import LeftOut, remedy

__all__ = ["OFFSETS", "Archive"]

OFFSETS = "/offsets"
_STRING_OFFSETS = "/string_offsets"
# Size of the list of members at the end of an archive: some 20,000 of them.
_MAX_DIRECTORY_BYTES = 2 << 20
# Those of NumPy. Decoders of others take memory that the archive chooses.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Size of the length of a header, by the version of the format .npy.
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
_DTYPE = re.compile(r"[<>|=]?[biufcVSUOTmM?][0-9]{0,4}(\[[0-9a-zA-Z]{1,8}\])?")
# Bytes that are inflated at a time.
_READ_BYTES = 1 << 20

# Errors of `zipfile` and of what it calls.
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    OSError,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    OverflowError,
    NotImplementedError,
)


class Archive:
    """An open `.npz` file.

    Attributes:
      path: Its path.
      names: Its fields.
      has_index: Whether its steps have `episode_index`.
    """

    def __init__(self, path: pathlib.Path, leave_out: LeftOut) -> None:
        self.path = path
        with contextlib.ExitStack() as stack:
            with reading(str(path), _DAMAGED, "is not a complete .npz file"):
                _check_directory(path)
                self._file = stack.enter_context(zipfile.ZipFile(path))
            names = [it.removesuffix(".npy") for it in self._file.namelist() if it.endswith(".npy")]
            self._members = set(names)
            self.has_index = INDEX in self._members and not leave_out.has(f"infos/{INDEX}")
            if len(names) != len(self._members):
                raise errors.DataLossError(f"{path}: has two fields of one name")
            offsets = (OFFSETS, _STRING_OFFSETS)
            fields = [it for it in names if not it.endswith(offsets) and it != INDEX]
            self.names = Names.of(str(path), fields, leave_out)
            for field in self.names.parts:
                if f"{field}{_STRING_OFFSETS}" in self._members:
                    raise errors.InvalidArgumentError(
                        f"{path}: episode 0, field {field}: must be numbers, got text"
                        f"{remedy(field)}"
                    )
            # Members that are open keep the file open, too.
            self._open = stack.pop_all()

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def offsets(self, field: str) -> np.ndarray | None:
        """The offsets of the episodes in a field, int64 `[N + 1]`.

        Raises:
          InvalidArgumentError: If there are too many.
          DataLossError: If they are damaged.
        """
        name = f"{field}{OFFSETS}"
        if name not in self._members:
            return None
        member = self.member(name).check_numbers()
        if member.num_rows > MAX_EPISODES + 1:
            raise errors.InvalidArgumentError(
                f"{self.path}: field {name}: has {member.num_rows - 1:,} episodes, more than "
                f"{MAX_EPISODES:,}; divide it into several files"
            )
        found = member.rows(0, member.num_rows, 0)
        is_good = found.dtype.kind in "iu" and found.ndim == 1 and len(found) > 0
        # Differences of unsigned numbers are never negative.
        if (
            not is_good
            or found[0] != 0
            or found[-1] > np.iinfo(np.int64).max
            or (found[1:] < found[:-1]).any()
        ):
            raise errors.DataLossError(
                f"{self.path}: field {name}: are no growing offsets from 0 on"
            )
        return found.astype(np.int64)

    def member(self, field: str) -> "_Member":
        """A field, to be read from its start."""
        return _Member(self.path, self._file, field, self._open)


class _Member:
    """An array of an archive, whose rows are read in their order.

    Attributes:
      num_rows: Number of its rows.
      row_bytes: Size of a row.
    """

    def __init__(
        self, path: pathlib.Path, file: zipfile.ZipFile, field: str, open_: contextlib.ExitStack
    ) -> None:
        self._path = path
        self._field = field
        with reading(f"{path}: field {field}", _DAMAGED):
            info = file.getinfo(f"{field}.npy")
            if info.compress_type not in _METHODS or info.flag_bits & 1:
                raise errors.InvalidArgumentError(
                    f"{path}: field {field}: is encrypted, or compressed by method "
                    f"{info.compress_type}; write it with np.savez or np.savez_compressed"
                )
            self._file: Any = open_.enter_context(file.open(info))
            shape, fortran, self._dtype = _header(self._file)
        if self._dtype.hasobject or self._dtype.kind in "USTmM" or not self._dtype.itemsize:
            kind = {"O": "objects", "U": "text", "S": "text", "T": "text"}
            raise errors.InvalidArgumentError(
                f"{self._where(0)}: must be numbers, got "
                f"{kind.get(self._dtype.kind, f'dtype {self._dtype}')}{remedy(field)}"
            )
        if not shape or (fortran and len(shape) > 1):
            raise errors.InvalidArgumentError(
                f"{self._where(0)}: must have rows in C order, got shape {list(shape)}"
                f"{remedy(field)}"
            )
        self.num_rows, *inner = list(shape)
        self._inner = tuple(inner)
        self.row_bytes = self._dtype.itemsize
        for size in inner:
            self.row_bytes *= size
        self._begin = self._file.tell()
        if self.num_rows * self.row_bytes > info.file_size - self._begin:
            raise errors.DataLossError(
                f"{path}: field {field}: claims {self.num_rows} rows of {self.row_bytes} bytes, "
                f"and the file has {info.file_size - self._begin} bytes of it"
            )

    def _where(self, number: int) -> str:
        return f"{self._path}: episode {number}, field {self._field}"

    def check_rows(self, num_rows: int, num_steps: int) -> "_Member":
        """Returns the field, which has so many rows.

        Raises:
          InvalidArgumentError: If it has more or fewer.
        """
        if self.num_rows != num_rows:
            problem = row_problem(self.num_rows, num_steps) + remedy(self._field)
            raise errors.InvalidArgumentError(f"{self._path}: field {self._field}: {problem}")
        return self

    def check_numbers(self) -> "_Member":
        """Returns the field, whose rows are a number each.

        Raises:
          InvalidArgumentError: If they are not.
        """
        if self._dtype.kind not in "biuf" or self.row_bytes != self._dtype.itemsize:
            raise errors.InvalidArgumentError(
                f"{self._where(0)}: must be a number a row, got dtype {self._dtype} and "
                f"rows of shape {list(self._inner)}"
            )
        return self

    def rows(self, start: int, end: int, number: int) -> np.ndarray:
        """Reads rows from `start` to before `end`; errors name the episode `number`.

        Raises:
          DataLossError: If the file has fewer.
        """
        where = self._where(number)
        if end > self.num_rows:
            raise errors.DataLossError(
                f"{where}: has {self.num_rows} rows in the file, and the episode ends at row {end}"
            )
        data = np.empty((end - start) * self.row_bytes, np.uint8)
        with reading(where, _DAMAGED):
            self._file.seek(self._begin + start * self.row_bytes)
            for at in range(0, len(data), _READ_BYTES):
                wanted = min(_READ_BYTES, len(data) - at)
                part = self._file.read(wanted)
                if len(part) != wanted:
                    raise errors.DataLossError(f"{where}: the file ends before row {end}")
                data[at : at + wanted] = np.frombuffer(part, np.uint8)
        return data.view(self._dtype).reshape(end - start, *self._inner)


def _check_directory(path: pathlib.Path) -> None:
    """Checks the size of the list of members, which is read as a whole.

    Raises:
      ValueError: If it is too large.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - (1 << 16) - 98))
        tail = file.read()
    end = tail.rfind(b"PK\5\6")
    if end < 0 or len(tail) < end + 22:
        raise ValueError("it has no list of members at its end")
    num_bytes = struct.unpack_from("<I", tail, end + 12)[0]
    if end >= 76 and tail[end - 76 : end - 72] == b"PK\6\6":
        num_bytes = max(num_bytes, struct.unpack_from("<Q", tail, end - 36)[0])
    if num_bytes > _MAX_DIRECTORY_BYTES:
        raise ValueError(
            f"its list of members has {num_bytes:,} bytes, more than {_MAX_DIRECTORY_BYTES:,}"
        )


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Reads the header of a `.npy` file of any version.

    Raises:
      ValueError: If it is damaged or too long.
    """
    version, _ = np.lib.format.read_magic(file)
    if version not in _LENGTH_BYTES:
        raise ValueError(f"version {version} of the format .npy is not known")
    length = int.from_bytes(_exactly(file, _LENGTH_BYTES[version]), "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"the header of the array has {length:,} bytes, not {MAX_HEADER_BYTES:,}")
    text = _exactly(file, length).decode("utf-8" if version == 3 else "latin-1")
    try:
        header = ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        # The parser calls a text that is too deep a lack of memory.
        raise ValueError(f"the header of the array is damaged ({error!r:.200})") from None
    if not isinstance(header, dict) or header.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("the header of the array is damaged")
    descr, shape, fortran = header["descr"], header["shape"], header["fortran_order"]
    if not isinstance(shape, tuple) or any(type(it) is not int or it < 0 for it in shape):
        raise ValueError(f"the array has the shape {shape!r:.80}")
    if len(shape) > 32 or not isinstance(descr, str) or not _DTYPE.fullmatch(descr):
        raise ValueError(f"the array has the dtype {descr!r:.80}, and numbers are read")
    try:
        return shape, bool(fortran), np.dtype(descr)
    except TypeError as error:
        raise ValueError(f"the array has the dtype {descr!r}: {error}") from None


def _exactly(file: Any, num_bytes: int) -> bytes:
    data = file.read(num_bytes)
    if len(data) != num_bytes:
        raise ValueError("the file ends in the header of the array")
    return data
