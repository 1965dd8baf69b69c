# SPDX-License-Identifier: Apache-2.0
"""A server that is frozen: nothing is changed, also not later.

`test_command_table.py` has what commands say.
"""

import time

import pytest

import reverb
from reverb.errors import UnavailableError
from support.frozen_servers import CHANGES, CONFIG, SOON_S, Commands
from support.reverb_server import running


@pytest.fixture
def server(capsys):
    with running(config=CONFIG) as (program, client):
        yield Commands(client.server_address, [program], [client], capsys)


@pytest.mark.parametrize("name", CHANGES)
def test_nothing_is_changed_then_or_later(server, name):
    if name == "resume":
        assert server.run("pause", "--table", "t")[0] == 0
    before = server.tables()
    with server.frozen():
        code, out, err, took = server.run(name, *CHANGES[name])
        assert (code, out, took < SOON_S) == (1, "", True), (err, took)
        # It may have answered the first question before it froze.
        assert f"The server at {server.address} does not answer" in err
    assert server.tables() == before


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_connected_already_finds_the_same(server, name):
    client = reverb.Client(server.address)
    client._give_up_on_silence(1.0)
    client.status()
    change = {
        "pause": lambda: client.pause_table("t"),
        "resume": lambda: client.resume_table("t"),
        "configure": lambda: client.configure_table("t", max_size=300),
        "reset": lambda: client.reset("t"),
    }[name]
    if name == "resume":
        client.pause_table("t")
    before = server.tables()
    with server.frozen():
        began = time.monotonic()
        with pytest.raises(UnavailableError, match=r"^The server at .* does not answer"):
            change()
        assert time.monotonic() - began < SOON_S
    assert server.tables() == before
    change()
    assert server.tables() != before


def test_the_time_to_wait_goes_with_the_timeout(server):
    with server.frozen():
        assert "within 1 s)" in server.run("why", "--timeout", "1.25")[2]
        assert "within 3 s)" in server.run("why", "--timeout", "15")[2]


def test_programs_wait_as_they_did(server):
    """Only commands give up: a program may wait for a server that is stopped for a while."""
    with server.frozen():
        client = reverb.Client(server.address)
        began = time.monotonic()
        with pytest.raises(reverb.errors.DeadlineExceededError):
            client.server_info(timeout=3)
        assert time.monotonic() - began >= 3
