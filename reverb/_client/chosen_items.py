# SPDX-License-Identifier: Apache-2.0
"""Requests for items that are chosen by their keys or by a condition."""

from collections.abc import Iterator

import numpy as np

from reverb._checks.arguments import as_keys
from reverb._client.rows import without_tensor
from reverb._client.small_calls import request_of
from reverb._client.where import Where, condition_of
from reverb.core import protos
from reverb.errors import InvalidArgumentError

__all__ = ["deletions_of", "fetched_keys"]

# Half a megabyte.
KEYS_A_REQUEST = 65_536


def fetched_keys(keys: object) -> np.ndarray:
    """Returns keys of items as uint64 `[N]`; the argument is `keys`."""
    return as_keys("keys", without_tensor("keys", keys))


def deletions_of(table: str, keys: object, where: Where | None) -> Iterator[bytes]:
    """Returns the serialized requests of a call of `delete_items`: at least one.

    Raises:
      InvalidArgumentError: If there are neither keys nor bounds.
    """
    condition = None if where is None else condition_of(where)
    if keys is None:
        if where is None or not where.has_bounds:
            given = "neither" if where is None else f"no keys and where={where!r}, without a bound"
            raise InvalidArgumentError(
                f"delete_items needs keys or a condition (where) with a bound, got {given}. Call "
                "reset to remove all items of a table"
            )
        return iter([_deletion(table, condition, None)])
    keys = fetched_keys(keys)
    # Without keys, the answer says whether there is such a table.
    starts = range(0, max(len(keys), 1), KEYS_A_REQUEST)
    parts = (keys[start : start + KEYS_A_REQUEST] for start in starts)
    return (_deletion(table, condition, part) for part in parts)


def _deletion(table: str, condition: object, keys: np.ndarray | None) -> bytes:
    chosen = None if keys is None else protos.ItemKeys(keys=keys.tolist())
    return request_of("DeleteItems", table=table, condition=condition, keys=chosen)[1]
