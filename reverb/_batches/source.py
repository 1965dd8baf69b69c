# SPDX-License-Identifier: Apache-2.0
"""The source of a prefetching iterator that samples a table: single items, or batches."""

import collections
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tree

from reverb import errors
from reverb._batches.options import BatchOptions
from reverb._batches.prefetching import Failure, Pipe
from reverb._batches.whole_batches import WholeBatches
from reverb._checks.byte_sizes import parse_byte_size_or_share
from reverb._client.batch_request import BatchRequest, keep_flat_samples
from reverb._client.column_choice import ColumnChoice
from reverb._client.epochs import Epochs
from reverb._client.joined_batches import joined, rows_of_parts
from reverb._client.unlike_columns import check_same_columns
from reverb.core import native
from reverb.replay_sample import ReplayBatch, ReplaySample, SampleInfo, keep_samples

if TYPE_CHECKING:
    from reverb.client import Client  # It imports this room.

__all__ = ["CoreBatches", "TableSource"]

_logger = logging.getLogger("reverb")

# How long a request waits for a rate limiter before the thread checks whether it must stop.
_POLL_MS = 200

# Errors of the core show so many characters of an address at least.
_SHOWN_ADDRESS = 80


class TableSource:
    """A source that samples one table."""

    def __init__(self, client: "Client", table: str, options: BatchOptions) -> None:
        """Makes a source of batches, or without a batch size of single items; does not connect yet.

        With `partial` a batch may be short: at the end, or if the rate limiter allows no more for
        0.2 s. Otherwise the items of an incomplete last batch stay in the table, with a warning; if
        the table cannot hold a whole batch, they were sampled in parts, and are the `samples` of a
        `DeadlineExceededError`.
        """
        end_after_ms = options.end_after_ms
        epochs = options.epochs
        self._client = client
        self._table = table
        self._batch_size = options.batch_size
        self._postprocess = options.postprocess
        self._end_after_s = None if end_after_ms is None else end_after_ms / 1_000
        self._container_types = {cls.__name__: cls for cls in options.container_types}
        self._partial = options.partial
        self._options = options.request_options
        self._out = options.out if len(options.weights) == 1 else None
        # The client nests chosen columns, because it knows the choice.
        self._has_choice = self._options["columns"] is not None
        if self._has_choice:
            self._out = None
        self._whole: WholeBatches | None = None
        self._epochs = None if epochs is None else Epochs(epochs, options.drop_last)
        is_ended_by_limiter = self._end_after_s is not None and epochs is None
        if is_ended_by_limiter and options.batch_size is not None and not options.partial:
            self._whole = WholeBatches(client, table)
        self._alike: set[str] = set()  # Tables whose columns are those of this one.
        self._structure: Any = None
        self._num_columns = 0
        self._is_flat = False

    def __call__(self, count: int, pipe: Pipe) -> Iterator[Any]:
        """Yields `count` elements; fewer if the rate limiter delays a sample for too long."""
        if self._batch_size is None:
            yield from self._items(count, pipe)
            return
        for _ in range(count):
            if self._postprocess is None:
                rows = self.rows(self._batch_size, pipe)
                batch = None if rows is None else self.finished(rows)
            else:
                batch = self._batch_of_items(self._batch_size, pipe)
            if batch is None:
                return
            yield batch

    def ahead(
        self, size: int, convert: Callable[[ReplayBatch], Any] | None = None
    ) -> "CoreBatches | None":
        """Returns batches that the core fetches without a Python thread; `None` if it cannot.

        `convert` makes an element of each batch, in the thread that calls `next`.
        """
        is_endless = self._end_after_s is None and self._epochs is None and not self._partial
        if self._out is not None or self._batch_size is None or not is_endless:
            return None
        try:
            request = self._request(self._batch_size, timeout_ms=None)
            if request.needs_choice:
                if not self._client._is_local():
                    return None  # Asking for the columns may block; nobody has called `next` yet.
                self._choose(request)
            ahead = self._client._batches_ahead(request, size)
        except errors.ReverbError:
            return None  # The thread gets the same error, and `next` raises it.
        return CoreBatches(self, request, ahead, convert)

    def rows(self, count: int, pipe: Pipe) -> ReplayBatch | None:
        """Returns a flat batch of `count` rows; `None` after the timeout or the last epoch.

        At the end of an epoch it has fewer.
        """
        pipe.check(self._purpose())
        epochs = self._epochs
        while epochs is None or not epochs.are_over:
            out = self._out() if self._out is not None else None
            parts = self._parts(count, out, pipe)
            if parts is None:
                return None
            num_rows = sum(len(part.info.key) for part in parts)
            if epochs is None or epochs.keeps(num_rows, count):
                return self._joined(parts, out)
        return None

    def _parts(self, count: int, out: list[Any] | None, pipe: Pipe) -> list[ReplayBatch] | None:
        """Samples the rows of a batch: `count`, or those until the end of the epoch."""
        parts: list[ReplayBatch] = []
        whole, epochs = self._whole, self._epochs
        missing = count
        last_progress = time.monotonic()
        while missing:
            pipe.check()
            rest = None if out is None else [column[count - missing :] for column in out]
            try:
                is_whole = whole is not None and whole.are_possible(count)
                request = self._request(missing, out=rest, partial=not is_whole)
                self._choose(request)
                if epochs is not None:
                    request.limit_to_epoch(epochs.present)
                part = self._client._flat_batch(request)
            except errors.DeadlineExceededError as error:
                if self._partial and parts:
                    break
                if whole is not None and whole.has_grown():
                    last_progress = time.monotonic()
                if not self._waits_too_long(last_progress, pipe, error):
                    continue
                if parts:
                    raise self._explained(error, parts) from error
                if whole is not None:
                    whole.warn_of_rest(count)
                return None
            except errors.ReverbError as error:
                raise self._explained(error, parts) from error
            if epochs is not None and epochs.note(part):
                break
            if epochs is not None and parts and parts[-1].info.epoch[-1] != part.info.epoch[0]:
                # The server was started again: what came before the start comes again.
                part = _moved(part, out)
                parts, missing = [], count
            parts.append(part)
            missing -= len(part.info.key)
            last_progress = time.monotonic()
        return parts

    def mixed(self, parts: Mapping[str, ReplayBatch]) -> ReplayBatch:
        """Joins batches by table; each row has the numbers of its table.

        Raises:
          InvalidArgumentError: If a table has other columns than this source's; see also `joined`.
        """
        batches = list(parts.values())
        try:
            for table, part in parts.items():
                if table not in self._alike:
                    check_same_columns(self._chosen(self._table), self._chosen(table), part)
                    self._alike.add(table)
            return self.finished(self._joined(batches, tables=list(parts)))
        except errors.ReverbError as error:
            if not getattr(error, "samples", ()):
                keep_samples(error, rows_of_parts(batches))
            raise

    def cut_off(self, parts: Mapping[str, ReplayBatch]) -> ReplayBatch:
        """Returns what is left of a mixed batch when one of its tables has no more rows.

        Raises:
          DeadlineExceededError: If a batch may not be partial; `samples` has the rows.
        """
        if self._partial:
            return self.mixed(parts)
        text = "another table of the mixture has no more samples for the rest of the batch"
        raise self._explained(errors.DeadlineExceededError(text), list(parts.values()))

    def _request(self, count: int, **arguments: Any) -> BatchRequest:
        others = {"out": None, "partial": True, "timeout_ms": _POLL_MS} | arguments
        return BatchRequest(self._table, count, **self._options, **others)

    def _choose(self, request: BatchRequest) -> None:
        """Gives a request the table's columns if it needs them; may wait for the server."""
        if request.needs_choice:
            request.choose(self._chosen(self._table))

    def _chosen(self, table: str) -> ColumnChoice:
        """Returns the chosen columns of a table; may wait for the server."""
        return self._client._choice(table, self._options["columns"])

    def _batch_of_items(self, batch_size: int, pipe: Pipe) -> object:
        """Returns one batch of processed items; `None` after the timeout."""
        items = list(self._items(batch_size, pipe))
        if len(items) < batch_size:
            if items:
                text = "%d items of the last batch of %s are lost: %d make a batch"
                _logger.warning(text, len(items), self._purpose(), batch_size)
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

    def _processed(self, sample: ReplaySample) -> object:
        key, probability, table_size, priority, times_sampled = sample.info
        numbers = (
            np.uint64(key),
            np.float64(probability),
            np.int64(table_size),
            np.float64(priority),
            np.int32(times_sampled),
        )
        info = SampleInfo._make(numbers)
        sample = ReplaySample(info, self._nested(sample.data))
        return sample if self._postprocess is None else self._postprocess(sample)

    def _waits_too_long(
        self, last_progress: float, pipe: Pipe, error: errors.DeadlineExceededError
    ) -> bool:
        pipe.check(f"{self._purpose()}: {error}")
        return (
            self._end_after_s is not None and time.monotonic() - last_progress >= self._end_after_s
        )

    def _of_answer(self, request: BatchRequest, answer: native.BatchAnswer) -> ReplayBatch:
        return self.finished(request.flat_batch(answer), request)

    def _explained(self, error: errors.ReverbError, parts: list[ReplayBatch]) -> errors.ReverbError:
        """Returns the error with table and address in its text, and the sampled rows attached."""
        text = str(error)
        # Errors of connections name the address, or its beginning, themselves.
        is_shown = self._client.server_address[:_SHOWN_ADDRESS] in text
        purpose = f"a sample of table {self._table}" if is_shown else self._purpose()
        explained = type(error)(f"{purpose}: {text}")
        keep_samples(explained, [*rows_of_parts(parts), *getattr(error, "samples", ())])
        return explained

    def finished(self, batch: ReplayBatch, request: BatchRequest | None = None) -> ReplayBatch:
        """Fills the padding of a flat batch, and nests it like the signature of the table.

        The request is `None` if it is no longer at hand.
        """
        try:
            if request is None:
                request = self._request(len(batch.info.key))
                self._choose(request)
            if request.nested is None:
                return request.finished(batch, self._nested)
            chosen = request.nested
            return request.finished(batch, lambda columns: self._with_types(chosen(columns)))
        except errors.ReverbError as error:
            raise self._explained(error, [batch]) from error

    def _joined(
        self,
        parts: list[ReplayBatch],
        out: list[Any] | None = None,
        tables: Sequence[str] = (),
    ) -> ReplayBatch:
        if len(parts) == 1:
            return parts[0]
        limit = parse_byte_size_or_share("max_batch_bytes", self._options["max_batch_bytes"])
        return joined(
            parts,
            out,
            tables=tables,
            name_of=lambda at: self._chosen(self._table).name_of(at),
            pads=self._pads(len(parts[0].data)),
            to_multiple_of=self._options["pad_to_multiple_of"] or 1,
            max_batch_bytes=limit,
        )

    def _pads(self, count: int) -> list[Any]:
        """Returns the padding value of each of `count` columns."""
        pad = self._options["pad"]
        if not isinstance(pad, Mapping | list | tuple):
            return [pad] * count
        return self._chosen(self._table).pad_values(pad, count)

    def _purpose(self) -> str:
        """Reason why this source waits, for errors and logs."""
        return f"a sample of table {self._table} at {self._client.server_address}"

    def _nested(self, columns: list[Any]) -> object:
        """Nests a flat list of columns like the signature; returns it if the table has none."""
        if self._structure is None:
            signature = self._client.server_info()[self._table].signature
            # Without a signature, the first item sets the number of columns.
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

    def _with_types(self, nest: object) -> object:
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
    """Batches of a table that the core samples ahead, without a Python thread.

    Attributes:
      native: The batches of the core.
    """

    def __init__(
        self,
        source: TableSource,
        request: BatchRequest,
        ahead: native.BatchesAhead,
        convert: Callable[[ReplayBatch], Any] | None,
    ) -> None:
        self._source = source
        self._request = request
        self.native = ahead
        self._convert = convert
        self.start, self.close = ahead.start, ahead.close
        self.is_ready, self.num_ready = ahead.is_ready, ahead.num_ready

    def next(self, timeout_s: float | None) -> tuple[Any, float, float] | None:
        """Returns a batch, its age, and the time spent waiting for it, in seconds.

        Returns `None` after the timeout, and after `close`.

        Raises:
          Failure: If fetching has failed. Exceptions of signal handlers pass through.
        """
        try:
            found = self.native.next(timeout_s)
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
        """Reason why `next` waits."""
        reason = self.native.waits_for()
        purpose = self._source._purpose()
        return purpose if reason is None else f"{purpose}: {reason}"


def _moved(part: ReplayBatch, out: list[Any] | None) -> ReplayBatch:
    """Moves the rows of a flat batch to the beginning of the columns that they were read into."""
    if out is None:
        return part
    columns = [column[: len(part.info.key)] for column in out]
    for column, rows in zip(columns, part.data, strict=True):
        column[...] = rows.copy()
    return ReplayBatch(part.info, columns)


def _is_flat(structure: object) -> bool:
    return type(structure) is list and not any(map(tree.is_nested, structure))


@functools.cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> type:
    return collections.namedtuple(name, fields)
