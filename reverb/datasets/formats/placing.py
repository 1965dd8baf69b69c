# SPDX-License-Identifier: Apache-2.0
"""New directories that appear complete, or not at all."""

import contextlib
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from reverb import errors

__all__ = ["new_directory"]


@contextlib.contextmanager
def new_directory(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a directory to write to, which gets its name at the end of the block.

    Raises:
      InvalidArgumentError: If the path exists.
      OSError: If it cannot be written.
    """
    path = path.expanduser().absolute()
    if path.exists():
        raise errors.InvalidArgumentError(f"{path} exists; remove it, or give another path")
    path.parent.mkdir(parents=True, exist_ok=True)
    outer = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.partial-", dir=path.parent))
    try:
        inner = outer / path.name
        inner.mkdir()
        yield inner
        inner.rename(path)
    finally:
        shutil.rmtree(outer, ignore_errors=True)
