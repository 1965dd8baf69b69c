# SPDX-License-Identifier: Apache-2.0
"""Messages between a shard and the directory of its group."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from reverb.adapters.ray.group_status import ShardStatus
from reverb.cluster.directory import Directory

__all__ = ["BEAT_S", "Answer", "Member", "ShardFacts", "status_of"]

BEAT_S = 1.0
"""Interval of the heartbeats that a shard sends to the directory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardFacts:
    """The description of a shard by itself.

    Attributes:
      tables: Its tables, as serialized `TableInfo` messages of the whole group.
      map: Its serialized map; `None`: none yet.
      slots: Its slots in that map; needed only if a newer map lacks the shard.
      sizes: Number of items of each table; empty if they were not requested.

    The other attributes are those of `ShardStatus`.
    """

    index: int
    state: str
    error: str | None
    address: str
    server_id: int
    unix_path: str
    node_id: str
    pid: int
    epoch: int
    tables: Sequence[bytes]
    restored_from: str | None
    sees_directory: bool
    is_actor: bool
    num_starts: int
    map: bytes | None
    slots: Sequence[int]
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """The directory's answer to a shard.

    Attributes:
      action: "go_on"; "wait" and ask again; "register" anew; "stop", see `reason`.
      map: A newer map, serialized.
      num_starts: How often the shard has started.
      reason: Why it has to stop.
    """

    action: Literal["go_on", "wait", "register", "stop"]
    map: bytes | None = None
    num_starts: int | None = None
    reason: str = ""


@dataclasses.dataclass
class Member:
    """A registered shard in the directory."""

    facts: ShardFacts
    last_seen: float
    num_starts: int = 1
    epoch: int = 0


def status_of(
    index: int, directory: Directory, member: Member | None, answer: ShardFacts | None
) -> ShardStatus:
    """Returns the status of a shard of the map.

    A shard that has not registered has no `member`, one that is silent no `answer`.
    """
    facts = answer or (member.facts if member else None)
    last_seen_s = time.monotonic() - member.last_seen if member else float("inf")
    if answer is not None:
        state, epoch = answer.state, answer.epoch
    else:
        is_asking = member is not None and not member.facts.is_actor and last_seen_s < 5 * BEAT_S
        state = member.facts.state if member is not None and is_asking else "lost"
        epoch = member.epoch if member else 0
    shard = directory.shard(index)
    return ShardStatus(
        index=index,
        state=state,
        address=shard.address,
        node_id=facts.node_id if facts else "",
        pid=facts.pid if facts else 0,
        num_starts=member.num_starts if member else 0,
        epoch=epoch,
        num_slots=directory.num_slots(index),
        is_draining=shard.is_draining,
        last_seen_s=last_seen_s,
        sizes=facts.sizes if facts else {},
        restored_from=facts.restored_from if facts else None,
        sees_directory=facts is None or facts.sees_directory,
        is_actor=facts is None or facts.is_actor,
        error=facts.error if facts else None,
    )
