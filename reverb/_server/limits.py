# SPDX-License-Identifier: Apache-2.0
"""Limits of a server for a single peer."""

import dataclasses
import sys

from reverb._checks.arguments import check_at_least
from reverb.core import native
from reverb.errors import InvalidArgumentError

__all__ = ["Limits"]


# A year.
_MAX_TIMEOUT_S = 31_557_600


def _limit(text: str) -> None:
    """A field whose default is that of the core; `reverb_server` has an option with this help."""
    # For type checkers, a field is its default.
    return dataclasses.field(default=None, metadata={"help": text})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server for a single peer, for `Server(limits=...)`.

    A message or a stream beyond its limit ends with a `ResourceExhaustedError` that names the
    limit; other calls are not affected. A server that has no room for one more connection or call
    is unavailable for that client, which retries. Clients in the server's process have no
    connection and send no messages, so only `queued_bytes` concerns them. With
    `Server(max_bytes=...)`, `message_bytes` and `stream_bytes` are at most a quarter of it, but not
    below 64 MiB.

    Example:
      >>> Limits(stream_bytes=256 * 2**20).stream_bytes
      268435456

    Attributes:
      message_bytes: Size of a message on an insert stream, below 4 GiB. `None`: 1 GiB. Writers of
        this package end a message after the item that makes it exceed 4 MiB; those of dm-reverb at
        40 MiB.
      call_bytes: Size of a message of any other call, below 4 GiB. `None`: 64 MiB, which is room
        for 3.5 million priority updates in one call. Some calls have a smaller limit of their own:
        64 KiB plus 1 KiB for each table of the server if they name a table, 1 MiB plus 1 KiB for
        each table if they have lists of tables, 4 KiB for health checks.
      stream_bytes: Bytes of the encoded chunks that a writer's stream keeps for later items, plus
        128 bytes for each chunk. `None`: 1 GiB. A writer keeps chunks for `num_keep_alive_refs`
        steps.
      queued_bytes: Bytes of the items that wait to be inserted into a table, for its rate limiter
        or its `max_bytes`. `None`: 256 MiB. At the limit, streams with further items are not read
        until there is room.
      connections: Number of connections. `None`: 10,000. Further connections get an error and are
        closed; their clients retry, and raise an `UnavailableError` after `connect_timeout_s`.
        Eight more are kept for the commands of operators, such as `reverb why`.
      streams: Number of open calls of all connections, at least 16: a writer has one, and so has
        each worker of a sampler. `None`: 100,000. Further calls end as with `connections`. The last
        eighth is reserved for connections with fewer than 16 open calls, so that a client with very
        many calls does not shut out the others.
      streams_per_connection: Number of open calls of one connection, at least 16. `None`: 10,000.
        Further calls of the peer wait until others end.
      unread_timeout_s: How long a reader may leave prepared samples unread, in seconds, above 0.
        `None`: 300. After that its stream ends with a `DeadlineExceededError`, and the samples'
        memory is freed.

    Raises:
      InvalidArgumentError: If a limit is out of its range.
      TypeError: If a limit is not an integer.
    """

    message_bytes: int | None = _limit("bytes of a message of inserts; without it 1 GiB")
    call_bytes: int | None = _limit("bytes of a message of any other call; without it 64 MiB")
    stream_bytes: int | None = _limit(
        "bytes of the chunks that a writer's stream keeps for later items; without it 1 GiB"
    )
    queued_bytes: int | None = _limit(
        "bytes of the items that wait to be inserted into a table; without it 256 MiB"
    )
    connections: int | None = _limit("number of connections; without it 10000")
    streams: int | None = _limit("number of open calls of all connections; without it 100000")
    streams_per_connection: int | None = _limit(
        "number of open calls of one connection; without it 10000"
    )
    unread_timeout_s: float | None = _limit(
        "how long a reader may leave prepared samples unread; without it 300"
    )

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
                checked = check_at_least(1, f"Limits.{field.name}", value)
                if checked > sys.maxsize:
                    raise InvalidArgumentError(
                        f"Limits.{field.name} must be at most {sys.maxsize}, got {checked}"
                    )
                object.__setattr__(self, field.name, checked)
        native.check_limits(self)


# The public import path.
Limits.__module__ = "reverb"
