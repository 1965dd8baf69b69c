# SPDX-License-Identifier: Apache-2.0
"""Atomic output: an export appears complete, or not at all.

An export is written to a temporary directory beside its output, and renamed when it is complete. An
error or Ctrl-C removes the temporary directory. An older output is kept until the new export
replaces it.
"""

import json
import os
import pathlib
import re
import shutil
import tempfile
from typing import Any

from reverb.errors import InvalidArgumentError

# Description of the files in a directory. Programs that read directories skip names with `_`.
MANIFEST = "_export.json"
_PART = re.compile(r"(layout\d+-)?part-\d{5,}\.\w+")


class Output:
    """A directory of files, or one file with its description beside it.

    Use it in a `with` block. At its end, the files are put in place if there was no error. A path
    whose name has one of `suffixes` is a file; the first of them is used in directories.
    `overwrite` replaces an existing export, a directory only if it holds an export and nothing
    else.

    Raises:
      InvalidArgumentError: If the path exists and must not be replaced.
      OSError: If the path cannot be written.
    """

    def __init__(self, path: pathlib.Path, suffixes: tuple[str, ...], overwrite: bool) -> None:
        self._path = path.resolve()
        self._suffix = suffixes[0]
        self.is_file = path.suffix in suffixes
        self._overwrite = overwrite
        self._file_names: list[str] = []
        self._check_free()

    def __enter__(self) -> "Output":
        parent = self._path.absolute().parent
        parent.mkdir(parents=True, exist_ok=True)
        self._temporary = pathlib.Path(
            tempfile.mkdtemp(prefix=f".{self._path.name}.partial-", dir=parent)
        )
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        try:
            if exc_type is None:
                self._put_in_place()
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)

    @property
    def path(self) -> pathlib.Path:
        """Path of the complete export."""
        return self._path

    def new_file(self, layout: int, number: int) -> pathlib.Path:
        """Returns the path for the file `number` of a layout; both are 0 for a single file."""
        name = self._path.name
        if not self.is_file:
            prefix = f"layout{layout}-" if layout else ""
            name = f"{prefix}part-{number:05}{self._suffix}"
        self._file_names.append(name)
        return self._temporary / name

    def describe(self, description: dict[str, Any]) -> None:
        """Writes the description of the files, for programs that read them."""
        text = json.dumps(description, indent=2) + "\n"
        self._temporary.joinpath(self._manifest_name).write_text(text, encoding="utf-8")

    @property
    def _manifest_name(self) -> str:
        return f"{self._path.name}.json" if self.is_file else MANIFEST

    def _check_free(self) -> None:
        if self.is_file:
            taken = [self._path, self._path.with_name(self._manifest_name)]
        else:
            taken = [self._path]
        taken = [path for path in taken if path.exists() and not _is_empty_directory(path)]
        for path in taken:
            if self.is_file and path.is_dir():
                raise InvalidArgumentError(f"{path} is a directory; the output must be a file")
            if not self.is_file and not path.is_dir():
                raise InvalidArgumentError(
                    f"{path} is a file; the output must be a directory, or a file that ends with "
                    f"{self._suffix}"
                )
            if not self._overwrite:
                raise InvalidArgumentError(f"{path} exists; give --overwrite to replace it")
            if path.is_dir() and not _is_export(path):
                raise InvalidArgumentError(
                    f"{path} holds other files than those of an export, so it is not replaced; "
                    "give another --output"
                )

    def _put_in_place(self) -> None:
        # `mkdtemp` makes directories private; an export has the usual permissions.
        mask = os.umask(0)
        os.umask(mask)
        self._temporary.chmod(0o777 & ~mask)
        for path in self._temporary.iterdir():
            _sync(path)
        if self.is_file:
            for name in [self._manifest_name, *self._file_names]:
                self._temporary.joinpath(name).replace(self._path.with_name(name))
            return
        self._check_free()  # Another process may have made the path meanwhile.
        if not self._path.exists():
            self._temporary.rename(self._path)
            return
        # A directory cannot be replaced by another in one step; the old one is renamed first.
        old = self._temporary.with_name(f"{self._temporary.name}-old")
        self._path.rename(old)
        try:
            self._temporary.rename(self._path)
        except BaseException:
            old.rename(self._path)
            raise
        shutil.rmtree(old)


def _is_export(directory: pathlib.Path) -> bool:
    """Whether a directory holds a complete export and nothing else."""
    names = {path.name for path in directory.iterdir()}
    return MANIFEST in names and all(map(_PART.fullmatch, names - {MANIFEST}))


def _is_empty_directory(path: pathlib.Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _sync(path: pathlib.Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
