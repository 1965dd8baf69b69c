# SPDX-License-Identifier: Apache-2.0
"""The calls that sample items: their text for both clients; see `calls.py`."""

from collections.abc import Callable, Iterator
from typing import Any, Literal, overload

from reverb._checks.arguments import check_at_least, check_integer, check_table
from reverb._client.batch_request import BatchRequest, keep_flat_samples
from reverb._client.batch_sampler import BatchSampler
from reverb._client.column_choice import ColumnChoice
from reverb._client.epochs import check_epochs
from reverb._client.window import Window, check_items_of_windows
from reverb.core import native
from reverb.errors import SignatureMismatchError
from reverb.replay_sample import ReplayBatch, ReplaySample, keep_samples, rows_of_batch


class Calls:
    @overload
    def sample(
        self,
        table: str,
        num_samples: int = 1,
        *,
        emit_timesteps: Literal[True] = True,
        unpack_as_table_signature: bool = False,
        timeout_ms: int | None = None,
    ) -> Iterator[list[ReplaySample]]: ...

    @overload
    def sample(
        self,
        table: str,
        num_samples: int = 1,
        *,
        emit_timesteps: Literal[False],
        unpack_as_table_signature: bool = False,
        timeout_ms: int | None = None,
        window: Window | None = None,
    ) -> Iterator[ReplaySample]: ...

    @overload
    def sample(
        self,
        table: str,
        num_samples: int = 1,
        *,
        emit_timesteps: bool,
        unpack_as_table_signature: bool = False,
        timeout_ms: int | None = None,
        window: Window | None = None,
    ) -> Iterator[Any]: ...

    def sample(
        self,
        table: str,
        num_samples: int = 1,
        *,
        emit_timesteps: bool = True,
        unpack_as_table_signature: bool = False,
        timeout_ms: int | None = None,
        window: Window | None = None,
    ) -> Iterator[Any]:
        """Samples items, one at a time.

        Nothing happens before the first item is taken. Prefetches samples in the background.
        Blocks while the table's rate limiter allows no sample. For training loops, `sample_batch`
        is many times faster.

        Args:
          table: Name of the table.
          num_samples: Number of items.
          emit_timesteps: Yields lists of steps. The columns of each item must then have the same
            length.
          unpack_as_table_signature: Nests the data like the table's signature. Otherwise, or if the
            table has no signature, the data is a flat list.
          timeout_ms: How long the rate limiter may delay a sample, in milliseconds; `None`: no
            limit; 0: do not wait.
          window: Samples a random window of each item's steps instead of the whole item, as in
            `sample_batch`. Needs `emit_timesteps=False`.

        Yields:
          `list[ReplaySample]`, one for each of the `T` steps, with leaves `[...]`; or, if
          `emit_timesteps` is False, one `ReplaySample` with leaves `[T, ...]`. With a window `T` is
          `before + length`, and `info` is a `WindowInfo`.

        Raises:
          InvalidArgumentError: If `num_samples` is below 1, or if columns of an item differ in
            length. In the latter case the item is in `error.samples` and counts as sampled. With
            `window`, if timesteps are asked for, and as `sample_batch`.
          TableNotFoundError: If there is no such table.
          DeadlineExceededError: After `timeout_ms`.
          UnavailableError: If no server answers.
          UnimplementedError: With `window`, if the server does not know windows.
        """

        def start() -> native.Sampler | None:
            check_table(table)
            number = check_integer("num_samples", num_samples, allows_bool=True)
            if timeout_ms is not None:
                check_integer("timeout_ms", timeout_ms)
            if number == -1:  # In dm-reverb this yields nothing.
                return None
            number = check_at_least(1, "num_samples", number)
            if window is not None:
                check_items_of_windows(window, emit_timesteps)
            nested = self._nested_as_now(table) if unpack_as_table_signature else None
            cut = None
            if window is not None:
                choice = self._choice(table, None) if window.spans else None
                cut = window.to_native(choice)
            return self._client.sampler(
                table, number, bool(emit_timesteps), timeout_ms, nested, cut
            )

        return self._items(start)

    def sample_batch(
        self,
        table: str,
        batch_size: int,
        *,
        out: object = None,
        partial: bool = True,
        ragged: Literal["error", "pad", "packed"] = "error",
        pad: object = 0,
        pad_to_multiple_of: int | None = None,
        columns: object = None,
        distinct: bool = False,
        squeeze: bool = False,
        unpack_as_table_signature: bool = False,
        timeout_ms: int | None = None,
        max_batch_bytes: int | str | None = None,
        window: Window | None = None,
    ) -> ReplayBatch:
        """Samples `B` items and stacks them into one batch.

        Blocks until the table's rate limiter has allowed `B` samples.

        An item counts as sampled when the server picks it; a table with `max_times_sampled` may
        then remove it. The server picks a batch in as many parts as the rate limiter requires. A
        table with `max_times_sampled` first checks whether the items of a part can be stacked. If
        they cannot, none of them is sampled, and they stay in the table.

        If an exception is raised (`KeyboardInterrupt` included), its `samples` are the items that
        were sampled and not returned: those of earlier parts, or all if the server is a dm-reverb
        server; `keys` of a `ReverbError` are theirs. Items in transit when a server or connection
        failed count as sampled and are lost.

        Arrays of 4 KiB and more are aligned to 64 bytes. Their memory is used again for a later
        batch when the last reference to the array is gone.

        Args:
          table: Name of the table.
          batch_size: Number of items, `B`.
          out: Where to write the batch: a nest of writable, C-contiguous arrays `[B, T, ...]`, one
            for each column in their order, of NumPy or anything with the buffer protocol; or a
            `ReplaySample` of a `SampleInfo` or `BatchInfo` of arrays `[B]` and such a nest. No
            thread may use them meanwhile. After an error their content is undefined.
          partial: Whether a smaller batch is returned if `timeout_ms` passes after some items were
            sampled. `False`: all `B` items or a `DeadlineExceededError`, after which none counts as
            sampled; the server picks them all at once, 65,536 at most. A dm-reverb server picks
            them one by one, and so do the shards of a group: then the error has those that were
            picked in its `samples`.
          ragged: How items of different lengths `T` are stacked. `"error"`: `InvalidArgumentError`.
            `"pad"`: columns are `[B, T, ...]` with the largest `T`, and `lengths` of the batch has
            the lengths. `"packed"`: columns are `reverb.Ragged`: `[sum T, ...]` and offsets. A
            column that is a single step stays `[B, ...]`; its lengths are 1.
          pad: Value after the steps of shorter items: one value for all columns, a list with one
            for each, or a dict by name; 0 (an empty string) for columns without a name in it.
          pad_to_multiple_of: Rounds the largest `T` up to a multiple of this, so that programs that
            compile for each shape see few of them.
          columns: The columns to sample; the others are neither sent nor decoded. Names of fields
            of the signature (a field with fields of its own stands for all of them), tuples of
            names, or positions in the flat list. `None`: all.
          distinct: Whether no item may be in the batch twice.
          squeeze: Leaves out the dimension of steps: columns are `[B, ...]`, and every item must
            have one step. Not with `ragged`.
          unpack_as_table_signature: As in `sample`. Columns that `columns` leaves out are missing
            in dicts, and `None` in lists and tuples.
          timeout_ms: As in `sample`.
          max_batch_bytes: Limit of new memory for the columns, in bytes, padding included; a string
            counts 24 bytes and its length. A number, a size such as `"2GiB"`, or a share of the
            memory that the process may use, such as `"25%"`. `None`: 50 %, at most 8 GiB.
          window: Samples a random window of each item's steps instead of the whole item: columns
            are `[B, before + length, ...]`. The columns of an item must have the same number of
            steps, except for those that are a single value, which come whole. The call also waits
            while no item has such a window. Not with `ragged`.

        Returns:
          A `ReplayBatch`: `info` is a `BatchInfo` of arrays `[B]`, `data` has columns
          `[B, T, ...]`, or `[B, ...]` for a column that is a single step. With `out`, `data` is its
          nest; if the batch is smaller than `B`, a nest of views of its first rows.

        Raises:
          InvalidArgumentError: If `batch_size` is below 1, if the items' dtypes or shapes differ,
            if `out` has another dtype or shape than the batch, if there is no such column, or if
            an item has several steps with `squeeze`; the text says how many. With `window`, if no
            item has one and the table takes no more items, or if the next item of a sampler with
            an order (`Fifo`, `Lifo`, `MinHeap`, `MaxHeap`, `Shuffle`) has none.
            `error.samples` is a list with a `ReplaySample` for each item that was sampled, whose
            data is a flat list of columns `[T, ...]`; it may be empty.
          DataLossError: If an item is damaged.
          ResourceExhaustedError: If the batch would take more than `max_batch_bytes`, or more
            memory than there is; the error names the longest item.
          TableNotFoundError: If there is no such table.
          DeadlineExceededError: After `timeout_ms`, if no item was sampled, or if `partial` is
            `False`. Otherwise the sampled items are returned as a smaller batch.
          TypeError: If `out` has a leaf that is not an array.
          UnavailableError: If no server answers.
          UnimplementedError: With `distinct` or `window`, if the server is a dm-reverb server, or
            of an earlier release.
        """
        # Positional arguments, because keywords would take half a microsecond.
        request = BatchRequest(
            table,
            batch_size,
            out,
            partial,
            ragged,
            pad,
            pad_to_multiple_of,
            columns,
            distinct,
            squeeze,
            timeout_ms,
            max_batch_bytes,
            window,
        )
        if request.needs_choice:
            request.choose(self._choice(table, columns))
        batch = self._flat_batch(request)
        if request.is_flat and not unpack_as_table_signature:
            return batch
        return self._finished_sample(request, batch, unpack_as_table_signature)

    def _requested_batch(
        self, request: BatchRequest, unpack_as_table_signature: bool
    ) -> ReplayBatch:
        """Samples a batch like `sample_batch`; it has no items if its epoch is over."""
        if request.needs_choice:
            request.choose(self._choice(request.table, request.columns))
        batch = self._flat_batch(request)
        if not len(batch.info.key):
            return batch
        return self._finished_sample(request, batch, unpack_as_table_signature)

    def _finished_sample(
        self, request: BatchRequest, batch: ReplayBatch, unpack: bool
    ) -> ReplayBatch:
        """Brings a sampled batch into the form of its request; an error has the samples."""
        try:
            return self._finished(request, batch, unpack)
        except BaseException as error:
            keep_samples(error, rows_of_batch(batch))
            raise

    def _finished(self, request: BatchRequest, batch: ReplayBatch, unpack: bool) -> ReplayBatch:
        """Brings a flat batch into the form of its request."""
        if not unpack or request.has_out:
            return request.finished(batch)
        if request.nested is not None:
            return request.finished(batch, request.nested)
        table = request.table
        self._know_signature(table)
        try:
            return request.finished(batch, self._signatures.nested(table) or list)
        except SignatureMismatchError:
            self.server_info()
            return request.finished(batch, self._signatures.nested(table) or list)

    def _flat_batch(self, request: BatchRequest) -> ReplayBatch:
        """Samples a flat batch, see `BatchRequest.flat_batch`; the columns were chosen before."""
        try:
            return request.flat_batch(self._client.sample_batch(request))
        except BaseException as error:
            keep_flat_samples(error)
            if isinstance(error, TypeError):
                request.check_types()
            raise

    def _choice(self, table: str, columns: object) -> ColumnChoice:
        self._know_signature(table)
        return self._signatures.choice(table, columns)

    def _know_signature(self, table: str) -> None:
        """Asks the server for signatures if that of the table is unknown.

        Raises:
          TableNotFoundError: If there is no such table.
        """
        if not self._signatures.are_known(table):
            self.server_info()
        self._signatures.check(table)

    def _nested_as_now(self, table: str) -> Callable[[list[Any]], Any] | None:
        """Asks for the signature again; returns a function that nests a flat list like it."""
        self.server_info()
        return self._signatures.nested(table)

    def batch_sampler(
        self,
        table: str,
        batch_size: int,
        *,
        num_buffers: int | None = None,
        partial: bool = False,
        columns: object = None,
        distinct: bool = False,
        squeeze: bool = False,
        unpack_as_table_signature: bool = False,
        timeout_ms: int | None = None,
        max_batch_bytes: int | str | None = None,
        epochs: int | None = None,
        drop_last: bool = False,
        window: Window | None = None,
    ) -> BatchSampler:
        """Makes an iterator of batches that owns their memory and reuses it.

        Does not contact the server; a batch is sampled when it is taken, as by `sample_batch`. The
        arrays of a batch are overwritten `num_buffers` batches later.

        Example:
          >>> with client.batch_sampler("table", 2) as batches:
          ...     print(next(batches).data[0].shape)
          (2, 1, 4)

        Args:
          table: Name of the table.
          batch_size: Number of items, `B`.
          num_buffers: Number of batches for which there is memory; `None`: 2.
          partial: As in `sample_batch`, but `False` by default.
          columns: As in `sample_batch`.
          distinct: As in `sample_batch`.
          squeeze: As in `sample_batch`.
          unpack_as_table_signature: As in `sample_batch`.
          timeout_ms: As in `sample_batch`, for each batch.
          max_batch_bytes: As in `sample_batch`, for each batch.
          epochs: The iterator ends after so many epochs; `None`: it has no end. As in
            `reverb.batches`.
          drop_last: Whether the last batch of an epoch is dropped if it is shorter.
          window: As in `sample_batch`.

        Raises:
          InvalidArgumentError: If a number is below 1, or if `drop_last` is given without `epochs`,
            or with `partial`.
        """
        return BatchSampler(
            self._lasting(),
            table,
            check_at_least(1, "batch_size", batch_size),
            num_buffers=2 if num_buffers is None else num_buffers,
            partial=partial,
            columns=columns,
            distinct=distinct,
            squeeze=squeeze,
            unpack_as_table_signature=unpack_as_table_signature,
            timeout_ms=timeout_ms,
            max_batch_bytes=max_batch_bytes,
            epochs=check_epochs(epochs, drop_last, partial),
            drop_last=bool(drop_last),
            window=window,
        )
