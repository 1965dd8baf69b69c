# SPDX-License-Identifier: Apache-2.0
"""Both tables in files: what `save_checkpoint` writes, on the machine that calls it."""

import pathlib
from typing import Any

import numpy as np

import reverb
from reverb import Ragged, specs
from reverb.adapters.transfer_queue.columns import group_of
from reverb.adapters.transfer_queue.entries import ENTRIES, Entries
from reverb.adapters.transfer_queue.keyed_items import insert_rows, insert_sequences, row_key
from reverb.adapters.transfer_queue.values import VALUES, Values

__all__ = ["load_tables", "save_tables"]

# Values that are read at a time.
_ROWS = 1_024


def save_tables(client: reverb.Client, directory: str) -> None:
    """Writes a file for each part of some thousand items: keys, then bytes of their values."""
    path = pathlib.Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    keys, heads, forms = [], [], []
    for sample in client.scan(ENTRIES):
        keys.append(sample.info.key)
        heads.append(sample.data[0][0])
        forms.append(sample.data[1][0])
    columns = [_as_objects(it) for it in (heads, forms)]
    _write(path / "entries.npz", np.array(keys, np.uint64), columns)
    values, number = Values(client), 0
    for partition in Entries(client).tags():
        wanted: dict[Any, list[Any]] = {}
        for known in Entries(client).known(partition):
            for name, form in known.fields.items():
                row = (row_key(partition, str(known.key)), form)
                wanted.setdefault((name, group_of(form)), []).append(row)
        for (name, _), rows in wanted.items():
            for start in range(0, len(rows), _ROWS):
                numbers, of_rows = zip(*rows[start : start + _ROWS], strict=True)
                numbers = np.array(numbers, np.uint64)
                for indices, array in values.read(name, numbers, of_rows):
                    item_keys = values.keys(name, numbers[indices])
                    _write(path / f"values-{number:06}.npz", item_keys, [array])
                    number += 1


def load_tables(client: reverb.Client, directory: str) -> None:
    """Replaces the content of both tables: values first, so that no key lacks its fields."""
    path = pathlib.Path(directory)
    entries = _read(path / "entries.npz")
    client.reset(ENTRIES)
    client.reset(VALUES)
    for part in sorted(path.glob("values-*.npz")):
        keys, (column,) = _read(part)
        if isinstance(column, Ragged):
            insert_sequences(client, VALUES, column.to_list(), keys)
        else:
            insert_rows(client, VALUES, [column], keys)
    keys, columns = entries
    if len(keys):
        insert_rows(client, ENTRIES, columns, keys)


def _write(path: pathlib.Path, keys: np.ndarray, columns: list[Any]) -> None:
    """Writes arrays of numbers or bytes, or a `Ragged`, without pickles."""
    arrays: dict[str, Any] = {"keys": keys}
    for at, column in enumerate(columns):
        if isinstance(column, Ragged):
            arrays[f"offsets{at}"], column = column.offsets, column.values
        if column.dtype == object:
            arrays[f"lengths{at}"] = np.array([len(it) for it in column], np.int64)
            column = np.frombuffer(b"".join(column), np.uint8)
        arrays[f"dtype{at}"] = np.array(specs.dtype_name(column.dtype))
        plain = column if column.dtype.kind in "biufc" else column.view(f"u{column.itemsize}")
        arrays[f"values{at}"] = plain
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _read(path: pathlib.Path) -> tuple[np.ndarray, list[Any]]:
    columns: list[Any] = []
    with np.load(path) as arrays:
        while (name := f"values{len(columns)}") in arrays:
            at, values = len(columns), arrays[name]
            dtype = specs.TensorSpec((), str(arrays[f"dtype{at}"])).dtype
            values = values if values.dtype == dtype else values.view(dtype)
            if f"lengths{at}" in arrays:
                ends = np.cumsum(arrays[f"lengths{at}"])
                starts = ends - arrays[f"lengths{at}"]
                joined = values.tobytes()
                parts = zip(starts.tolist(), ends.tolist(), strict=True)
                values = _as_objects([joined[start:end] for start, end in parts])
            if f"offsets{at}" in arrays:
                values = Ragged(values, arrays[f"offsets{at}"])
            columns.append(values)
        return arrays["keys"], columns


def _as_objects(values: list[bytes]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array
