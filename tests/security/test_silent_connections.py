# SPDX-License-Identifier: Apache-2.0
"""Connections without a call end on servers that require tokens or certificates."""

import socket
import ssl
import threading
import time

import grpc
import pytest

import reverb
from reverb import testing
from reverb.core import protos
from support.waiting import PATIENCE
from support.wire.raw_http2 import PREFACE, frame

SETTINGS, GOAWAY = 4, 7
# A connection is told to go after 20 s and closed a second later.
SILENCE_S = 20


def frames_until_the_end(connection):
    """Reads until the other end closes; returns the kinds of the frames, and when it closed."""
    received = b""
    while data := connection.recv(1 << 16):
        received += data
    kinds = []
    while len(received) >= 9:
        kinds.append(received[3])
        received = received[9 + int.from_bytes(received[:3], "big") :]
    return kinds, time.monotonic()


def over_tcp(port, _path, _certificates):
    return socket.create_connection(("127.0.0.1", port), timeout=60 * PATIENCE)


def over_unix(_port, path, _certificates):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(60 * PATIENCE)
    connection.connect(str(path))
    return connection


def over_tls(port, path, certificates):
    context = ssl.create_default_context(cafile=str(certificates.ca))
    context.set_alpn_protocols(["h2"])
    plain = over_tcp(port, path, certificates)
    return context.wrap_socket(plain, server_hostname="localhost")


# It takes the 20 s; `rpc/server/admissions.rs` has the rule, with a clock that a test moves.
@pytest.mark.slow
def test_silent_connections_end_and_one_with_a_call_stays(start, certificates, tokens, tmp_path):
    token = tokens.add("learner", "sample,insert")
    path, pair = tmp_path / "socket", certificates.good()
    options = {"tokens": tokens.path, "host": "127.0.0.1"}
    plain = start(testing.table("replay"), unix_path=path, **options)
    secured = start(testing.table("replay"), tls=reverb.ServerTls(pair.cert, pair.key), **options)
    tls = reverb.ClientTls(ca=certificates.ca, server_name="localhost")
    clients = [
        reverb.Client(f"unix:{path}", token=token),
        reverb.Client(f"grpcs://127.1:{secured.port}", token=token, tls=tls),
    ]
    for client in clients:
        client.insert([0.0], {"replay": 1.0})
    begin = time.monotonic()
    ends = {}

    def wait_for_the_end(name, connection):
        with connection:
            ends[name] = frames_until_the_end(connection)

    threads = []
    for over, server in ((over_tcp, plain), (over_unix, plain), (over_tls, secured)):
        for says in (b"", PREFACE[:5], PREFACE + frame(SETTINGS, 0, 0)):
            connection = over(server.port, path, certificates)
            connection.sendall(says)
            name = over.__name__, len(says)
            threads.append(threading.Thread(target=wait_for_the_end, args=(name, connection)))
            threads[-1].start()
    for thread in threads:
        thread.join(60 * PATIENCE)
    assert len(ends) == len(threads)
    for name, (kinds, end) in ends.items():
        assert end - begin > SILENCE_S - 1, name
        assert GOAWAY in kinds, name
    before = time.monotonic()
    for client in clients:
        client.insert([0.0], {"replay": 1.0})
    assert time.monotonic() - before < 4 * PATIENCE


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_channel_of_grpc_may_be_silent_between_its_calls(start, tokens):
    """Clients of dm-reverb stand on the same library. It connects again by itself."""
    token = tokens.add("learner", "sample,insert")
    server = start(testing.table("replay"), tokens=tokens.path, host="127.0.0.1")
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        grpc.channel_ready_future(channel).result(20 * PATIENCE)
        info = channel.unary_unary("/deepmind.reverb.ReverbService/ServerInfo")
        metadata = [("authorization", f"Bearer {token}")]
        for _ in range(2):
            time.sleep(3 * SILENCE_S)
            begin = time.monotonic()
            answer = protos.ServerInfoResponse.FromString(info(b"", metadata=metadata))
            assert time.monotonic() - begin < 4 * PATIENCE
            assert [table.name for table in answer.table_info] == ["replay"]


def test_a_token_that_is_taken_away_ends_its_streams(secure, tokens):
    token = tokens.add("learner", "sample,insert")
    secured = secure(tokens=tokens.path)
    client = secured.client(token=token)
    client.insert([0.0], {testing.table().name: 1.0})
    waiting = client.sample(testing.table().name, 10**9, emit_timesteps=False)
    next(waiting)
    tokens.remove(token)
    tokens.add("another", "sample")
    assert secured.server.reload_security()
    begin = time.monotonic()
    while time.monotonic() - begin < 60 * PATIENCE:
        try:
            next(waiting)
        except reverb.errors.ReverbError:
            return
    pytest.fail("the stream goes on")
