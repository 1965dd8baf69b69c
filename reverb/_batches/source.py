# SPDX-License-Identifier: Apache-2.0
"""The source of a prefetching iterator that samples a table: single items, or batches."""

import collections
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import tree

from reverb import errors
from reverb._batches.prefetching import Failure, Pipe
from reverb._checks.byte_sizes import parse_byte_size_or_share
from reverb._client.batch_request import BatchRequest, keep_flat_samples, with_nested_data
from reverb._client.ragged import Ragged
from reverb.client import Client
from reverb.core import native
from reverb.replay_sample import (
    ReplayBatch,
    ReplaySample,
    SampleInfo,
    keep_samples,
    replaced,
    rows_of_batch,
)

__all__ = ["TableSource", "joined"]

# How long a request waits for a rate limiter before the thread checks whether it must stop.
_POLL_MS = 200

# Options of `Client.sample_batch` that a batch may lack.
_DEFAULTS: dict[str, Any] = {
    "ragged": "error",
    "pad": 0,
    "pad_to_multiple_of": None,
    "columns": None,
    "distinct": False,
    "max_batch_bytes": None,
}


class TableSource:
    """Samples one table."""

    def __init__(
        self,
        client: Client,
        table: str,
        batch_size: int | None,
        *,
        postprocess: Callable[[ReplaySample], Any] | None = None,
        rate_limiter_timeout_ms: int | None = None,
        container_types: Sequence[type] = (),
        partial: Literal["drop", "raise", "short"] = "drop",
        options: Mapping[str, Any] | None = None,
        out: Callable[[], list[Any] | None] | None = None,
    ) -> None:
        """Makes a source; does not connect yet.

        Args:
          client: Client of the server.
          table: Name of the table.
          batch_size: Number of items in an element, `B`; `None`: an element is one item.
          postprocess: Called with every item, before items are stacked.
          rate_limiter_timeout_ms: Ends if the rate limiter delays a sample for this long; `None`:
            never.
          container_types: Classes for the named tuples with the same name and fields in the table's
            signature.
          partial: What becomes of the rows of a batch that is not complete at the end: they are
            lost, they are the `samples` of a `DeadlineExceededError`, or they are a batch. With
            "short", a batch is also short if the rate limiter allows no more for 0.2 s.
          options: Other arguments of `Client.sample_batch`.
          out: Returns the columns that the next batch is decoded into, or `None`: into new memory.
        """
        self._client = client
        self._table = table
        self._batch_size = batch_size
        self._postprocess = postprocess
        self._timeout_s = (
            None if rate_limiter_timeout_ms is None else rate_limiter_timeout_ms / 1_000
        )
        self._container_types = {cls.__name__: cls for cls in container_types}
        self._partial = partial
        self._options = dict(options or {})
        self._out = out
        # The client nests chosen columns; it knows which these are.
        self._has_choice = self._options.get("columns") is not None
        if self._has_choice:
            self._options["unpack_as_table_signature"] = True
            self._out = None
        self._structure: Any = None
        self._num_columns = 0
        self._is_flat = False

    def __call__(self, count: int, pipe: Pipe) -> Iterator[Any]:
        """Yields `count` elements; fewer if the rate limiter delays a sample for too long."""
        if self._batch_size is None:
            yield from self._items(count, pipe)
            return
        for _ in range(count):
            make = self.rows if self._postprocess is None else self._batch_of_items
            batch = make(self._batch_size, pipe)
            if batch is None:
                return
            yield batch

    def ahead(
        self, size: int, convert: Callable[[ReplayBatch], Any] | None = None
    ) -> "CoreBatches | None":
        """Returns what has batches ahead without a thread of Python, or `None`.

        Args:
          size: Number of batches.
          convert: Makes the elements of batches, in the thread that asks for them.
        """
        is_endless = self._timeout_s is None and self._partial == "raise"
        if self._out is not None or self._batch_size is None or not is_endless:
            return None
        options = _DEFAULTS | self._options
        try:
            request = BatchRequest(
                self._table, self._batch_size, **options, out=None, partial=True, timeout_ms=None
            )
            if request.needs_choice:
                if not self._client._is_local():
                    return None  # To ask for the table's columns may take time; nobody waits yet.
                request.choose(self._client._choice(self._table, options["columns"]))
            ahead = self._client._batches_ahead(request, size)
        except (errors.ReverbError, TypeError):
            return None  # The thread gets the same error, and `next` raises it.
        return CoreBatches(self, request, ahead, convert)

    def rows(self, count: int, pipe: Pipe) -> ReplaySample | None:
        """Returns a batch of `count` rows, stacked by the client; `None` after the timeout."""
        parts: list[ReplaySample] = []
        out = self._out() if self._out is not None else None
        missing = count
        last_progress = time.monotonic()
        pipe.check(self._purpose())
        while missing:
            pipe.check()
            options: dict[str, Any] = self._options
            if out is not None:
                options = options | {"out": [column[count - missing :] for column in out]}
            try:
                part = self._client.sample_batch(
                    self._table, missing, timeout_ms=_POLL_MS, **options
                )
            except errors.DeadlineExceededError as error:
                if self._partial == "short" and parts:
                    break
                if not self._waits_too_long(last_progress, pipe, error):
                    continue
                if parts and self._partial == "raise":
                    raise self._explained(error, parts) from error
                return None
            except errors.ReverbError as error:
                raise self._explained(error, parts) from error
            parts.append(part)
            missing -= len(part.info.key)
            last_progress = time.monotonic()
        batch = parts[0]
        if len(parts) > 1:
            batch = self._joined(parts, out)
        return self._as_table(batch)

    def mixed(self, parts: list[ReplaySample]) -> ReplayBatch:
        """Joins batches of several tables into one; each row has the numbers of its table.

        Args:
          parts: Nested like the tables' signatures; those of this table, or of others with the same
            columns.

        Raises:
          InvalidArgumentError: As `joined`.
        """
        batch = replaced(parts[0]) if len(parts) == 1 else self._joined(parts)
        if batch.min_probability is not None:
            of_tables = [np.full(len(part.info.key), part.min_probability) for part in parts]  # pyright: ignore
            batch.min_probability = np.concatenate(of_tables)  # pyright: ignore
        return batch

    def _batch_of_items(self, batch_size: int, pipe: Pipe) -> Any:
        """Returns one batch of processed items; `None` after the timeout."""
        items = list(self._items(batch_size, pipe))
        if len(items) < batch_size:
            return None
        columns = zip(*map(tree.flatten, items), strict=True)
        return tree.unflatten_as(items[0], [np.stack(column) for column in columns])

    def _items(self, count: int, pipe: Pipe) -> Iterator[Any]:
        """Yields single items."""
        last_progress = time.monotonic()
        pipe.check(self._purpose())
        while count:
            pipe.check()
            try:
                for sample in self._client.sample(
                    self._table, count, emit_timesteps=False, timeout_ms=_POLL_MS
                ):
                    yield self._processed(sample)
                    pipe.check()
                    count -= 1
                    last_progress = time.monotonic()
            except errors.DeadlineExceededError as error:
                if self._waits_too_long(last_progress, pipe, error):
                    return

    def _processed(self, sample: ReplaySample) -> Any:
        key, probability, table_size, priority, times_sampled = sample.info
        info = SampleInfo(
            np.uint64(key),
            np.float64(probability),
            np.int64(table_size),
            np.float64(priority),
            np.int32(times_sampled),
        )
        sample = ReplaySample(info, self._nested(sample.data))
        return sample if self._postprocess is None else self._postprocess(sample)

    def _waits_too_long(
        self, last_progress: float, pipe: Pipe, error: errors.DeadlineExceededError
    ) -> bool:
        pipe.check(f"{self._purpose()}: {error}")
        return self._timeout_s is not None and time.monotonic() - last_progress >= self._timeout_s

    def _of_answer(self, request: BatchRequest, answer: Any) -> ReplayBatch:
        """Makes a batch of what the core has sampled for a request."""
        batch = request.flat_batch(answer)
        try:
            batch = request.finished(batch)
            if request.nested is not None:
                batch = with_nested_data(batch, request.nested)
            return self._as_table(batch)
        except errors.ReverbError as error:
            raise self._explained(error, [batch]) from error

    def _explained(self, error: Any, parts: list[ReplaySample]) -> errors.ReverbError:
        """The same error with table and address, and with the rows that were sampled."""
        explained = type(error)(f"{self._purpose()}: {error}")
        keep_samples(explained, [*_rows(parts), *getattr(error, "samples", ())])
        return explained

    def _as_table(self, batch: Any) -> ReplayBatch:
        """Nests the columns of a batch, and their lengths, like the signature of the table."""
        nested = self._with_types if self._has_choice else self._nested
        data = nested(batch.data)
        if data is batch.data:
            return batch  # Flat, and so are the lengths.
        lengths = getattr(batch, "lengths", None)
        batch = replaced(batch, data=data)
        batch.lengths = None if lengths is None else nested(lengths)
        return batch

    def _joined(self, parts: list[ReplaySample], out: list[Any] | None = None) -> ReplayBatch:
        """Joins batches, padded as they are."""
        to_multiple_of = self._options.get("pad_to_multiple_of") or 1
        pads = self._pads(parts[0].data)
        max_bytes = parse_byte_size_or_share(
            "max_batch_bytes", self._options.get("max_batch_bytes")
        )
        return joined(
            parts, out, pads=pads, to_multiple_of=to_multiple_of, max_batch_bytes=max_bytes
        )

    def _pads(self, data: Any) -> list[Any]:
        """What pads each column of a batch of items of different lengths."""
        pad, count = self._options.get("pad", 0), len(tree.flatten(data))
        if not isinstance(pad, Mapping | list | tuple):
            return [pad] * count
        choice = self._client._choice(self._table, self._options.get("columns"))
        return choice.pad_values(pad, count)

    def _purpose(self) -> str:
        """What it waits for."""
        return f"a sample of table {self._table} at {self._client.server_address}"

    def _nested(self, columns: list[Any]) -> Any:
        """Nests a flat list of columns like the signature; returns it if the table has none."""
        if self._structure is None:
            signature = self._client.server_info()[self._table].signature
            # Without a signature, the number of columns of the first item.
            self._structure = columns if signature is None else self._with_types(signature)
            self._num_columns = len(tree.flatten(self._structure))
            self._is_flat = _is_flat(self._structure)
        if len(columns) != self._num_columns:
            raise errors.SignatureMismatchError(
                f"an item of table {self._table} has {len(columns)} columns, but the table's "
                f"signature, or the first item, has {self._num_columns}"
            )
        if self._is_flat:
            return columns
        return tree.unflatten_as(self._structure, columns)

    def _with_types(self, nest: Any) -> Any:
        """Replaces the named tuples of a nest by classes that are the same for every connection.

        The client makes new classes for the named tuples in a signature, and `jax.jit` would
        compile again for data in another class.
        """
        if isinstance(nest, tuple) and hasattr(nest, "_fields"):
            name, fields = type(nest).__name__, type(nest)._fields  # pyright: ignore
            cls = self._container_types.get(name)
            if getattr(cls, "_fields", None) != fields:
                cls = _named_tuple(name, fields)
            return cls(*map(self._with_types, nest))  # pyright: ignore
        if isinstance(nest, Mapping):
            return {key: self._with_types(value) for key, value in nest.items()}
        if isinstance(nest, list | tuple):
            return type(nest)(map(self._with_types, nest))
        return nest


class CoreBatches:
    """Batches of a table that the core samples ahead; see `prefetching.Ahead`."""

    def __init__(
        self,
        source: TableSource,
        request: BatchRequest,
        ahead: native.BatchesAhead,
        convert: Callable[[ReplayBatch], Any] | None,
    ) -> None:
        self._source = source
        self._request = request
        self._ahead = ahead
        self._convert = convert
        self.start, self.close = ahead.start, ahead.close
        self.is_ready, self.num_ready = ahead.is_ready, ahead.num_ready

    def next(self, timeout_s: float | None) -> tuple[Any, float, float] | None:
        """Returns a batch, its age, and for how long it was waited."""
        try:
            found = self._ahead.next(timeout_s)
        except errors.ReverbError as error:
            keep_flat_samples(error)
            explained = self._source._explained(error, [])
            explained.__cause__ = error
            raise Failure from explained
        if found is None:
            return None
        answer, age_s, waited_s = found
        try:
            batch = self._source._of_answer(self._request, answer)
            element = batch if self._convert is None else self._convert(batch)
        except Exception as error:
            raise Failure from error
        return element, age_s, waited_s

    def waits_for(self) -> str:
        """What `next` waits for."""
        reason = self._ahead.waits_for()
        purpose = self._source._purpose()
        return purpose if reason is None else f"{purpose}: {reason}"


def _is_flat(structure: Any) -> bool:
    return type(structure) is list and not any(map(tree.is_nested, structure))


@functools.cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> type:
    return collections.namedtuple(name, fields)


def _rows(parts: list[ReplaySample]) -> list[ReplaySample]:
    rows = []
    for part in parts:
        lengths = getattr(part, "lengths", None)
        flat = part._replace(data=tree.flatten(part.data))
        rows += rows_of_batch(flat, None if lengths is None else tree.flatten(lengths))
    return rows


def joined(
    parts: list[ReplaySample],
    out: list[Any] | None = None,
    *,
    pads: Sequence[Any] = (),
    to_multiple_of: int = 1,
    max_batch_bytes: int | None = None,
) -> ReplayBatch:
    """Joins several batches into one; in `out`, their rows are side by side.

    Args:
      parts: At least one, with the same nests.
      out: The columns that all parts were written into, one part behind the other.
      pads: What stands behind shorter items, for each column; 0 if there is none.
      to_multiple_of: Padded lengths are rounded up to a multiple of this.
      max_batch_bytes: Bytes that the columns may take; `None`: the default of `sample_batch`.

    Raises:
      ResourceExhaustedError: If they take more; `samples` has all items.
      InvalidArgumentError: If their items have different shapes; `samples` has all of them.
    """
    columns = list(zip(*(tree.flatten(part.data) for part in parts), strict=True))
    lengths: list[Any] = [None] * len(columns)
    if getattr(parts[0], "lengths", None) is not None:
        of_parts = (tree.flatten(part.lengths) for part in parts)  # pyright: ignore
        lengths = [list(it) if it[0] is not None else None for it in zip(*of_parts, strict=True)]
    shapes = [
        [
            _item_shape(column[at], of is not None)
            for column, of in zip(columns, lengths, strict=True)
        ]
        for at in range(len(parts))
    ]
    for other in shapes[1:]:
        if other != shapes[0]:
            error = errors.InvalidArgumentError(
                "The items of a batch must have the same shapes, but the columns of one have the "
                f"shapes {shapes[0]} and those of another {other}."
            )
            keep_samples(error, _rows(parts))
            raise error
    info = SampleInfo(*map(np.concatenate, zip(*(part.info for part in parts), strict=True)))
    batch = replaced(parts[-1], info=info)
    known = [getattr(part, "min_probability", None) for part in parts]
    batch.min_probability = None if None in known else min(it for it in known if it is not None)
    if out is not None:
        return replaced(batch, data=[column[: len(info.key)] for column in out])
    _check_size(parts, info.key, columns, lengths, to_multiple_of, max_batch_bytes)
    pads = pads or [0] * len(columns)
    data = [
        _joined_column(column, of, pad, to_multiple_of)
        for column, of, pad in zip(columns, lengths, pads, strict=True)
    ]
    batch = replaced(batch, data=tree.unflatten_as(parts[0].data, data))
    if getattr(parts[0], "lengths", None) is not None:
        whole = [None if of is None else np.concatenate(of) for of in lengths]
        batch.lengths = tree.unflatten_as(parts[0].data, whole)
    return batch


def _check_size(
    parts: list[ReplaySample],
    keys: Any,
    columns: list[Any],
    lengths: list[Any],
    to_multiple_of: int,
    max_batch_bytes: int | None,
) -> None:
    """Checks what the joined columns take before there is memory for them."""
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
        keep_samples(error, _rows(parts))
        raise error


def _item_shape(column: Any, is_padded: bool) -> tuple[int, ...]:
    """The shape of an item, without its length if that may differ."""
    if isinstance(column, Ragged):
        return column.values.shape[1:]
    return column.shape[2 if is_padded else 1 :]


def _joined_column(parts: Sequence[Any], lengths: Any, pad: Any, to_multiple_of: int) -> Any:
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
    if parts[0].dtype.kind in "OSU" and pad == 0:
        pad = b"" if parts[0].dtype.kind == "O" else parts[0].dtype.type()
    return Ragged(np.concatenate(items), offsets).padded(pad, to_multiple_of=to_multiple_of)
