# SPDX-License-Identifier: Apache-2.0
"""The status of a server: its memory, streams, calls, checkpoints and tables."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from reverb._checks.answers import read_message, reads_answer
from reverb._status.histogram import Histogram
from reverb._status.rollouts_status import HeldItems, OpenItem, RolloutsStatus
from reverb._status.table_status import (
    STATES,
    Diagnosis,
    LimiterStatus,
    Rates,
    RemovedItems,
    SetBy,
    SideStatus,
    TableStatus,
)
from reverb.core import protos

__all__ = [
    "STATES",
    "CheckpointStatus",
    "Diagnosis",
    "HeldItems",
    "Histogram",
    "LimiterStatus",
    "MemoryForecast",
    "MemoryStatus",
    "OpenItem",
    "ProcessStatus",
    "Rates",
    "RemovedItems",
    "RolloutsStatus",
    "SecurityStatus",
    "ServerStatus",
    "SetBy",
    "ShardStatus",
    "SideStatus",
    "StoreNote",
    "StoreRecovery",
    "StoreStatus",
    "StreamStatus",
    "SyncResult",
    "TableStatus",
    "TrafficStatus",
]

_NS_PER_S = 1e9


@dataclasses.dataclass(frozen=True)
class MemoryStatus:
    """Use of a server's memory, in bytes.

    A chunk counts once, with everything that it keeps in memory, and belongs to the first of the
    uses below that refers to it. The memory of the process (its RSS) is larger: it includes freed
    memory that the allocator keeps, Python and connections.

    Attributes:
      total: All chunks that the server has received and that still exist, all items, incomplete
        messages, and answers prepared for readers: the sum of the uses below.
      limit: `max_bytes` of the server; `None` if it has none.
      tables: Items of tables and the chunks that they refer to.
      queued: Items that wait to be inserted.
      streams: Chunks held by insert streams for later items, and incomplete messages.
      other: Chunks still held by samplers, checkpoints, and writers in the server's process (until
        the writer is deleted).
      readers: Data prepared for readers over the network and not sent yet: encoded messages, and
        lists of items. At most an eighth of `limit` (256 MiB without one) and 16 MiB for a
        connection, except for larger single items. It does not count against `limit`: tables evict
        no items for it. 0 from servers of earlier releases.
    """

    total: int
    limit: int | None
    tables: int
    queued: int
    streams: int
    other: int
    readers: int = 0

    @classmethod
    def _from_proto(cls, proto: Any) -> "MemoryStatus":
        return read_message(cls, proto, limit=proto.limit or None)


@dataclasses.dataclass(frozen=True)
class MemoryForecast:
    """What the tables of a server need when all are full, and the limit that they reach first.

    Attributes:
      needed_bytes: Bytes of all tables with `max_size` items each, or `max_bytes` of the table, in
        memory and in a store. A table of which nothing is known counts as it is.
      first_limit: The smallest limit: "max_bytes" of the server, "cgroup" (of the control groups of
        its process) or "machine" (the memory of the machine); `None` if none is known.
      first_limit_bytes: That limit; `None` if none is known.
      sentence: The same for people, with what happens at the limit.
    """

    needed_bytes: int
    first_limit: str | None
    first_limit_bytes: int | None
    sentence: str


def _time(ns: int) -> float | None:
    """A time in seconds since 1970; `None` for 0, which is no time."""
    return ns / _NS_PER_S if ns else None


@dataclasses.dataclass(frozen=True)
class StoreNote:
    """A note that a client has stored by `Client.sync`.

    Attributes:
      at: When the server got it, in seconds since 1970.
      client: Name of the client; see `StreamStatus.client`.
      note: The note.
    """

    at: float
    client: str
    note: bytes

    @classmethod
    def _from_proto(cls, proto: Any) -> "StoreNote":
        return read_message(cls, proto, at=proto.at_ns / _NS_PER_S)


@dataclasses.dataclass(frozen=True)
class StoreRecovery:
    """What a journal gave back at the start of its server.

    Attributes:
      at: The moment to which all tables belonged, in seconds since 1970.
      commit: Number of the commit of that moment.
      items: Number of items in the tables.
      note: The last note that was stored until then; `b""` if there was none.
      notes: The last 16 notes, oldest first.
      took_s: Duration of the recovery, in seconds.
      dropped_bytes: Bytes of a commit that the crash interrupted.
    """

    at: float
    commit: int
    items: int
    note: bytes
    notes: tuple[StoreNote, ...]
    took_s: float
    dropped_bytes: int

    @classmethod
    def _from_proto(cls, proto: Any) -> "StoreRecovery":
        notes = tuple(StoreNote._from_proto(note) for note in proto.notes)
        return read_message(
            cls,
            proto,
            at=proto.at_ns / _NS_PER_S,
            note=notes[-1].note if notes else b"",
            notes=notes,
            took_s=proto.took_seconds,
        )


@dataclasses.dataclass(frozen=True)
class StoreStatus:
    """The directory on disk of a server with `Store`, since the start of the server.

    Attributes:
      path: The directory. `None` for a client whose token has rights on some tables only.
      state: "ok"; "full": at `max_bytes`, so that tables evict items or let inserts wait;
        "failing": writes fail, payloads stay in memory, and the server tries again; "behind":
        inserts wait, because the journal is too far behind. Later releases may have more.
      error: Why writes fail; `None` while they succeed.
      failing_since: When they began to fail, in seconds since 1970; `None` while they succeed.
      live_bytes: Bytes in its files that chunks refer to.
      dead_bytes: Bytes in its files that no chunk refers to. They are freed with their files.
      max_bytes: Limit of the sum of these two.
      resident_bytes: Payloads that are in memory and may leave it. Part of `MemoryStatus`.
      files: Number of its files.
      written_bytes: Bytes that were written, without `moved_bytes`.
      moved_bytes: Bytes that were written again, to free files that held much garbage.
      waiting_bytes: Payloads that are to be written.
      write_bytes_per_second: How fast the disk takes them.
      reads: Number of reads. One may read several chunks that lie beside each other.
      read_bytes: Bytes read.
      read_seconds: Time that all reads took together, in several threads.
      read_errors: Reads that failed, or found other bytes than were written. Their items are lost.
      write_errors: Writes that failed.
      is_journal: Whether it is a journal. Without one everything below is 0 or `None`.
      lag_s: Age of the oldest change that is not on the disk, in seconds.
      commit: Number of the last commit on the disk.
      synced_at: When it was made, in seconds since 1970.
      log_bytes: Bytes in its files of what happened since the last base.
      base_bytes: Bytes in its files of bases, each of which has all items at one moment.
      written_log_bytes: Bytes that were written to logs.
      written_base_bytes: Bytes that were written to bases.
      syncs: Number of syncs of a file.
      sync_s: Time that all of them took together, in seconds.
      last_base_at: The moment of the newest base of this server, in seconds since 1970; `None`
        before the first.
      recovered: What the journal gave back at the start; `None` if it was new.
    """

    path: str | None
    state: str
    error: str | None
    failing_since: float | None
    live_bytes: int
    dead_bytes: int
    max_bytes: int
    resident_bytes: int
    files: int
    written_bytes: int
    moved_bytes: int
    waiting_bytes: int
    write_bytes_per_second: float
    reads: int
    read_bytes: int
    read_seconds: float
    read_errors: int
    write_errors: int
    is_journal: bool
    lag_s: float
    commit: int
    synced_at: float | None
    log_bytes: int
    base_bytes: int
    written_log_bytes: int
    written_base_bytes: int
    syncs: int
    sync_s: float
    last_base_at: float | None
    recovered: StoreRecovery | None

    @classmethod
    def _from_proto(cls, proto: Any) -> "StoreStatus":
        has_recovered = proto.HasField("recovered")
        return read_message(
            cls,
            proto,
            path=proto.path or None,
            error=proto.error or None,
            failing_since=_time(proto.failing_since_ns),
            lag_s=proto.lag_seconds,
            synced_at=_time(proto.synced_at_ns),
            sync_s=proto.sync_seconds,
            last_base_at=_time(proto.last_base_at_ns),
            recovered=StoreRecovery._from_proto(proto.recovered) if has_recovered else None,
        )


@dataclasses.dataclass(frozen=True)
class TrafficStatus:
    """Connections, streams and calls of a server.

    Attributes:
      connections: Number of open connections.
      streams: Number of open streams by kind, "insert", "sample" and "scan"; those of clients in
        the process of the server count too.
      received_bytes: Bytes received over all connections, including those of HTTP/2 itself.
      sent_bytes: Bytes sent over all connections, including those of HTTP/2 itself.
      calls: Number of calls over the network that have ended, by method and status, for example
        `calls["ServerInfo", "OK"]`.
      refused: Number of peers and calls that were refused, by the name of the limit (`Limits`, or
        "max_bytes" of the server).
      auth_failures: Number of calls and pages that were refused because of the caller's
        credentials, by the reason: "missing" (no token), "unknown" (a wrong token or certificate),
        "expired", "cleartext" (a token that came over a network without TLS) and "denied" (no
        right). All are 0 at a server without tokens; empty at servers of older releases.
      requests: Number of requests over the network that were answered or have failed, by method and
        status, for example `requests["SampleStream", "OK"]`. Those of a stream count one by one. A
        request that ends with its own timeout is answered; one that the client cancels is not
        counted. Empty at servers of older releases.
    """

    connections: int
    streams: Mapping[str, int]
    received_bytes: int
    sent_bytes: int
    calls: Mapping[tuple[str, str], int]
    refused: Mapping[str, int]
    auth_failures: Mapping[str, int]
    requests: Mapping[tuple[str, str], int] = dataclasses.field(default_factory=dict)

    @classmethod
    def _from_proto(cls, proto: Any) -> "TrafficStatus":
        return read_message(
            cls,
            proto,
            streams={
                "insert": proto.insert_streams,
                "sample": proto.sample_streams,
                "scan": proto.scan_streams,
            },
            calls={(call.method, call.code): call.count for call in proto.calls},
            requests={(it.method, it.code): it.count for it in proto.requests},
            refused={refused.limit: refused.count for refused in proto.refused},
            auth_failures={failed.reason: failed.count for failed in proto.auth_failures},
        )


@dataclasses.dataclass(frozen=True)
class SecurityStatus:
    """The certificate and the tokens of a server.

    Attributes:
      certificate_expires_at: When the certificate in use expires, in seconds since 1970; `None`
        without TLS, and at servers of older releases.
      reload_failures: Number of changed files that could not be used, by "tls" and "tokens", if the
        server has them. The earlier content stays in force then. One problem counts once, however
        often the server checks the file; the log names it.
    """

    certificate_expires_at: float | None
    reload_failures: Mapping[str, int]

    @classmethod
    def _from_proto(cls, proto: Any) -> "SecurityStatus":
        has_certificate = proto.HasField("certificate_expires_at_s")
        return cls(
            certificate_expires_at=(
                float(proto.certificate_expires_at_s) if has_certificate else None
            ),
            reload_failures={failed.file: failed.count for failed in proto.reload_failures},
        )


@dataclasses.dataclass(frozen=True)
class StreamStatus:
    """An open stream of a server.

    Attributes:
      kind: "insert", "sample" or "scan".
      peer: Address of the client, or "this process" for one in the process of the server.
      client: Name of the client: `REVERB_CLIENT_NAME` in its environment, else
        `host:process:program`; for a dm-reverb client its gRPC library; empty for a client in the
        process of the server.
      table: The table that the stream waits for, else the one of its last request; `None` before
        the first request.
      items: Number of items inserted or sampled so far.
      open_s: How long it has been open, in seconds.
      waits_for: "table": the table does not allow the request yet; "memory": the server's memory is
        full; "peer": the client does not read prepared data; `None`: the stream does not wait.
      wait_s: How long it has waited, in seconds.
    """

    kind: str
    peer: str
    client: str
    table: str | None
    items: int
    open_s: float
    waits_for: str | None
    wait_s: float

    @classmethod
    def _from_proto(cls, proto: Any) -> "StreamStatus":
        return read_message(
            cls, proto, table=proto.table or None, waits_for=proto.waits_for or None
        )


@dataclasses.dataclass(frozen=True)
class ProcessStatus:
    """The process of a server, as Linux reports it. On other systems everything is 0.

    Attributes:
      started_at: When it started, in seconds since 1970.
      cpu_s: CPU time of all its threads, in seconds.
      resident_bytes: Its memory (RSS).
      open_fds: Number of open file descriptors.
      max_fds: How many it may open.
    """

    started_at: float
    cpu_s: float
    resident_bytes: int
    open_fds: int
    max_fds: int

    @classmethod
    def _from_proto(cls, proto: Any) -> "ProcessStatus":
        return read_message(cls, proto, started_at=proto.started_at_ns / _NS_PER_S)


@dataclasses.dataclass(frozen=True)
class CheckpointStatus:
    """Status of a server's checkpoints.

    Example:
      >>> path = client.checkpoint()
      >>> status = client.checkpoint_status()
      >>> print(status.num_saved, status.latest_path == path, status.latest_error)
      1 True None

    Attributes:
      is_saving: Whether the server is saving.
      items_written: Number of items written by the current save, or by the last one.
      items_total: Number of items in the snapshot of all tables; 0 while it is not known.
      bytes_written: Number of bytes written to files.
      latest_path: Path on the server of the last complete checkpoint; `None` if there is none.
      latest_saved_at: Time of the snapshot in that checkpoint, in seconds since 1970.
      latest_duration_s: Duration of its save, in seconds.
      latest_pause_ms: How long all tables were locked for it, in milliseconds.
      latest_bytes: Size of the last complete checkpoint on disk.
      latest_error: Error of the last save; `None` if it succeeded.
      num_saved: Number of checkpoints that were completed since the server started.
      num_failed: Number of saves that failed since the server started.
      restored_from: The checkpoint that the server loaded; `None` if it started with empty tables.
      interval_s: How often the server saves by itself, in seconds; `None`: never.
      restored_saved_at: Time of the snapshot in `restored_from`, in seconds since 1970; `None` if
        there is none, or if dm-reverb or an earlier release wrote it.
    """

    is_saving: bool
    items_written: int
    items_total: int
    bytes_written: int
    latest_path: str | None
    latest_saved_at: float | None
    latest_duration_s: float
    latest_pause_ms: float
    latest_bytes: int
    latest_error: str | None
    num_saved: int
    num_failed: int
    restored_from: str | None
    interval_s: float | None
    restored_saved_at: float | None = None

    @classmethod
    @reads_answer
    def from_serialized_proto(cls, proto_string: bytes) -> "CheckpointStatus":
        """Parses a serialized `reverb.CheckpointStatusResponse` message."""
        return cls._from_proto(protos.CheckpointStatusResponse.FromString(proto_string))

    @classmethod
    def _from_proto(cls, proto: Any) -> "CheckpointStatus":
        return read_message(
            cls,
            proto,
            latest_path=proto.latest_path or None,
            latest_saved_at=proto.latest_saved_at_ns / _NS_PER_S if proto.latest_path else None,
            latest_error=proto.latest_error or None,
            restored_from=proto.restored_from or None,
            interval_s=proto.interval_s or None,
            restored_saved_at=_time(proto.restored_saved_at_ns),
        )


@dataclasses.dataclass(frozen=True)
class SyncResult:
    """The commit by which `Client.sync` brought everything to the disk.

    Attributes:
      commit: Number of the commit; 0 of a group, whose shards count their own.
      at: Its moment, in seconds since 1970: everything that was confirmed until then is on the
        disk. Of a group the earliest.
      note: The note that was stored with it.
      shards: The results of the shards of a group, in the order of their indices.
    """

    commit: int
    at: float
    note: bytes
    shards: "tuple[SyncResult, ...]" = ()

    @classmethod
    @reads_answer
    def _of_answer(cls, answer: bytes, note: bytes) -> "SyncResult":
        return cls._from_proto(protos.SyncResponse.FromString(answer), note)

    @classmethod
    def _from_proto(cls, proto: Any, note: bytes) -> "SyncResult":
        shards = tuple(cls._from_proto(shard, note) for shard in proto.shards)
        return read_message(cls, proto, at=proto.at_ns / _NS_PER_S, note=note, shards=shards)


@dataclasses.dataclass(frozen=True)
class ServerStatus:
    """Status of a server at one moment.

    Example:
      >>> status = client.status()
      >>> status.memory.total >= status.memory.tables
      True
      >>> table = status.tables["replay"]
      >>> print(table.items == table.inserts - table.removed.total, table.sampling.waiting)
      True 0
      >>> table.max_bytes is None
      True

    Attributes:
      memory: Use of its memory.
      tables: Status of each table, by name.
      traffic: Connections, streams and calls.
      checkpoints: Its checkpoints.
      process: Its process.
      version: Version of its package.
      started_at: When the server started, in seconds since 1970.
      now: Time of this status by the clock of the server, in seconds since 1970.
      streams: Its open streams, oldest first, with `with_streams=True`; otherwise empty.
      draining: The client that asked the server to drain, and when; `None` if it does not drain.
      security: Its certificate and its tokens.
      shards: Each shard of a group, if the address is that of one; the rest is their sum.
      store: Its directory on disk; `None` without one.
      forecast: What its tables need when they are full; `None` while nothing is known of any. Of a
        group, that of the shard that is nearest to its limit.
    """

    memory: MemoryStatus
    tables: Mapping[str, TableStatus]
    traffic: TrafficStatus
    checkpoints: CheckpointStatus
    process: ProcessStatus
    version: str
    started_at: float
    now: float
    streams: tuple[StreamStatus, ...]
    draining: SetBy | None
    security: SecurityStatus
    shards: "tuple[ShardStatus, ...]" = ()
    store: StoreStatus | None = None
    forecast: MemoryForecast | None = None

    @classmethod
    @reads_answer
    def from_serialized_proto(cls, proto_string: bytes) -> "ServerStatus":
        """Parses a serialized `reverb.StatusResponse` message."""
        return cls._from_proto(protos.StatusResponse.FromString(proto_string))

    @classmethod
    def _from_proto(cls, proto: Any) -> "ServerStatus":
        return cls(
            memory=MemoryStatus._from_proto(proto.memory),
            tables={table.name: TableStatus._from_proto(table) for table in proto.tables},
            traffic=TrafficStatus._from_proto(proto.traffic),
            checkpoints=CheckpointStatus._from_proto(proto.checkpoints),
            process=ProcessStatus._from_proto(proto.process),
            version=proto.version,
            started_at=proto.started_at_ns / _NS_PER_S,
            now=proto.now_ns / _NS_PER_S,
            streams=tuple(StreamStatus._from_proto(stream) for stream in proto.streams),
            draining=SetBy._of(proto, "draining"),
            security=SecurityStatus._from_proto(proto.security),
            shards=tuple(ShardStatus._from_proto(shard) for shard in proto.shards),
            store=StoreStatus._from_proto(proto.store) if proto.HasField("store") else None,
            forecast=read_message(
                MemoryForecast,
                proto.forecast,
                first_limit=proto.forecast.first_limit or None,
                first_limit_bytes=proto.forecast.first_limit_bytes or None,
            )
            if proto.HasField("forecast")
            else None,
        )


@dataclasses.dataclass(frozen=True)
class ShardStatus:
    """Status of a shard of a group.

    Attributes:
      index: Number of the shard in the group, from 0 on.
      address: Address of the shard.
      state: "up", "down" or "draining". Later releases may have more.
      error: Why it is down; else empty.
      status: The status of this server; `None` if it is down.
      is_coordinator: Whether it runs the coordinator of the group.
    """

    index: int
    address: str
    state: str
    error: str
    status: ServerStatus | None
    is_coordinator: bool = False

    @classmethod
    def _from_proto(cls, proto: Any) -> "ShardStatus":
        status = ServerStatus._from_proto(proto.status) if proto.HasField("status") else None
        return read_message(cls, proto, status=status)
