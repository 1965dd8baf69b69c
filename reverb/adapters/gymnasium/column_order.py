# SPDX-License-Identifier: Apache-2.0
"""The order in which a table's signature has the columns of items."""

from collections.abc import Sequence
from typing import Any

import tree

from reverb import errors

__all__ = ["order_in"]

Path = tuple[Any, ...]


def order_in(table: str, signature: Any, paths: Sequence[Path]) -> list[int] | None:
    """Returns where the columns of a signature are among those of items.

    Args:
      table: Name of the table.
      signature: Its nest of specs, or `None`.
      paths: Those of the columns of items, as `tree.flatten_with_path` has them.

    Returns:
      For each column of the signature its number; `None`: the order is the same, or the signature
      names no columns.

    Raises:
      SignatureMismatchError: If the names differ.
    """
    theirs = [] if signature is None else [path for path, _ in tree.flatten_with_path(signature)]
    has_names = any(isinstance(part, str) for path in theirs for part in path)
    if not has_names or theirs == list(paths):
        return None
    if sorted(map(_text, theirs)) != sorted(map(_text, paths)):
        raise errors.SignatureMismatchError(
            f"table {table!r} has the columns {[_text(path) for path in theirs]}, and the items of "
            f"the recorder {[_text(path) for path in paths]}; make the signature of the table with "
            "reverb.adapters.gymnasium.signature, and with the same extras and keep_infos"
        )
    return [paths.index(path) for path in theirs]


def _text(path: Path) -> str:
    return "/".join(map(str, path))
