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
    """Moves unused budget of rate limiters to the shards with waiting calls, until it is stopped.

    Every shard keeps its cursor, inserts times `samples_per_insert` minus samples, in a window of
    its own. The windows add up to the bounds of the group's limiter, which therefore always hold.
    Without a running coordinator no budget is moved, so some calls may wait longer. A second
    coordinator replaces the first one.

    Runs in the background, without a Python thread. Waits for shards that have not started yet.

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
          address: Address of the group: `shards:///host:port,...`.
          token: As in `reverb.Client`; the shards require the right `admin`.
          token_file: As in `reverb.Client`.
          tls: As in `reverb.Client`.

        Raises:
          InvalidArgumentError: If the address is not that of a group, or a file cannot be used.
        """
        # Tracebacks may show the values of local variables.
        token, token_file, address = hidden_token(token), hidden(token_file), hidden(address)
        self._coordinator = native.Coordinator(address, ClientCredentials(token, token_file, tls))

    @property
    def is_running(self) -> bool:
        """Whether it moves windows; false after `stop`, and once a later coordinator runs."""
        return self._coordinator.is_running()

    def freeze(self) -> None:
        """Keeps windows from growing until `unfreeze`, and so the bounds of the sum of cursors."""
        self._coordinator.freeze(True)

    def unfreeze(self) -> None:
        """Lets windows grow again."""
        self._coordinator.freeze(False)

    def stop(self) -> None:
        """Ends it; the windows stay as they are. Further calls do nothing."""
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
