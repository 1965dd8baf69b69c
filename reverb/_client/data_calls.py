# SPDX-License-Identifier: Apache-2.0
"""The calls that carry items and their priorities: their text for both clients; see `calls.py`."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from reverb._checks.arguments import check_at_least_one, check_integer, check_table
from reverb._client.batch_request import BatchRequest, keep_flat_samples
from reverb._client.batch_sampler import BatchSampler
from reverb._client.column_choice import ColumnChoice
from reverb._client.connecting import (
    DEFAULT_CONNECT_TIMEOUT_S,
    DEFAULT_KEEPALIVE_S,
    DEFAULT_KEEPALIVE_TIMEOUT_S,
)
from reverb._client.epochs import check_epochs
from reverb._client.rows import keys_of, sequence_of, step_of, steps_of
from reverb._client.window import Window
from reverb._server.tls import ClientTls
from reverb.core import native
from reverb.errors import SignatureMismatchError
from reverb.replay_sample import ReplayBatch, keep_samples, rows_of_batch
from reverb.shown_text import hidden, hidden_token


class Calls:
    def __init__(
        self,
        server_address: str,
        *,
        connect_timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S,
        keepalive_s: float | None = DEFAULT_KEEPALIVE_S,
        keepalive_timeout_s: float = DEFAULT_KEEPALIVE_TIMEOUT_S,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        tls: ClientTls | None = None,
        pickle_token: bool = False,
    ) -> None:
        """Makes a client; does not connect yet.

        Args:
          server_address: `host:port`, several of them separated by commas, or a gRPC target
            (`dns:///name:port`, `ipv4:127.0.0.1:1,127.0.0.1:2`). A name with several addresses also
            means several servers. With several servers, calls of each kind go to them in turn,
            starting with a random one. Names are resolved again when a server cannot be reached.
            `grpcs://` in front means TLS (`grpcs://host:port`, `grpcs://a:1,b:2`); with
            `REVERB_TLS=1` in the environment every address does, except with `grpc://` in front.
            `unix:///path/of/socket` (`unix:path` for a relative path) is a server on this machine
            that listens on a Unix socket. `shards:///a:1,b:2` is a group of servers that are used
            as one (`shards+grpcs:///` for TLS).
          connect_timeout_s: How long to wait for the first answer of the server, in seconds.
          keepalive_s: Interval of pings to the server while a call is open, in seconds, from 0.1
            to 86400; `None`: no pings. A dm-reverb server is never pinged; TCP detects after about
            half a minute that its machine has vanished.
          keepalive_timeout_s: A server that sends nothing for this long after a ping counts as
            lost, and its calls are retried, as after any lost connection. In seconds, from 0.1 to
            86400. A server that freezes for less than this is tolerated.
          token: The access token, if the server requires one. It is sent only to servers that TLS
            has verified, so the address must have `grpcs://`; or over a Unix socket to a server
            that runs as the same user or as root. `None`: the token in `token_file`, else that of
            the environment: `REVERB_TOKEN_FILE` names a file, `REVERB_TOKEN` is a token.
          token_file: Path of a file that holds a token; read again when it has changed.
          tls: How to check the server, for addresses with `grpcs://`. Settings that are not given
            come from the environment; see `ClientTls`.
          pickle_token: Whether pickles of this client contain `token`; everybody who can read such
            a pickle then has the token. `False`: where a pickle is loaded, the environment must
            have a token.

        Raises:
          InvalidArgumentError: If the address cannot be parsed, if a time is out of its range, if a
            token has invalid characters, if there are both `token` and `token_file`, if
            a file cannot be used, or if a token or `tls` is given for an address without TLS. The
            token is not shown.
        """
        # Tracebacks may show the values of local variables.
        token, token_file = hidden_token(token), hidden(token_file)
        server_address = hidden(server_address)
        self._open(
            server_address,
            connect_timeout_s=connect_timeout_s,
            keepalive_s=keepalive_s,
            keepalive_timeout_s=keepalive_timeout_s,
            token=token,
            token_file=token_file,
            tls=tls,
            pickle_token=pickle_token,
        )

    @property
    def server_address(self) -> str:
        """Address of the server, as given to the constructor."""
        return self._server_address

    def insert(
        self,
        data: Any,
        priorities: Mapping[str, float],
        *,
        removal_priorities: Mapping[str, float] | None = None,
    ) -> None:
        """Inserts one step, as an item of its own, into one or more tables.

        Blocks until the server has confirmed the items. The tables' rate limiters may delay that.

        Args:
          data: Nest of arrays. A leaf of shape `[...]` is sampled as a column `[1, ...]`.
          priorities: The tables to insert into, and the item's priority in each, a number or
            `reverb.MAX_PRIORITY`.
          removal_priorities: Priorities for the removers of these tables, if they are `MinHeap`,
            `MaxHeap` or `Prioritized`. Later updates of the priority do not change them.

        Raises:
          InvalidArgumentError: If `priorities` is empty, or if a table rejects a priority.
          SignatureMismatchError: If the data does not match a table's signature. Columns are
            matched by position, as in dm-reverb; names that differ are logged once for each table.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
          UnimplementedError: If the server, such as one of dm-reverb, does not know `MAX_PRIORITY`
            or removal priorities, and the call uses them. Nothing was inserted.
        """
        self._insert(step_of(self._flattener, data, priorities, removal_priorities))

    def insert_batch(
        self,
        data: Any,
        priorities: Mapping[str, Any],
        *,
        removal_priorities: Mapping[str, Any] | None = None,
    ) -> dict[str, np.ndarray]:
        """Inserts `B` steps, each as an item of its own, into one or more tables.

        Equal to `B` calls of `insert`, except that all rows count as one episode. Blocks until the
        server has confirmed all items. If Ctrl-C or an error ends the call, rows that were
        sent by then may be inserted all the same.

        Args:
          data: Nest of arrays `[B, ...]`; row `i` is the data of item `i`. Its columns are matched
            with those of a table's signature by their names, if both have names.
          priorities: The tables to insert into, and the priorities `[B]` in each, or one number for
            all rows.
          removal_priorities: As in `insert`: numbers `[B]` for a table, or one for all rows.

        Returns:
          The keys of the new items for each table, uint64 `[B]`. Empty for a group of servers,
          whose keys are drawn for each shard.

        Raises:
          InvalidArgumentError: If leaves or priorities differ in `B`; otherwise as `insert`.
          SignatureMismatchError: If dtypes or shapes do not match a table's signature, or if the
            signature has no column of a name.
          UnimplementedError: As `insert`.
        """
        steps = steps_of(self._flattener, data, priorities, removal_priorities)
        return keys_of(priorities, self._insert_rows(steps))

    def insert_sequence(
        self,
        data: Any,
        priorities: Mapping[str, float],
        *,
        removal_priorities: Mapping[str, float] | None = None,
    ) -> None:
        """Inserts a whole sequence, such as an episode, as one item into one or more tables.

        Blocks until the server has confirmed the items. The tables' rate limiters may delay that.
        Needs no history and no writer. Long columns are sent and stored in chunks of 64 steps, but
        of 4 KiB at least and 32 KiB at most.

        Example:
          >>> client.insert_sequence([np.zeros((5, 4)), np.arange(5.0)], {"table": 1.0})

        Args:
          data: Nest of arrays `[T, ...]`, which may differ in `T`. Its columns are matched with
            those of a table's signature by their names, if both have names.
          priorities: As in `insert`.
          removal_priorities: As in `insert`.

        Raises:
          InvalidArgumentError: If a leaf has no steps; the text names it. Otherwise as `insert`.
          SignatureMismatchError: If dtypes or shapes do not match a table's signature, or if the
            signature has no column of a name.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
          UnimplementedError: As `insert`.
        """
        self._insert_sequence(sequence_of(self._flattener, data, priorities, removal_priorities))

    def sample(
        self,
        table: str,
        num_samples: int = 1,
        *,
        emit_timesteps: bool = True,
        unpack_as_table_signature: bool = False,
        timeout_ms: int | None = None,
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

        Yields:
          `list[ReplaySample]`, one for each of the `T` steps, with leaves `[...]`; or, if
          `emit_timesteps` is False, one `ReplaySample` with leaves `[T, ...]`.

        Raises:
          InvalidArgumentError: If `num_samples` is below 1, or if columns of an item differ in
            length. In the latter case the item is in `error.samples` and counts as sampled.
          TableNotFoundError: If there is no such table.
          DeadlineExceededError: After `timeout_ms`.
          UnavailableError: If no server answers.
        """

        def start() -> native.Sampler | None:
            check_table(table)
            number = check_integer("num_samples", num_samples)
            if timeout_ms is not None:
                check_integer("timeout_ms", timeout_ms)
            if number == -1:  # In dm-reverb this yields nothing.
                return None
            number = check_at_least_one("num_samples", number)
            nested = self._nested_as_now(table) if unpack_as_table_signature else None
            return self._client.sampler(table, number, bool(emit_timesteps), timeout_ms, nested)

        return self._items(start)

    def sample_batch(
        self,
        table: str,
        batch_size: int,
        *,
        out: Any = None,
        partial: bool = True,
        ragged: Literal["error", "pad", "packed"] = "error",
        pad: Any = 0,
        pad_to_multiple_of: int | None = None,
        columns: Any = None,
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

    def _batch_of_epoch(
        self, request: BatchRequest, unpack_as_table_signature: bool
    ) -> ReplayBatch | None:
        """Samples a batch like `sample_batch`; `None` if its epoch is over."""
        if request.needs_choice:
            request.choose(self._choice(request.table, request.columns))
        batch = self._flat_batch(request)
        if not len(batch.info.key):
            return None
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

    def _choice(self, table: str, columns: Any) -> ColumnChoice:
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
        columns: Any = None,
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
            check_at_least_one("batch_size", batch_size),
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
