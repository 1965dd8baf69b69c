# SPDX-License-Identifier: Apache-2.0
"""A connection between two ends, on which the PING frames of HTTP/2 are counted."""

from __future__ import annotations

import contextlib
import socket
import threading

_PREFACE_BYTES = 24
_PING, _ACK = 6, 1


class PingCounter:
    """Carries connections to a server.

    Attributes:
      address: Where clients connect.
      connections: How many they made.
      pings: PING frames by sender, `client` or `server`; answers do not count.
    """

    def __init__(self, server: str) -> None:
        host, port = server.rsplit(":", 1)
        self._server = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.connections = 0
        self.pings = {"client": 0, "server": 0}
        self._sockets: list[socket.socket] = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Ends all connections."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listening.accept()[0]
                server = socket.create_connection(self._server)
                self._sockets += [client, server]
                self.connections += 1
                for ends in (("client", client, server), ("server", server, client)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, who: str, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError), source.makefile("rb") as frames:
            if who == "client":
                sink.sendall(frames.read(_PREFACE_BYTES))
            while head := frames.read(9):
                body = frames.read(int.from_bytes(head[:3], "big"))
                if head[3] == _PING and not head[4] & _ACK:
                    self.pings[who] += 1
                sink.sendall(head + body)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
