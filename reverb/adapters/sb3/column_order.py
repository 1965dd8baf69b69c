# SPDX-License-Identifier: Apache-2.0
"""The order of the columns of transitions in a table's signature."""

from collections.abc import Sequence
from typing import Any

import tree

from reverb import errors

__all__ = ["order_in"]


def order_in(table: str, signature: Any, names: Sequence[str]) -> list[int] | None:
    """Returns the position of each column of a signature among those of transitions.

    Args:
      table: Name of the table.
      signature: Nest of specs, or `None`.
      names: Names of the columns of transitions.

    Returns:
      For each column of the signature its number; `None`: the signature names no columns.

    Raises:
      SignatureMismatchError: If the names differ.
    """
    paths = [] if signature is None else [path for path, _ in tree.flatten_with_path(signature)]
    if not any(isinstance(part, str) for path in paths for part in path):
        return None
    theirs = ["/".join(map(str, path)) for path in paths]
    if sorted(theirs) != sorted(names):
        raise errors.SignatureMismatchError(
            f"table {table} has the columns {theirs}, and the transitions of this buffer "
            f"{list(names)}; make the table without a signature"
        )
    return [names.index(name) for name in theirs]
