# SPDX-License-Identifier: Apache-2.0
"""Clients of dm-reverb, which have no TLS, and servers of this package that want it."""

import time

import pytest

import reverb
from support.certificates import Certificates, TokensFile
from support.package_workers import WorkerError
from support.stunnel import STUNNEL, tunnel
from support.waiting import PATIENCE

pytestmark = pytest.mark.conformance
needs_stunnel = pytest.mark.skipif(
    STUNNEL is None, reason="Debian's package stunnel4 is missing: apt-get install stunnel4"
)


def tables():
    return [reverb.Table.queue("table", 100), reverb.Table.queue("other", 100)]


@pytest.fixture
def certificates(tmp_path):
    directory = tmp_path / "certificates"
    directory.mkdir()
    return Certificates(directory)


@pytest.fixture
def tls(certificates):
    pair = certificates.good()
    return reverb.ServerTls(pair.cert, pair.key)


@pytest.fixture
def peer(worker_of):
    return worker_of("peer", "client")


def refused(peer, call, **arguments):
    began = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        peer.call(call, **arguments)
    assert "RuntimeError" in caught.value.types, caught.value
    assert time.monotonic() - began < 10 * PATIENCE
    return caught.value.message


@pytest.mark.parametrize("call", ["insert", "read", "server_info"])
def test_a_port_with_tls_is_an_error_at_once(peer, tls, call):
    arguments = {
        "insert": {"values": [1], "priorities": {"table": 1.0}},
        "read": {"count": 1, "how": "sample"},
        "server_info": {},
    }[call]
    server = reverb.Server(tables(), tls=tls)
    message = refused(peer, call, address=f"localhost:{server.port}", **arguments)
    assert "This port wants TLS: write the address as grpcs://host:port" in message
    assert "stunnel" in message
    server.stop()


def test_a_server_with_tokens_is_an_error_at_once(peer, tmp_path):
    tokens = TokensFile(tmp_path / "tokens")
    tokens.add("learner", "sample")
    server = reverb.Server(tables(), host="127.0.0.1", tokens=tokens.path)
    message = refused(peer, "server_info", address=f"localhost:{server.port}")
    assert "This server wants a token" in message
    server.stop()


@needs_stunnel
def test_a_tunnel_carries_all_of_it(peer, tls, certificates, tmp_path):
    server = reverb.Server(tables(), tls=tls)
    with tunnel(tmp_path, server.port, certificates.ca) as address:
        values = list(range(20))
        peer.call("insert", address=address, values=values, priorities={"table": 1.0})
        read = peer.call("read", address=address, count=20, how="sample")
        assert len(read) == 20
        assert sorted(peer.call("server_info", address=address)) == ["other", "table"]
    server.stop()


@needs_stunnel
def test_rights_of_a_tunnel_come_from_its_certificate(peer, tls, certificates, tmp_path):
    tokens = TokensFile(tmp_path / "tokens")
    tokens.add_certificate("old-actor", "insert,sample", "actor.example", tables="table")
    tls = reverb.ServerTls(tls.cert, tls.key, client_ca=certificates.ca)
    server = reverb.Server(tables(), tls=tls, tokens=tokens.path)
    pair = certificates.good("actor.example", label="client")
    with tunnel(tmp_path, server.port, certificates.ca, pair) as address:
        peer.call("insert", address=address, values=[1], priorities={"table": 1.0})
        assert len(peer.call("read", address=address, count=1, how="sample")) == 1
        assert sorted(peer.call("server_info", address=address)) == ["table"]
        message = refused(peer, "reset", address=address, table="table")
        assert "certificate old-actor may not administer" in message
    server.stop()
