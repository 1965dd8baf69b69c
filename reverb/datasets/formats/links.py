# SPDX-License-Identifier: Apache-2.0
"""Files of a dataset: plain ones, none of them outside of it.

A link in an untrusted dataset may lead to any file of the machine. Links that the user gave are
followed; so are those that stay in the dataset, as in volumes of Kubernetes, and those into a cache
of the format's library, as in the hub's of Hugging Face.
"""

import os
import pathlib
import re
import stat
from collections.abc import Iterator
from typing import Any

from reverb import errors
from reverb.datasets.formats.damage import reading

__all__ = ["hub_cache", "hugging_face_home", "inside", "natural", "visible"]

_NUMBER = re.compile("([0-9]+)")


def inside(root: pathlib.Path, path: pathlib.Path, *caches: pathlib.Path) -> pathlib.Path:
    """Returns the path of a plain file that is in the dataset `root`.

    Args:
      root: The directory of the dataset.
      path: A file in it, which may be a link.
      caches: Directories of libraries that links may lead to, beside the hub's cache.

    Raises:
      InvalidArgumentError: If a link leads to somewhere else, or if it is no plain file.
      DataLossError: If it cannot be read.
    """
    with reading(str(path), (OSError, ValueError, RuntimeError), "cannot be opened"):
        # A loop of links is a RuntimeError.
        target, top = path.resolve(strict=True), root.resolve(strict=True)
        allowed = [top, *(it.resolve() for it in (hub_cache(), *caches))]
        # A snapshot of the hub links to the blobs beside it.
        if "snapshots" in top.parts:
            repository = pathlib.Path(*top.parts[: top.parts.index("snapshots")])
            allowed.append(repository / "blobs")
        if not any(target.is_relative_to(it) for it in allowed):
            raise errors.InvalidArgumentError(
                f"{path}: leads to {target}, which is outside of the dataset {root}. Copy the file "
                "to the place of the link, if it is to be read"
            )
        is_plain = stat.S_ISREG(target.stat().st_mode)
    if not is_plain:
        raise errors.InvalidArgumentError(
            f"{path}: is no plain file, but a pipe, a device or a directory; remove it"
        )
    return target


def visible(root: pathlib.Path, suffix: str) -> Iterator[pathlib.Path]:
    """Yields the paths below a directory with a suffix, in natural order, without hidden ones.

    A volume of Kubernetes has each file twice: the second is in a hidden directory.
    """
    for path in sorted(root.rglob(f"*{suffix}"), key=lambda it: natural(it.as_posix())):
        if not any(part.startswith(".") for part in path.relative_to(root).parts):
            yield path


def natural(path: str) -> list[Any]:
    """Returns a key to sort paths by: numbers in names are compared as such, 2 before 10."""
    # The parts between numbers are texts, so that a number is never compared with a text.
    numbered = [
        [int(it) if index % 2 else it for index, it in enumerate(_NUMBER.split(name))]
        for name in path.split("/")
    ]
    return [numbered, path]


def hub_cache() -> pathlib.Path:
    """The directory where the library of Hugging Face's hub keeps its files."""
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return pathlib.Path(given) if given else hugging_face_home() / "hub"


def hugging_face_home() -> pathlib.Path:
    """The directory of Hugging Face's libraries."""
    given = os.environ.get("HF_HOME")
    if given:
        return pathlib.Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "huggingface"
