# SPDX-License-Identifier: Apache-2.0
"""Settings with which the native server starts, apart from its tables."""

import dataclasses

from reverb._server.credentials import ServerSecurity
from reverb._server.limits import Limits
from reverb._server.shard import ShardPlace
from reverb._server.store import Store
from reverb.checkpointers import CheckpointerOptions

__all__ = ["StartConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class StartConfig:
    """Checked arguments of `reverb.Server`.

    Attributes:
      port: From 0 to 65535; 0: any free port.
      host: Address to listen on; `None`: all addresses.
      checkpoints: Options of the checkpointer.
      checkpoint_interval_s: Seconds between saves; `None`: no automatic saves.
      lease_grace_s: Seconds for which the leases of a lost client last.
      keepalive_s: Seconds between pings; `None`: no pings.
      keepalive_timeout_s: Seconds after which a silent client counts as lost.
      limits: Limits for a single peer.
      max_bytes: Memory for chunks and items; `None`: no limit.
      store: Directory for what exceeds `max_bytes`; `None`: none.
      http_port: From 0 to 65535; `None`: no HTTP port.
      http_host: Address of the HTTP port.
      security: TLS and tokens; `None`: no protection.
      unix_path: Path of the Unix socket; `None`: no socket.
      shard: A `ShardPlace`; `None`: the server is no shard.
    """

    port: int
    host: str | None
    checkpoints: CheckpointerOptions
    checkpoint_interval_s: float | None
    lease_grace_s: float
    keepalive_s: float | None
    keepalive_timeout_s: float
    limits: Limits
    max_bytes: int | None
    store: Store | None
    http_port: int | None
    http_host: str
    security: ServerSecurity | None
    unix_path: str | None
    shard: ShardPlace | None
