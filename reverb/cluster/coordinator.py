# SPDX-License-Identifier: Apache-2.0
"""The coordinator of a group: one rate limiter over several shards."""

import os
from types import TracebackType

from reverb._server.credentials import ClientCredentials
from reverb._server.tls import ClientTls
from reverb.core import native
from reverb.shown_text import hidden, hidden_token

__all__ = ["Coordinator"]


class Coordinator:
    """Moves what a rate limiter allows to the shards where somebody waits, until it is stopped.

    Every shard keeps its cursor, inserts times `samples_per_insert` minus samples, in a window of
    its own. The windows add up to the bounds of the group's limiter, which therefore hold at any
    time, also while no coordinator runs; then room is not moved, and somebody may wait longer.
    A second coordinator takes over from the first one.

    Runs in the background, in no thread of Python. Waits for shards that are not there yet.

    Example:
      >>> servers = [reverb.Server([reverb.Table.queue("queue", 5)]) for _ in range(2)]
      >>> address = "shards:///" + ",".join(f"localhost:{server.port}" for server in servers)
      >>> with reverb.cluster.Coordinator(address) as coordinator:
      ...     coordinator.is_running
      True
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """Starts a coordinator; does not block.

        Args:
          address: Of the group: `shards:///host:port,...`.
          token: As in `reverb.Client`; the shards want the right `admin`.
          token_file: As in `reverb.Client`.
          tls: As in `reverb.Client`.

        Raises:
          InvalidArgumentError: If the address is not that of a group, or a file cannot be used.
        """
        # Tracebacks may show what local variables are.
        token, token_file, address = hidden_token(token), hidden(token_file), hidden(address)
        self._coordinator = native.Coordinator(address, ClientCredentials(token, token_file, tls))

    @property
    def is_running(self) -> bool:
        """Whether it moves windows; false after `stop`, and once it has met a later one."""
        return self._coordinator.is_running()

    def freeze(self) -> None:
        """Lets no window grow until `unfreeze`: the sum of all cursors stays as it may be now."""
        self._coordinator.freeze(True)

    def unfreeze(self) -> None:
        """Lets windows grow again."""
        self._coordinator.freeze(False)

    def stop(self) -> None:
        """Ends it. The windows stay where they are. Does nothing the second time."""
        self._coordinator.stop()

    def __enter__(self) -> "Coordinator":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
