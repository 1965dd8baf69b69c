# SPDX-License-Identifier: Apache-2.0
"""Joins the parts of a batch that was sampled in several calls."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from reverb import errors
from reverb._client.ragged import Ragged
from reverb._client.unlike_columns import check_same_forms
from reverb.core import native
from reverb.replay_sample import BatchInfo, ReplayBatch, ReplaySample, keep_samples, rows_of_batch

__all__ = ["joined", "rows_of_parts"]


def rows_of_parts(parts: list[ReplayBatch]) -> list[ReplaySample]:
    """Splits flat batches into items, as `Client.sample` yields them."""
    return [row for part in parts for row in rows_of_batch(part)]


def joined(
    parts: list[ReplayBatch],
    out: list[Any] | None = None,
    *,
    pads: Sequence[Any] = (),
    to_multiple_of: int = 1,
    max_batch_bytes: int | None = None,
    tables: Sequence[str] = (),
    name_of: Callable[[int], str] = str,
) -> ReplayBatch:
    """Joins flat batches, at least one, into one; in `out`, their rows are side by side.

    `tables` has the table of each, if they are of several; `name_of` names a column. `pads` has
    the padding value of each column, 0 if there is none. Padded lengths are rounded up to
    `to_multiple_of`. Without `max_batch_bytes` the limit is that of `sample_batch`.

    Raises:
      ResourceExhaustedError: If they take more; `samples` has all items.
      InvalidArgumentError: If their items have different columns, shapes or dtypes; `samples` has
        all of them.
    """
    try:
        check_same_forms(parts, tables, name_of)
    except errors.InvalidArgumentError as error:
        keep_samples(error, rows_of_parts(parts))
        raise
    columns = list(zip(*(part.data for part in parts), strict=True))
    lengths: list[Any] = [None] * len(columns)
    if parts[0].lengths:
        of_parts = (part.lengths for part in parts)
        lengths = [list(it) if it[0] is not None else None for it in zip(*of_parts, strict=True)]
    info = BatchInfo(*map(np.concatenate, zip(*(part.info[:7] for part in parts), strict=True)))
    if len(parts[0].num_windows):
        windows = zip(*(part.info[8:] for part in parts), strict=True)
        info = BatchInfo(*info[:7], (), *map(np.concatenate, windows))
    if parts[0].lengths:
        info = info.with_lengths([it if it is None else np.concatenate(it) for it in lengths])
    if out is not None:
        return ReplayBatch(info, [column[: len(info.key)] for column in out])
    _check_size(parts, info.key, columns, lengths, to_multiple_of, max_batch_bytes)
    pads = pads or [0] * len(columns)
    data = [
        _joined_column(column, of, pad, to_multiple_of)
        for column, of, pad in zip(columns, lengths, pads, strict=True)
    ]
    return ReplayBatch(info, data)


def _check_size(
    parts: list[ReplayBatch],
    keys: np.ndarray,
    columns: list[Any],
    lengths: list[Any],
    to_multiple_of: int,
    max_batch_bytes: int | None,
) -> None:
    """Checks the size of the joined columns before their memory is allocated."""
    limit = native.max_batch_bytes(max_batch_bytes)
    num_bytes, largest, longest = 0, -1, (keys[0], 1)
    for column, of in zip(columns, lengths, strict=True):
        if of is None:
            taken = sum(
                part.values.nbytes if isinstance(part, Ragged) else part.nbytes for part in column
            )
        else:
            whole = np.concatenate(of)
            steps = -(-int(whole.max(initial=0)) // to_multiple_of) * to_multiple_of
            of_step = math.prod(column[0].shape[2:]) * column[0].dtype.itemsize
            taken = len(whole) * steps * of_step
            if taken > largest:
                largest, longest = taken, (keys[whole.argmax()], whole.max())
        num_bytes += taken
    if num_bytes > limit:
        advice = "Sample fewer items"
        if any(of is not None for of in lengths):
            advice = 'Sample with ragged="packed", which pads nothing, fewer items'
        error = errors.ResourceExhaustedError(
            f"A batch of {len(keys)} items takes {num_bytes} bytes, more than max_batch_bytes, "
            f"{limit}: the longest item, {longest[0]}, has {longest[1]} steps. {advice}, or with a "
            "larger max_batch_bytes."
        )
        keep_samples(error, rows_of_parts(parts))
        raise error


def _joined_column(parts: Sequence[Any], lengths: Any, pad: object, to_multiple_of: int) -> object:
    if isinstance(parts[0], Ragged):
        return Ragged.concatenate(parts)
    if lengths is None:
        return np.concatenate(parts)
    items = [
        row[:length]
        for part, of in zip(parts, lengths, strict=True)
        for row, length in zip(part, of, strict=True)
    ]
    offsets = np.cumsum([0, *(len(item) for item in items)])
    return Ragged(np.concatenate(items), offsets).padded(pad, to_multiple_of=to_multiple_of)
