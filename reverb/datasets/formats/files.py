# SPDX-License-Identifier: Apache-2.0
"""The files of a source that is a path, and what an export tells of them."""

import json
import pathlib
from typing import Any

import numpy as np

from reverb import errors
from reverb._nests.dtypes import as_dtype

__all__ = ["described_dtypes", "files_of", "restored"]

_MANIFEST = "_export.json"


def files_of(name: str, path: str, suffix: str) -> list[pathlib.Path]:
    """Returns a file, or the files of a directory with a suffix such as `.npz`, sorted by name.

    Raises:
      InvalidArgumentError: If there are none.
    """
    given = pathlib.Path(path).expanduser()
    if given.is_file():
        return [given]
    if not given.is_dir():
        raise errors.InvalidArgumentError(f"{name}: there is no file or directory {given}")
    found = sorted(given.rglob(f"*{suffix}"))
    if not found:
        raise errors.InvalidArgumentError(f"{name}: the directory {given} has no {suffix} files")
    return found


def described_dtypes(path: pathlib.Path) -> dict[str, str]:
    """Returns the dtypes of the columns of an exported file by their names; of others none.

    Raises:
      DataLossError: If the description of the export is damaged.
    """
    for manifest in (path.with_name(f"{path.name}.json"), path.with_name(_MANIFEST)):
        if not manifest.is_file():
            continue
        try:
            description: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
            for layout in description.get("layouts", ()):
                names = {file["name"] for file in layout["files"]}
                if path.name in names:
                    return {column["name"]: column["dtype"] for column in layout["columns"]}
        except (ValueError, KeyError, TypeError) as error:
            raise errors.DataLossError(
                f"{manifest}: the description of the export is damaged ({error!r})"
            ) from None
    return {}


def restored(array: np.ndarray, dtype_name: str | None) -> np.ndarray:
    """Returns an array with the dtype that it had; types that NumPy lacks are stored as bits."""
    if dtype_name is None or dtype_name in ("string", array.dtype.name):
        return array
    return array.view(as_dtype(dtype_name))
