# SPDX-License-Identifier: Apache-2.0
"""The status of a server: its memory, what happened to its tables, and who waits."""

import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from reverb._checks.answers import reads_answer
from reverb.core import protos

# What a table does or waits for, those that need help first. See `Diagnosis`.
STATES = (
    "shard down",
    "never",
    "stuck",
    "paused",
    "draining",
    "starved",
    "full",
    "slow readers",
    "behind",
    "ahead",
    "filling",
    "flowing",
    "idle",
    "unknown",
)

# By the number of `PriorityTableCheckpoint.WhenFull`.
_WHEN_FULL = ("remove", "wait")

_Status = TypeVar("_Status")

_NS_PER_S = 1e9
_MS_PER_S = 1e3


# Each bound of a histogram is twice the one before, so that more of them are no numbers.
_MAX_BOUNDS = 1023


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Values by their size.

    Example:
      >>> histogram = Histogram(bounds=(1.0, 2.0, 4.0), counts=(2, 0, 1, 1), sum=14.0)
      >>> print(histogram.count, histogram.mean, histogram.quantile(0.5))
      4 3.5 1.0

    Attributes:
      bounds: Upper bounds, each twice the one before.
      counts: `counts[i]` is the number of values up to `bounds[i]` and above the bound before; the
        last one, beyond the bounds, is that of all larger values.
      sum: Sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean of the values; NaN if there are none."""
        return self.sum / self.count if self.count else math.nan

    def quantile(self, q: float) -> float:
        """Returns the smallest bound that at least a share `q` of the values do not exceed.

        Args:
          q: A number from 0 to 1; 0.5 asks for the median.

        Returns:
          One of `bounds`, `inf` beyond them, or NaN if there are no values.

        Raises:
          ValueError: If `q` is not from 0 to 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q must be from 0 to 1, got {q}")
        if not self.count:
            return math.nan
        seen = 0
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            seen += count
            if seen and seen >= q * self.count:
                return bound
        raise AssertionError("the counts add up to their sum")

    @classmethod
    def _from_proto(cls, proto: Any) -> "Histogram":
        missing = proto.num_bounds + 1 - len(proto.counts)
        if (
            not 0 <= proto.num_bounds <= _MAX_BOUNDS
            or missing < 0
            or min(proto.counts, default=0) < 0
        ):
            raise ValueError(
                f"a histogram has {len(proto.counts)} counts, some below 0 perhaps, and "
                f"{proto.num_bounds} bounds, of which there can be {_MAX_BOUNDS}"
            )
        return cls(
            bounds=tuple(proto.first_bound * 2**power for power in range(proto.num_bounds)),
            counts=(*proto.counts, *[0] * missing),
            sum=proto.sum,
        )


@dataclasses.dataclass(frozen=True)
class MemoryStatus:
    """What the memory of a server is used for, in bytes.

    A chunk counts once, with everything that it keeps in memory, and belongs to the first of the
    kinds below that refers to it. The memory of the process (its RSS) is larger: the allocator
    keeps some freed memory, and there are Python and connections.

    Attributes:
      total: All chunks that the server has seen and that still exist, all items, messages that are
        not complete, and what is prepared for readers. The sum of the kinds below.
      limit: `max_bytes` of the server; `None` if it has none.
      tables: Referred to by items of tables.
      queued: Of items that wait to be inserted.
      streams: Held by insert streams for later items, and messages that are not complete.
      other: What samplers, writers in the server's process (until the object is deleted) and
        checkpoints still hold.
      readers: Prepared for readers over the network and not sent: encoded messages, and lists of
        items. At most an eighth of `limit` (256 MiB without one) and 16 MiB for a connection, but
        for single items beyond it. It does not count against `limit`: tables give up no items for
        it. 0 from servers of earlier releases.
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
        return _read(cls, proto, limit=proto.limit or None)


@dataclasses.dataclass(frozen=True)
class LimiterStatus:
    """The settings of a table's rate limiter.

    Samples wait while `TableStatus.cursor - 1 < min_diff`, or while there are fewer than
    `min_size_to_sample` items. Inserts wait while `cursor + samples_per_insert > max_diff`, except
    below `min_size_to_sample`.

    Attributes:
      samples_per_insert: How much an insert raises the cursor.
      min_diff: Lower bound of the cursor; `-inf`: none.
      max_diff: Upper bound of the cursor; `inf`: none.
      min_size_to_sample: Number of items from which on samples are allowed.
    """

    samples_per_insert: float
    min_diff: float
    max_diff: float
    min_size_to_sample: int

    @classmethod
    def _from_proto(cls, proto: Any) -> "LimiterStatus":
        return _read(cls, proto, min_diff=_bound(proto.min_diff), max_diff=_bound(proto.max_diff))


@dataclasses.dataclass(frozen=True)
class SetBy:
    """Who has changed something for a while.

    Attributes:
      client: What the client calls itself; see `StreamStatus.client`.
      at: When it did, in seconds since 1970.
    """

    client: str
    at: float

    @classmethod
    def _of(cls, proto: Any, field: str) -> "SetBy | None":
        """The field of a message; `None` if it is not set."""
        if not proto.HasField(field):
            return None
        set_by = getattr(proto, field)
        return cls(set_by.client, set_by.at_ns / _NS_PER_S)


@dataclasses.dataclass(frozen=True)
class SideStatus:
    """How those who insert into a table wait, or those who sample from it.

    Attributes:
      waiting: Number of items that wait to be inserted, or of requests that wait for samples.
      oldest_wait_s: How long the first of them has waited, in seconds; `None` if none waits.
      blocked_s: In how many seconds at least one waited.
      wait_s: How long each item waited until it was inserted, or each request until its first
        sample, in seconds.
      last_at: When the last item was inserted, or sampled, in seconds since 1970; `None`: never.
      paused: Who has paused this side; `None` if nobody has.
      reason: Why the first of them cannot go on, in sentences; `None` if none waits.
    """

    waiting: int
    oldest_wait_s: float | None
    blocked_s: float
    wait_s: Histogram
    last_at: float | None
    paused: SetBy | None
    reason: str | None

    @classmethod
    def _from_proto(cls, proto: Any) -> "SideStatus":
        waits = proto.HasField("oldest_wait_s")
        return _read(
            cls,
            proto,
            oldest_wait_s=proto.oldest_wait_s if waits else None,
            wait_s=Histogram._from_proto(proto.wait_s),
            last_at=proto.last_ns / _NS_PER_S if proto.last_ns else None,
            paused=SetBy._of(proto, "paused"),
            reason=proto.reason or None,
        )


@dataclasses.dataclass(frozen=True)
class RemovedItems:
    """The items that left a table since the server started, by the reason.

    Attributes:
      full: There were more than `max_size`.
      bytes: The table, or the server, had more than `max_bytes`.
      sampled_out: They were sampled `max_times_sampled` times.
      deleted: A client deleted them.
      reset: A client reset the table.
      shrunk: The table was made smaller.
      unsampled: How many of all these nobody had sampled.
      times_sampled: How often each of the others had been sampled.
    """

    full: int
    bytes: int
    sampled_out: int
    deleted: int
    reset: int
    shrunk: int
    unsampled: int
    times_sampled: Histogram

    @property
    def total(self) -> int:
        """Number of items that left."""
        by_reason = (self.full, self.bytes, self.sampled_out, self.deleted, self.reset, self.shrunk)
        return sum(by_reason)

    @classmethod
    def _from_proto(cls, proto: Any) -> "RemovedItems":
        return _read(cls, proto, times_sampled=Histogram._from_proto(proto.times_sampled))


@dataclasses.dataclass(frozen=True)
class Rates:
    """What a table did in the last seconds.

    Attributes:
      seconds: How many seconds these are, at most 10.
      inserts_per_s: Items inserted a second.
      samples_per_s: Items sampled a second.
      insert_blocked: The share of the time in which an insert waited, from 0 to 1.
      sample_blocked: The share of the time in which a sample waited, from 0 to 1.
    """

    seconds: float
    inserts_per_s: float
    samples_per_s: float
    insert_blocked: float
    sample_blocked: float

    @classmethod
    def _from_proto(cls, proto: Any) -> "Rates":
        return _read(cls, proto)


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What a table does or waits for.

    * `never`: it can never hold the items that sampling needs, because it is too small, or never
      allow as many samples at once as the first request in its queue asks for.
    * `stuck`: inserts and samples wait, and neither can go on.
    * `paused`: somebody has paused inserts or samples.
    * `draining`: the server ends its streams, before it is stopped.
    * `starved`: samples wait, and there was no insert for 10 s.
    * `full`: inserts wait for memory, of the table or of the server.
    * `slow readers`: samples are ready, and their readers have not taken them for a second.
    * `behind`: inserts wait for the ratio; actors are faster than learners.
    * `ahead`: samples wait for the ratio; learners are faster than actors.
    * `filling`: samples wait for the first items, and inserts come.
    * `flowing`: inserts or samples go through.
    * `idle`: nobody has asked for anything for 10 s.
    * `unknown`: the server is of an older release, which does not tell.

    Somebody waits if a wait takes a second, or if waits take half of the last seconds.

    Attributes:
      state: One of the words above.
      sentence: What the table waits for, and what would help, for people.
    """

    state: str
    sentence: str

    @classmethod
    def _from_proto(cls, proto: Any) -> "Diagnosis":
        return cls(proto.state if proto.state in STATES else "unknown", proto.sentence)


@dataclasses.dataclass(frozen=True)
class TableStatus:
    """A table of a running server.

    Counters begin when the server starts, only grow, and survive `reset`, unlike those of
    `TableInfo`.

    Attributes:
      items: Number of items.
      max_items: `max_size` of the table.
      bytes: Of its items and their chunks. A chunk counts once, however many items share it, but in
        each table that has it.
      max_bytes: The limit of the table; `None` if it has none.
      when_full: "remove" or "wait".
      chunks: Number of different chunks.
      episodes: Number of episodes that the items refer to.
      forecast_bytes: What it will take with `max_size` items like these, at most `max_bytes`; with
        few items an upper bound by the signature. `None`: not known yet.
      limiter: Settings of its rate limiter.
      cursor: Inserts times `samples_per_insert` minus samples, as the rate limiter counts them.
      mass: Sum of the weights of all items, `priority ** priority_exponent` of a `Prioritized`
        sampler; `None` with another sampler.
      inserts: Items added. An insert of a key that the table has is a priority update.
      samples: Items sampled.
      priority_updates: Items that got a new priority, perhaps the same again.
      removed: The items that left.
      inserting: The side of those who insert.
      sampling: The side of those who sample.
      sample_age_s: How old each sampled item was, in seconds.
      busy_s: Seconds for each activity: "inserting", "sampling", "running" (updates, deletes,
        resets), "sleeping" (no requests), "waiting_for_sampling" (only inserts wait) and
        "waiting_for_inserts" (samples wait).
      diagnosis: What it does or waits for.
      rate_limiter_off: Who lets inserts through without the rate limiter; `None` if nobody does.
      rates: What it did in the last seconds; `None` if that is not known: a server counts them for
        ten minutes after somebody has asked for its status.
    """

    items: int
    max_items: int
    bytes: int
    max_bytes: int | None
    when_full: str
    chunks: int
    episodes: int
    forecast_bytes: int | None
    limiter: LimiterStatus
    cursor: float
    mass: float | None
    inserts: int
    samples: int
    priority_updates: int
    removed: RemovedItems
    inserting: SideStatus
    sampling: SideStatus
    sample_age_s: Histogram
    busy_s: Mapping[str, float]
    diagnosis: Diagnosis
    rates: Rates | None
    rate_limiter_off: SetBy | None

    @classmethod
    def _from_proto(cls, proto: Any) -> "TableStatus":
        return _read(
            cls,
            proto,
            items=proto.num_items,
            max_bytes=proto.max_bytes or None,
            when_full=_WHEN_FULL[proto.when_full],
            chunks=proto.num_chunks,
            episodes=proto.num_episodes,
            forecast_bytes=proto.forecast_bytes or None,
            limiter=LimiterStatus._from_proto(proto.limiter),
            mass=proto.mass if proto.HasField("mass") else None,
            inserts=proto.num_inserts,
            samples=proto.num_samples,
            priority_updates=proto.num_priority_updates,
            removed=RemovedItems._from_proto(proto.removed),
            inserting=SideStatus._from_proto(proto.inserting),
            sampling=SideStatus._from_proto(proto.sampling),
            sample_age_s=Histogram._from_proto(proto.sample_age_s),
            busy_s={
                field.name.removesuffix("_ms"): getattr(proto.busy, field.name) / _MS_PER_S
                for field in proto.busy.DESCRIPTOR.fields
            },
            diagnosis=Diagnosis._from_proto(proto.diagnosis),
            rates=Rates._from_proto(proto.rates) if proto.HasField("rates") else None,
            rate_limiter_off=SetBy._of(proto, "rate_limiter_off"),
        )


@dataclasses.dataclass(frozen=True)
class TrafficStatus:
    """Connections, streams and calls of a server.

    Attributes:
      connections: Number of open connections.
      streams: Number of open streams by kind, "insert", "sample" and "scan"; those of clients in
        the process of the server count too.
      received_bytes: Bytes that came over all connections, with what HTTP/2 adds.
      sent_bytes: Bytes that went over all connections, with what HTTP/2 adds.
      calls: Number of calls over the network that have ended, by method and status, for example
        `calls["ServerInfo", "OK"]`.
      refused: Number of peers and calls that were refused, by the name of the limit (`Limits`, or
        "max_bytes" of the server).
      auth_failures: Number of calls and pages that were refused because of who asked, by the
        reason: "missing" (no token), "unknown" (a wrong token or certificate), "expired",
        "cleartext" (a token that came over a network without TLS) and "denied" (no right). All are
        0 at a server without tokens; empty at servers of older releases.
    """

    connections: int
    streams: Mapping[str, int]
    received_bytes: int
    sent_bytes: int
    calls: Mapping[tuple[str, str], int]
    refused: Mapping[str, int]
    auth_failures: Mapping[str, int]

    @classmethod
    def _from_proto(cls, proto: Any) -> "TrafficStatus":
        return _read(
            cls,
            proto,
            streams={
                "insert": proto.insert_streams,
                "sample": proto.sample_streams,
                "scan": proto.scan_streams,
            },
            calls={(call.method, call.code): call.count for call in proto.calls},
            refused={refused.limit: refused.count for refused in proto.refused},
            auth_failures={failed.reason: failed.count for failed in proto.auth_failures},
        )


@dataclasses.dataclass(frozen=True)
class SecurityStatus:
    """The certificate and the tokens of a server.

    Attributes:
      certificate_expires_at: When the certificate in use expires, in seconds since 1970; `None`
        without TLS, and at servers of older releases.
      reload_failures: Number of changes that could not be used, by "tls" and "tokens"; only those
        that the server has. What was there before stays in force then. One problem counts once,
        however often the server looks at it; the log names it.
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
      client: What the client calls itself: `REVERB_CLIENT_NAME` in its environment, else
        `host:process:program`; a dm-reverb client, its gRPC library; empty in the process of the
        server.
      table: The table that it waits for, else the one that it was about last; `None` before the
        first request.
      items: Number of items inserted or sampled so far.
      open_s: How long it has been open, in seconds.
      waits_for: "table": for the permission of the table; "memory": for memory of the server;
        "peer": for the client to read what is ready; `None`: it does not wait.
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
        return _read(cls, proto, table=proto.table or None, waits_for=proto.waits_for or None)


@dataclasses.dataclass(frozen=True)
class ProcessStatus:
    """The process of a server, as Linux tells it. On other systems everything is 0.

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
        return _read(cls, proto, started_at=proto.started_at_ns / _NS_PER_S)


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
      latest_saved_at: Time of the snapshot that it holds, in seconds since 1970.
      latest_duration_s: Duration of its save, in seconds.
      latest_pause_ms: How long all tables were locked for it, in milliseconds.
      latest_bytes: Its size on disk.
      latest_error: Error of the last save; `None` if it succeeded.
      num_saved: Number of checkpoints that were completed since the server started.
      num_failed: Number of saves that failed since the server started.
      restored_from: The checkpoint that the server loaded; `None` if it started with empty tables.
      interval_s: How often the server saves by itself, in seconds; `None`: never.
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

    @classmethod
    @reads_answer
    def from_serialized_proto(cls, proto_string: bytes) -> "CheckpointStatus":
        """Parses a serialized `reverb.CheckpointStatusResponse` message."""
        return cls._from_proto(protos.CheckpointStatusResponse.FromString(proto_string))

    @classmethod
    def _from_proto(cls, proto: Any) -> "CheckpointStatus":
        return _read(
            cls,
            proto,
            latest_path=proto.latest_path or None,
            latest_saved_at=proto.latest_saved_at_ns / _NS_PER_S if proto.latest_path else None,
            latest_error=proto.latest_error or None,
            restored_from=proto.restored_from or None,
            interval_s=proto.interval_s or None,
        )


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
      memory: What its memory is used for.
      tables: Status of each table, by name.
      traffic: Connections, streams and calls.
      checkpoints: Its checkpoints.
      process: Its process.
      version: Version of its package.
      started_at: When the server started, in seconds since 1970.
      now: When this was true, by the clock of the server, in seconds since 1970.
      streams: Its open streams, oldest first, if they were asked for (`with_streams=True`).
      draining: Who has asked the server to end its streams; `None` if nobody has.
      security: Its certificate and its tokens.
      shards: Each shard of a group, if the address is that of one; the rest is their sum.
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
        )


@dataclasses.dataclass(frozen=True)
class ShardStatus:
    """Status of a shard of a group.

    Attributes:
      index: Its place in the group, from 0 on.
      address: Where it is reached.
      state: "up", "down" or "draining". More may come.
      error: Why it is down; else empty.
      status: What it says of itself; `None` if it is down.
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
        return _read(cls, proto, status=status)


def _read(cls: type[_Status], proto: Any, **others: Any) -> _Status:
    """Reads a message: fields of the same name, and those that are given."""
    known: Any = cls  # A dataclass.
    names = [field.name for field in dataclasses.fields(known) if field.name not in others]
    return cls(**{name: getattr(proto, name) for name in names}, **others)


def _bound(number: float) -> float:
    """The largest numbers mean that there is no bound."""
    return number if abs(number) < sys.float_info.max else math.copysign(math.inf, number)
