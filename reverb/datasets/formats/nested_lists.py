# SPDX-License-Identifier: Apache-2.0
"""Rows of NumPy as nested lists of Arrow, for Parquet files that are written."""

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["list_type", "lists", "nested_rows"]


def list_type(pa: Any, type_: object, shape: Sequence[int]) -> object:
    """Returns the type of a row of this shape: nested lists of fixed sizes."""
    for size in reversed(shape):
        # Parquet has no lists of size 0.
        type_ = pa.list_(type_, size) if size else pa.list_(type_)
    return type_


def nested_rows(pa: Any, rows: np.ndarray, type_: object = None) -> object:
    """Returns rows `[R, ...]` as an array of `list_type`, with values of a type."""
    array = pa.array(np.ascontiguousarray(rows).ravel(), type_)
    for axis in reversed(range(1, rows.ndim)):
        if rows.shape[axis]:
            array = pa.FixedSizeListArray.from_arrays(array, rows.shape[axis])
        else:
            array = lists(pa, np.zeros(int(np.prod(rows.shape[:axis])), np.int64), array)
    return array


def lists(pa: Any, lengths: Sequence[int] | np.ndarray, rows: object) -> object:
    """Returns an array of lists that have these numbers of rows."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), rows)
