# SPDX-License-Identifier: Apache-2.0
"""One client of several servers: calls and streams take turns."""

import pickle

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import DeadlineExceededError, InvalidArgumentError
from support.log_lines import messages
from support.writer_kinds import EVERY_WRITER


@pytest.fixture
def tables():
    return [reverb.Table.queue("queue", 100), reverb.Table.queue("queue", 100)]


@pytest.fixture(
    params=["{0},{1}", "{0}, {1}", "ipv4:{0},{1}", "dns:///{0},{1}"],
    ids=["list", "spaces", "ipv4", "dns"],
)
def client(request, start, tables):
    servers = [f"127.0.0.1:{start(table).port}" for table in tables]
    return reverb.Client(request.param.format(*servers), connect_timeout_s=20)


def sizes(tables):
    return [table.info.current_size for table in tables]


def write_one(client):
    EVERY_WRITER["trajectory_writer"](client, "queue").close()


WRITES = {
    "insert": lambda client: client.insert([1], {"queue": 1.0}),
    "insert_batch": lambda client: client.insert_batch([np.arange(3)], {"queue": 1.0}),
    "writer": write_one,
    "writer after another call": lambda client: (client.server_info(), write_one(client)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_take_turns(client, tables, write):
    for _ in range(4):
        write(client)
    first, second = sizes(tables)
    assert first == second >= 2


def test_clients_begin_with_different_servers(start):
    tables = [reverb.Table.queue("queue", 100) for _ in range(2)]
    address = ",".join(f"127.0.0.1:{start(table).port}" for table in tables)
    for _ in range(100):
        write_one(reverb.Client(address))
    # Some 5 more or less are one standard deviation.
    assert min(sizes(tables)) >= 25


def test_a_wait_at_an_empty_server_tells_of_the_others(start):
    ports = [start(reverb.Table.queue("queue", 100)).port for _ in range(2)]
    places = [f"127.0.0.1:{port}" for port in ports]
    client = reverb.Client(",".join(places))
    told = set()
    for _ in range(2):
        with pytest.raises(DeadlineExceededError, match="Table queue") as raised:
            client.sample_batch("queue", 1, timeout_ms=1)
        text = str(raised.value)
        assert f"A client of shards:///{','.join(places)} samples from all of them." in text
        told.add(text.partition("It waited at ")[2].partition(",")[0])
    assert told == set(places)
    alone = reverb.Client(f"127.1:{ports[0]}")
    with pytest.raises(DeadlineExceededError) as raised:
        alone.sample_batch("queue", 1, timeout_ms=1)
    assert "shards:///" not in str(raised.value)


def test_a_call_to_one_server_says_what_to_do_with_several(start):
    ports = [start(reverb.Table.queue("queue", 1)).port for _ in range(2)]
    address = ",".join(f"127.0.0.1:{port}" for port in ports)
    client = reverb.Client(address)
    client.server_info()
    with pytest.raises(reverb.errors.InvalidArgumentError) as raised:
        client.directory()
    assert f"{address} has several servers, and directory is a call to one" in str(raised.value)
    assert "make a client of that server" in str(raised.value)
    # A group has a map of its own.
    assert len(reverb.Client(f"shards:///{address}").directory().shards) == 2


def test_a_wait_of_a_writer_names_its_server(start):
    ports = [start(reverb.Table.queue("queue", 1)).port for _ in range(2)]
    places = [f"127.0.0.1:{port}" for port in ports]
    client = reverb.Client(",".join(places))
    told = set()
    for _ in range(2):
        writer = client.trajectory_writer(1)
        for i in range(2):
            writer.append([i])
            writer.create_item("queue", 1.0, [writer.history[0][-1:]])
        writer.flush(block_until_num_items=1)
        with pytest.raises(DeadlineExceededError, match="1 items sent to") as raised:
            writer.flush(timeout_ms=1_000)
        text = str(raised.value)
        told.add(text.partition("sent to ")[2].partition(f" of {','.join(places)} but")[0])
        assert "insert(s)" not in text, "the numbers of another server"
        # Its last item would go to the next server at this port, which may be another test's.
        writer.close()
    assert told == set(places)


def test_samples_come_from_all(client, tables, start, until):
    for i in range(20):
        client.insert([i], {"queue": 1.0})
    taken = [int(next(client.sample("queue"))[0].data[0]) for _ in range(10)]
    assert len(set(taken)) == 10
    assert sizes(tables) == [5, 5]
    for _ in range(2):
        taken += client.sample_batch("queue", 5).data[0].ravel().tolist()
    assert sorted(taken) == list(range(20))


def test_a_call_is_about_one_of_them(client, tables):
    for i in range(4):
        client.insert([i], {"queue": 1.0})
    client.reset("queue")
    assert sorted(sizes(tables)) == [0, 2]
    assert {client.server_info()["queue"].current_size for _ in range(2)} == {0, 2}


def test_a_log_line_says_which_one_was_reached(client, tables, capfd):
    for _ in range(2):
        client.reset("queue")
    client.checkpoint_status()
    lines = messages(capfd.readouterr().err)
    assert len(lines) == 2, "once for each kind of call"
    for method, line in zip(("Reset", "CheckpointStatus"), lines, strict=True):
        assert line.startswith(f"WARN rpc: {method} reaches one server, 127.0.0.1:")
        assert line.endswith(
            f", of the 2 behind {client.server_address}. Make a client for each address to "
            "reach them all."
        )


def test_a_log_line_is_not_for_one_server(start, capfd):
    client = reverb.Client(f"127.1:{start().port}")
    client.reset("table")
    client.checkpoint_status()
    assert capfd.readouterr().err == ""


def test_a_copy_knows_all_of_them(client, tables):
    copy = pickle.loads(pickle.dumps(client))
    assert copy.server_address == client.server_address
    for i in range(4):
        copy.insert([i], {"queue": 1.0})
    assert sizes(tables) == [2, 2]


# `rpc/target.rs` and `rpc/socket_path.rs` have the others.
@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("localhost", "has no port; write host:port, for example"),
        (
            "unix:/a,unix:/b",
            "has a comma: an address has one Unix socket.*unix:///path/of/socket",
        ),
        ("shards:///a:1,a:1", "names a:1 twice"),
    ],
)
def test_a_malformed_address_is_told_at_once(address, what):
    with pytest.raises(InvalidArgumentError, match=what):
        reverb.Client(address)


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), float("inf")])
def test_a_timeout_is_a_number_of_seconds(timeout):
    with pytest.raises(InvalidArgumentError, match="connect_timeout_s must be a number of seconds"):
        reverb.Client("localhost:1", connect_timeout_s=timeout)


def test_a_server_on_one_interface_is_found_there():
    with reverb.Server([testing.table()], host="127.0.0.1") as server:
        for host in ("127.0.0.1", "localhost", "127.1"):
            client = reverb.Client(f"{host}:{server.port}", connect_timeout_s=20)
            assert set(client.server_info()) == {"table"}
