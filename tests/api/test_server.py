# SPDX-License-Identifier: Apache-2.0
"""The life of a server: arguments, port, stop, wait."""

import socket
import threading

import pytest

import reverb
from reverb import testing
from reverb.errors import InvalidArgumentError, ReverbError
from support.waiting import DEADLINE_S


@pytest.mark.parametrize("tables", [None, [], ()])
def test_a_server_needs_a_table(tables):
    with pytest.raises(InvalidArgumentError, match="A server needs at least one table"):
        reverb.Server(tables)


def test_names_of_tables_differ():
    with pytest.raises(InvalidArgumentError, match="there are several called a, b"):
        reverb.Server([testing.table(name) for name in "abcab"])


@pytest.mark.parametrize("table", ["table", None, 1])
def test_a_table_is_made_by_its_class(table):
    with pytest.raises(TypeError, match=f"tables must hold Table objects, got {table!r}"):
        reverb.Server([table])


@pytest.mark.parametrize("stopped", [False, True])
def test_a_table_serves_once(start, stopped):
    table = testing.table()
    first = start(table)
    client = first.localhost_client()
    client.insert([1], {"table": 1.0})
    if stopped:
        first.stop()
    with pytest.raises(
        InvalidArgumentError, match=r"table 'table' was given to a server before.*replace\(\)"
    ):
        reverb.Server([testing.table("other"), table])
    if not stopped:
        client.insert([2], {"table": 1.0})
    assert table.info.current_size == 2 - stopped
    assert start(table.replace()).localhost_client().server_info()["table"].current_size == 0


def test_a_server_that_cannot_start_gives_its_tables_back(start):
    table = testing.table()
    taken = start(testing.table("other")).port
    with pytest.raises(InvalidArgumentError, match=f"cannot listen on port {taken}"):
        reverb.Server([table], port=taken)
    assert start(table).localhost_client().server_info()["table"].current_size == 0


def test_a_host_that_is_not_ours_is_named():
    with pytest.raises(InvalidArgumentError, match=r"port 0 of 203\.0\.113\.7: .*another host"):
        reverb.Server([testing.table()], host="203.0.113.7")


def test_a_client_does_not_keep_its_server():
    client = reverb.Server([testing.table()]).localhost_client()
    with pytest.raises(ReverbError):
        reverb.Client(client.server_address, connect_timeout_s=0.1).server_info()


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_out_of_range_is_named(port):
    with pytest.raises(InvalidArgumentError, match=f"port must be from 0 to 65535, got {port}"):
        reverb.Server([testing.table()], port=port)


@pytest.mark.parametrize("port", [None, 0])
def test_the_port_is_the_real_one(port):
    with reverb.Server([testing.table()], port=port) as server:
        assert server.port > 0
        with socket.create_connection(("localhost", server.port), timeout=5):
            pass


def test_tables_may_come_from_an_iterator():
    with reverb.Server(testing.table(name) for name in "ab") as server:
        assert set(server.localhost_client().server_info()) == {"a", "b"}


def test_stop_may_be_called_twice():
    server = reverb.Server([testing.table()])
    server.stop()
    server.stop()


def test_wait_returns_when_the_server_is_stopped():
    server = reverb.Server([testing.table()])
    waiting = threading.Thread(target=server.wait)
    waiting.start()
    server.stop()
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()
    server.wait()


def test_a_dropped_server_stops():
    server = reverb.Server([testing.table()])
    port = server.port
    del server
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)
