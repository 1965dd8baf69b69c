# SPDX-License-Identifier: Apache-2.0
"""A port with TLS, and peers that do not finish what they begin."""

import contextlib
import resource
import socket
import ssl
import time

import pytest

import reverb
from reverb.core import native
from support.programs import Program, open_files
from support.waiting import DEADLINE_S, PATIENCE
from support.wire.raw_http2 import PREFACE, frame

SERVER = """
    import reverb, sys
    from reverb import testing

    cert, key = sys.argv[1:]
    server = reverb.Server([testing.table("replay")], tls=reverb.ServerTls(cert, key))
    print(server.port)
    server.wait()
"""

HALF_OPEN = 10_000
# How many handshakes may be unfinished: see docs/design/security.md.
UNFINISHED = 1_000


class Server:
    """The server under attack."""

    def __init__(self, directory):
        native.self_signed(str(directory), ["localhost"], 1)
        self.ca = str(directory / "ca.crt")
        files = (str(directory / "tls.crt"), str(directory / "tls.key"))
        self.program = Program(SERVER, *files)
        self.port = int(self.program.line())

    def client(self, connect_timeout_s=DEADLINE_S):
        """A client that does what clients should."""
        return reverb.Client(
            f"grpcs://localhost:{self.port}",
            tls=reverb.ClientTls(ca=self.ca),
            connect_timeout_s=connect_timeout_s,
        )

    def connect(self):
        """A connection that says nothing yet."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def hello(self):
        """The first message of a client of TLS."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = self.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        return outgoing.read()

    def context(self, *protocols):
        """The context of a TLS client that offers these protocols."""
        context = ssl.create_default_context(cafile=self.ca)
        if protocols:
            context.set_alpn_protocols(protocols)
        return context


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("tls"))
    with server.program:
        yield server


def test_a_client_connects_beside_ten_thousand_half_handshakes(server, until):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < HALF_OPEN + 1_000:
        pytest.skip(f"this user may open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before = open_files(server.program.pid)
    hello = server.hello()
    with contextlib.ExitStack() as half_open:
        half_open.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for index in range(HALF_OPEN):
            connection = half_open.enter_context(server.connect())
            # Some say nothing, some half of the first message, some all of it and no more.
            with contextlib.suppress(OSError):
                connection.sendall(hello[: len(hello) * (index % 3) // 2])
        began = time.monotonic()
        server.client().server_info()
        # Theirs would end after 20 s.
        assert time.monotonic() - began < 10 * PATIENCE
        assert open_files(server.program.pid) <= before + UNFINISHED + 10
    until(lambda: open_files(server.program.pid) <= before + 2)


def test_a_handshake_byte_by_byte(server):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = server.context("h2").wrap_bio(incoming, outgoing, server_hostname="localhost")
    with server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send():
            for byte in outgoing.read():
                connection.sendall(bytes([byte]))

        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                send()
                incoming.write(connection.recv(65536))
        assert tls.version() == "TLSv1.3"
        assert tls.selected_alpn_protocol() == "h2"
        tls.write(PREFACE + frame(4, 0, 0))
        send()
        answer = b""
        while not answer:
            incoming.write(connection.recv(65536))
            with contextlib.suppress(ssl.SSLWantReadError):
                answer = tls.read(9)
        assert answer[3] == 4  # The settings of the server.


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\xff\xff" + b"x" * 100_000,
        b"\x16\x03\x01\x00\x05hello",
        b"\x16\x03\x03\x00\x00" * 1000,
        b"\x15\x03\x03\x00\x02\x02\x28",
        b"\x16\x03" + b"\0" * 1000,
    ],
    ids=["a record too long", "no hello", "empty records", "an alert", "zeros"],
)
def test_garbage_in_place_of_a_handshake(server, until, data):
    before = open_files(server.program.pid)
    with server.connect() as connection, contextlib.suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
    until(lambda: open_files(server.program.pid) <= before)
    server.client().server_info()


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100_000, PREFACE + b"\xff" * 99]
)
def test_garbage_inside_of_tls(server, until, data):
    before = open_files(server.program.pid)
    with (
        server.connect() as connection,
        server.context("h2").wrap_socket(connection, server_hostname="localhost") as tls,
        contextlib.suppress(OSError),
    ):
        tls.sendall(data)
        while tls.recv(65536):
            pass
    until(lambda: open_files(server.program.pid) <= before)
    server.client().server_info()


def read_to_the_end(tls):
    while tls.read(65536):
        pass


def test_a_record_that_was_changed_ends_the_connection(server):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = server.context("h2").wrap_bio(incoming, outgoing, server_hostname="localhost")
    with server.connect() as connection:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(65536))
        connection.sendall(outgoing.read())
        tls.write(PREFACE + frame(4, 0, 0))
        record = bytearray(outgoing.read())
        record[-1] ^= 1
        connection.sendall(record)
        with contextlib.suppress(ConnectionResetError):
            while data := connection.recv(65536):
                incoming.write(data)
    # Nothing is served on it. What is said last is an alert.
    with pytest.raises(ssl.SSLError, match=r"(?i)bad.record.mac"):
        read_to_the_end(tls)
    server.client().server_info()


@pytest.mark.parametrize("protocols", [("http/1.1",), ("h3", "spdy/1")])
def test_other_protocols_are_refused_in_the_handshake(server, protocols):
    with server.connect() as connection, pytest.raises(ssl.SSLError, match=r"(?i)no.application"):
        server.context(*protocols).wrap_socket(connection, server_hostname="localhost")


def test_a_peer_that_names_no_protocol_is_served(server):
    with (
        server.connect() as connection,
        server.context().wrap_socket(connection, server_hostname="localhost") as tls,
    ):
        tls.sendall(PREFACE + frame(4, 0, 0))
        assert tls.recv(9)[3] == 4


def test_older_versions_are_refused(server):
    context = server.context("h2")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with server.connect() as connection, pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
        context.wrap_socket(connection, server_hostname="localhost")
