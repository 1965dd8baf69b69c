# SPDX-License-Identifier: Apache-2.0
"""Limits of what one peer may take of a server."""

import dataclasses
import sys

from reverb._checks.arguments import check_at_least_one
from reverb.errors import InvalidArgumentError

__all__ = ["Limits"]


# A year.
_MAX_TIMEOUT_S = 31_557_600


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What one peer may take of a server, for `Server(limits=...)`.

    A message or a stream beyond its limit ends with a `ResourceExhaustedError` that names it; all
    others go on. A server that has no room for one more connection or call is unavailable for its
    client, which tries again. Clients in the server's process have no connection and send no
    messages, so only `queued_bytes` concerns them. With `Server(max_bytes=...)`, `message_bytes`
    and `stream_bytes` are at most a quarter of it, but not below 64 MiB.

    Example:
      >>> Limits(stream_bytes=256 * 2**20).stream_bytes
      268435456

    Attributes:
      message_bytes: Size of a message on an insert stream, below 4 GiB. `None`: 1 GiB. Writers of
        this package end a message after the item that makes it exceed 4 MiB; those of dm-reverb at
        40 MiB.
      call_bytes: Size of a message of any other call, below 4 GiB. `None`: 64 MiB, which is room
        for 3.5 million priority updates in one call. Calls that name a table have a limit of
        their own below that, 64 KiB and 1 KiB for each table of the server; those with lists of
        tables, 1 MiB and as much; health checks, 4 KiB.
      stream_bytes: Bytes of the chunks that a writer's stream may refer to in later items, encoded,
        with 128 bytes more for each chunk. `None`: 1 GiB. A writer keeps chunks for
        `num_keep_alive_refs` steps.
      queued_bytes: Bytes of the items that wait to be inserted into a table, behind its rate
        limiter or for its `max_bytes`. `None`: 256 MiB. The streams of more items are not read
        until there is room.
      connections: Number of connections. `None`: 10,000. One more is told so and closed. Its
        client tries again, and raises an `UnavailableError` after its `connect_timeout_s`.
      streams: Number of open calls of all connections, at least 16: a writer has one, and so has
        each worker of a sampler. `None`: 100,000. One more ends as with `connections`. The last
        eighth is for connections with fewer than 16 open calls, so that a client with very many
        does not shut out the others.
      streams_per_connection: Number of open calls of one connection, at least 16. `None`: 10,000.
        Further calls of the peer wait until others end.
      unread_timeout_s: Seconds for which a reader may take nothing of the samples that wait for it,
        above 0. `None`: 300. Then its stream ends with a `DeadlineExceededError`, and what it kept
        in memory is freed.

    Raises:
      InvalidArgumentError: If a limit is below 1 or above `sys.maxsize`.
      TypeError: If a limit is not an integer.
    """

    message_bytes: int | None = None
    call_bytes: int | None = None
    stream_bytes: int | None = None
    queued_bytes: int | None = None
    connections: int | None = None
    streams: int | None = None
    streams_per_connection: int | None = None
    unread_timeout_s: float | None = None

    def __post_init__(self) -> None:
        timeout = self.unread_timeout_s
        if timeout is not None and not 0 < timeout <= _MAX_TIMEOUT_S:
            raise InvalidArgumentError(
                f"Limits.unread_timeout_s must be above 0 and at most {_MAX_TIMEOUT_S}, got "
                f"{timeout}"
            )
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and field.name != "unread_timeout_s":
                checked = check_at_least_one(f"Limits.{field.name}", value)
                if checked > sys.maxsize:
                    raise InvalidArgumentError(
                        f"Limits.{field.name} must be at most {sys.maxsize}, got {checked}"
                    )
                object.__setattr__(self, field.name, checked)


# Where programs import it from.
Limits.__module__ = "reverb"
