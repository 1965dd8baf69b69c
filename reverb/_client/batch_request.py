# SPDX-License-Identifier: Apache-2.0
"""Requests for batches: the arguments for the core, and the conversion of its answer."""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from reverb._checks.arguments import check_at_least, check_integer, check_table, check_timeout_ms
from reverb._checks.byte_sizes import parse_byte_size_or_share
from reverb._client.column_choice import ColumnChoice, check_pad
from reverb._client.ragged import packed_columns
from reverb._client.window import Window, check_window
from reverb.core import native
from reverb.errors import InvalidArgumentError
from reverb.replay_sample import (
    BatchInfo,
    ReplayBatch,
    ReplaySample,
    SampleInfo,
    are_lengths,
    keep_samples,
)

__all__ = ["BatchRequest", "keep_flat_samples", "nested_batch"]

_new_tuple = tuple.__new__


class BatchForm:
    """Options of a batch's form, where they differ from the defaults. The core reads it.

    Attributes:
      ragged: How items of different lengths become a batch; "squeeze": all have one step.
      multiple_of: Rounds the largest length up to a multiple of this.
      indices: Positions of the columns; empty for all.
      names: The names of these columns for errors; `None`: their positions.
      outputs: The arrays to write to; `None`: new memory.
      max_batch_bytes: Limit of new memory in bytes; `None`: the default.
      epoch: The last epoch that the items may be of; -1: they are of a new one; `None`: of any.
      window: A window of each item, see `Window.to_native`; `None`: whole items.
    """

    ragged = "error"
    multiple_of = 1
    indices: Sequence[int] = ()
    names: native.ColumnNames | None = None
    outputs: native.Outputs | None = None
    max_batch_bytes: int | None = None
    epoch: int | None = None
    window: tuple[Any, ...] | None = None


# Shared by many requests, so they must not be changed.
_PACKED, _SQUEEZED = BatchForm(), BatchForm()
_PACKED.ragged = "packed"
_SQUEEZED.ragged = "squeeze"


class BatchRequest:
    """The arguments of `sample_batch`, checked.

    With `needs_choice`, call `choose` first. Then pass this object to the native `sample_batch`,
    its answer to `flat_batch`, and that batch to `finished`, which brings it into the requested
    form, except for the nest of the signature.

    Attributes:
      table: Name of the table.
      batch_size: Number of items.
      timeout_ms: How long the rate limiter may delay the items; `None`: no limit.
      partial: Whether a smaller batch is returned after that time.
      distinct: Whether no item may be in the batch twice.
      form: Options of the form; `None`: the defaults.
      columns: The columns to sample, as the program names them; `None`: all.
      needs_choice: Whether the request needs the columns of the table.
      nested: Nests a flat list of the chosen columns; `None` if all of them were chosen.
      is_flat: Whether a flat batch is finished, except for its nest.
    """

    # Class attributes: a request is made for every batch, so defaults must cost no time.
    form: BatchForm | None = None
    columns: Any = None
    needs_choice = False
    nested: Callable[[list[Any]], Any] | None = None
    is_flat = True
    _choice: ColumnChoice | None = None
    _out: Any = None
    _pad: Any = 0
    _window: Window | None = None

    def __init__(
        self,
        table: str,
        batch_size: int,
        out: object,
        partial: bool,
        ragged: str,
        pad: object,
        pad_to_multiple_of: int | None,
        columns: object,
        distinct: bool,
        squeeze: bool,
        timeout_ms: int | None,
        max_batch_bytes: int | str | None,
        window: Window | None = None,
    ) -> None:
        if type(batch_size) is not int or batch_size < 1:
            batch_size = check_at_least(1, "batch_size", batch_size)
        self.table = table
        self.batch_size = batch_size
        self.partial = bool(partial)
        self.distinct = bool(distinct)
        # The core takes any integer, and a bool for one.
        self.timeout_ms = check_timeout_ms(timeout_ms) if type(timeout_ms) is bool else timeout_ms
        is_usual = out is columns is pad_to_multiple_of is max_batch_bytes is None and pad == 0
        if squeeze:
            if ragged != "error":
                raise InvalidArgumentError(
                    "squeeze is for items of one step, and ragged for items of different lengths: "
                    f"give only one of them, got squeeze={squeeze} and ragged={ragged!r}"
                )
            self.form = _SQUEEZED
        if is_usual and ragged == "packed":
            self.form = _PACKED
        elif not is_usual or ragged != "error":
            self._lay_out(out, ragged, pad, pad_to_multiple_of, columns, max_batch_bytes)
        if window is not None:
            self._cut(window, ragged)

    def _own_form(self) -> BatchForm:
        """Returns the form, to be changed: its own, and not one that requests share."""
        if self.form is None or self.form is _PACKED or self.form is _SQUEEZED:
            self.form = BatchForm() if self.form is None else copy.copy(self.form)
        return self.form

    def _cut(self, window: Window, ragged: str) -> None:
        """Checks and stores the window."""
        check_window(window)
        if ragged != "error":
            raise InvalidArgumentError(
                "window is for samples of one length, and ragged for items of different lengths: "
                f"give only one of them, got ragged={ragged!r}"
            )
        self._window = window
        self.needs_choice |= bool(window.spans)
        self._own_form().window = window.to_native(None)

    def _lay_out(
        self,
        out: object,
        ragged: str,
        pad: object,
        pad_to_multiple_of: int | None,
        columns: object,
        max_batch_bytes: int | str | None,
    ) -> None:
        """Checks and stores the options of the batch's form."""
        is_squeezed = self.form is not None
        self.form = form = BatchForm()
        if max_batch_bytes is not None:
            form.max_batch_bytes = parse_byte_size_or_share("max_batch_bytes", max_batch_bytes)
        form.multiple_of = _check_ragged(ragged, pad, pad_to_multiple_of, out)
        form.ragged = "squeeze" if is_squeezed else ragged
        self.columns = columns
        self.is_flat = out is None and ragged != "pad"
        self._out = out
        self._pad = pad
        self.needs_choice = columns is not None or ragged == "pad"
        if out is None:
            return
        data = out.data if isinstance(out, ReplaySample) else out
        if isinstance(data, Mapping):
            self.needs_choice = True
        elif not self.needs_choice:
            form.outputs = _outputs("out", out, self.batch_size, None)

    def limit_to_epoch(self, epoch: int) -> None:
        """Makes the batch end with an epoch, perhaps without items; they are distinct in it."""
        self._own_form().epoch = epoch
        self.distinct = False

    def limit_to_columns(self, indices: list[int]) -> None:
        """Requests the columns at these positions of an item, in increasing order."""
        self._own_form().indices = indices

    def check_types(self) -> None:
        """Checks the types of arguments that the core has refused.

        Raises:
          TypeError: If one of them has the wrong type.
        """
        check_table(self.table)
        if self.timeout_ms is not None:
            check_integer("timeout_ms", self.timeout_ms)

    @property
    def has_out(self) -> bool:
        """Whether the batch is written to arrays of the program."""
        return self._out is not None

    def choose(self, choice: ColumnChoice) -> None:
        """Stores the requested columns of the table."""
        self._choice = choice
        form = self._own_form()
        form.indices = choice.indices
        if self._window is not None:
            form.window = self._window.to_native(choice)
        form.names = choice.names
        if choice.indices:
            self.nested = choice.nested
        if self._out is not None:
            form.outputs = _outputs("out", self._out, self.batch_size, choice)
        if form.ragged == "pad" and self._pad != 0:
            choice.check_pads(self._pad)

    def flat_batch(self, answer: native.BatchAnswer) -> ReplayBatch:
        """Returns a batch with a flat list of columns; with outputs, these are their arrays.

        Its lengths are a flat list, too, with `None` for a column that is a single step.
        """
        # The constructor of a named tuple would take twice as long.
        info, data = _new_tuple(BatchInfo, answer.infos), answer.columns
        form = self.form
        if form is not None:
            if form.outputs is not None:
                data = form.outputs.arrays()
                count = answer.num_items
                if count < self.batch_size:
                    data = [array[:count] for array in data]
                    info = BatchInfo._make([*(field[:count] for field in info[:7]), *info[7:]])
            if self._window is not None:
                info = info.with_window_mask(self._window.mask)
            if form.ragged == "pad":
                info = info.with_lengths(answer.lengths)
            elif form.ragged == "packed":
                data = packed_columns(data, answer.lengths)
        return _new_tuple(ReplayBatch, (info, data))

    def empty_batch(self, answer: native.BatchAnswer, choice: ColumnChoice) -> ReplayBatch:
        """Returns a flat batch without items, whose columns are those of the signature."""
        info, data = BatchInfo(*answer.infos), choice.empty_columns()
        ragged = "error" if self.form is None else self.form.ragged
        if ragged == "error":
            return ReplayBatch(info, data)
        have_steps = [choice.has_steps(at) for at in range(len(data))]
        if ragged == "pad":
            lengths = [np.empty(0, np.int32) if it else None for it in have_steps]
            return ReplayBatch(info.with_lengths(lengths), data)
        steps = [
            column.reshape(0, *column.shape[2:]) if it else column
            for column, it in zip(data, have_steps, strict=True)
        ]
        if ragged == "squeeze":
            return ReplayBatch(info, steps)
        offsets = [np.zeros(1, np.int32) if it else None for it in have_steps]
        return ReplayBatch(info, packed_columns(steps, offsets))

    def finished(
        self, batch: ReplayBatch, nested: Callable[[list[Any]], Any] | None = None
    ) -> ReplayBatch:
        """Fills the padding of a flat batch, and nests it as requested.

        `nested` nests all columns, if there are no outputs; `None`: they stay a list.
        """
        lengths = batch.lengths
        if self._pad != 0 and self._choice is not None:
            values = self._choice.pad_values(self._pad, len(batch.data))
            _fill_padding(self._choice, batch.data, lengths, values)
        if self._out is None:
            return nested_batch(batch, nested)
        nest = self._out.data if isinstance(self._out, ReplaySample) else self._out
        count = len(batch.info.key)
        if are_lengths(lengths):
            batch = nested_batch(batch, functools.partial(_placed, nest))
        if count < self.batch_size:
            nest = _mapped(lambda array: np.asarray(array)[:count], nest)
        return ReplayBatch(batch.info, nest)


def nested_batch(batch: ReplayBatch, nested: Callable[[list[Any]], Any] | None) -> ReplayBatch:
    """Returns a flat batch for programs, with its columns and their lengths in a nest.

    `nested` nests a flat list; `None`: data and lengths stay lists.
    """
    info, data = batch.info, batch.data
    nest = data if nested is None else nested(data)
    if are_lengths(info.lengths):
        one = np.ones(len(info.key), np.int32)
        lengths = [one if of_column is None else of_column for of_column in info.lengths]
        info = info.with_lengths(lengths if nested is None else nested(lengths))
    elif nest is data:
        return batch
    return ReplayBatch(info, nest)


def keep_flat_samples(error: BaseException) -> None:
    """Converts the samples that the core has attached to an exception."""
    flat = error.__dict__.pop("samples", ())
    keep_samples(error, [ReplaySample(SampleInfo(*info), data) for info, data in flat])


def _check_ragged(ragged: str, pad: object, pad_to_multiple_of: int | None, out: object) -> int:
    """Checks the options for items of different lengths; returns the multiple for lengths."""
    if ragged not in ("error", "pad", "packed"):
        raise InvalidArgumentError(f"ragged must be 'error', 'pad' or 'packed', got {ragged!r}")
    if ragged == "packed" and out is not None:
        raise InvalidArgumentError(
            "out cannot hold a packed batch, because its size is not known before. Pass "
            "ragged='pad', or no out"
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
    return check_at_least(1, "pad_to_multiple_of", pad_to_multiple_of)


def _outputs(
    name: str, out: object, batch_size: int, choice: ColumnChoice | None
) -> native.Outputs:
    """Returns the arrays of a nest, or of a `ReplaySample`, in the order of the core."""
    info = None
    if isinstance(out, ReplaySample):
        info, out = out.info, out.data
    if choice is not None and isinstance(out, Mapping):
        choice.check_structure(name, out)
    return native.Outputs(name, out, None if info is None else list(info[:7]), batch_size)


def _placed(nest: object, values: list[Any]) -> object:
    left = iter(values)
    return _mapped(lambda _: next(left), nest)


def _mapped(function: Callable[[Any], Any], nest: object) -> object:
    """Maps the arrays of a nest that a batch was written to, in the order of the core.

    Every value that is no container counts as an array. dm-tree would take buffers for sequences.
    """
    if nest is None:
        return None  # A column that was left out.
    if isinstance(nest, dict):
        keys = sorted(nest, key=lambda key: key if isinstance(key, str) else repr(key))
        return {key: _mapped(function, nest[key]) for key in keys}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        named_tuple: Any = type(nest)
        return named_tuple(*(_mapped(function, child) for child in nest))
    if isinstance(nest, list | tuple):
        return type(nest)(_mapped(function, child) for child in nest)
    return function(nest)


def _fill_padding(
    choice: ColumnChoice, columns: list[Any], lengths: list[Any], values: list[Any]
) -> None:
    """Writes values behind the steps of shorter items."""
    for at, (column, of_column, value) in enumerate(zip(columns, lengths, values, strict=True)):
        if of_column is None or (isinstance(value, int | float) and value == 0):
            continue
        if column.dtype.kind != "O":
            check_pad(choice.name_of(at), value, column.dtype)
        column[np.arange(column.shape[1]) >= of_column[:, None]] = value
