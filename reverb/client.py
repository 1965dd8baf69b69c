# SPDX-License-Identifier: Apache-2.0
"""The client: inserts, samples, updates priorities and inspects tables."""

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

import numpy as np

from reverb._batches.iterator import BatchIterator
from reverb._checks.arguments import (
    check_at_least,
    check_bool,
    check_int64,
    check_integer,
    check_number,
    check_table,
    check_timeout_ms,
    check_type,
)
from reverb._checks.byte_sizes import parse_byte_size
from reverb._checks.compression import Compression, compresses
from reverb._client.batch_request import BatchRequest, keep_flat_samples
from reverb._client.batch_sampler import BatchSampler
from reverb._client.chosen_items import deletions_of, fetched_keys
from reverb._client.column_choice import ColumnChoice
from reverb._client.connecting import (
    DEFAULT_CONNECT_TIMEOUT_S,
    DEFAULT_KEEPALIVE_S,
    DEFAULT_KEEPALIVE_TIMEOUT_S,
)
from reverb._client.epochs import check_epochs
from reverb._client.rollout_batch import RolloutBatch, batch_of, changed, check_ready, with_data
from reverb._client.rollout_items import (
    MOST_TAKES,
    Changes,
    Columns,
    OpenItem,
    Taken,
    all_of,
    check_rollout,
    fetch_request,
    held_by_others,
    opening,
    settle_fields,
    take_request,
    was_inserted,
)
from reverb._client.rows import keys_of, sequence_of, step_of, steps_of, updates_of
from reverb._client.signatures import Signatures
from reverb._client.small_calls import answer_of, request_of, sync_request, table_among
from reverb._client.where import Where, condition_of
from reverb._client.window import Window, check_items_of_windows
from reverb._nests.flat import flatten_with_labels
from reverb._rollouts.settings import Rollouts
from reverb._server.credentials import ClientCredentials
from reverb._server.shard_info import ShardInfo, from_row
from reverb._server.table_change import (
    UNCHANGED,
    ChangedSetting,
    TableChange,
    Unchanged,
    to_request,
)
from reverb._server.tls import ClientTls
from reverb._writers.legacy import Writer, with_pending_limit
from reverb._writers.sequence import SequenceWriter, sequence_options
from reverb.core import native
from reverb.errors import DataLossError, InvalidArgumentError, ReverbError, SignatureMismatchError
from reverb.rate_limiters import RateLimiter
from reverb.replay_sample import ReplayBatch, ReplaySample, keep_samples, rows_of_batch
from reverb.reverb_types import TableInfo
from reverb.server_status import CheckpointStatus, Diagnosis, ServerStatus, SyncResult
from reverb.shown_text import hidden, hidden_token, shown, type_name
from reverb.structured_writer import Config, StructuredWriter
from reverb.trajectory_writer import BatchedTrajectoryWriter, TrajectoryWriter

__all__ = ["Client", "Writer"]

_Writer = TypeVar("_Writer")

# Options of `Client` that a pickle contains only if they differ from these. The default of all
# other options is `None`.
_DEFAULTS = {
    "connect_timeout_s": DEFAULT_CONNECT_TIMEOUT_S,
    "keepalive_s": DEFAULT_KEEPALIVE_S,
    "keepalive_timeout_s": DEFAULT_KEEPALIVE_TIMEOUT_S,
    "pickle_token": False,
    "compression": "auto",
}

# Default chunk length of the legacy writer; shorter sequences have shorter chunks.
_DEFAULT_CHUNK_LENGTH = 10

# "No limit" of unconfirmed items for the legacy writer.
_UNLIMITED_IN_FLIGHT_ITEMS = 1_000_000


class Client:
    """A connection to one server, or to several behind one address.

    Connects on first use. A `with` block closes it. May be shared by threads, and sent to other
    processes: a pickled client holds its address, its options and the paths of its credentials, but
    no token (see `pickle_token`).

    Example:
      >>> server = reverb.Server([reverb.Table.queue("queue", max_size=10)])
      >>> client = reverb.Client(f"localhost:{server.port}")
      >>> client.insert([np.zeros(2), 1.0], priorities={"queue": 1.0})
      >>> for steps in client.sample("queue", num_samples=1):
      ...     print(steps[0].data)
      [array([0., 0.]), array(1.)]
    """

    # Whether a server without room may serve it on a connection that is kept for operators.
    _is_for_operators = False

    # --- generated from reverb/_client/*calls.py by `make clients` ---

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
        compression: Compression = "auto",
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
          pickle_token: Whether pickles of this client contain `token`; anyone who can read such a
            pickle then has the token. `False`: where a pickle is loaded, the environment must
            have a token.
          compression: Compression of what `insert`, `insert_batch`, `insert_sequence` and writers
            store. `"auto"`: a column of a chunk is compressed if that saves an eighth of it or
            more. `"none"`: nothing is compressed; sampling does not decode, but frames of a game
            take up to 14 times the memory, also in checkpoints and on the network. Every client,
            also one of dm-reverb, reads both.

        Raises:
          InvalidArgumentError: If the address cannot be parsed, if a time is out of its range, if a
            token has invalid characters, if there are both `token` and `token_file`, if
            a file cannot be used, if a token or `tls` is given for an address without TLS, or if
            `compression` is another value. The token is not shown.
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
            compression=compression,
        )

    @property
    def server_address(self) -> str:
        """Address of the server, as given to the constructor."""
        return self._server_address

    def insert(
        self,
        data: object,
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
        data: object,
        priorities: Mapping[str, Any],
        *,
        removal_priorities: Mapping[str, Any] | None = None,
        keys: object = None,
        replace: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Inserts `B` steps, each as an item of its own, into one or more tables.

        Equal to `B` calls of `insert`, except that all rows count as one episode. Blocks until the
        server has confirmed all items. If Ctrl-C or an error ends the call, rows that were
        sent by then may be inserted all the same.

        With `keys`, the program finds its items again without remembering what this returns. If a
        table has an item with a key, that item gets the row's priority and keeps its data. With
        `replace=True` it is exchanged for the row, under one lock: priority, time of the insert,
        times sampled and place in the order are those of a new item. It waits for the rate limiter
        as an insert, and counts as one, unless the table has `max_times_sampled` and the old item
        had not been sampled `samples_per_insert` times. Samples that were taken before keep the old
        data.

        Example:
          >>> keys = [reverb.key_of(f"position {i}") for i in range(2)]
          >>> _ = client.insert_batch(np.zeros((2, 3)), {"table": 1.0}, keys=keys)
          >>> _ = client.insert_batch(np.ones((2, 3)), {"table": 1.0}, keys=keys, replace=True)

        Args:
          data: Nest of arrays `[B, ...]`; row `i` is the data of item `i`. Its columns are matched
            with those of a table's signature by their names, if both have names.
          priorities: The tables to insert into, and the priorities `[B]` in each, or one number for
            all rows.
          removal_priorities: As in `insert`: numbers `[B]` for a table, or one for all rows.
          keys: A key of the program's own for each row, integers `[B]` below 2^64, such as
            `reverb.key_of(text)`; the same in all tables. Rows are inserted in order, so of equal
            keys the last row counts. Default: random keys.
          replace: Whether a row replaces the item that has its key.
          timeout_ms: Longest wait for the tables: rate limiters, full tables and pauses. The server
            refuses rows that still wait then; with 0, those that it cannot insert at once. Default:
            none.

        Returns:
          The keys of the new items for each table, uint64 `[B]`. Empty for a group of servers,
          whose keys are drawn for each shard.

        Raises:
          DeadlineExceededError: After `timeout_ms`. The text says how many rows were not inserted,
            which are the last ones: with one row and table, nothing was. It is the server's word,
            which this call waits for also if it comes late.
          FailedPreconditionError: If `keys` are given for a table with rollouts.
          InvalidArgumentError: If leaves, priorities or keys differ in `B`, if `replace` has no
            `keys`, or if `keys` or `timeout_ms` are given for a group of several servers;
            otherwise as `insert`.
          SignatureMismatchError: If dtypes or shapes do not match a table's signature, or if the
            signature has no column of a name.
          UnavailableError: As `insert`. With `timeout_ms` also if rows were refused after a lost
            connection, over which they may have been inserted, or if the server reads nothing
            for 10 s after that time, because its memory is used up.
          UnimplementedError: As `insert`; and if the server does not know `replace` or
            `timeout_ms`.
        """
        steps = steps_of(
            self._flattener, data, priorities, removal_priorities, keys, replace, timeout_ms
        )
        return keys_of(priorities, self._insert_rows(steps))

    def insert_sequence(
        self,
        data: object,
        priorities: Mapping[str, float],
        *,
        removal_priorities: Mapping[str, float] | None = None,
        key: int | None = None,
        replace: bool = False,
        timeout_ms: int | None = None,
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
          key: A key of the program's own for the item, as `keys` of `insert_batch`.
          replace: Whether it replaces the item that has its key, as in `insert_batch`.
          timeout_ms: As in `insert_batch`.

        Raises:
          DeadlineExceededError: As `insert_batch`.
          FailedPreconditionError: As `insert_batch`.
          InvalidArgumentError: If a leaf has no steps; the text names it. Otherwise as `insert`,
            and as `insert_batch` for `key`, `replace` and `timeout_ms`.
          SignatureMismatchError: If dtypes or shapes do not match a table's signature, or if the
            signature has no column of a name.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers, and as `insert_batch` with `timeout_ms`.
          UnimplementedError: As `insert_batch`.
        """
        sequence = sequence_of(
            self._flattener, data, priorities, removal_priorities, key, replace, timeout_ms
        )
        self._insert(sequence)

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

    @overload
    def scan(
        self,
        table: str,
        *,
        unpack_as_table_signature: bool = False,
        with_inserted_at: Literal[False] = False,
        columns: object = None,
        where: Where | None = None,
        partial: bool = False,
    ) -> Iterator[ReplaySample]: ...

    @overload
    def scan(
        self,
        table: str,
        *,
        unpack_as_table_signature: bool = False,
        with_inserted_at: Literal[True],
        columns: object = None,
        where: Where | None = None,
        partial: bool = False,
    ) -> Iterator[tuple[float, ReplaySample]]: ...

    @overload
    def scan(
        self,
        table: str,
        *,
        unpack_as_table_signature: bool = False,
        with_inserted_at: bool,
        columns: object = None,
        where: Where | None = None,
        partial: bool = False,
    ) -> Iterator[Any]: ...

    def scan(
        self,
        table: str,
        *,
        unpack_as_table_signature: bool = False,
        with_inserted_at: bool = False,
        columns: object = None,
        where: Where | None = None,
        partial: bool = False,
    ) -> Iterator[Any]:
        """Reads every item of a table once, oldest first, without sampling.

        A scan changes no counters, and a closed rate limiter does not delay it. Use it for exports,
        checks and deterministic passes over a table.

        The scan begins when its first item is taken. It covers the items that are in the table at
        that moment. Items that are inserted later are not included; items that are removed
        before the scan reaches them are skipped, unless they were prefetched (20 MiB at most). Each
        item is read in its current state, so priorities may be of different moments. Writers are
        not delayed. Items come in the order of insertion; updates of priorities do not change it.

        Blocks while it waits for the server. Closing or dropping the iterator also ends the scan
        on the server. With several servers behind the address, one of them is scanned. A group of
        servers must be complete, unless the scan is `partial`.

        Args:
          table: Name of the table.
          unpack_as_table_signature: As in `sample`.
          with_inserted_at: Yields pairs `(inserted_at, sample)`, with the time of insertion as a
            float in seconds since 1970.
          columns: As in `sample_batch`; the others are neither sent nor decoded.
          where: Only the items that fulfil this condition, when the scan begins and when it reads
            them. `None`: all.
          partial: Leaves out the shards of a group that do not answer within 1.2 s when the scan
            begins, and logs a warning; `status().shards` has their states. A shard that is lost
            later ends the scan with an error.

        Yields:
          A `ReplaySample` with leaves `[T, ...]`, or `[...]` for a column that is a single step;
          the same data as from `sample(..., emit_timesteps=False)`. In its `info`, `times_sampled`
          is the count so far, `table_size` and `priority` are those of the moment of reading, and
          `probability` is 0.0.

        Raises:
          InvalidArgumentError: If there is no such column.
          TableNotFoundError: If there is no such table.
          TypeError: If `where` is not a `reverb.Where`.
          UnavailableError: If no server answers, or if it stops during the scan.
          UnimplementedError: If the server is a dm-reverb server, which cannot scan; with `columns`
            or `where`, also if it is of an earlier release.
        """

        def start() -> native.Sampler:
            check_table(table)
            condition = condition_of(where).SerializeToString()
            nested = self._nested_as_now(table) if unpack_as_table_signature else None
            indices = []
            if columns is not None:
                choice = self._choice(table, columns)
                indices = choice.indices
                nested = choice.nested if unpack_as_table_signature else None
            return self._client.scanner(
                table, indices, condition, partial, with_inserted_at, nested
            )

        return self._items(start)

    def fetch(
        self,
        table: str,
        keys: object,
        *,
        columns: object = None,
        ragged: Literal["error", "pad", "packed"] = "error",
        pad: object = 0,
        pad_to_multiple_of: int | None = None,
        squeeze: bool = False,
        unpack_as_table_signature: bool = False,
        max_batch_bytes: int | str | None = None,
    ) -> ReplayBatch:
        """Reads the items of some keys, without sampling, and stacks them into one batch.

        Changes nothing: no item counts as sampled or leaves the table by it, and a closed rate
        limiter does not delay it. Keys that are not in the table, for example because their items
        were evicted, are left out; `info.key` of the batch has those that are there.

        Blocks until the server answers. A few thousand keys are read at a time, so items may be of
        different moments. A group of servers must be complete, because no other shard knows
        whether the items of a missing shard are gone. With several servers behind the address, one
        of them is asked.

        Example:
          >>> keys = client.sample_batch("table", 1).info.key
          >>> print(client.fetch("table", keys).data[0].shape)
          (1, 1, 4)

        Args:
          table: Name of the table.
          keys: Keys of items, integers `[N]`; as in `update_priorities`.
          columns: As in `sample_batch`.
          ragged: As in `sample_batch`.
          pad: As in `sample_batch`.
          pad_to_multiple_of: As in `sample_batch`.
          squeeze: As in `sample_batch`.
          unpack_as_table_signature: As in `sample_batch`.
          max_batch_bytes: As in `sample_batch`.

        Returns:
          A `ReplayBatch` as from `sample_batch`, with a row for each key that is there, in the
          order of `keys`; a key that is there twice has two rows. In its `info`, `times_sampled` is
          the count so far, and `probability`, `min_probability` and `epoch` are 0. If no key is
          there, its arrays have no rows: the columns are those of the signature, `[0, T, ...]`,
          with 0 for sizes that the signature leaves open; without a signature `data` is an empty
          list.

        Raises:
          InvalidArgumentError: If the items' dtypes or shapes differ, or if there is no such
            column.
          DataLossError: If an item is damaged.
          ResourceExhaustedError: If the batch would take more than `max_batch_bytes`, or more
            memory than there is.
          TableNotFoundError: If there is no such table.
          TypeError: If `keys` are not integers.
          UnavailableError: If no server answers.
          UnimplementedError: If the server is a dm-reverb server, or of an earlier release.
        """
        keys = fetched_keys(keys)
        request = BatchRequest(
            table,
            max(len(keys), 1),
            None,
            False,
            ragged,
            pad,
            pad_to_multiple_of,
            columns,
            False,
            squeeze,
            None,
            max_batch_bytes,
        )
        if request.needs_choice:
            request.choose(self._choice(table, columns))
        answer = self._client.fetch(request, keys)
        if answer.num_items:
            batch = request.flat_batch(answer)
        else:
            batch = request.empty_batch(answer, self._choice(table, columns))
        return self._finished(request, batch, unpack_as_table_signature)

    def delete_items(self, table: str, keys: object = None, *, where: Where | None = None) -> int:
        """Deletes items by their keys, by a condition, or by both.

        Keys that are not in the table are ignored. With a condition alone, the items that are in
        the table when the call begins are checked.

        Blocks until the items are deleted. Some thousand are checked and deleted at a time, and
        other calls run in between, so it is no single change: an error may leave a part of them
        deleted. If a connection breaks, the call is repeated, and items that were deleted before
        are not in its number. A group of servers must be complete; otherwise nothing is deleted.
        With several servers behind the address, the call reaches one of them.

        If items may be sampled `max_times_sampled` times, the rate limiter counts samples as taken
        that only the deleted items allowed. So a queue has room for as many others.

        Example:
          >>> client.delete_items("table", where=reverb.Where(priority=(None, 0.1)))
          0

        Args:
          table: Name of the table.
          keys: Keys of items, integers `[N]`; as in `update_priorities`. `None`: any.
          where: Only the items that fulfil this condition. `None`: any.

        Returns:
          Number of deleted items.

        Raises:
          InvalidArgumentError: If there are neither keys nor a bound; `reset` removes all items.
          TableNotFoundError: If there is no such table.
          TypeError: If `keys` are not integers, or `where` is not a `reverb.Where`.
          UnavailableError: If no server answers.
          UnimplementedError: If the server is a dm-reverb server, or of an earlier release; for
            keys there is `mutate_priorities`.
        """
        num_deleted = 0
        for request in deletions_of(table, keys, where):
            answer = answer_of("DeleteItems", self._client.call("DeleteItems", request))
            num_deleted += answer.num_deleted
        return num_deleted

    def mutate_priorities(
        self,
        table: str,
        updates: Mapping[int, float] | None = None,
        deletes: Sequence[int] | None = None,
    ) -> None:
        """Deletes items, then updates priorities of others.

        Keys of items that are not in the table, for example because they were evicted, are ignored.
        With several servers behind the address, the call reaches one of them, which may not be the
        server that holds the item.

        Args:
          table: Name of the table.
          updates: New priorities by key.
          deletes: Keys of items to delete.

        Raises:
          InvalidArgumentError: If the table rejects a priority.
          TableNotFoundError: If there is no such table.
          TypeError: If a key is not a uint64, or a priority is not a number.
          UnavailableError: If no server answers.
        """
        check_table(table)
        self._client.mutate_priorities(table, updates, deletes)

    def update_priorities(self, table: str, keys: object, priorities: object) -> None:
        """Updates priorities from arrays; otherwise as `mutate_priorities`, and faster.

        If a key occurs several times, its last priority counts. Keys that are not in the table, for
        example because their items were evicted, are ignored.

        Args:
          table: Name of the table.
          keys: Integers `[B]`, such as `sample.info.key`, of any integer dtype. Negative int64 are
            taken as the uint64 of the same bits, for libraries without uint64. Arrays of NumPy, or
            of anything that speaks DLPack, such as tensors of PyTorch on the CPU.
          priorities: New priorities `[B]` of any float or integer dtype, also of tensors, or one
            number for all.

        Raises:
          InvalidArgumentError: If there is not one priority for each key, if the table rejects a
            priority, or if a tensor is not in CPU memory; then nothing is changed.
          TableNotFoundError: If there is no such table.
          TypeError: If `keys` are not integers.
          UnavailableError: If no server answers.
        """
        self._client.update_priorities(*updates_of(table, keys, priorities))

    def insert_item(
        self,
        table: str,
        data: Mapping[str, object],
        rollouts: Sequence[object] | None = None,
        *,
        name: str | None = None,
        after: str | None = None,
        priority: float = 1.0,
        version: int | tuple[int, int] | None = None,
        timeout_ms: int | None = None,
    ) -> bool:
        """Inserts an item into a table with rollouts: a prompt, with rollouts or without.

        Blocks until the server has confirmed it, so also while the backlog is full. If
        Ctrl-C or an error ends the call, it may be inserted all the same; its name tells.

        Example:
          >>> client.insert_item("rollouts", {"prompt": np.int32([1, 2])}, name="17")
          True

        Args:
          table: Name of the table, which has `rollouts`.
          data: Columns that an item has once, by name: all of them.
          rollouts: Rollouts that it has from the beginning, numbered from 0: each a dict of
            columns, or a list of dicts, one for each sequence. With all of them the item is ready
            at once.
          name: Its name, of 1 to 256 bytes. `None`: a random one.
          after: Name of the item that has to be the newest one before it; `""`: none. A feeder that
            passes it loses and repeats no prompt, whatever restarts.
          priority: Its priority, or `reverb.MAX_PRIORITY`.
          version: Version of the policy that made the rollouts, or the oldest and the newest one.
            `None`: that of the table.
          timeout_ms: How long it may wait for the backlog, in milliseconds; `None`: any time.

        Returns:
          `False` if an item of that name is there; nothing has changed then.

        Raises:
          DeadlineExceededError: After `timeout_ms`. It may have been inserted just before.
          FailedPreconditionError: If the newest item is another one than `after`, or if the table
            has no rollouts.
          InvalidArgumentError: If a column is missing, or is one of sequences.
          SignatureMismatchError: If a column does not match the signature.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
          UnimplementedError: If the server does not know rollouts.
        """
        check_rollout(None, version)
        limit_ms = check_timeout_ms(timeout_ms)
        columns = self._rollout_columns(table)
        changes = opening(columns, data, rollouts, name, after, priority, version, limit_ms)
        return was_inserted(self._change_items(changes), table, after)

    @contextlib.contextmanager
    def open_item(self, table: str, *, timeout_ms: int | None = None) -> Iterator[OpenItem]:
        """Takes the oldest item that lacks rollouts and is free, for a `with` block.

        Blocks until there is one. At the end of the block it is free again for others, with the
        rollouts that it has, unless it lacks none.

        Args:
          table: Name of the table, which has `rollouts`.
          timeout_ms: How long to wait for an item, in milliseconds; `None`: any time.

        Yields:
          The `OpenItem`.

        Raises:
          FailedPreconditionError: If the table has no rollouts.
          DeadlineExceededError: After `timeout_ms`.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
          UnimplementedError: If the server does not know rollouts.
        """
        limit_ms = check_timeout_ms(timeout_ms)
        columns = self._rollout_columns(table)
        request = take_request(columns, "open", 1, None, False, limit_ms)
        tries = 0
        while True:
            tries += 1
            taken = Taken(columns, self._client.new_lease())
            with taken.kept(self._client):
                taken.read(self._client.take(request, taken.lease[1]))
                item = self._read_open(taken, tries)
            if item is not None:
                break
        settle = settle_fields(table, taken.lease, None, False)
        try:
            yield item
            with contextlib.suppress(ReverbError):
                self._client.call(*request_of("Settle", **settle))
        except BaseException:
            taken.give_up(self._client)
            raise

    def add_rollout(
        self,
        item: OpenItem,
        sequences: object,
        *,
        rollout: int | None = None,
        version: int | tuple[int, int] | None = None,
        partial: bool = False,
    ) -> bool:
        """Adds a rollout to an open item.

        Blocks until the server has confirmed it, which waits for nothing.

        Args:
          item: The item, from `open_item`.
          sequences: A dict of columns `[T, ...]`, or of single steps; or a list of dicts, one for
            each sequence. Columns may be left out and come later, by `extend`.
          rollout: Its number. `None`: the first one that is missing.
          version: Version of the policy that made it, or the oldest and the newest one. `None`:
            that of the table when the item was taken.
          partial: Whether it is only stored, for another generator if this one is lost, and
            replaced by the next one of this number.

        Returns:
          `False` if the item is no longer this client's: it became stale, was held for too long, or
          was trained on. Stop generating then. A final rollout that is there stays, and counts as
          added.

        Raises:
          InvalidArgumentError: If there is no such column or rollout, or if sequences differ in
            their columns.
          SignatureMismatchError: If a column does not match the signature.
          UnavailableError: If no server answers.
        """
        check_rollout(rollout, version)
        check_type("item", item, OpenItem, "open_item")
        with item._making(rollout, partial) as number:
            return not self._change_items(item._growth(sequences, number, version, partial))

    def fail_rollout(self, item: OpenItem, rollout: int, reason: str) -> bool:
        """Says that a rollout of an open item will not be made.

        With enough other ones (`min_rollouts`) the item is trained without it, else it leaves.

        Args:
          item: The item, from `open_item`.
          rollout: Its number.
          reason: Text for people, which the server logs.

        Returns:
          `False` if the item is no longer this client's.

        Raises:
          InvalidArgumentError: If there is no such rollout.
          UnavailableError: If no server answers.
        """
        check_integer("rollout", rollout)
        check_type("item", item, OpenItem, "open_item")
        with item._making(rollout, False) as number:
            failed = request_of("FailRollout", **item._failure(number, reason))
            return answer_of("FailRollout", self._client.call(*failed)).is_accepted

    def take(
        self,
        table: str,
        num_items: int,
        *,
        lacks: str | None = None,
        columns: str | Sequence[str] | None = None,
        with_data: bool = True,
        ack: bool = False,
        partial: bool = False,
        timeout_ms: int | None = None,
    ) -> RolloutBatch:
        """Takes items out of a table with rollouts; this client holds them from then on.

        Blocks until all of them are there; with `on_stale="wait"` also while it would leave older
        ones that are not ready, and too many to be taken in time. Nobody else gets them until
        `ack`, after which they are trained, or `release`, or until this client is lost, after which
        they are as before. An ack may come hours later: ack when the checkpoint of your model is on
        disk, and a trainer that died before gets the same items again.

        Args:
          table: Name of the table, which has `rollouts`.
          num_items: Number of items, at least 1, chosen by the sampler of the table; with
            `on_stale="wait"` those with the oldest tokens.
          lacks: Takes items that are not ready, because their sequences lack this column, oldest
            first: for a stage that adds it by `extend`. `None`: ready items.
          columns: Names of the columns to fetch, or one; `None`: all that the items have.
          with_data: `False`: only takes; `fetch_rollouts` gets columns.
          ack: Whether they are acked when their data is here.
          partial: After the timeout, takes what there is, at least one item. It waits the whole
            timeout for the others, also at the end of a run, when no more come.
          timeout_ms: How long to wait, in milliseconds; `None`: any time.

        Returns:
          The `RolloutBatch`.

        Raises:
          FailedPreconditionError: If the table has no rollouts.
          InvalidArgumentError: If the backlog never has so many items, if there is no such column,
            or for `ack` with `lacks`.
          DeadlineExceededError: After `timeout_ms`.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
          UnimplementedError: If the server does not know rollouts.
        """
        limit_ms = check_timeout_ms(timeout_ms)
        num_items = check_at_least(1, "num_items", num_items)
        if ack and lacks is not None:
            raise InvalidArgumentError(
                f"ack=True trains items, and those that lack column {lacks} are not ready; add it "
                "by extend"
            )
        known = self._rollout_columns(table)
        request = take_request(known, "ready", num_items, lacks, partial, limit_ms)
        known.chosen(columns)
        for tries_left in reversed(range(MOST_TAKES)):
            taken = Taken(known, self._client.new_lease())
            try:
                with taken.kept(self._client):
                    taken.read(self._client.take(request, taken.lease[1]))
                    batch = batch_of(taken)
                    if with_data:
                        batch = self.fetch_rollouts(batch, columns)
                    if ack:
                        self.ack(batch)
                    return batch
            except DataLossError:
                # They became stale, or the server another one, after they were taken.
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    def fetch_rollouts(
        self, batch: RolloutBatch, columns: str | Sequence[str] | None = None
    ) -> RolloutBatch:
        """Returns a batch with the columns of its items, which this or another client holds.

        Args:
          batch: The batch, for example without data, or a `select` of it from another process.
          columns: Names of the columns to fetch, or one; `None`: all that the items have.

        Raises:
          DataLossError: If an item has left the table.
          InvalidArgumentError: If there is no such column.
          UnavailableError: If no server answers.
        """
        check_type("batch", batch, RolloutBatch, "take")
        fetched = []
        for part in batch._requests(columns):
            try:
                rows = self._fetch_rows(batch.table, part.keys, part.indices)
            except InvalidArgumentError:
                # Their columns differ, and were the same when they were taken.
                raise changed(batch) from None
            fetched.append((part, rows))
        return with_data(batch, fetched)

    def extend(
        self, batch: RolloutBatch, columns: Mapping[str, object], *, overwrite: bool = False
    ) -> np.ndarray:
        """Adds late columns to the sequences of items that this client has taken by `lacks`.

        Blocks until the server has confirmed them. Items that lack no column are ready then.

        Args:
          batch: The items, from `take(lacks=...)`.
          columns: By name a `Ragged` or a sequence over all `R` sequences of the batch, in their
            order.
          overwrite: Whether columns that are there already are replaced.

        Returns:
          bool `[N]`: `False` for an item that is no longer this client's, for example because it
            became stale and its rollouts are made once more. Nothing of it has changed; take again.

        Raises:
          InvalidArgumentError: If there is no such column, or another number of rows.
          SignatureMismatchError: If a column does not match the signature.
          UnavailableError: If no server answers.
        """
        check_type("batch", batch, RolloutBatch, "take")
        refused = self._change_items(batch._extension(columns, overwrite))
        return batch._accepted(refused)

    def ack(self, batch: RolloutBatch, keys: object = None) -> np.ndarray:
        """Says that items are trained: they count as sampled, and leave if that was the last time.

        Blocks until the server answers. An ack that comes twice does no harm. It holds also for an
        item that is not ready any more, because the server has gone back to a checkpoint.

        Args:
          batch: Items from `take`.
          keys: Keys of some of them, integers `[n]`; `None`: all.

        Returns:
          uint64 `[M]`: keys that another client holds now, because this one was lost in between.

        Raises:
          InvalidArgumentError: If the items were taken by `lacks`: they are not trained.
          UnavailableError: If no server answers.
        """
        check_type("batch", batch, RolloutBatch, "take")
        check_ready(batch)
        # By their keys, because the lease may have ended: then they are trained all the same.
        chosen = batch._chosen(batch.info.key if keys is None else keys)
        settle = settle_fields(batch.table, batch.lease, chosen, True)
        return held_by_others(self._client.call(*request_of("Settle", **settle)))

    def release(self, batch: RolloutBatch, keys: object = None) -> None:
        """Gives items back: they are where they were, for whoever takes next.

        Args:
          batch: Items from `take`.
          keys: Keys of some of them, integers `[n]`; `None`: all.

        Raises:
          UnavailableError: If no server answers.
        """
        check_type("batch", batch, RolloutBatch, "take")
        settle = settle_fields(batch.table, batch.lease, batch._chosen(keys), False)
        self._client.call(*request_of("Settle", **settle))

    def set_version(self, table: str, version: int, *, rewind: bool = False) -> int:
        """Sets the version of the policy of a table with rollouts.

        Staleness counts from it, and it frees the backlog. Call it when generators can have the
        weights of that version, not when the step counter moves.

        Args:
          table: Name of the table.
          version: The version. One that is not larger than the present one is ignored.
          rewind: Whether a smaller one counts, too: for a trainer that resumes.

        Returns:
          The version now.

        Raises:
          FailedPreconditionError: If the table has no rollouts.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
          UnimplementedError: If the server does not know rollouts.
        """
        fields = {
            "version": check_int64("version", version),
            "rewind": check_bool("rewind", rewind),
        }
        answer = self._client.call(*request_of("SetVersion", table=table, **fields))
        return answer_of("SetVersion", answer).version

    def _rollout_columns(self, table: str) -> Columns:
        """Returns the columns of a table with rollouts; asks the server the first time."""
        known = self._rollout_tables.get(table)
        if known is None:
            known = self._rollout_tables[table] = Columns(table, self.server_info())
        return known

    def _read_open(self, taken: Taken, tries: int) -> OpenItem | None:
        """Returns the open item that was taken; `None` if it became stale or left in between."""
        item = None
        try:
            taken.check_open()
            key = np.array([taken.items[0].key], np.uint64)
            item = taken.open_item(self._fetch_rows(taken.columns.table, key, None))
        except DataLossError:
            if tries >= MOST_TAKES:
                raise
        finally:
            if item is None:
                taken.give_up(self._client)
        return item

    def _fetch_rows(self, table: str, keys: np.ndarray, indices: list[int] | None) -> ReplayBatch:
        """Returns the items of these keys, packed, as a flat batch."""
        request = fetch_request(table, len(keys), indices)
        return all_of(table, keys, request.flat_batch(self._client.fetch(request, keys)))

    def trajectory_writer(
        self,
        num_keep_alive_refs: int,
        *,
        validate_items: bool = True,
        match_names: bool = False,
        get_signature_timeout_ms: int | None = None,
        max_pending_bytes: int | str | None = None,
        compression: Compression | None = None,
    ) -> TrajectoryWriter:
        """Makes a writer whose items are arbitrary slices of its history.

        Blocks until the server has sent its tables' signatures, which are cached. Does not block if
        `validate_items` is False.

        Args:
          num_keep_alive_refs: Number of newest values of each column that new items may use.
          validate_items: Compares items with their table's signature before they are sent.
          match_names: Puts the columns of an item into the order of the signature by their names;
            unknown names are an error. `False`: columns are matched by position, as in dm-reverb,
            and names that differ are logged once for each table.
          get_signature_timeout_ms: Ignored; accepted for programs written for early versions of
            dm-reverb. The client's `connect_timeout_s` bounds the wait.
          max_pending_bytes: Limit of unconfirmed data, in bytes or a size such as "1GiB". At the
            limit, calls that create an item wait for confirmations, which a rate limiter may delay;
            a wait of more than 10 s is logged with its reason. A program that inserts and samples
            in one thread may then block itself. `None`: no limit; a writer that is faster than its
            server is slowed down, but does not wait for a rate limiter.
          compression: Compression of the chunks: `"auto"`, `"none"`, or `None` for that of the
            client; see `Client`.

        Raises:
          InvalidArgumentError: If a number is below 1, or if `compression` is another value.
          UnavailableError: If no server answers.
        """
        del get_signature_timeout_ms
        refs = check_at_least(1, "num_keep_alive_refs", num_keep_alive_refs, allows_bool=True)
        pending = parse_byte_size("max_pending_bytes", max_pending_bytes)
        packs = compresses(compression, self._compression)

        def make() -> TrajectoryWriter:
            options = (bool(validate_items), bool(match_names), packs)
            writer = self._client.trajectory_writer(refs, *options)
            return self._wrapped(TrajectoryWriter, with_pending_limit(writer, pending))

        return self._opened(make)

    def batched_trajectory_writer(
        self,
        batch_size: int,
        num_keep_alive_refs: int,
        *,
        validate_items: bool = True,
        max_pending_bytes: int | str | None = None,
        compression: Compression | None = None,
    ) -> BatchedTrajectoryWriter:
        """Makes one writer for `batch_size` environments that are stepped together.

        With 8 environments or more, the items of four steps are sent together, after about 3 ms,
        and at once if `flush` waits for them.

        Args:
          batch_size: Number of environments, `B`.
          num_keep_alive_refs: Number of newest values of each column and environment that new
            items may use. 1 is fastest: a step of all environments is then stored as one block.
          validate_items: As in `trajectory_writer`.
          max_pending_bytes: As in `trajectory_writer`.
          compression: As in `trajectory_writer`.

        Raises:
          InvalidArgumentError: If a number is below 1, or if `compression` is another value.
          UnavailableError: If no server answers.
        """
        batch_size = check_at_least(1, "batch_size", batch_size)
        refs = check_at_least(1, "num_keep_alive_refs", num_keep_alive_refs)
        pending = parse_byte_size("max_pending_bytes", max_pending_bytes)
        packs = compresses(compression, self._compression)

        def make() -> BatchedTrajectoryWriter:
            options = (batch_size, refs, bool(validate_items), packs)
            writer = self._client.batched_trajectory_writer(*options)
            writer = with_pending_limit(writer, pending)
            return self._wrapped(BatchedTrajectoryWriter, writer, batch_size)

        return self._opened(make)

    def sequence_writer(
        self,
        tables: str | Sequence[str],
        sequence_length: int | None,
        batch_size: int | None = None,
        *,
        stride_length: int = 1,
        max_sequence_length: int | None = None,
        drop_long_episodes: bool = False,
        max_pending_bytes: int | str | None = None,
        compression: Compression | None = None,
    ) -> SequenceWriter:
        """Makes a writer that turns every sequence of steps, or every episode, into an item.

        Blocks until the server has sent its tables' signatures, which are cached.

        Args:
          tables: Names of the tables; every item is inserted into each of them.
          sequence_length: Number of steps of an item, `L`; `None`: an item is a whole episode.
          batch_size: Number of environments that are stepped together, `B`; `None`: one
            environment, whose steps have no batch dimension.
          stride_length: Number of steps between the starts of two items: an episode makes items at
            its steps `L`, `L + stride_length`, `L + 2 * stride_length`, ...
          max_sequence_length: Number of steps of the longest episode. Required if items are
            episodes, and not allowed otherwise.
          drop_long_episodes: Drops and counts longer episodes instead of raising an error.
          max_pending_bytes: As in `trajectory_writer`.
          compression: As in `trajectory_writer`.

        Raises:
          InvalidArgumentError: If an argument is out of its range, or cannot be combined with
            `sequence_length`.
          TableNotFoundError: If the server lacks one of the tables.
          UnavailableError: If no server answers.
        """
        options = sequence_options(
            tables,
            sequence_length,
            batch_size,
            stride_length,
            max_sequence_length,
            drop_long_episodes,
        )
        pending = parse_byte_size("max_pending_bytes", max_pending_bytes)
        packs = compresses(compression, self._compression)

        def make() -> SequenceWriter:
            writer = self._client.sequence_writer(options, packs)
            writer = with_pending_limit(writer, pending)
            return self._wrapped(SequenceWriter, writer, batch_size)

        return self._opened(make)

    def reset(self, table: str) -> None:
        """Removes all items of a table and sets its counters to zero.

        With several servers behind the address, the call reaches one of them. The first such call
        logs a warning that names the server. Make one client per address to reach all servers.

        Raises:
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
        """
        self._client.call(*request_of("Reset", table=table))

    def server_info(self, timeout: int | None = None) -> dict[str, TableInfo]:
        """Returns settings and counters of all tables of the server.

        Blocks until the server answers. With several servers behind the address, one of them
        answers.

        Args:
          timeout: How long to wait for the answer, in whole seconds; `None`, 0 or less: the
            client's `connect_timeout_s`.

        Returns:
          `TableInfo` by table name.

        Raises:
          DeadlineExceededError: After `timeout`.
          TypeError: If `timeout` is not an integer.
          UnavailableError: If no server answers.
        """
        timeout_s = None
        if timeout is not None:
            timeout_s = check_integer("timeout", timeout, allows_bool=True)
        limit = float(timeout_s) if timeout_s is not None and timeout_s > 0 else None
        answer = self._client.call(*request_of("ServerInfo"), limit)
        return self._signatures.remember(answer)

    def capabilities(self) -> frozenset[str]:
        """Returns the names of the features that the server has beyond dm-reverb.

        Blocks until the server answers. A feature that is missing raises `UnimplementedError` where
        it is needed; this call reports it earlier. The names: `"all_or_nothing"` (batches that are
        not `partial`), `"chosen_items"` (`fetch`, and `scan` with columns or `where`), `"columns"`,
        `"distinct"`, `"epochs"`, `"max_priority"`, `"removal_priority"`, `"selectors"`
        (beyond dm-reverb's), `"windows"`. Newer servers may have more.

        Example:
          >>> "windows" in client.capabilities()
          True

        Returns:
          The names; of a group, those that all its shards have. None of a dm-reverb server.

        Raises:
          UnavailableError: If no server answers.
        """
        answer = self._client.call(*request_of("ServerInfo"))
        return frozenset(answer_of("ServerInfo", answer).capabilities)

    def tables(self) -> list[str]:
        """Returns the names of the tables, in the order of the server.

        Blocks until the server answers. Tables on which the client has no right are left out.

        Example:
          >>> "table" in client.tables()
          True

        Raises:
          UnavailableError: If no server answers.
        """
        return list(self.server_info())

    def size(self, table: str) -> int:
        """Returns the number of items in a table; of a group, the sum over its shards.

        Blocks until the server answers.

        Example:
          >>> client.size("table") == client.server_info()["table"].current_size
          True

        Raises:
          TableNotFoundError: If there is no such table; the text lists the tables there are.
          UnavailableError: If no server answers.
        """
        tables = self.server_info()
        return table_among(tables, table).current_size

    def checkpoint(self) -> str:
        """Makes the server save its tables; returns the path of the checkpoint on the server.

        The checkpoint is a consistent snapshot of all tables, taken after the call. Blocks until it
        is on disk; inserts and samples continue meanwhile. Ctrl-C ends the wait, not the save.
        Fails at once if no server answers. With several servers behind the address, one of them
        saves, as in `reset`.

        Raises:
          InvalidArgumentError: If the server's checkpointer has a group.
          FailedPreconditionError: If the server has no permission to write to its directory.
          ResourceExhaustedError: If the disk is full.
          UnavailableError: If no server answers, or if it stops.
        """
        answer = self._client.call(*request_of("Checkpoint"))
        return answer_of("Checkpoint", answer).checkpoint_path

    def checkpoint_status(self) -> CheckpointStatus:
        """Returns the status of the server's checkpoints, with the progress of a running save.

        With several servers behind the address, one of them answers, as in `reset`.

        Raises:
          UnimplementedError: If the server is a dm-reverb server, which has no such call.
          UnavailableError: If no server answers.
        """
        answer = self._client.call(*request_of("CheckpointStatus"))
        return CheckpointStatus.from_serialized_proto(answer)

    def sync(self, note: bytes = b"", timeout_ms: int | None = None) -> SyncResult:
        """Waits until all that was confirmed before the call is on the server's disk.

        After it a crash of the server loses none of these inserts, updates and deletes; without it
        a crash loses at most the last two seconds of inserts, see `Store`. Blocks for one commit of
        the journal: some milliseconds on a disk that answers, and for as long as one hangs. Callers
        that come together share a commit. Ctrl-C ends the wait, not the commit.

        A connection that is lost meanwhile is an error, and the call is not made again: a server
        that has crashed may have lost what was to be on the disk. With several servers behind the
        address, one of them syncs, as in `reset`; of a group all do.

        Args:
          note: Stored with the commit, for example the step of the trainer; at most 65,536 bytes.
            After a crash `status().store.recovered.note` has the last one that belongs to what the
            tables hold.
          timeout_ms: How long to wait, in milliseconds; `None`: no limit; 0: do not wait. The
            commit, and the note in it, are made all the same.

        Returns:
          The commit and its moment.

        Raises:
          DeadlineExceededError: After `timeout_ms`; the text says how far behind the disk is.
          FailedPreconditionError: If the server has no journal.
          InvalidArgumentError: If the note is too long, or the time is negative.
          TypeError: If `note` is not bytes.
          UnavailableError: If no server answers, or if it stops.
          UnimplementedError: If the server is a dm-reverb server, which has no such call.
        """
        answer = self._client.call(*sync_request(note, timeout_ms))
        return SyncResult._of_answer(answer, note)

    def status(self, *, with_streams: bool = False) -> ServerStatus:
        """Returns everything that the server counts: memory, tables, waits, calls, checkpoints.

        With several servers behind the address, one of them answers, as in `reset`. The server goes
        through all chunks that are held or queued, so do not call this in a tight loop.

        Args:
          with_streams: Whether to include each open stream, with its client and the reason why it
            waits.

        Raises:
          UnimplementedError: If the server is a dm-reverb server, which has no such call.
          UnavailableError: If no server answers.
        """
        return ServerStatus.from_serialized_proto(self._serialized_status(with_streams))

    def diagnose(self, table: str) -> Diagnosis:
        """Returns a table's state, in a word and a sentence: does it work, or why does it wait?

        The first call returns no rates: a server counts them for ten minutes after each query of
        its status.

        Example:
          >>> client.diagnose("table").state
          'flowing'

        Raises:
          TableNotFoundError: If there is no such table.
          UnimplementedError: If the server is a dm-reverb server, which has no such call.
          UnavailableError: If no server answers.
        """
        status = self.status()
        return table_among(status.tables, table).diagnosis

    def configure_table(
        self,
        table: str,
        *,
        max_size: int | None = None,
        max_bytes: int | str | Unchanged | None = UNCHANGED,
        max_times_sampled: int | None = None,
        rate_limiter: RateLimiter | None = None,
        priority_exponent: float | None = None,
        sampler: native.ItemSelector | None = None,
        rollouts: Rollouts | None = None,
    ) -> TableInfo:
        """Changes settings of a table while the server runs: all that are given, or none.

        Waiting requests continue at once if the new settings allow it. Blocks until the table keeps
        its new limits: a smaller table evicts the items that its remover selects, a few hundred at
        a time. After a restart the table has the settings of the program that makes it again.
        With several servers behind the address, one of them changes its table, as in `reset`.

        Example:
          >>> client.configure_table("table", max_size=50).max_size
          50

        Args:
          table: Name of the table.
          max_size: Maximum number of items; `None` leaves it as it is, here and below.
          max_bytes: Maximum number of bytes, or a size such as "4GiB"; `None` takes the limit away,
            `reverb.UNCHANGED` leaves it.
          max_times_sampled: Number of samples after which an item is removed; 0: no limit.
          rate_limiter: A new limiter. It allows as many samples as before; with another
            `samples_per_insert`, as many as its bounds allow.
          priority_exponent: The exponent of a `Prioritized` sampler.
          sampler: A selector of the kind that the sampler has, with other parameters:
            `Prioritized(...)` or `Recent(...)`.
          rollouts: All settings of a table with rollouts, of which `num_rollouts` and `item` must
            be those that it has. Items that are too stale by them become bare prompts before this
            returns; a take of more items than the backlog has now fails.

        Returns:
          The table with its new settings.

        Raises:
          InvalidArgumentError: If a value is out of its range, if the sampler has no exponent or is
            of another kind, if the table could never be sampled again, if the priority of an item
            does not fit the new exponent, if a waiting insert does not fit the new settings, or if
            the table has no rollouts, another number of them or other columns of items.
          TableNotFoundError: If there is no such table.
          UnimplementedError: If the server is a dm-reverb server, which has no such call.
          UnavailableError: If no server answers.
        """
        change = TableChange(
            max_size=max_size,
            max_bytes=max_bytes,
            max_times_sampled=max_times_sampled,
            rate_limiter=rate_limiter,
            priority_exponent=priority_exponent,
            sampler=sampler,
            rollouts=rollouts,
        )
        answer = self._client.call("ConfigureTables", to_request({table: change}))
        return TableInfo.of_changed(answer)

    def configure_tables(
        self, changes: Mapping[str, TableChange], *, dry_run: bool = False
    ) -> list[ChangedSetting]:
        """Changes settings of several tables: all that are given, or none after an error.

        Like `configure_table` otherwise.

        Args:
          changes: The change of each table, by its name.
          dry_run: Whether to return the changes without making them.

        Returns:
          The settings that have another value now.
        """
        request = to_request(changes, dry_run=dry_run)
        if not changes:
            # The server refuses a request without a table. This fails as other calls do, too.
            self.server_info()
            return []
        return ChangedSetting.all_of(self._client.call("ConfigureTables", request))

    def pause_table(self, table: str, *, inserts: bool = True, samples: bool = True) -> None:
        """Pauses inserts and samples of a table until `resume_table`.

        Timeout errors of paused calls say which client paused the table, and when. Updates, deletes
        and `reset` continue. The pause outlives this client, but not the server. Writers continue
        until their items fill the queue of the table, or until `max_pending_bytes`.

        Args:
          table: Name of the table.
          inserts: Whether to pause inserts; `False` leaves them as they are.
          samples: Whether to pause samples; `False` leaves them as they are.

        Raises:
          InvalidArgumentError: If both are `False`.
          TableNotFoundError: If there is no such table.
          UnimplementedError: If the server is a dm-reverb server, which has no such call.
          UnavailableError: If no server answers.
        """
        sides = {"inserts": bool(inserts), "samples": bool(samples)}
        self._client.call(*request_of("SetPaused", table=table, paused=True, **sides))

    def resume_table(self, table: str, *, inserts: bool = True, samples: bool = True) -> None:
        """Resumes inserts and samples of a table that this or another client has paused.

        Args:
          table: Name of the table.
          inserts: Whether to resume inserts; `False` leaves them as they are.
          samples: Whether to resume samples; `False` leaves them as they are.

        Raises:
          InvalidArgumentError: If both are `False`.
          TableNotFoundError: If there is no such table.
          UnimplementedError: If the server is a dm-reverb server, which has no such call.
          UnavailableError: If no server answers.
        """
        sides = {"inserts": bool(inserts), "samples": bool(samples)}
        self._client.call(*request_of("SetPaused", table=table, paused=False, **sides))

    @contextlib.contextmanager
    def rate_limiter_off(self, table: str, *, count: bool = False) -> Iterator[None]:
        """Turns the rate limiter off for inserts, for a `with` block.

        Use it to fill a table. Samples wait for the limiter as always. It is turned on again at the
        end of the block, and if this client or its connection is lost. Flush writers within the
        block: later inserts wait. The inserts of other clients pass too, and are counted in the
        same way.

        Example:
          >>> with client.rate_limiter_off("table"):
          ...     client.insert([1.0], {"table": 1.0})

        Args:
          table: Name of the table.
          count: Whether these inserts count for the ratio. `False`: the ratio continues as if they
            had not happened; in the table's information, each of them adds `samples_per_insert`
            samples (rounded), because the format of checkpoints requires it. `True`: they allow
            samples, and later inserts wait until the learners have caught up.

        Raises:
          FailedPreconditionError: If the limiter is off already; the text names the client.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers; at the end of the block, if the limiter was turned
            on earlier because the connection was lost.
          UnimplementedError: If the server is a dm-reverb server, which has no such call.
        """
        check_table(table)
        hold = self._client.hold_rate_limiter(table, bool(count))
        try:
            yield
        except BaseException:
            # The program should see the error of the block.
            with contextlib.suppress(ReverbError):
                self._release(hold)
            raise
        self._release(hold)

    def directory(self) -> Any:
        """The map of the group: its shards, and the slots of keys that each of them owns.

        Blocks until a server has answered. For an address `shards:///...` it is the map of the
        group, even if its servers have none; for other addresses it is the map of that server.

        Returns:
          The message `ShardMap` of `shards.proto`; `None` if the server is no shard of a group.

        Raises:
          UnimplementedError: If the server is one of dm-reverb.
          UnavailableError: If no server answers.
        """
        answer = answer_of("Directory", self._client.call(*request_of("Directory")))
        return answer.map if answer.HasField("map") else None

    def shard_info(self) -> list[ShardInfo]:
        """Returns the state of each shard of the group, in the order of their indices.

        Asks all shards. One that does not answer within 5 s is `"down"`.

        Raises:
          InvalidArgumentError: If the address is not that of a group (`shards:///...`).
          UnavailableError: If no shard ever answered.
        """
        return [from_row(row) for row in self._client.shard_info()]

    @property
    def updates_missed(self) -> int:
        """Number of updates and deletes of this client whose key no shard of the group had.

        The items have left their tables, or their shard is down.

        Raises:
          InvalidArgumentError: If the address is not that of a group (`shards:///...`).
        """
        return self._client.updates_missed()

    def drain(self, timeout_ms: int | None = 30_000) -> int:
        """Prepares the server to be stopped: it ends all streams and accepts no new ones.

        Its probes report that it is not ready. Confirmed items are in the tables, sampled ones are
        sent, and clients retry everything else: at the next server of their address, or at this one
        after its restart. Other calls, such as `checkpoint`, still work. Only `stop` ends the
        drain.

        Args:
          timeout_ms: How long to wait for the end of the streams, in milliseconds; `None`: no
            limit; 0: do not wait.

        Returns:
          The number of streams over the network that were still open after that time; 0: none.

        Raises:
          InvalidArgumentError: If the time is negative.
          UnimplementedError: If the server is a dm-reverb server, which has no such call.
          UnavailableError: If no server answers.
        """
        limit = check_timeout_ms(timeout_ms)
        limit_s = math.inf if limit is None else limit / 1_000
        answer = self._client.call(*request_of("Drain", timeout_s=limit_s))
        return answer_of("Drain", answer).open_streams

    def _serialized_status(self, with_streams: bool) -> bytes:
        return self._client.call(*request_of("Status", with_streams=bool(with_streams)))

    # --- end of generated code ---

    def _open(
        self,
        server_address: str,
        *,
        connect_timeout_s: float,
        keepalive_s: float | None,
        keepalive_timeout_s: float,
        token: Any,
        token_file: Any,
        tls: ClientTls | None,
        pickle_token: bool,
        compression: Compression,
    ) -> None:
        """Stores the arguments of the constructor, and makes the native client."""
        if not isinstance(server_address, str):
            text = f"server_address must be a str, got {type_name(server_address)}"
            raise TypeError(f"{text}; Server.address is the address of a server")
        check_number("connect_timeout_s", connect_timeout_s)
        if keepalive_s is not None:
            check_number("keepalive_s", keepalive_s)
        check_number("keepalive_timeout_s", keepalive_timeout_s)
        packs = compresses(compression)
        self._compression: Compression = compression
        # This object hides the text of the token from pickles of subclasses, too.
        self._credentials = ClientCredentials(token, token_file, tls)
        self._server_address = server_address
        self._options = {
            "connect_timeout_s": connect_timeout_s,
            "keepalive_s": keepalive_s,
            "keepalive_timeout_s": keepalive_timeout_s,
            "token_file": token_file,
            "tls": tls,
            "pickle_token": bool(pickle_token),
            "compression": compression,
        }
        self._client = native.Client(
            server_address,
            connect_timeout_s,
            keepalive_s,
            keepalive_timeout_s,
            self._credentials,
            packs,
            self._is_for_operators,
        )
        self._flattener = native.NestFlattener(flatten_with_labels)
        self._signatures = Signatures(server_address)
        self._rollout_tables: dict[str, Columns] = {}

    # Methods that wait, and whose twins in `aio.Client` have the same name and other code.

    def _insert(self, step: tuple[Any, ...]) -> None:
        self._client.insert(*step)

    def _insert_rows(self, steps: tuple[Any, ...]) -> np.ndarray:
        return self._client.insert_batch(*steps)

    def _change_items(self, changes: Changes) -> list[bytes]:
        return self._client.change_items(changes)

    def _items(self, start: Callable[[], native.Sampler | None]) -> Iterator[Any]:
        """Yields the items of a sampler, which is made when the first item is taken."""
        yield from start() or ()

    def _opened(self, make: Callable[[], _Writer]) -> _Writer:
        """Opens a writer at once."""
        return make()

    def _wrapped(self, writer: Callable[..., _Writer], *arguments: object) -> _Writer:
        """Makes a writer of a native one."""
        return writer(*arguments)

    def _release(self, hold: native.RateLimiterHold) -> None:
        hold.release()

    def writer(
        self,
        max_sequence_length: int,
        delta_encoded: bool = False,
        chunk_length: int | None = None,
        max_in_flight_items: int | None = 25,
        *,
        max_pending_bytes: int | str | None = None,
        compression: Compression | None = None,
    ) -> Writer:
        """Makes a legacy writer, whose items are the last few steps.

        Blocks until the server has sent its tables' signatures, which are cached.

        Args:
          max_sequence_length: Length of the longest item, in steps.
          delta_encoded: Stores integers as differences between neighbours, which compresses better
            if steps are similar.
          chunk_length: Number of steps per chunk; `None`: `min(10, max_sequence_length)`.
          max_in_flight_items: Limit of unconfirmed items. At the limit, further items wait; `None`:
            no limit.
          max_pending_bytes: As in `trajectory_writer`.
          compression: As in `trajectory_writer`. The differences of `delta_encoded` are not
            compressed either.

        Raises:
          InvalidArgumentError: If a number is out of its range, or if `compression` is another
            value.
          UnavailableError: If no server answers.
        """
        max_pending_bytes = parse_byte_size("max_pending_bytes", max_pending_bytes)
        packs = compresses(compression, self._compression)
        max_sequence_length = check_at_least(
            1, "max_sequence_length", max_sequence_length, allows_bool=True
        )
        if chunk_length is None:
            chunk_length = min(_DEFAULT_CHUNK_LENGTH, max_sequence_length)
        chunk_length = check_integer("chunk_length", chunk_length, allows_bool=True)
        if not 1 <= chunk_length <= max_sequence_length:
            raise InvalidArgumentError(
                f"chunk_length must be from 1 to max_sequence_length = {max_sequence_length}, got "
                f"{chunk_length}"
            )
        if max_in_flight_items is None:
            max_in_flight_items = _UNLIMITED_IN_FLIGHT_ITEMS
        max_in_flight_items = check_at_least(
            1, "max_in_flight_items", max_in_flight_items, allows_bool=True
        )
        writer = self._client.writer(
            max_sequence_length, chunk_length, bool(delta_encoded), max_in_flight_items, packs
        )
        return Writer(with_pending_limit(writer, max_pending_bytes))

    def structured_writer(
        self,
        configs: Sequence[Config],
        *,
        max_pending_bytes: int | str | None = None,
        compression: Compression | None = None,
    ) -> StructuredWriter:
        """Makes a writer that creates items wherever a pattern applies.

        Does not contact the server; the first `append` does.

        Args:
          configs: Patterns and conditions; see `reverb.structured.create_config`.
          max_pending_bytes: As in `trajectory_writer`.
          compression: As in `trajectory_writer`.

        Raises:
          InvalidArgumentError: If there is no config, or if a config is invalid; the text names it
            and the reason. If `max_pending_bytes` is out of its range, or if `compression` is
            another value.
        """
        max_pending_bytes = parse_byte_size("max_pending_bytes", max_pending_bytes)
        packs = compresses(compression, self._compression)
        if not isinstance(configs, Iterable):
            raise TypeError(f"configs must be a list of configs, got {type_name(configs)}")
        configs = list(configs)
        if not configs:
            raise InvalidArgumentError("At least one config must be provided.")
        for config in configs:
            if not hasattr(config, "SerializeToString"):
                # The class is that of dm-reverb's error.
                raise AttributeError(
                    "configs must be results of reverb.structured.create_config, got "
                    f"{type_name(config)}, which has no SerializeToString"
                )
        serialized = [config.SerializeToString() for config in configs]
        writer = self._client.structured_writer(serialized, packs)
        return StructuredWriter(with_pending_limit(writer, max_pending_bytes))

    def batches(
        self, table: str | Mapping[str, float], batch_size: int | None, **options: Any
    ) -> BatchIterator:
        """Samples batches without end, and fetches some batches ahead; see `reverb.batches`.

        Example:
          >>> with client.batches("table", 2) as batches:
          ...     print(next(batches).data[0].shape)
          (2, 1, 4)

        Args:
          table: Name of a table, or weights by name to mix several tables.
          batch_size: Number of items in a batch, `B`; `None`: elements are single items.
          **options: Other arguments of `reverb.batches`.

        Returns:
          An iterator; it begins to fetch at once, and continues after `close` of the client.

        Raises:
          InvalidArgumentError: If an argument is out of its range. Errors of the server are raised
            by `next`.
        """
        from reverb._batches.batches import batches

        return batches(self, table, batch_size, **options)

    def close(self) -> None:
        """Ends all calls that wait, and the connections that nothing else uses.

        Threads that wait in a call of this client get a `FailedPreconditionError` within 50 ms, all
        later calls at once. Its writers and iterators continue until they are closed.
        Copies of the client are clients of their own. May be called more than once.
        """
        self._client.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _lasting(self) -> "Client":
        """Returns this client for an object that may be used after `close`.

        Raises:
          FailedPreconditionError: If this client is closed.
        """
        lasting = object.__new__(type(self))
        lasting.__dict__.update(self.__dict__, _client=self._client.lasting())
        return lasting

    def _batches_ahead(self, request: BatchRequest, num_ahead: int) -> native.BatchesAhead:
        """Makes the core sample whole batches ahead, as a request describes them."""
        return native.BatchesAhead(self._client, request, num_ahead)

    def _is_local(self) -> bool:
        """Whether the server is in this process now."""
        return self._client.is_local()

    def _give_up_on_silence(self, limit_s: float) -> None:
        """Ends small calls that a connected server does not answer for `limit_s` seconds.

        A server that was frozen does not make such a change when it resumes.
        """
        self._client.give_up_on_silence(float(limit_s))

    def __reduce__(self) -> tuple[Any, ...]:
        return self._maker(with_token=self._options["pickle_token"]), (self._server_address,)

    def __copy__(self) -> "Client":
        """Makes another client of the same server, with the same token."""
        return self._maker(with_token=True)(self._server_address)

    def __deepcopy__(self, memo: object) -> "Client":
        """Does the same as `__copy__`, because a client shares nothing with its copies."""
        del memo
        return self._maker(with_token=True)(self._server_address)

    def _maker(self, *, with_token: bool) -> Callable[[str], "Client"]:
        """Returns a function that makes a client with the options of this one."""
        options = {name: it for name, it in self._options.items() if it != _DEFAULTS.get(name)}
        if with_token and self._credentials.token is not None:
            options["token"] = self._credentials.token
        return functools.partial(type(self), **options) if options else type(self)

    @shown
    def __repr__(self) -> str:
        # Missing if the constructor failed.
        address = self.__dict__.get("_server_address", "none yet")
        return f"Client, server_address={address}"

    @shown
    def __str__(self) -> str:
        return f"Client of {self.__dict__.get('_server_address', 'no server')}"
