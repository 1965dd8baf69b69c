# SPDX-License-Identifier: Apache-2.0
"""Attacks on the HTTP port: other clients are answered within a second."""

import contextlib
import resource
import socket
import time
import urllib.request

import numpy as np
import pytest

import reverb
from reverb import testing
from support.programs import open_files
from support.waiting import PATIENCE, wait_until

REQUEST = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"

GARBAGE = {
    "zeros": b"\0" * 100_000,
    "ones": b"\xff" * 100_000,
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(range(193)),
    "a long path": b"GET /" + b"x" * 65_536 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "a long header": b"GET / HTTP/1.1\r\nX: " + b"x" * 65_536 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 10_000 + b"\r\n",
    "two hosts": b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
    "no host": b"GET /readyz HTTP/1.1\r\n\r\n",
    "smuggling": b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a body that never ends": b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: 99999999\r\n\r\n" + b"x" * 100_000,
    "a path out of the site": b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "http/0.9": b"GET /\r\n",
    "half a request": REQUEST[:20],
}


@pytest.fixture
def server():
    with reverb.Server([testing.table()], http_port=0) as server:
        yield server


def is_ready(server, timeout=5.0 * PATIENCE):
    url = f"http://127.0.0.1:{server.http_port}/readyz"
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.status == 200


def connect(server):
    return socket.create_connection(("127.0.0.1", server.http_port), timeout=10)


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage(server, data):
    for _ in range(3):
        with connect(server) as connection, contextlib.suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while part := connection.recv(100_000):
                answer += part
            assert b"root:" not in answer
            assert answer[:9] in (b"", b"HTTP/1.1 ")
    assert is_ready(server)
    server.localhost_client().insert(np.zeros(2), {"table": 1.0})


@pytest.fixture
def many_files():
    """Lets this process open as many files as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "count", [300, pytest.param(10_000, marks=pytest.mark.slow)], ids=["some", "very many"]
)
def test_half_open_connections_lock_nobody_out(server, many_files, count):
    if many_files < count + 500:
        pytest.skip(f"this process may open {many_files} files only")
    before = open_files()
    with contextlib.ExitStack() as stack:
        for i in range(count):
            connection = stack.enter_context(connect(server))
            if i % 2:
                # The server may have closed it already, to make room.
                with contextlib.suppress(OSError):
                    connection.sendall(REQUEST[:10])
        began = time.monotonic()
        assert is_ready(server)
        # Theirs would end after 5 s.
        assert time.monotonic() - began < 4 * PATIENCE
        # Those of the server are 64 at most.
        wait_until(lambda: open_files() <= before + count + 64)


def test_an_answer_that_nobody_reads(server):
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            connection = stack.enter_context(connect(server))
            for _ in range(200):
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    connection.sendall(REQUEST.replace(b"/readyz", b"/metrics"))
        assert is_ready(server)


def test_no_file_is_left_open(server):
    files = open_files()
    for _ in range(200):
        with connect(server) as connection:
            connection.sendall(REQUEST)
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
    wait_until(lambda: open_files() <= files)
