# SPDX-License-Identifier: Apache-2.0
"""A process that holds the servers of programs whose client is in another one."""

from __future__ import annotations

import imports  # noqa: F401
from calls import answer_calls, offer
from servers import LocalServers

_servers = LocalServers()
for _method in (_servers.start, _servers.stop, _servers.stop_all, _servers.can):
    offer(_method)

if __name__ == "__main__":
    answer_calls()
