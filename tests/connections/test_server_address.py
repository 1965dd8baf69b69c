# SPDX-License-Identifier: Apache-2.0
"""`Server.address`: what a client on the same machine passes to `Client`."""

import pytest

import reverb
from support.certificates import Certificates
from support.programs import run

HOSTS = {
    None: "localhost",
    "0.0.0.0": "localhost",
    "::": "localhost",
    "localhost": "localhost",
    "127.0.0.1": "127.0.0.1",
    "127.0.0.2": "127.0.0.2",
    "::1": "[::1]",
}


# Prints the tables that another process finds at an address.
TABLES = "import sys, reverb; print(reverb.Client(sys.argv[1]).tables())"


@pytest.mark.parametrize("host", HOSTS, ids=str)
def test_a_host_is_one_that_this_machine_reaches(start, host):
    try:
        server = start(reverb.Table.queue("queue", 10), host=host)
    except reverb.errors.InvalidArgumentError as error:
        if host in ("::", "::1"):
            pytest.skip(f"this machine has no IPv6: {error}")
        raise
    assert server.address == f"{HOSTS[host]}:{server.port}"
    with reverb.Client(server.address) as client:
        assert client.tables() == ["queue"]
        assert client._is_local()


def test_another_process_uses_it_too(start):
    assert run(TABLES, start(reverb.Table.queue("queue", 10)).address) == ["['queue']"]


def test_a_unix_socket_comes_first(start, tmp_path):
    server = start(reverb.Table.queue("queue", 10), unix_path=tmp_path / "sock" / "s p")
    assert server.address == server.unix_address
    assert server.address.startswith("unix:")
    with reverb.Client(server.address) as client:
        assert client.tables() == ["queue"]
    assert run(TABLES, server.address) == ["['queue']"]


@pytest.mark.parametrize(("host", "name"), [(None, "localhost"), ("127.0.0.1", "127.0.0.1")])
def test_tls_is_in_the_address(start, tmp_path, host, name, monkeypatch):
    monkeypatch.delenv("REVERB_TLS", raising=False)
    certificates = Certificates(tmp_path)
    pair = certificates.good()
    tls = reverb.ServerTls(pair.cert, pair.key)
    server = start(reverb.Table.queue("queue", 10), host=host, tls=tls)
    assert server.address == f"grpcs://{name}:{server.port}"
    with reverb.Client(server.address, tls=reverb.ClientTls(ca=certificates.ca)) as client:
        assert client.tables() == ["queue"]


def test_a_stopped_server_keeps_its_address():
    server = reverb.Server([reverb.Table.queue("queue", 10)])
    address = server.address
    server.stop()
    assert server.address == address
