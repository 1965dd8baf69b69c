# SPDX-License-Identifier: Apache-2.0
"""Limits of what one peer may take of a server."""

import dataclasses
import sys

from reverb.arguments import check_at_least_one
from reverb.errors import InvalidArgumentError

__all__ = ["Limits"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What one peer may take of a server, for `Server(limits=...)`.

    A message or a stream beyond its limit ends with a `ResourceExhaustedError` that names it; all
    others go on. Clients in the server's process have no connection and send no messages, so no
    limit concerns them.

    Example:
      >>> Limits(stream_bytes=256 * 2**20).stream_bytes
      268435456

    Attributes:
      message_bytes: Size of a message on an insert stream, below 4 GiB. `None`: 1 GiB. Writers of
        this package end a message after the item that makes it exceed 4 MiB; those of dm-reverb at
        40 MiB.
      call_bytes: Size of a message of any other call, below 4 GiB. `None`: 64 MiB, which is room
        for 3.5 million priority updates in one call.
      stream_bytes: Bytes of the chunks that a writer's stream may refer to in later items, encoded,
        with 128 bytes more for each chunk. `None`: 1 GiB. A writer keeps chunks for
        `num_keep_alive_refs` steps.
      connections: Number of connections. `None`: 10,000. One more is closed at once, and its peer
        tries again.
      streams_per_connection: Number of open calls of one connection, at least 16. `None`: 10,000.
        Further calls of the peer wait until others end.

    Raises:
      InvalidArgumentError: If a limit is below 1 or above `sys.maxsize`.
      TypeError: If a limit is not an integer.
    """

    message_bytes: int | None = None
    call_bytes: int | None = None
    stream_bytes: int | None = None
    connections: int | None = None
    streams_per_connection: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                checked = check_at_least_one(f"Limits.{field.name}", value)
                if checked > sys.maxsize:
                    raise InvalidArgumentError(
                        f"Limits.{field.name} must be at most {sys.maxsize}, got {checked}"
                    )
                object.__setattr__(self, field.name, checked)
