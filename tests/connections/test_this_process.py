# SPDX-License-Identifier: Apache-2.0
"""Which addresses lead to a server of this process without the network."""

import pytest

import reverb
from reverb import testing
from support.programs import Program

OTHER = """
    import sys
    import reverb
    from reverb import testing

    server = reverb.Server([testing.table("other")], host="127.0.0.1", port=int(sys.argv[1]))
    print(server.port)
    server.wait()
"""


@pytest.fixture
def servers():
    """A server of this process on 127.0.0.2, and one of another process on 127.0.0.1: one port."""
    own = reverb.Server([testing.table("own")], host="127.0.0.2")
    with Program(OTHER, own.port) as other:
        assert int(other.line()) == own.port
        yield own
    own.stop()


@pytest.mark.parametrize(
    ("host", "table"),
    [
        ("127.0.0.2", "own"),
        ("127.0.0.1", "other"),
        ("localhost", "other"),
        ("0.0.0.0", "other"),
    ],
)
def test_an_address_leads_to_the_server_that_listens_on_it(servers, host, table):
    client = reverb.Client(f"{host}:{servers.port}", connect_timeout_s=10)
    assert set(client.server_info()) == {table}


def test_a_server_that_starts_here_later_is_found():
    first = reverb.Server([testing.table("first")])
    client = reverb.Client(f"localhost:{first.port}", connect_timeout_s=10)
    assert client._is_local()
    first.stop()
    assert not client._is_local()
    second = reverb.Server([testing.table("second")], port=first.port)
    assert client._is_local()
    assert client.tables() == ["second"]
    second.stop()


def test_a_unix_socket_of_this_process_needs_no_connection(tmp_path):
    path = tmp_path / "private" / "socket"
    client = reverb.Client(f"unix://{path}")
    assert not client._is_local()
    server = reverb.Server([testing.table("own")], unix_path=path)
    assert client._is_local()
    server.stop()


def test_another_host_and_a_group_are_not_this_process():
    server = reverb.Server([testing.table("own")])
    for address in ("10.0.0.1:{}", "shards:///localhost:{},localhost:1"):
        assert not reverb.Client(address.format(server.port))._is_local()
    server.stop()


@pytest.mark.parametrize("address", ["nowhere", "shards:///", "shards:///nowhere"])
def test_an_address_that_cannot_be_is_refused_at_once(address):
    with pytest.raises(reverb.errors.InvalidArgumentError):
        reverb.Client(address)
