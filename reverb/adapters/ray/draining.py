# SPDX-License-Identifier: Apache-2.0
"""A shard that leaves: its writers go, then its items."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from reverb.adapters.ray.names import DESCRIBE_TIMEOUT_S, POLL_S, result_of
from reverb.errors import ReverbError

__all__ = ["end_when_streams_have", "move_away"]

# Writers that have sent nothing for so long do not hold up a drain.
_STILL_S = 2.0
# How long a shard that has left waits for its streams: their clients go to the others.
_STREAMS_END_S = 5.0


def move_away(
    index: int, handle: Any, heirs: Mapping[int, tuple[str, list[int]]], wait_s: float
) -> int:
    """Moves the items of a shard to others; returns how many. After an error it serves as before.

    Args:
      index: Its number.
      handle: Its actor.
      heirs: Address and slots of each of the others.
      wait_s: How long writers may go on.
    """
    name, num_moved = f"shard {index}", 0
    try:
        _wait_for_writers(name, handle, wait_s)
        for last in (False, True):
            num_moved += result_of(handle.give_items.remote(heirs, last), None, name)
    except BaseException:
        with contextlib.suppress(ReverbError):
            result_of(handle.take_inserts_again.remote(), DESCRIBE_TIMEOUT_S, name)
        raise
    return num_moved


def end_when_streams_have(index: int, handle: Any) -> None:
    """Stops a shard when its streams have ended, or after some seconds."""
    with contextlib.suppress(ReverbError):
        result_of(handle.stop.remote(_STREAMS_END_S), 2 * _STREAMS_END_S, f"shard {index}")


def _wait_for_writers(name: str, handle: Any, wait_s: float) -> None:
    """Waits until no writer writes to the shard: they leave at the end of an episode.

    A writer that writes nothing keeps its stream. Such streams may be cut off: their writers go to
    another shard with their next item.
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
