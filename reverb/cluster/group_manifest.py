# SPDX-License-Identifier: Apache-2.0
"""The manifest of a group's checkpoint: the file `GROUP`, which makes it complete."""

import dataclasses
import json
import os
import pathlib
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from reverb._checks.plain_files import read_file
from reverb.errors import DataLossError, FailedPreconditionError, InvalidArgumentError

__all__ = ["DONE", "MANIFEST", "GroupCheckpoint", "Part", "read", "to_text"]

MANIFEST = "GROUP"
DONE = "DONE"
_MAX_VALUES = 2**20
_FORMAT = "reverb-group 1"


@dataclasses.dataclass(frozen=True)
class Part:
    """The checkpoint of one shard in a checkpoint of the group.

    Attributes:
      index: Index of the shard.
      path: Path relative to the directory of the group; never with `..`.
      done_bytes: Size of its file `DONE`.
      done_crc32: Checksum of that file, which lists the others and their sizes.
    """

    index: int
    path: str
    done_bytes: int
    done_crc32: int


@dataclasses.dataclass(frozen=True)
class GroupCheckpoint:
    """A complete checkpoint of a group.

    Attributes:
      path: Directory of the checkpoint.
      group: Name of the group.
      epoch: Epoch of the group's map.
      slots: The map's ranges of slots: dicts with `first`, `count`, `owner`, `former_owners`.
      parts: The checkpoints of the shards, by index.
      tables: Settings of the whole group's tables, as plain values.
    """

    path: pathlib.Path
    group: str
    epoch: int
    slots: Sequence[Mapping[str, Any]]
    parts: Mapping[int, Part]
    tables: Sequence[Mapping[str, Any]] = ()

    def path_of(self, index: int) -> pathlib.Path:
        """Returns the directory of a shard's checkpoint.

        Raises:
          InvalidArgumentError: If the checkpoint has no such shard.
        """
        if index not in self.parts:
            raise InvalidArgumentError(
                f"group checkpoint {self.path} has no shard {index}; it has {sorted(self.parts)}"
            )
        return self.path / self.parts[index].path

    def check(self) -> None:
        """Checks that all parts exist, and are those that were saved.

        Reads only the small files; a server checks the data when it loads it.

        Raises:
          DataLossError: If a part is missing or was replaced; the text names shard and path.
        """
        for part in self.parts.values():
            _check_part(self.path, part)


def read(path: str | os.PathLike[str]) -> GroupCheckpoint:
    """Reads the manifest of a checkpoint of a group, in the directory `.../group-<time>`.

    Raises:
      FailedPreconditionError: If there is no manifest: the checkpoint is not complete.
      DataLossError: If the manifest is damaged.
    """
    directory = pathlib.Path(path)
    try:
        text = read_file(directory / MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        raise FailedPreconditionError(
            f"{directory} has no file {MANIFEST}: it is no complete checkpoint of a group"
        ) from None
    except OSError as error:
        raise DataLossError(
            f"group checkpoint {directory}: the file {MANIFEST} cannot be read: {error}"
        ) from None
    return _parse(directory, text)


def to_text(checkpoint: GroupCheckpoint) -> str:
    """Returns the content of the manifest."""
    fields = {
        "format": _FORMAT,
        "group": checkpoint.group,
        "epoch": checkpoint.epoch,
        "shards": [
            dataclasses.asdict(part) | {"done_crc32": f"{part.done_crc32:08x}"}
            for _, part in sorted(checkpoint.parts.items())
        ],
        "slots": [dict(it) for it in checkpoint.slots],
        "tables": [dict(it) for it in checkpoint.tables],
    }
    return json.dumps(fields, indent=1) + "\n"


def _parse(directory: pathlib.Path, text: bytes) -> GroupCheckpoint:
    def damaged(reason: str) -> DataLossError:
        return DataLossError(f"group checkpoint {directory}: the file {MANIFEST} {reason}")

    # A parsed value takes many times the memory of its text. Each follows one of these characters.
    if sum(map(text.count, (b"[", b"{", b","))) > _MAX_VALUES:
        raise damaged(f"is damaged: it has more than {_MAX_VALUES} values")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(f"is damaged: {error}") from None
    if not isinstance(fields, dict) or fields.get("format") != _FORMAT:
        written = fields.get("format") if isinstance(fields, dict) else None
        raise damaged(f"must have the format {_FORMAT!r}, got {written!r}")

    def field(owner: object, name: str, kind: type) -> Any:
        value = owner.get(name) if isinstance(owner, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise damaged(f"is damaged: {name} must be a {kind.__name__}, got {value!r:.80}")
        return value

    parts: dict[int, Part] = {}
    for entry in field(fields, "shards", list):
        index = field(entry, "index", int)
        path = field(entry, "path", str)
        if not _is_inside(path):
            raise damaged(
                f"names a path that is not inside the checkpoint: shard {index}, path {path!r:.200}"
            )
        if index < 0 or index in parts:
            raise damaged(f"is damaged: it has shard {index} twice, or it is negative")
        try:
            checksum = int(field(entry, "done_crc32", str), 16)
        except ValueError:
            raise damaged(f"is damaged: done_crc32 of shard {index} is no number") from None
        parts[index] = Part(index, path, field(entry, "done_bytes", int), checksum)
    if not parts:
        raise damaged("is damaged: it has no shards")
    slots = field(fields, "slots", list)
    for entry in slots:
        for name in ("first", "count", "owner"):
            field(entry, name, int)
        field(entry, "former_owners", list)
    return GroupCheckpoint(
        path=directory,
        group=field(fields, "group", str),
        epoch=field(fields, "epoch", int),
        slots=slots,
        parts=parts,
        tables=field(fields, "tables", list),
    )


def _is_inside(path: str) -> bool:
    """Whether a path is relative and stays inside its directory."""
    parts = path.split("/")
    return "\0" not in path and "\\" not in path and not {"", ".", ".."} & set(parts)


def _check_part(directory: pathlib.Path, part: Part) -> None:
    path = directory / part.path
    shard = f"group checkpoint {directory}: shard {part.index}"
    try:
        done = read_file(path / DONE)
    except (FileNotFoundError, NotADirectoryError):
        raise DataLossError(
            f"{shard}: its checkpoint {path} is missing. To start from an older checkpoint, move "
            "this one to another directory"
        ) from None
    except OSError as error:
        raise DataLossError(f"{shard}: {path / DONE} cannot be read: {error}") from None
    if len(done) != part.done_bytes or zlib.crc32(done) != part.done_crc32:
        raise DataLossError(
            f"{shard}: {path / DONE} is not the file that was saved: {len(done)} bytes with "
            f"checksum {zlib.crc32(done):08x}, not {part.done_bytes} with {part.done_crc32:08x}"
        )
    for name, size in re.findall(rb"^(\S+) records=\d+ bytes=(\d+)$", done, re.MULTILINE):
        file = path / os.fsdecode(name)
        found = file.stat().st_size if file.exists() else None
        if found != int(size):
            raise DataLossError(
                f"{shard}: {file} must have {int(size)} bytes, "
                + ("and is missing" if found is None else f"got {found}")
            )
