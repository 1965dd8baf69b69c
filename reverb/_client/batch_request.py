# SPDX-License-Identifier: Apache-2.0
"""A batch that a client asks for: what the core is given, and what becomes of its answer."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tree

from reverb._checks.arguments import check_at_least_one
from reverb._checks.byte_sizes import parse_byte_size_or_share
from reverb._client.column_choice import ColumnChoice, check_pad
from reverb._client.ragged import packed_columns
from reverb.core import native
from reverb.errors import InvalidArgumentError
from reverb.replay_sample import ReplayBatch, ReplaySample, SampleInfo, keep_samples, replaced

__all__ = [
    "BatchRequest",
    "is_plain",
    "keep_flat_samples",
    "plain_arguments",
    "plain_batch",
    "with_nested_data",
]


class BatchRequest:
    """The arguments of `sample_batch`, checked.

    With `needs_choice`, `choose` comes first. Then `arguments` are those of the native call,
    `flat_batch` takes its answer, and `finished` brings the batch into the form that was asked.

    Attributes:
      needs_choice: Whether the columns of the table must be known.
      nested: Nests a flat list of the chosen columns; `None` if all of them were chosen.
    """

    def __init__(
        self,
        table: str,
        batch_size: int,
        *,
        out: Any,
        partial: bool,
        ragged: str,
        pad: Any,
        pad_to_multiple_of: int | None,
        columns: Any,
        distinct: bool,
        timeout_ms: int | None,
        max_batch_bytes: int | str | None,
    ) -> None:
        self._table = table
        self._batch_size = check_at_least_one("batch_size", batch_size)
        self._partial = bool(partial)
        self._distinct = bool(distinct)
        self._timeout_ms = timeout_ms
        self._max_batch_bytes = parse_byte_size_or_share("max_batch_bytes", max_batch_bytes)
        self._ragged = ragged
        self._choice: ColumnChoice | None = None
        self._outputs: Any = None
        self._out = out
        self.nested: Callable[[list[Any]], Any] | None = None
        self._pad = pad
        self._multiple_of = _check_ragged(ragged, pad, pad_to_multiple_of, out)
        data = out.data if isinstance(out, ReplaySample) else out
        self.needs_choice = columns is not None or ragged == "pad" or isinstance(data, Mapping)

    def choose(self, choice: ColumnChoice) -> None:
        """Takes the columns of the table that were asked for."""
        self._choice = choice
        if choice.indices:
            self.nested = choice.nested

    def arguments(self) -> tuple[Any, ...]:
        """Returns the arguments of the native `sample_batch`."""
        choice = self._choice
        if self._out is not None:
            self._outputs = _outputs("out", self._out, self._batch_size, choice)
        if choice is not None and self._ragged == "pad" and self._pad != 0:
            choice.check_pads(self._pad)
        return (
            self._table,
            self._batch_size,
            self._timeout_ms,
            self._partial,
            self._distinct,
            self._ragged,
            self._multiple_of,
            [] if choice is None else choice.indices,
            self._outputs,
            self._max_batch_bytes,
        )

    def flat_batch(self, answer: tuple[Any, Any, Any]) -> ReplayBatch:
        """Returns a batch with a flat list of columns; with outputs it is that of their arrays."""
        batch = plain_batch(answer, self._ragged)
        lengths = answer[1][1]
        if self._outputs is not None:
            arrays = self._outputs.arrays()
            count = answer[2][0]
            info = batch.info
            if count < self._batch_size:
                arrays = [array[:count] for array in arrays]
                info = SampleInfo(*(field[:count] for field in info))
            batch = replaced(batch, info=info, data=arrays)
        if self._ragged == "pad":
            batch.lengths = lengths
        return batch

    def finished(self, batch: ReplayBatch) -> ReplayBatch:
        """Fills the padding of a flat batch; with outputs, its data gets their nest."""
        data = batch.data
        if self._ragged == "pad" and self._pad != 0 and self._choice is not None:
            _fill_padding(data, batch.lengths, self._choice.pad_values(self._pad, len(data)))
        if self._out is None:
            return batch
        nest = self._out.data if isinstance(self._out, ReplaySample) else self._out
        count = len(batch.info.key)
        if count < self._batch_size:
            nest = tree.map_structure(functools.partial(_first_rows, count), nest)
        return _with_data(batch, nest, batch.lengths)


def is_plain(
    out: Any, ragged: str, pad: Any, pad_to_multiple_of: Any, columns: Any, max_batch_bytes: Any
) -> bool:
    """Returns whether these are the defaults, packed or not: the most common cases by far."""
    is_default = out is columns is pad_to_multiple_of is max_batch_bytes is None and pad == 0
    return is_default and (ragged == "error" or ragged == "packed")


def plain_arguments(
    table: str,
    batch_size: int,
    timeout_ms: int | None,
    partial: bool,
    distinct: bool,
    ragged: str,
) -> tuple[Any, ...]:
    """Returns the arguments of the native `sample_batch` for a plain batch."""
    batch_size = check_at_least_one("batch_size", batch_size)
    return (table, batch_size, timeout_ms, bool(partial), bool(distinct), ragged, 1, [], None, None)


def plain_batch(answer: tuple[Any, Any, Any], ragged: str = "error") -> ReplayBatch:
    """Returns a batch with a flat list of columns, packed if that was asked."""
    info, (arrays, lengths), (_, min_probability, epoch) = answer
    if ragged == "packed":
        arrays = packed_columns(arrays, lengths)
    batch = ReplayBatch(SampleInfo(*info), arrays)
    if min_probability > 0:
        batch.min_probability = min_probability
    if epoch:
        batch.epoch = epoch
    return batch


def with_nested_data(batch: ReplayBatch, nested: Callable[[list[Any]], Any]) -> ReplayBatch:
    """Returns a batch with its columns, and their lengths, in a nest."""
    return _with_data(batch, nested(batch.data), batch.lengths and nested(batch.lengths))


def keep_flat_samples(error: BaseException) -> None:
    """Makes samples of what the core has attached to an exception."""
    flat = error.__dict__.pop("samples", ())
    keep_samples(error, [ReplaySample(SampleInfo(*info), data) for info, data in flat])


def _check_ragged(ragged: str, pad: Any, pad_to_multiple_of: int | None, out: Any) -> int:
    """Checks how items of different lengths become a batch; returns what lengths are rounded to."""
    if ragged not in ("error", "pad", "packed"):
        raise InvalidArgumentError(f"ragged must be 'error', 'pad' or 'packed', got {ragged!r}")
    if ragged == "packed" and out is not None:
        raise InvalidArgumentError(
            "out cannot hold a packed batch, whose size is not known before; use ragged='pad' or "
            "leave out away"
        )
    if ragged != "pad" and not (isinstance(pad, int) and pad == 0):
        raise InvalidArgumentError(f"pad is for ragged='pad', got {pad!r} and ragged={ragged!r}")
    if pad_to_multiple_of is None:
        return 1
    if ragged != "pad":
        raise InvalidArgumentError(
            f"pad_to_multiple_of is for ragged='pad', got {pad_to_multiple_of} and "
            f"ragged={ragged!r}"
        )
    return check_at_least_one("pad_to_multiple_of", pad_to_multiple_of)


def _outputs(name: str, out: Any, batch_size: int, choice: ColumnChoice | None) -> Any:
    """Returns the arrays of a nest, or of a `ReplaySample`, as the core takes them."""
    info = None
    if isinstance(out, ReplaySample):
        info, out = out.info, out.data
    if choice is not None and isinstance(out, Mapping):
        choice.check_structure(name, out)
    return native.Outputs(name, out, None if info is None else list(info), batch_size)


def _first_rows(count: int, array: Any) -> Any:
    """Returns a view of the first rows of an array that a batch was written to."""
    return None if array is None else np.asarray(array)[:count]


def _fill_padding(columns: list[Any], lengths: list[Any], values: list[Any]) -> None:
    """Writes values behind the steps of shorter items."""
    for at, (column, of_column, value) in enumerate(zip(columns, lengths, values, strict=True)):
        if of_column is None or (isinstance(value, int | float) and value == 0):
            continue
        if column.dtype.kind != "O":
            check_pad(str(at), value, column.dtype)
        column[np.arange(column.shape[1]) >= of_column[:, None]] = value


def _with_data(batch: ReplayBatch, data: Any, lengths: Any) -> ReplayBatch:
    """Returns a batch with its columns in another form."""
    other = ReplayBatch(batch.info, data)
    other.__dict__.update(batch.__dict__)
    if lengths is not None:
        other.lengths = lengths
    return other
