# SPDX-License-Identifier: Apache-2.0
"""The status of a table with rollouts."""

import dataclasses
from typing import Any

from reverb._checks.answers import read_message
from reverb._status.histogram import Histogram


@dataclasses.dataclass(frozen=True)
class OpenItem:
    """An item that lacks rollouts.

    Attributes:
      name: Its name; `""`: none.
      age_s: Time since it was inserted, in seconds.
      num_final: Number of its final rollouts.
      num_rollouts: Number of rollouts that it will have.
      holder: Name of the client that holds it; `""`: none does.
    """

    name: str
    age_s: float
    num_final: int
    num_rollouts: int
    holder: str


@dataclasses.dataclass(frozen=True)
class HeldItems:
    """Ready items that a learner holds.

    Attributes:
      holder: Name of its client.
      num_items: Number of items.
      age_s: Time since it took them, in seconds.
    """

    holder: str
    num_items: int
    age_s: float


@dataclasses.dataclass(frozen=True)
class RolloutsStatus:
    """What is on its way in a table with rollouts. Counters are since the start of the server.

    Attributes:
      version: Version of the policy.
      backlog: Items that the backlog counts.
      max_backlog: Limit of the backlog; `None`: it has none.
      taken: Items taken since the version was set.
      open: Items that lack rollouts.
      settled: Items that lack columns.
      ready: Items that are whole.
      open_held: Open items that generators hold.
      settled_held: Settled items that stages hold.
      ready_held: Ready items that learners hold.
      waiting_open: Number of generators' requests that wait for an open item.
      waiting_settled: Number of requests of stages that wait.
      num_rollouts: Final rollouts.
      num_failed_rollouts: Rollouts that were given up.
      num_again: Items that are made again, because they became stale or the memory was full.
      num_lost_leases: Items whose client was lost, or held them for longer than `open_timeout_s`.
      last_rollout_age_s: Seconds since the last rollout; `None`: none since the start.
      staleness: Versions between the policy that wrote an item and that of its take or sample;
        the first bound, 0.5, has those that were not stale.
      oldest_open: The open item that was inserted first; `None` without one.
      oldest_lease: The lease of a learner that has lasted longest; `None` without one.
    """

    version: int
    backlog: int
    max_backlog: int | None
    taken: int
    open: int
    settled: int
    ready: int
    open_held: int
    settled_held: int
    ready_held: int
    waiting_open: int
    waiting_settled: int
    num_rollouts: int
    num_failed_rollouts: int
    num_again: int
    num_lost_leases: int
    last_rollout_age_s: float | None
    staleness: Histogram
    oldest_open: OpenItem | None
    oldest_lease: HeldItems | None

    @classmethod
    def _of(cls, table: Any) -> "RolloutsStatus | None":
        """Reads the rollouts in the status of a table."""
        if not table.HasField("rollouts"):
            return None
        proto = table.rollouts
        has_rollout = proto.HasField("last_rollout_age_s")
        has_open, has_lease = proto.HasField("oldest_open"), proto.HasField("oldest_lease")
        return read_message(
            cls,
            proto,
            max_backlog=proto.max_backlog or None,
            last_rollout_age_s=proto.last_rollout_age_s if has_rollout else None,
            staleness=Histogram._from_proto(proto.staleness),
            oldest_open=read_message(OpenItem, proto.oldest_open) if has_open else None,
            oldest_lease=read_message(HeldItems, proto.oldest_lease) if has_lease else None,
        )


# The public import paths.
for _kind in (HeldItems, OpenItem, RolloutsStatus):
    _kind.__module__ = "reverb.server_status"
