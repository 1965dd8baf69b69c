# SPDX-License-Identifier: Apache-2.0
"""The client of asyncio programs: the twin of `reverb.Client` whose calls are awaited."""

import contextlib
import copy
import functools
import operator
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from reverb import client as blocking
from reverb._checks.arguments import check_at_least_one
from reverb._checks.byte_sizes import parse_byte_size
from reverb._client.batch_request import (
    BatchRequest,
    is_plain,
    keep_flat_samples,
    nested_batch,
    plain_arguments,
    plain_batch,
)
from reverb._client.small_calls import answer_of, request_of
from reverb._server.shard_info import ShardInfo, from_row
from reverb._server.table_change import (
    UNCHANGED,
    ChangedSetting,
    TableChange,
    Unchanged,
    to_request,
)
from reverb._server.tls import ClientTls
from reverb._writers.legacy import with_pending_limit
from reverb.aio.event_loops import EventLoops
from reverb.aio.sample_iterator import SampleIterator
from reverb.aio.trajectory_writer import OpeningWriter, TrajectoryWriter
from reverb.core import native
from reverb.errors import ReverbError, SignatureMismatchError
from reverb.rate_limiters import RateLimiter
from reverb.replay_sample import (
    ReplayBatch,
    ReplaySample,
    SampleInfo,
    keep_samples,
    rows_of_batch,
)
from reverb.reverb_types import TableInfo
from reverb.server_status import CheckpointStatus, Diagnosis, ServerStatus
from reverb.shown_text import hidden, hidden_token, shown

__all__ = ["Client"]

_Core = native.AsyncClient


class Client:
    """A connection to one server, or to several behind one address, for asyncio programs.

    The twin of `reverb.Client`: same addresses, arguments, results and errors, and calls that are
    awaited. A call that waits is a future on the core's threads and costs no thread, so thousands
    of coroutines may wait for a rate limiter at once. What is ready at once, as with a server of
    the same process, is returned without going through the event loop; the loop still gets its
    turn every few dozens of calls.

    Cancelling a task (`task.cancel()`, `asyncio.wait_for`, `asyncio.timeout`) ends its call: when
    the task has ended, nothing waits for it at the server or in a queue of this process. What the
    server had sampled by then counts as sampled. What of it had arrived is the `samples` of the
    `CancelledError` that passes through the task, a list of `ReplaySample` as in `ReverbError`;
    what was on its way is lost, as after any lost connection.

    Values are encoded and arrays are made in the thread of the event loop, and so is a batch
    decoded that is ready at once: a call with hundreds of megabytes holds the loop up for that
    long.

    Belongs to no event loop: it may be used from several loops, in several threads, one after
    another or at the same time. In each it has a pair of sockets, which are closed by `close`, at
    the end of `async with` or of `asyncio.run`, or when the client is deleted. Runs in uvloop, too.
    Pickles as `reverb.Client` does.

    Example:
      >>> import asyncio
      >>> async def main(address):
      ...     async with reverb.aio.Client(address) as client:
      ...         await client.insert([np.zeros(4), 1.0], priorities={"table": 1.0})
      ...         batch = await client.sample_batch("table", 1)
      ...         return batch.data[0].shape
      >>> asyncio.run(main(client.server_address))
      (1, 1, 4)
    """

    def __init__(
        self,
        server_address: str,
        *,
        connect_timeout_s: float = blocking.DEFAULT_CONNECT_TIMEOUT_S,
        keepalive_s: float | None = blocking.DEFAULT_KEEPALIVE_S,
        keepalive_timeout_s: float = blocking.DEFAULT_KEEPALIVE_TIMEOUT_S,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        tls: ClientTls | None = None,
        pickle_token: bool = False,
    ) -> None:
        """Makes a client; does not connect yet, and needs no running event loop.

        Args:
          server_address: As in `reverb.Client`, here and below.
          connect_timeout_s: How long to wait for the first answer of the server, in seconds.
          keepalive_s: Interval of pings to the server while a call is open, in seconds, from 0.1
            to 86400; `None`: no pings.
          keepalive_timeout_s: A server that sends nothing for this long after a ping counts as
            lost, in seconds, from 0.1 to 86400.
          token: The token that the server wants, if it does.
          token_file: Path of a file that holds a token; read again when it has changed.
          tls: How to check the server, for addresses with `grpcs://`.
          pickle_token: Whether pickles of this client contain `token`.

        Raises:
          InvalidArgumentError: As `reverb.Client`.
        """
        # Tracebacks may show what local variables are.
        token, token_file = hidden_token(token), hidden(token_file)
        server_address = hidden(server_address)
        self._use(
            blocking.Client(
                server_address,
                connect_timeout_s=connect_timeout_s,
                keepalive_s=keepalive_s,
                keepalive_timeout_s=keepalive_timeout_s,
                token=token,
                token_file=token_file,
                tls=tls,
                pickle_token=pickle_token,
            )
        )

    def _use(self, client: blocking.Client) -> None:
        # Holds the connection, the credentials and the signatures; none of its calls is made.
        self._blocking = client
        self._loops = EventLoops(client._client)
        self._call = self._loops.call

    @property
    def server_address(self) -> str:
        """Address of the server, as given to the constructor."""
        return self._blocking.server_address

    async def insert(
        self,
        data: Any,
        priorities: Mapping[str, float],
        *,
        removal_priorities: Mapping[str, float] | None = None,
    ) -> None:
        """Inserts one step, as an item of its own, into one or more tables.

        Waits until the server has confirmed the items. The tables' rate limiters may delay that.
        If it is cancelled, the items may be inserted all the same.

        Args:
          data: Nest of arrays. A leaf of shape `[...]` is sampled as a column `[1, ...]`. Must not
            change before the call has returned.
          priorities: The tables to insert into, and the item's priority in each, a number or
            `reverb.MAX_PRIORITY`.
          removal_priorities: As in `reverb.Client.insert`.

        Raises:
          InvalidArgumentError: If `priorities` is empty, or if a table rejects a priority.
          SignatureMismatchError: If the data does not match a table's signature.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
          UnimplementedError: If the server does not know `MAX_PRIORITY` or removal priorities that
            are asked for, as one of dm-reverb. Nothing was inserted.
        """
        step = blocking.step_of(self._blocking._flattener, data, priorities, removal_priorities)
        await self._call(_Core.insert, await self._call(_Core.start_insert), *step)

    async def insert_batch(
        self,
        data: Any,
        priorities: Mapping[str, Any],
        *,
        removal_priorities: Mapping[str, Any] | None = None,
    ) -> dict[str, np.ndarray]:
        """Inserts `B` steps, each as an item of its own, into one or more tables.

        Waits until the server has confirmed all items. If it is cancelled or fails, rows that were
        sent by then may be inserted all the same.

        Args:
          data: Nest of arrays `[B, ...]`; row `i` is the data of item `i`. Columns are matched as
            in `reverb.Client.insert_batch`. Must not change before the call has returned.
          priorities: The tables to insert into, and the priorities `[B]` in each, or one number for
            all rows.
          removal_priorities: As in `insert`: numbers `[B]` for a table, or one for all rows.

        Returns:
          As `reverb.Client.insert_batch`: the keys of the new items for each table, uint64 `[B]`.

        Raises:
          InvalidArgumentError: If leaves or priorities differ in `B`; otherwise as `insert`.
          UnimplementedError: As `insert`.
        """
        steps = blocking.steps_of(self._blocking._flattener, data, priorities, removal_priorities)
        started = await self._call(_Core.start_insert)
        keys = await self._call(_Core.insert_batch, started, *steps)
        return blocking.keys_of(priorities, keys)

    def trajectory_writer(
        self,
        num_keep_alive_refs: int,
        *,
        validate_items: bool = True,
        match_names: bool = False,
        max_pending_bytes: int | str | None = None,
    ) -> OpeningWriter:
        """Makes a writer whose items are arbitrary slices of its history.

        To be awaited, or for a block: `async with client.trajectory_writer(3) as writer`. That
        waits until the server has sent its tables' signatures, which are cached.

        Args:
          num_keep_alive_refs: Number of newest values of each column that new items may use.
          validate_items: Compares items with their table's signature before they are sent.
          match_names: As in `reverb.Client.trajectory_writer`.
          max_pending_bytes: What may be unconfirmed, in bytes or as a size such as "1GiB". At the
            limit, `create_item` waits for confirmations; see `reverb.Client.trajectory_writer`.

        Returns:
          What gives a `reverb.aio.TrajectoryWriter` when it is awaited or entered.

        Raises:
          InvalidArgumentError: If a number is below 1.
          UnavailableError: When it is awaited, if no server answers.
        """
        refs = check_at_least_one("num_keep_alive_refs", num_keep_alive_refs)
        pending = parse_byte_size("max_pending_bytes", max_pending_bytes)

        async def make() -> TrajectoryWriter:
            options = (bool(validate_items), bool(match_names))
            writer = await self._call(_Core.trajectory_writer, refs, *options)
            return TrajectoryWriter(self._loops, with_pending_limit(writer, pending))

        return OpeningWriter(make)

    def sample(
        self,
        table: str,
        num_samples: int = 1,
        *,
        emit_timesteps: bool = True,
        unpack_as_table_signature: bool = False,
        timeout_ms: int | None = None,
    ) -> SampleIterator:
        """Samples items, one at a time: `async for steps in client.sample("table", 10)`.

        Nothing happens before the first item is awaited. Prefetches samples in the background.
        Waits while the table's rate limiter allows no sample. For training loops, `sample_batch` is
        many times faster.

        Args:
          table: Name of the table.
          num_samples: Number of items.
          emit_timesteps: Yields lists of steps. The columns of each item must then have the same
            length.
          unpack_as_table_signature: Nests the data like the table's signature. Otherwise, or if the
            table has no signature, the data is a flat list.
          timeout_ms: How long the rate limiter may delay a sample, in milliseconds; `None`: no
            limit; 0: do not wait.

        Returns:
          An asynchronous iterator of `list[ReplaySample]`, one for each of the `T` steps, with
          leaves `[...]`; or, if `emit_timesteps` is False, of `ReplaySample` with leaves
          `[T, ...]`.

        Raises:
          InvalidArgumentError: When an item is awaited, as all of these: if `num_samples` is below
            1, or if columns of an item differ in length. In the latter case the item is in
            `error.samples` and counts as sampled.
          TableNotFoundError: If there is no such table.
          DeadlineExceededError: After `timeout_ms`.
          UnavailableError: If no server answers.
        """

        async def start() -> native.Sampler | None:
            number = operator.index(num_samples)
            if number == -1:  # As in `reverb.Client.sample`.
                return None
            number = check_at_least_one("num_samples", number)
            return self._blocking._client.sampler(
                table,
                number,
                bool(emit_timesteps),
                timeout_ms,
                SampleInfo,
                ReplaySample,
                await self._unflatten(table) if unpack_as_table_signature else None,
            )

        return SampleIterator(self._loops, start)

    async def sample_batch(
        self,
        table: str,
        batch_size: int,
        *,
        out: Any = None,
        partial: bool = True,
        ragged: str = "error",
        pad: Any = 0,
        pad_to_multiple_of: int | None = None,
        columns: Any = None,
        distinct: bool = False,
        unpack_as_table_signature: bool = False,
        timeout_ms: int | None = None,
        max_batch_bytes: int | str | None = None,
    ) -> ReplayBatch:
        """Samples `B` items and stacks them into one batch.

        Waits until the table's rate limiter has allowed `B` samples. See
        `reverb.Client.sample_batch` for when an item counts as sampled, and for all arguments.

        If the call is cancelled, or if it fails, the `samples` of the exception are the items that
        had arrived and were not returned: those of earlier parts of the batch, or the whole batch
        if it was complete. So a program can put them back into a queue.

        Args:
          table: Name of the table.
          batch_size: Number of items, `B`.
          out: Where to write the batch: a nest of arrays `[B, T, ...]`, or a `ReplaySample` of
            arrays. Nothing may use them before the call has returned; after an error or a
            cancellation their content is undefined.
          partial: Whether a smaller batch is returned if `timeout_ms` passes after some items were
            sampled.
          ragged: What becomes of items of different lengths: `"error"`, `"pad"` or `"packed"`.
          pad: What stands behind shorter items.
          pad_to_multiple_of: Rounds the largest `T` up to a multiple of this.
          columns: The columns to sample; `None`: all.
          distinct: Whether no item may be in the batch twice.
          unpack_as_table_signature: As in `sample`.
          timeout_ms: As in `sample`.
          max_batch_bytes: Bytes that the columns of the batch may take in new memory, padding
            included, a text 24 and its own: a number, a size such as `"2GiB"`, or a share of the
            memory that the process may use, such as `"25%"`. `None`: 50 %, at most 8 GiB.

        Returns:
          A `ReplayBatch`: `info` is a `BatchInfo` of arrays `[B]`, `data` has columns
          `[B, T, ...]`, or `[B, ...]` for a column that is a single step.

        Raises:
          InvalidArgumentError: If `batch_size` is below 1, if the items' dtypes or shapes differ,
            if `out` has another dtype or shape than the batch, or if there is no such column.
          DataLossError: If an item is damaged.
          ResourceExhaustedError: If the batch would take more than `max_batch_bytes`, or more
            memory than there is; the error names the longest item.
          TableNotFoundError: If there is no such table.
          DeadlineExceededError: After `timeout_ms`, if no item was sampled, or if the batch may not
            be partial.
          TypeError: If `out` has something else than arrays.
          UnavailableError: If no server answers.
          UnimplementedError: If the server is a dm-reverb server, or older, and cannot do what
            `distinct` asks.
        """
        request = None
        if is_plain(out, ragged, pad, pad_to_multiple_of, columns, max_batch_bytes):
            arguments = plain_arguments(table, batch_size, timeout_ms, partial, distinct, ragged)
        else:
            request = BatchRequest(
                table,
                batch_size,
                out=out,
                partial=partial,
                ragged=ragged,
                pad=pad,
                pad_to_multiple_of=pad_to_multiple_of,
                columns=columns,
                distinct=distinct,
                timeout_ms=timeout_ms,
                max_batch_bytes=max_batch_bytes,
            )
            if request.needs_choice:
                await self._know_signature(table)
                request.choose(self._blocking._known_choice(table, columns))
            arguments = request.arguments()
        try:
            answer = await self._call(_Core.sample_batch, *arguments)
            batch = plain_batch(answer, ragged) if request is None else request.flat_batch(answer)
        except BaseException as error:
            keep_flat_samples(error)
            raise
        if request is None and not unpack_as_table_signature:
            return batch
        try:
            finished = nested_batch if request is None else request.finished
            if out is not None or not unpack_as_table_signature:
                return finished(batch, None)
            if request is not None and request.nested is not None:
                return finished(batch, request.nested)
            await self._know_signature(table)
            try:
                return finished(batch, self._nested(table))
            except SignatureMismatchError:
                await self.server_info()
                return finished(batch, self._nested(table))
        except BaseException as error:
            keep_samples(error, rows_of_batch(batch))
            raise

    def scan(
        self,
        table: str,
        *,
        unpack_as_table_signature: bool = False,
        with_inserted_at: bool = False,
    ) -> SampleIterator:
        """Reads every item of a table once, oldest first, without sampling.

        For `async for`; otherwise as `reverb.Client.scan`.

        Args:
          table: Name of the table.
          unpack_as_table_signature: As in `sample`.
          with_inserted_at: Yields pairs `(inserted_at, sample)`, with the time of insertion as a
            float in seconds since 1970.

        Returns:
          An asynchronous iterator of `ReplaySample` with leaves `[T, ...]`, or `[...]` for a column
          that is a single step.

        Raises:
          TableNotFoundError: When an item is awaited, as all of these: if there is no such table.
          UnavailableError: If no server answers, or if it stops during the scan.
          UnimplementedError: If the server is a dm-reverb server, which cannot scan.
        """

        async def start() -> native.Sampler:
            return self._blocking._client.scanner(
                table,
                with_inserted_at,
                SampleInfo,
                ReplaySample,
                await self._unflatten(table) if unpack_as_table_signature else None,
            )

        return SampleIterator(self._loops, start)

    async def mutate_priorities(
        self,
        table: str,
        updates: Mapping[int, float] | None = None,
        deletes: Sequence[int] | None = None,
    ) -> None:
        """Deletes items, then updates priorities of others.

        Keys of items that are not in the table are ignored. If it is cancelled, it may have
        happened or not, here and in all calls below that change something.

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
        await self._call(_Core.mutate_priorities, table, updates, deletes)

    async def update_priorities(self, table: str, keys: Any, priorities: Any) -> None:
        """Updates priorities from arrays; otherwise as `mutate_priorities`, and faster.

        Args:
          table: Name of the table.
          keys: Integers `[B]`; see `reverb.Client.update_priorities`.
          priorities: New priorities `[B]` of any float or integer dtype, or one number for all.

        Raises:
          InvalidArgumentError: If there is not one priority for each key, if the table rejects a
            priority, or if a tensor is not in CPU memory; then nothing is changed.
          TableNotFoundError: If there is no such table.
          TypeError: If `keys` are not integers.
          UnavailableError: If no server answers.
        """
        await self._call(_Core.update_priorities, *blocking.updates_of(table, keys, priorities))

    async def reset(self, table: str) -> None:
        """Removes all items of a table and sets its counters to zero.

        With several servers behind the address, the call reaches one of them.

        Raises:
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
        """
        await self._call(_Core.call, *request_of("Reset", table=table))

    async def server_info(self, timeout: int | None = None) -> dict[str, TableInfo]:
        """Returns settings and counters of all tables of the server.

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
        timeout_s = None if timeout is None else operator.index(timeout)
        limit = float(timeout_s) if timeout_s is not None and timeout_s > 0 else None
        answer = await self._call(_Core.call, *request_of("ServerInfo"), limit)
        return self._blocking._remember_tables(answer)

    async def checkpoint(self) -> str:
        """Makes the server save its tables; returns the path of the checkpoint on the server.

        Waits until it is on disk. Cancelling ends the wait, not the save.

        Raises:
          InvalidArgumentError: If the server's checkpointer has a group.
          FailedPreconditionError: If the server has no permission to write to its directory.
          ResourceExhaustedError: If the disk is full.
          UnavailableError: If no server answers, or if it stops.
        """
        answer = await self._call(_Core.call, *request_of("Checkpoint"))
        return answer_of("Checkpoint", answer).checkpoint_path

    async def checkpoint_status(self) -> CheckpointStatus:
        """Returns the status of the server's checkpoints, with the progress of a running save.

        Raises:
          UnimplementedError: If the server is a dm-reverb server, which has no such call.
          UnavailableError: If no server answers.
        """
        answer = await self._call(_Core.call, *request_of("CheckpointStatus"))
        return CheckpointStatus.from_serialized_proto(answer)

    async def status(self, *, with_streams: bool = False) -> ServerStatus:
        """Returns everything that the server counts: memory, tables, who waits, calls, checkpoints.

        Args:
          with_streams: Whether to tell of each open stream, too.

        Raises:
          UnimplementedError: If the server is a dm-reverb server, which has no such call.
          UnavailableError: If no server answers.
        """
        request = request_of("Status", with_streams=bool(with_streams))
        serialized = await self._call(_Core.call, *request)
        return ServerStatus.from_serialized_proto(serialized)

    async def diagnose(self, table: str) -> Diagnosis:
        """Returns what a table does or waits for, in a word and a sentence.

        Raises:
          TableNotFoundError: If there is no such table.
          UnimplementedError: If the server is a dm-reverb server, which has no such call.
          UnavailableError: If no server answers.
        """
        return blocking.diagnosis_of(table, await self.status())

    async def configure_table(
        self,
        table: str,
        *,
        max_size: int | None = None,
        max_bytes: int | str | Unchanged | None = UNCHANGED,
        max_times_sampled: int | None = None,
        rate_limiter: RateLimiter | None = None,
        priority_exponent: float | None = None,
        sampler: native.ItemSelector | None = None,
    ) -> TableInfo:
        """Changes settings of a table while the server runs: all that are given, or none.

        Args:
          table: Name of the table.
          max_size: As in `reverb.Client.configure_table`, here and below.
          max_bytes: Maximum number of bytes, or a size such as "4GiB"; `None` takes the limit away.
          max_times_sampled: Number of samples after which an item is removed; 0: no limit.
          rate_limiter: A new limiter.
          priority_exponent: The exponent of a `Prioritized` sampler.
          sampler: A selector of the kind that the sampler has, with other parameters.

        Returns:
          The table with its new settings.

        Raises:
          InvalidArgumentError: If the settings cannot be.
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
        )
        request = to_request({table: change})
        answer = await self._call(_Core.call, "ConfigureTables", request)
        return TableInfo.of_changed(answer)

    async def configure_tables(
        self, changes: Mapping[str, TableChange], *, dry_run: bool = False
    ) -> list[ChangedSetting]:
        """Changes settings of several tables: all that are given, or none after an error.

        Args:
          changes: The change of each table, by its name.
          dry_run: Whether only to say what would change.

        Returns:
          The settings that have another value now.
        """
        request = to_request(changes, dry_run=dry_run)
        answer = await self._call(_Core.call, "ConfigureTables", request)
        return ChangedSetting.all_of(answer)

    async def pause_table(self, table: str, *, inserts: bool = True, samples: bool = True) -> None:
        """Lets inserts and samples of a table wait until `resume_table`.

        Args:
          table: Name of the table.
          inserts: Whether inserts wait from now on; `False` leaves them as they are.
          samples: Whether samples wait from now on; `False` leaves them as they are.

        Raises:
          InvalidArgumentError: If both are `False`.
          TableNotFoundError: If there is no such table.
          UnimplementedError: If the server is a dm-reverb server, which has no such call.
          UnavailableError: If no server answers.
        """
        sides = {"inserts": bool(inserts), "samples": bool(samples)}
        request = request_of("SetPaused", table=table, paused=True, **sides)
        await self._call(_Core.call, *request)

    async def resume_table(self, table: str, *, inserts: bool = True, samples: bool = True) -> None:
        """Lets inserts and samples of a table go on, whoever has paused them.

        Args:
          table: Name of the table.
          inserts: Whether inserts go on; `False` leaves them as they are.
          samples: Whether samples go on; `False` leaves them as they are.

        Raises:
          InvalidArgumentError: If both are `False`.
          TableNotFoundError: If there is no such table.
          UnimplementedError: If the server is a dm-reverb server, which has no such call.
          UnavailableError: If no server answers.
        """
        sides = {"inserts": bool(inserts), "samples": bool(samples)}
        request = request_of("SetPaused", table=table, paused=False, **sides)
        await self._call(_Core.call, *request)

    @contextlib.asynccontextmanager
    async def rate_limiter_off(self, table: str, *, count: bool = False) -> AsyncIterator[None]:
        """Lets inserts through without the rate limiter, for an `async with` block.

        The limiter is on again at the end of the block, and if this client or its connection is
        lost; see `reverb.Client.rate_limiter_off`.

        Args:
          table: Name of the table.
          count: Whether these inserts allow samples.

        Raises:
          FailedPreconditionError: If the limiter is off already; names the client.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers; at the end of the block, if the limiter was turned
            on earlier because the connection was lost.
          UnimplementedError: If the server is a dm-reverb server, which has no such call.
        """
        hold = await self._call(_Core.hold_rate_limiter, table, bool(count))
        try:
            yield
        except BaseException:
            # The error of the block is the one to see.
            with contextlib.suppress(ReverbError):
                await self._call(_Core.release_rate_limiter, hold)
            raise
        await self._call(_Core.release_rate_limiter, hold)

    async def directory(self) -> Any:
        """The map of the group: its shards, and who owns which slot of keys.

        Returns:
          The message `ShardMap` of `shards.proto`; `None` if the server is no shard of a group.

        Raises:
          UnimplementedError: If the server is one of dm-reverb.
          UnavailableError: If no server answers.
        """
        answer = await self._call(_Core.call, *request_of("Directory"))
        answer = answer_of("Directory", answer)
        return answer.map if answer.HasField("map") else None

    async def shard_info(self) -> list[ShardInfo]:
        """How each shard of the group is, by their indices. Asks all of them.

        A shard that does not answer within 5 s is `"down"`.

        Raises:
          InvalidArgumentError: If the address is not that of a group (`shards:///...`).
          UnavailableError: If no shard ever answered.
        """
        return [from_row(row) for row in await self._call(_Core.shard_info)]

    @property
    def updates_missed(self) -> int:
        """Keys that this client wanted to update or delete, and that no shard of the group had.

        Raises:
          InvalidArgumentError: If the address is not that of a group (`shards:///...`).
        """
        return self._blocking.updates_missed

    async def drain(self, timeout_s: float = 30.0) -> int:
        """Makes the server ready to be stopped: it ends all streams and accepts no new ones.

        Args:
          timeout_s: How long to wait for the end of the streams, in seconds.

        Returns:
          The number of streams over the network that were still open after that time; 0: none.

        Raises:
          InvalidArgumentError: If the time is negative.
          UnimplementedError: If the server is a dm-reverb server, which has no such call.
          UnavailableError: If no server answers.
        """
        request = request_of("Drain", timeout_s=float(timeout_s))
        return answer_of("Drain", await self._call(_Core.call, *request)).open_streams

    async def close(self) -> None:
        """Ends all calls that wait, and closes the sockets that wake event loops.

        Tasks that wait for a call of this client are cancelled, in loops of other threads soon
        after. Later calls raise `FailedPreconditionError`. Writers of this client keep sending what
        was queued, but cannot be awaited any more. May be called more than once.
        """
        await self._loops.close()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _know_signature(self, table: str) -> None:
        """Makes the signatures known, unless that of the table is."""
        if table not in self._blocking._signature_cache:
            await self.server_info()
        self._blocking._known_unflatten(table)  # Raises if there is no such table.

    async def _unflatten(self, table: str) -> Callable[[list[Any]], Any] | None:
        """Returns what nests a flat list like a table's signature; a server may have another."""
        await self.server_info()
        return self._blocking._known_unflatten(table)

    def _nested(self, table: str) -> Callable[[list[Any]], Any]:
        """Returns what nests a flat list like a table's signature, as far as it is known."""
        return self._blocking._known_unflatten(table) or list

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(_of, type(self)), (self._blocking,)

    def __copy__(self) -> "Client":
        """Makes another client of the same server, with the same token."""
        return _of(type(self), copy.copy(self._blocking))

    def __deepcopy__(self, memo: Any) -> "Client":
        """As `__copy__`: a client shares nothing with its copies."""
        return _of(type(self), copy.deepcopy(self._blocking, memo))

    @shown
    def __repr__(self) -> str:
        # An error in the constructor may have left it without.
        client = self.__dict__.get("_blocking")
        return f"aio.Client, server_address={client.server_address if client else 'none yet'}"


def _of(kind: type[Client], client: blocking.Client) -> Client:
    """Makes a client with the address and options of another one."""
    made = kind.__new__(kind)
    made._use(client)
    return made
