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
