# SPDX-License-Identifier: Apache-2.0
"""Format npz: `.npz` files of NumPy, as `reverb export` writes them, and flat ones like D4RL's.

A field is one array of the rows of all episodes. Their ends are in `<field>/offsets`, or are where
a flag is true. Rows are read one after another, so that a file needs no memory.
"""

import ast
import contextlib
import pathlib
import zipfile
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from reverb import errors
from reverb.datasets.episode import Episode
from reverb.datasets.formats.fields import Names, episode_of
from reverb.datasets.formats.files import described_dtypes, files_of, restored

__all__ = ["NpzSource"]

_OFFSETS = "/offsets"
_STRING_OFFSETS = "/string_offsets"
# Size of the length of a header, by the version of the format .npy.
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
# Number of flags that are read at a time, to find where episodes end.
_FLAGS_AT_ONCE = 1 << 20


class NpzSource:
    """A `.npz` file, or a directory of them; see `Source`.

    Raises:
      InvalidArgumentError: If there is no such file, or if a field is missing.
      DataLossError: If a file is damaged.
    """

    def __init__(self, name: str, path: str, leave_out: Collection[str] = ()) -> None:
        self.name = name
        self._leave_out = leave_out
        self._paths = files_of(name, path, ".npz")
        self.identity = f"npz:{pathlib.Path(path).expanduser().resolve()}"
        self._bounds = [_bounds(it, leave_out) for it in self._paths]
        self.num_episodes: int | None = sum(len(it) - 1 for it in self._bounds)

    def episodes(self, start: int) -> Iterator[Episode]:
        """Yields the episodes from this number on."""
        number = 0
        for path, bounds in zip(self._paths, self._bounds, strict=True):
            count = len(bounds) - 1
            first = min(max(start - number, 0), count)
            if first < count:
                yield from _episodes(path, bounds, first, number, self.identity, self._leave_out)
            number += count


def _episodes(
    path: pathlib.Path,
    bounds: np.ndarray,
    first: int,
    number: int,
    identity: str,
    leave_out: Collection[str],
) -> Iterator[Episode]:
    """The episodes of a file; its first one has the number `number`."""
    dtypes = described_dtypes(path)
    with _Archive(path, leave_out) as archive:
        names = archive.names
        found = {field: archive.offsets(field) for field in names.parts}
        offsets = {field: bounds if it is None else it for field, it in found.items()}
        for field, ends in offsets.items():
            if len(ends) != len(bounds):
                raise errors.DataLossError(
                    f"{path}: field {field}{_OFFSETS}: has {len(ends) - 1} episodes, and the "
                    f"rewards have {len(bounds) - 1}"
                )
        members = {field: archive.member(field) for field in names.parts}
        for index in range(first, len(bounds) - 1):
            arrays = {}
            for field, member in members.items():
                ends = offsets[field]
                start, end = int(ends[index]), int(ends[index + 1])
                arrays[field] = restored(member.rows(start, end, number + index), dtypes.get(field))
            yield episode_of(names, arrays, number=number + index, source=identity, place=str(path))


def _bounds(path: pathlib.Path, leave_out: Collection[str]) -> np.ndarray:
    """Returns where the episodes of a file begin, and the end of the last one."""
    with _Archive(path, leave_out) as archive:
        (reward,) = archive.names.fields_of("rewards")
        offsets = archive.offsets(reward)
        if offsets is not None:
            return offsets
        total = archive.member(reward).num_rows
        ends: list[np.ndarray] = []
        flags = [
            archive.member(field)
            for part in ("terminated", "truncated")
            for field in archive.names.fields_of(part)
        ]
        for start in range(0, total, _FLAGS_AT_ONCE):
            end = min(start + _FLAGS_AT_ONCE, total)
            either = np.zeros(end - start, np.bool_)
            for member in flags:
                either |= member.rows(start, end, 0).reshape(end - start, -1).any(axis=1)
            ends.append(np.flatnonzero(either) + start + 1)
        found = np.concatenate([np.zeros(1, np.int64), *ends])
        # Steps after the last end are an episode without an end.
        return found if found[-1] == total else np.append(found, total)


class _Archive:
    """An open `.npz` file."""

    def __init__(self, path: pathlib.Path, leave_out: Collection[str]) -> None:
        self._path = path
        try:
            self._file = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError) as error:
            raise errors.DataLossError(f"{path}: is no complete .npz file: {error}") from None
        self._members = [
            it.removesuffix(".npy") for it in self._file.namelist() if it.endswith(".npy")
        ]
        # Members that are open keep the file open, too.
        self._open = contextlib.ExitStack()
        self._open.enter_context(self._file)
        try:
            self.names = self._names(leave_out)
        except BaseException:
            self._open.close()
            raise

    def _names(self, leave_out: Collection[str]) -> Names:
        helpers = (_OFFSETS, _STRING_OFFSETS)
        fields = [it for it in self._members if not it.endswith(helpers)]
        names = Names.of(str(self._path), fields, leave_out)
        for field in names.parts:
            if f"{field}{_STRING_OFFSETS}" in self._members:
                raise errors.InvalidArgumentError(
                    f"{self._path}: episode 0, field {field}: must be numbers, got text"
                )
        return names

    def __enter__(self) -> "_Archive":
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def offsets(self, field: str) -> np.ndarray | None:
        """The offsets of the episodes in a field, int64 `[N + 1]`."""
        name = f"{field}{_OFFSETS}"
        if name not in self._members:
            return None
        member = self.member(name)
        found = member.rows(0, member.num_rows, 0)
        if found.dtype.kind not in "iu" or found.ndim != 1 or (np.diff(found) < 0).any():
            raise errors.DataLossError(f"{self._path}: field {name}: are no growing offsets")
        return found.astype(np.int64)

    def member(self, field: str) -> "_Member":
        """A field, to be read from its start."""
        return _Member(self._path, self._file, field, self._open)


class _Member:
    """An array of an archive, whose rows are read in their order."""

    def __init__(
        self, path: pathlib.Path, file: zipfile.ZipFile, field: str, open_: contextlib.ExitStack
    ) -> None:
        self._where = f"{path}: episode {{}}, field {field}"
        try:
            self._file: Any = open_.enter_context(file.open(f"{field}.npy"))
            header = _header(self._file)
        except (ValueError, OSError, zipfile.BadZipFile) as error:
            raise errors.DataLossError(f"{path}: field {field}: {error}") from None
        shape: tuple[int, ...] = header[0]
        self._fortran, self._dtype = header[1:]
        if self._dtype.hasobject or self._dtype.kind in "US":
            raise errors.InvalidArgumentError(
                f"{self._where.format(0)}: must be numbers, got "
                f"{'objects' if self._dtype.hasobject else 'text'}"
            )
        if not shape or (self._fortran and len(shape) > 1):
            raise errors.InvalidArgumentError(
                f"{self._where.format(0)}: must have rows in C order, got shape {list(shape)}"
            )
        self.num_rows, *inner = list(shape)
        self._inner = tuple(inner)
        self._row_bytes = self._dtype.itemsize * int(np.prod(self._inner, dtype=np.int64))
        self._begin = self._file.tell()

    def rows(self, start: int, end: int, number: int) -> np.ndarray:
        """Reads rows from `start` to before `end`; errors name the episode `number`.

        Raises:
          DataLossError: If the file has fewer.
        """
        where = self._where.format(number)
        if end > self.num_rows:
            raise errors.DataLossError(
                f"{where}: has {self.num_rows} rows in the file, and the episode ends at row {end}"
            )
        try:
            self._file.seek(self._begin + start * self._row_bytes)
            data = self._file.read((end - start) * self._row_bytes)
        except (zipfile.BadZipFile, OSError, EOFError, ValueError) as error:
            raise errors.DataLossError(f"{where}: cannot be read: {error}") from None
        if len(data) != (end - start) * self._row_bytes:
            raise errors.DataLossError(f"{where}: the file ends before row {end}")
        return np.frombuffer(data, self._dtype).reshape(end - start, *self._inner)


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Reads the header of a `.npy` file of any version."""
    version, _ = np.lib.format.read_magic(file)
    if version not in _LENGTH_BYTES:
        raise ValueError(f"version {version} of the format .npy is not known")
    length = int.from_bytes(_exactly(file, _LENGTH_BYTES[version]), "little")
    text = _exactly(file, length).decode("utf-8" if version == 3 else "latin-1")
    try:
        header = ast.literal_eval(text)
        descr, shape = header["descr"], tuple(header["shape"])
        return shape, bool(header["fortran_order"]), np.lib.format.descr_to_dtype(descr)
    except (SyntaxError, KeyError, TypeError) as error:
        raise ValueError(f"the header of the array is damaged ({error!r})") from None


def _exactly(file: Any, num_bytes: int) -> bytes:
    data = file.read(num_bytes)
    if len(data) != num_bytes:
        raise ValueError("the file ends in the header of the array")
    return data
