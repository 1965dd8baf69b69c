# SPDX-License-Identifier: Apache-2.0
"""The leave of a shard: first its writers leave it, then its items are moved."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from reverb.adapters.ray.names import DESCRIBE_TIMEOUT_S, POLL_S, result_of
from reverb.errors import ReverbError

__all__ = ["end_when_streams_have", "move_away"]

# Writers that have sent nothing for this time do not delay a drain.
_STILL_S = 2.0
# How long a shard that has left waits until its streams end, whose clients go to other shards.
_STREAMS_END_S = 5.0


def move_away(
    index: int, handle: Any, heirs: Mapping[int, tuple[str, list[int]]], wait_s: float
) -> int:
    """Moves the items of a shard to others; returns how many. After an error it serves as before.

    `heirs` are the address and the slots of each of the others; writers have `wait_s` seconds to
    leave.
    """
    name, num_moved = f"shard {index}", 0
    try:
        _wait_for_writers(name, handle, wait_s)
        for last in (False, True):
            num_moved += result_of(handle.give_items.remote(heirs, last=last), None, name)
    except BaseException:
        with contextlib.suppress(ReverbError):
            result_of(handle.take_inserts_again.remote(), DESCRIBE_TIMEOUT_S, name)
        raise
    return num_moved


def end_when_streams_have(index: int, handle: Any) -> None:
    """Stops a shard when its streams have ended, or after some seconds."""
    with contextlib.suppress(ReverbError):
        stopped = handle.stop.remote(_STREAMS_END_S, has_moved=True)
        result_of(stopped, 2 * _STREAMS_END_S, f"shard {index}")


def _wait_for_writers(name: str, handle: Any, wait_s: float) -> None:
    """Waits until writers have left the shard, which they do at the end of an episode.

    An idle writer keeps its stream. Such a stream may be cut off, because the writer sends its next
    item to another shard.
    """
    deadline = time.monotonic() + wait_s
    before: list[tuple[str, str, int]] = []
    is_still_since = time.monotonic()
    while (now := time.monotonic()) < deadline:
        streams = result_of(handle.insert_streams.remote(), DESCRIBE_TIMEOUT_S, name)
        if streams != before:
            before, is_still_since = streams, now
        if not streams or now - is_still_since >= _STILL_S:
            return
        time.sleep(POLL_S)
