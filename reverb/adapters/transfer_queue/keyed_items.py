# SPDX-License-Identifier: Apache-2.0
"""Keys of items, and inserts that replace the items that have them."""

import concurrent.futures
from typing import Any

import numpy as np

import reverb

__all__ = ["field_keys", "insert_rows", "insert_sequences", "row_key", "text_key"]

# 63 bits, which a tensor of int64 holds.
_BITS = np.uint64(2**63 - 1)
# Calls that insert sequences at the same time: a client keeps eight idle streams.
_CALLS = 8


def text_key(*texts: str) -> np.uint64:
    """Returns the hash of texts as a key."""
    return np.uint64(reverb.key_of("\0".join(f"{len(text)}:{text}" for text in texts)))


def row_key(partition: str, key: str) -> int:
    """Returns the number of a key of a program, which TransferQueue calls its global index."""
    return int(text_key(partition, key) & _BITS)


def field_keys(rows: np.ndarray, name: np.uint64) -> np.ndarray:
    """Returns the keys of the items of some rows for a field or a form of entries.

    A bijection for each name, so that items of one field never meet (the finaliser of splitmix64).
    """
    keys = rows ^ name
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    return keys ^ (keys >> np.uint64(31))


def insert_rows(
    client: reverb.Client, table: str, columns: list[Any], keys: np.ndarray, *, replace: bool = True
) -> None:
    """Inserts rows of columns `[N, ...]` as items of these keys; the last one of a key stays."""
    client.insert_batch(columns, {table: 1.0}, keys=keys, replace=replace)


def insert_sequences(
    client: reverb.Client, table: str, sequences: list[Any], keys: np.ndarray
) -> None:
    """Inserts arrays `[L, ...]` as items of these keys; several calls run at a time."""

    def insert(sequence: Any, key: np.uint64) -> None:
        client.insert_sequence([sequence], {table: 1.0}, key=int(key), replace=True)

    if len(sequences) == 1:
        insert(sequences[0], keys[0])
        return
    with concurrent.futures.ThreadPoolExecutor(min(_CALLS, len(sequences))) as pool:
        list(pool.map(insert, sequences, keys))
