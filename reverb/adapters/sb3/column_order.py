# SPDX-License-Identifier: Apache-2.0
"""The order in which a table's signature has the columns of transitions."""

from collections.abc import Sequence
from typing import Any

import tree

from reverb import errors

__all__ = ["order_in"]


def order_in(table: str, signature: Any, names: Sequence[str]) -> list[int] | None:
    """Returns where the columns of a signature are among those of transitions.

    Args:
      table: Name of the table.
      signature: Its nest of specs, or `None`.
      names: Those of the columns of transitions.

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
            f"{list(names)}; leave the signature of the table out"
        )
    return [names.index(name) for name in theirs]
