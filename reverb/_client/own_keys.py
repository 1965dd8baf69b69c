# SPDX-License-Identifier: Apache-2.0
"""Keys of the program's own for the items that it inserts."""

import hashlib
from typing import NamedTuple

import numpy as np

from reverb._checks.arguments import as_keys, check_bool, check_integer
from reverb.errors import InvalidArgumentError
from reverb.shown_text import type_name

__all__ = ["InsertOptions", "key_of", "options_of"]


def key_of(text: str) -> int:
    """Returns the key of an item that the program calls `text`.

    It is the first eight bytes of the SHA-256 of the text in UTF-8, as a big-endian number, so it
    is the same in every process. That any two of a million texts have the same key has a
    probability of 3e-8.

    Example:
      >>> reverb.key_of("episode 17, step 3")
      1646557705961635693

    Args:
      text: The text, of any length.

    Returns:
      A key for `insert_batch(keys=)`, `insert_sequence(key=)`, `fetch` and all calls with keys.

    Raises:
      TypeError: If `text` is no `str`.
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a str, got {type_name(text)}")
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


class InsertOptions(NamedTuple):
    """How the core inserts items.

    Attributes:
      keys: The keys of the rows, uint64 `[B]`; `None` for random ones.
      replace: Whether the items take the place of those that have their keys.
      max_wait_ms: Time after which the server refuses items that still wait; `None` for never.
    """

    keys: np.ndarray | None
    replace: bool
    max_wait_ms: int | None


def options_of(
    keys: object, replace: bool, max_wait_ms: int | None, batch_size: int | None
) -> InsertOptions | None:
    """Returns the options of an insert of rows; with `batch_size=None` of one with key `keys`."""
    argument = "keys" if batch_size is not None else "key"
    replace = check_bool("replace", replace)
    if keys is None:
        if replace:
            raise InvalidArgumentError(
                f"replace=True needs {argument}, which say what is replaced, got {argument}=None"
            )
        return None if max_wait_ms is None else InsertOptions(None, False, max_wait_ms)
    given = [check_integer("key", keys)] if batch_size is None else keys
    array = as_keys(argument, given)
    if batch_size is not None and len(array) != batch_size:
        raise InvalidArgumentError(
            f"keys must have shape [{batch_size}], one for each row of the batch, got shape "
            f"[{len(array)}]"
        )
    return InsertOptions(array, replace, max_wait_ms)
