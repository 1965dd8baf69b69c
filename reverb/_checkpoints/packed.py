# SPDX-License-Identifier: Apache-2.0
"""A checkpoint as bytes, for the state of a program that runs its own server."""

import io
import os
import pathlib
import tarfile
from typing import BinaryIO, cast

from reverb._checks.plain_files import open_file
from reverb.errors import DataLossError

__all__ = ["pack", "unpack"]

# The marker comes last, so that a partly unpacked directory is no checkpoint.
_FILES = ("tables.tfrecord", "items.tfrecord", "chunks.tfrecord", "DONE")
# Larger than any valid header, which `tarfile` reads at once.
_HEADER_BYTES = 16 * 1024
_COPY_BYTES = 1024 * 1024


def pack(path: str | os.PathLike[str]) -> bytes:
    """Returns the files of a checkpoint as one archive, for the state of a program.

    Example:
      >>> import tempfile
      >>> packed = reverb.checkpointers.pack(client.checkpoint())
      >>> with tempfile.TemporaryDirectory() as directory:
      ...     reverb.checkpointers.unpack(packed, directory)
      ...     sorted(reverb.checkpointers.read(directory).tables)
      ['replay', 'table']

    Args:
      path: Directory of the checkpoint, as `Client.checkpoint` returns it.

    Raises:
      OSError: If a file cannot be read.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(path, arcname=pathlib.Path(path).name)
    return packed.getvalue()


def unpack(packed: bytes | str | os.PathLike[str], directory: str | os.PathLike[str]) -> None:
    """Writes the files that `pack` has packed into the directory of a checkpointer.

    Args:
      packed: The bytes that `pack` returned, or a file of them.
      directory: Root directory of a checkpointer.

    Raises:
      DataLossError: If `packed` is not a result of `pack`: one directory with the files of a
        checkpoint. Nothing is left that a server would load.
      OSError: If the file cannot be read, or is not a plain file.
    """
    if isinstance(packed, bytes):
        _unpack(io.BytesIO(packed), "the packed checkpoint", pathlib.Path(directory))
    else:
        with open_file(packed) as file:
            _unpack(file, f"the packed checkpoint {os.fspath(packed)}", pathlib.Path(directory))


def _unpack(file: BinaryIO, name: str, directory: pathlib.Path) -> None:
    try:
        # `r:` refuses compressed archives, which could expand to any size.
        with tarfile.open(fileobj=cast(BinaryIO, _SmallReads(file)), mode="r:") as archive:
            checkpoint, members = _members(archive)
        path = directory / checkpoint
        path.mkdir(mode=0o700)
        for file_name in _FILES:
            _copy(file, members[file_name], path / file_name)
    # Chained headers make `tarfile` recurse.
    except (tarfile.TarError, RecursionError) as error:
        raise DataLossError(f"{name} is damaged: {error}") from None


def _members(archive: tarfile.TarFile) -> tuple[str, dict[str, tarfile.TarInfo]]:
    """Returns the name of a checkpoint's directory, and its files by name."""
    checkpoint: str | None = None
    members: dict[str, tarfile.TarInfo] = {}
    for member in archive:
        *parents, name = member.name.split("/")
        if checkpoint is None and member.isdir() and not parents and name not in ("", ".", ".."):
            checkpoint = name
            continue
        if parents != [checkpoint] or name not in _FILES or name in members:
            raise tarfile.ReadError(f"{member.name!r:.200} is no file of a checkpoint")
        # A sparse file may claim a million times the size of the archive.
        if not member.isreg() or member.issparse() or member.size < 0:
            raise tarfile.ReadError(f"{member.name!r:.200} is not a plain file")
        members[name] = member
    missing = [name for name in _FILES if name not in members]
    if checkpoint is None or missing:
        raise tarfile.ReadError(f"it has no {', '.join(missing)}")
    return checkpoint, members


def _copy(file: BinaryIO, member: tarfile.TarInfo, path: pathlib.Path) -> None:
    file.seek(member.offset_data)
    left = member.size
    with path.open("xb") as copy:
        while left:
            block = file.read(min(left, _COPY_BYTES))
            if not block:
                raise tarfile.ReadError(f"it ends {left} bytes before the end of {member.name!r}")
            copy.write(block)
            left -= len(block)


class _SmallReads:
    """A file that refuses the large or negative reads which a damaged header asks for."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        """Returns the next bytes."""
        if not 0 <= size <= _HEADER_BYTES:
            raise tarfile.ReadError(f"it has a header of {size} bytes")
        return self._file.read(size)
