# SPDX-License-Identifier: Apache-2.0
"""The files of a source that is a path, and what is written beside them as JSON."""

import json
import pathlib
from typing import Any

import numpy as np

from reverb import errors
from reverb._checks.plain_files import read_file
from reverb._nests.dtypes import as_dtype
from reverb.datasets.formats.damage import reading
from reverb.datasets.formats.data_files import DataFile
from reverb.datasets.formats.limits import MAX_JSON_BYTES, MAX_JSON_NESTS
from reverb.datasets.formats.links import inside, visible

__all__ = ["described_dtypes", "files_of", "object_of", "parsed", "restored"]

_MANIFEST = "_export.json"


def files_of(name: str, path: str, suffix: str) -> list[DataFile]:
    """Returns a file, or those of a directory with a suffix such as `.npz`, in natural order.

    Raises:
      InvalidArgumentError: If there are none, or if one is not plain, or leads out of the
        directory.
    """
    given = pathlib.Path(path).expanduser()
    if given.is_dir():
        found = list(visible(given, suffix))
        if not found:
            raise errors.InvalidArgumentError(
                f"{name}: the directory {given} has no {suffix} files"
            )
        for it in found:
            inside(given, it)
        return [DataFile(it, it.relative_to(given).as_posix()) for it in found]
    if not given.exists():
        raise errors.InvalidArgumentError(f"{name}: there is no file or directory {given}")
    inside(given.resolve().parent, given)  # This link is the user's, wherever it leads.
    return [DataFile(given)]


def object_of(path: pathlib.Path) -> dict[str, Any]:
    """Returns the object in a file of JSON.

    Raises:
      DataLossError: If it cannot be read, is no object, or is too large or too deep.
    """
    with reading(str(path), (OSError,)):
        data = read_file(path, MAX_JSON_BYTES)
    found = parsed(data, str(path))
    if not isinstance(found, dict):
        raise errors.DataLossError(f"{path}: must have an object, got a {type(found).__name__}")
    return found


def parsed(data: bytes | str, where: str) -> Any:
    """Parses JSON.

    Raises:
      DataLossError: If it is damaged, too large or too deep.
    """
    text = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if len(text) > MAX_JSON_BYTES or text.count(b"{") + text.count(b"[") > MAX_JSON_NESTS:
        raise errors.DataLossError(
            f"{where}: is larger than {MAX_JSON_BYTES >> 20} MiB, or has more than "
            f"{MAX_JSON_NESTS} objects and lists"
        )
    with reading(where, (ValueError, RecursionError), "is damaged"):
        return json.loads(data)


def described_dtypes(path: pathlib.Path) -> dict[str, str]:
    """Returns the dtypes of the columns of an exported file by their names; of others none.

    Raises:
      DataLossError: If the description of the export is damaged.
    """
    for manifest in (path.with_name(f"{path.name}.json"), path.with_name(_MANIFEST)):
        if not manifest.exists() and not manifest.is_symlink():
            continue
        inside(path.parent, manifest)
        description = object_of(manifest)
        with reading(str(manifest), (KeyError, TypeError, AttributeError), "is damaged"):
            for layout in description.get("layouts", ()):
                names = {file["name"] for file in layout["files"]}
                if path.name in names:
                    return {column["name"]: column["dtype"] for column in layout["columns"]}
    return {}


def restored(array: np.ndarray, dtype_name: object, where: str) -> np.ndarray:
    """Returns an array with the dtype that it had; types that NumPy lacks are stored as bits.

    Raises:
      DataLossError: If the array is not made of the bits of that dtype.
    """
    if dtype_name is None or dtype_name in ("string", array.dtype.name):
        return array
    problem = f"has the dtype {str(dtype_name)[:40]!r} in the description of the export"
    with reading(where, (TypeError, ValueError, SyntaxError), problem):
        dtype = as_dtype(dtype_name) if isinstance(dtype_name, str) else np.dtype(object)
        if dtype.hasobject or dtype.names or dtype.itemsize != array.dtype.itemsize:
            raise TypeError(f"the values have {array.dtype.itemsize} bytes each")
        return array.view(dtype)
