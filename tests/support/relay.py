# SPDX-License-Identifier: Apache-2.0
"""A relay between clients and a server: loses connections, and holds answers back."""

import contextlib
import socket
import threading

__all__ = ["Relay"]


class Relay:
    """Carries connections to a server, and can lose them all at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._answers = threading.Event()
        self._answers.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def hold_answers(self) -> None:
        """Keeps what the server sends from now on."""
        self._answers.clear()

    def release_answers(self) -> None:
        """Carries it."""
        self._answers.set()

    def lose(self) -> None:
        """Ends the connections that there are, with what is held; the next ones are carried."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._sockets.clear()
        self._answers.set()

    def close(self) -> None:
        """Ends all connections, and carries no more."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.lose()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listening.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [client, server]
                free = threading.Event()
                free.set()
                for ends in ((client, server, free), (server, client, self._answers)):
                    threading.Thread(target=_carry, args=ends, daemon=True).start()


def _carry(source: socket.socket, sink: socket.socket, may_pass: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            may_pass.wait()
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
