# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 by hand: the little that a misbehaving client needs."""

from __future__ import annotations

import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW_SIZE = 4
_CANCEL = 8
_FRAME = 16_384


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Returns a frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header(name: bytes, value: bytes) -> bytes:
    """Returns a header field, spelled out, for nobody's table (RFC 7541, 6.2.2)."""
    return b"\0" + _string(name) + _string(value)


def _string(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest, encoded = len(text) - 127, bytearray(b"\x7f")
    while rest >= 128:
        encoded.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*encoded, rest]) + text


def opening(window: int) -> bytes:
    """Returns the first bytes of a client that may be sent so many on a stream, and in all."""
    settings = struct.pack(">HI", _INITIAL_WINDOW_SIZE, window)
    first = PREFACE + frame(_SETTINGS, 0, 0, settings)
    if window > 65_535:
        first += frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", window - 65_535))
    # Before its settings are acknowledged, the server allows small windows only.
    return first + frame(_SETTINGS, _ACK, 0)


def headers_frame(stream: int, method: str, **headers: str) -> bytes:
    """Returns the frame that opens a stream for a method of the service, or for a path."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method if method[0] == "/" else f"/deepmind.reverb.ReverbService/{method}",
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    block = b"".join(header(name.encode(), value.encode()) for name, value in fields.items())
    return frame(_HEADERS, _END_HEADERS, stream, block)


def data_frame(stream: int, data: bytes) -> bytes:
    """Returns a frame with data of a stream."""
    return frame(_DATA, 0, stream, data)


class Http2:
    """A connection that never reads anything unless it is told to.

    Args:
      port: Port of the server, on this machine.
      window: How many bytes the server may send on a stream, and on the connection.
      first: What it sends before anything else.
    """

    def __init__(self, port: int, window: int = 65_535, first: bytes = b"") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._next_stream = 1
        self.socket.sendall(first + opening(window))
        self.ping()

    def __enter__(self) -> Http2:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def open(self, method: str, **headers: str) -> int:
        """Opens a stream for a method of the service, or for a path, and returns its number."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self.socket.sendall(headers_frame(stream, method, **headers))
        return stream

    def send(self, stream: int, message: bytes, *, end: bool = False) -> None:
        """Sends a message; the server's windows are large enough for what tests send."""
        self.send_bytes(stream, b"\0" + struct.pack(">I", len(message)) + message, end=end)

    def send_part(self, stream: int, message: bytes) -> None:
        """Sends the first half of a message."""
        framed = b"\0" + struct.pack(">I", len(message)) + message
        self.send_bytes(stream, framed[: len(framed) // 2])

    def send_bytes(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """Sends bytes as they are."""
        pieces = [data[at : at + _FRAME] for at in range(0, len(data), _FRAME)] or [b""]
        for piece in pieces[:-1]:
            self.socket.sendall(frame(_DATA, 0, stream, piece))
        self.socket.sendall(frame(_DATA, _END_STREAM if end else 0, stream, pieces[-1]))

    def cancel(self, stream: int) -> None:
        """Resets a stream."""
        self.socket.sendall(frame(_RST_STREAM, 0, stream, struct.pack(">I", _CANCEL)))

    def ping(self) -> None:
        """Waits until the server has read everything that was sent so far."""
        self.socket.sendall(frame(_PING, 0, 0, b"attacker"))
        pong = frame(_PING, _ACK, 0, b"attacker")
        received = b""
        while pong not in received:
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the server ended the connection")
            received = received[-len(pong) :] + data

    def end_of(self, stream: int) -> None:
        """Waits until the server ends a stream, whatever it sends before."""
        received = b""
        while True:
            while len(received) >= 9:
                size = int.from_bytes(received[:3], "big")
                if len(received) < 9 + size:
                    break
                kind, flags, number = struct.unpack(">BBI", received[3:9])
                received = received[9 + size :]
                is_end = kind == _RST_STREAM or (kind in (_DATA, _HEADERS) and flags & _END_STREAM)
                if number == stream and is_end:
                    return
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the server ended the connection")
            received += data
