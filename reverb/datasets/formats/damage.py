# SPDX-License-Identifier: Apache-2.0
"""Errors of libraries for damaged files, as one of ours that names the file."""

import contextlib
from collections.abc import Iterator

from reverb import errors

__all__ = ["reading"]


@contextlib.contextmanager
def reading(
    where: str, kinds: tuple[type[BaseException], ...], problem: str = "cannot be read"
) -> Iterator[None]:
    """Raises `DataLossError` for errors of these kinds in the block.

    Errors of this package stay as they are, and so does a `MemoryError`: it says nothing of the
    file.

    Args:
      where: The file and the place in it.
      kinds: Errors that the library raises for a damaged file.
      problem: Text of the error, after the file.
    """
    try:
        yield
    except (errors.ReverbError, MemoryError):
        raise
    except kinds as error:
        text = str(error).splitlines()
        raise errors.DataLossError(
            f"{where}: {problem}: {text[0][:300] if text else type(error).__name__}"
        ) from None
