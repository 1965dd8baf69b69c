# SPDX-License-Identifier: Apache-2.0
"""Connections that are none, or are about something else."""

import contextlib
import http.client
import socket
import ssl
import struct
import time

import pytest

from support.programs import open_files
from support.wire.raw_http2 import PREFACE, Http2, frame

TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(193))

GARBAGE = {
    "nothing": b"",
    "http/1.1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "http/1.1 upgrade": (
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    ),
    "http/1.1 body": b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000,
    "tls": TLS_HELLO,
    "zeros": b"\0" * 100_000,
    "ones": b"\xff" * 100_000,
    "half a preface": PREFACE[:10],
    "preface only": PREFACE,
    "preface and zeros": PREFACE + b"\0" * 100_000,
    "preface and ones": PREFACE + b"\xff" * 100_000,
    "half a settings frame": PREFACE + frame(4, 0, 0, b"\0" * 60)[:20],
    "settings of a wrong size": PREFACE + frame(4, 0, 0, b"\0" * 7),
    "a frame of 16 megabytes": PREFACE
    + frame(4, 0, 0)
    + b"\xff\xff\xff\0\0\0\0\0\x01"
    + b"x" * 1000,
    "data without headers": PREFACE + frame(4, 0, 0) + frame(0, 0, 1, b"data"),
    "headers that are none": PREFACE + frame(4, 0, 0) + frame(1, 4, 1, b"\xff" * 100),
    "a header that goes on": PREFACE + frame(4, 0, 0) + frame(1, 0, 1, b"\0\x01a\x01b"),
    "even streams": PREFACE + frame(4, 0, 0) + frame(1, 4, 2, b"\x83\x86\x84"),
    "a window that overflows": PREFACE + frame(4, 0, 0) + frame(8, 0, 0, b"\x7f\xff\xff\xff") * 2,
    "unknown frames": PREFACE + frame(4, 0, 0) + frame(0x77, 255, 0, b"what") * 1000,
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage_on_the_port(server, until, data):
    files = open_files(server.program.pid)
    for _ in range(3):
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection,
            contextlib.suppress(OSError),
        ):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            # The server answers whatever it likes, and ends the connection.
            while connection.recv(100_000):
                pass
    until(lambda: open_files(server.program.pid) <= files)


def test_a_tls_client_is_told_that_there_is_no_tls(server):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection,
        pytest.raises(ssl.SSLError, match=r"(?i)handshake.failure"),
    ):
        context.wrap_socket(connection)


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS"])
def test_a_client_of_http_1_is_told_where_it_is(server, method):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, "/metrics", body=b"x" * 1000 if method == "POST" else None)
    answer = connection.getresponse()
    assert answer.status == 400
    body = answer.read().decode()
    connection.close()
    if method != "HEAD":
        assert body.startswith("This port speaks gRPC, not HTTP/1. For metrics and probes, start ")
    server.check()


def test_a_beginning_that_could_be_either_is_waited_for(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        for byte in b"POST / HTTP/1.1\r\n":
            # It may be answered before it has said everything.
            with contextlib.suppress(OSError):
                connection.sendall(bytes([byte]))
            time.sleep(0.005)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        for byte in PREFACE + frame(4, 0, 0):
            connection.sendall(bytes([byte]))
        settings = connection.recv(9)
        assert settings[3] == 4


def test_connections_that_say_nothing(server, until):
    files = open_files(server.program.pid)
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            made = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            stack.enter_context(made)
        server.check()
    until(lambda: open_files(server.program.pid) <= files)


@pytest.mark.slow
def test_a_connection_that_says_nothing_is_ended(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=40) as connection:
        connection.sendall(PREFACE[:5])
        while connection.recv(1000):
            pass  # Its settings, which it sends to everybody.


def test_messages_whose_length_lies(server, until):
    before = server.memory()
    with contextlib.ExitStack() as stack:
        for length in (1, 2**20, 2**31 - 1, 2**32 - 1):
            for method in ("InsertStream", "SampleStream", "Reset"):
                client = stack.enter_context(Http2(server.port))
                stream = client.open(method)
                client.send_bytes(stream, b"\0" + struct.pack(">I", length) + b"x" * 1000)
                client.ping()
        assert server.memory() < before + 50e6
        server.check()


def test_a_compressed_message_that_is_none(server):
    with Http2(server.port) as client:
        for encoding in ("gzip", "deflate", "identity", "snappy", "x" * 1000):
            stream = client.open("Reset", grpc_encoding=encoding)
            client.send_bytes(stream, b"\1\0\0\0\x05hello", end=True)
        client.ping()


def test_requests_that_are_no_grpc(server):
    with Http2(server.port) as client:
        for headers in (
            {":method": "GET"},
            {"content_type": "text/html"},
            {":path": "/"},
            {":path": "/" + "x" * 10_000},
            {"grpc_timeout": "nonsense"},
            {"user_agent": "x" * 20_000},
            {"x_" + "y" * 1000: "z" * 30_000},
        ):
            client.send(client.open("ServerInfo", **headers), b"", end=True)
        with contextlib.suppress(OSError):  # Header lists may be too long for the connection.
            client.ping()


def test_a_client_that_never_takes_a_byte(server):
    before = server.memory()
    with Http2(server.port, window=0) as client:
        for _ in range(1000):
            client.send(client.open("ServerInfo"), b"", end=True)
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            server.check()
        assert server.memory() < before + 50e6
