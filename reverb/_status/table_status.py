# SPDX-License-Identifier: Apache-2.0
"""The status of a table: its contents, its counters, and its waiting requests."""

import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any

from reverb._checks.answers import read_message
from reverb._status.histogram import Histogram
from reverb._status.rollouts_status import RolloutsStatus
from reverb.core import native

# The states of a `Diagnosis`, the most serious first.
STATES = ("shard down", *reversed(native.TABLE_STATES), "unknown")

# Names of `PriorityTableCheckpoint.WhenFull`, by number.
_WHEN_FULL = ("remove", "wait")

_NS_PER_S = 1e9
_MS_PER_S = 1e3


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
        return read_message(
            cls, proto, min_diff=_bound(proto.min_diff), max_diff=_bound(proto.max_diff)
        )


@dataclasses.dataclass(frozen=True)
class SetBy:
    """The client that has changed a setting for a while, and the time.

    Attributes:
      client: Name of the client; see `StreamStatus.client`.
      at: Time of the change, in seconds since 1970.
    """

    client: str
    at: float

    @classmethod
    def _of(cls, proto: Any, field: str) -> "SetBy | None":
        """Reads a field of a message; `None` if it is not set."""
        if not proto.HasField(field):
            return None
        set_by = getattr(proto, field)
        return cls(set_by.client, set_by.at_ns / _NS_PER_S)


@dataclasses.dataclass(frozen=True)
class SideStatus:
    """Waits of one side of a table: of its inserts, or of its samples.

    Attributes:
      waiting: Number of items that wait to be inserted, or of requests that wait for samples.
      oldest_wait_s: How long the one that has waited longest has waited, in seconds; `None` if none
        waits. A reader that times out and asks again has waited since its first request.
      blocked_s: Total time in which at least one of them waited, in seconds.
      wait_s: How long each item waited until it was inserted, or each request until its first
        sample, in seconds.
      last_at: When the last item was inserted, or sampled, in seconds since 1970; `None`: never.
      paused: The client that has paused this side; `None` if it is not paused.
      reason: Why the first of them cannot continue, in sentences; `None` if none waits.
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
        return read_message(
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
      full: Evicted because there were more than `max_size` items.
      bytes: Evicted because the table, or the server, had more than `max_bytes`.
      sampled_out: Removed after `max_times_sampled` samples.
      deleted: Deleted by a client.
      reset: Removed by a reset of the table.
      shrunk: Evicted because the table was made smaller.
      lost: Removed because a payload could not be read back from disk.
      failed: Removed because too few rollouts of the item were made, or too many clients lost it.
      stale: Removed because the item was staler than the table allows.
      replaced: Replaced by an item with the same key (`insert_batch(replace=True)`).
      unsampled: Number of all these items that had never been sampled.
      times_sampled: How often each of the others had been sampled.
    """

    full: int
    bytes: int
    sampled_out: int
    deleted: int
    reset: int
    shrunk: int
    lost: int
    failed: int
    stale: int
    replaced: int
    unsampled: int
    times_sampled: Histogram

    @property
    def total(self) -> int:
        """Number of items that left."""
        by_policy = self.full + self.bytes + self.sampled_out + self.shrunk
        by_call = self.deleted + self.reset + self.replaced
        return by_policy + by_call + self.lost + self.failed + self.stale


@dataclasses.dataclass(frozen=True)
class Rates:
    """Rates of a table in the last seconds.

    Attributes:
      seconds: Length of the measured time, at most 10 seconds.
      inserts_per_s: Items inserted per second.
      samples_per_s: Items sampled per second.
      insert_blocked: Fraction of the time in which an insert waited, from 0 to 1.
      sample_blocked: Fraction of the time in which a sample waited, from 0 to 1.
    """

    seconds: float
    inserts_per_s: float
    samples_per_s: float
    insert_blocked: float
    sample_blocked: float

    @classmethod
    def _from_proto(cls, proto: object) -> "Rates":
        return read_message(cls, proto)


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The state of a table: does it work, or why does it wait?

    * `shard down`: a shard of the group does not answer.
    * `never`: it can never hold the items that sampling needs, because it is too small, or never
      allow as many samples at once as the first request in its queue asks for.
    * `stuck`: inserts and samples wait, and neither can continue. Of a table with rollouts: a
      learner waits, and nothing that is there will be ready for it.
    * `paused`: a client has paused inserts or samples.
    * `draining`: the server ends its streams, before it is stopped.
    * `starved`: samples wait, and there was no insert for 10 s. Of a table with rollouts also:
      items wait for a generator or a stage that nobody runs, or generators wait for items.
    * `full`: inserts wait for memory, of the table or of the server.
    * `slow readers`: samples are ready, and their readers have not taken them for a second.
    * `behind`: inserts wait for the ratio, or the backlog; actors are faster than learners.
    * `ahead`: samples wait for the ratio, or for rollouts; learners are faster than actors.
    * `filling`: samples wait for the first items, and inserts come.
    * `flowing`: inserts or samples go through.
    * `idle`: there was no request for 10 s.
    * `unknown`: the server is of an older release, which does not report its state.

    Inserts or samples "wait" here if one of them waits for a second, or if at least one waited in
    half of the last seconds.

    Attributes:
      state: One of the words above.
      sentence: The reason of the wait, and the remedy, for people.
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
      bytes: Size of its items and their chunks in memory. A chunk counts once, however many items
        share it, but in each table that has it.
      max_bytes: The limit of the table; `None` if it has none.
      when_full: "remove" or "wait".
      chunks: Number of different chunks.
      episodes: Number of episodes that the items refer to.
      forecast_bytes: Expected `bytes` with `max_size` items like these, at most `max_bytes`; with
        few items an upper bound computed from the signature. `None`: unknown yet.
      limiter: Settings of its rate limiter.
      cursor: Inserts times `samples_per_insert` minus samples, as the rate limiter counts them.
      mass: Sum of the weights of all items, `priority ** priority_exponent` of a `Prioritized`
        sampler; `None` with another sampler.
      inserts: Number of items added since the table was first made, also before the server loaded
        it from a checkpoint. An insert whose key the table has is a priority update.
      samples: Number of items sampled, counted like `inserts`.
      priority_updates: Number of priority updates since the start of the server, including those to
        the same value. The numbers below are since then, too.
      removed: The items that left.
      inserting: Waits of inserts.
      sampling: Waits of samples, and of `take`s of ready items.
      sample_age_s: How old each sampled item was, in seconds.
      busy_s: Seconds for each activity: "inserting", "sampling", "running" (updates, deletes,
        resets), "sleeping" (no requests), "waiting_for_sampling" (only inserts wait) and
        "waiting_for_inserts" (samples wait).
      diagnosis: State of the table, in a word and a sentence.
      rate_limiter_off: The client that has turned the rate limiter off for inserts; `None` if it is
        on.
      rates: Rates in the last seconds; `None` if unknown: a server counts them for ten minutes
        after each query of its status.
      rollouts: What is on its way in a table with rollouts; `None` for other tables.
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
    rollouts: RolloutsStatus | None

    @classmethod
    def _from_proto(cls, proto: Any) -> "TableStatus":
        return read_message(
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
            inserts=proto.restored_inserts + proto.num_inserts,
            samples=proto.restored_samples + proto.num_samples,
            priority_updates=proto.num_priority_updates,
            removed=read_message(
                RemovedItems,
                proto.removed,
                times_sampled=Histogram._from_proto(proto.removed.times_sampled),
            ),
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
            rollouts=RolloutsStatus._of(proto),
        )


def _bound(number: float) -> float:
    """Returns a bound of a limiter; the largest floats mean no bound."""
    return number if abs(number) < sys.float_info.max else math.copysign(math.inf, number)


# The public import paths.
for _kind in (
    Diagnosis,
    LimiterStatus,
    Rates,
    RemovedItems,
    SetBy,
    SideStatus,
    TableStatus,
):
    _kind.__module__ = "reverb.server_status"
