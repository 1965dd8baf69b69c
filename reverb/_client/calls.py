# SPDX-License-Identifier: Apache-2.0
"""The calls that query or change a server: their text for both clients.

This file is never imported. `tools/generate_clients.py` (`make clients`) copies these methods into
`reverb.Client` unchanged, and into `reverb.aio.Client` with `await`; its docstring has the rules.
`make check` fails if a client lacks a method of this file.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from reverb._checks.arguments import check_integer, check_table, check_timeout_ms
from reverb._client.small_calls import answer_of, request_of, sync_request, table_among
from reverb._rollouts.settings import Rollouts
from reverb._server.shard_info import ShardInfo, from_row
from reverb._server.table_change import (
    UNCHANGED,
    ChangedSetting,
    TableChange,
    Unchanged,
    to_request,
)
from reverb.core import native
from reverb.errors import ReverbError
from reverb.rate_limiters import RateLimiter
from reverb.reverb_types import TableInfo
from reverb.server_status import CheckpointStatus, Diagnosis, ServerStatus, SyncResult


class Calls:
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
