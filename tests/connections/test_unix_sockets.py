# SPDX-License-Identifier: Apache-2.0
"""Servers and clients on one machine that meet at a Unix socket."""

import contextlib
import os
import pathlib
import pickle
import re
import socket
import stat
import threading

import grpc
import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.core import protos
from reverb.errors import InvalidArgumentError, UnavailableError
from support.programs import Program, open_files, run
from support.waiting import DEADLINE_S

SERVER = """
    import sys
    import reverb

    server = reverb.Server([reverb.Table.queue("queue", 10_000)], unix_path=sys.argv[1])
    print(server.unix_address)
    server.wait()
"""
CLIENT = """
    import sys
    import reverb

    client = reverb.Client(sys.argv[1], connect_timeout_s=20)
    client.insert([7], {"table": 1.0})
    print(client.sample_batch("table", 1).data[0].ravel().tolist())
"""


@pytest.fixture
def path(tmp_path):
    """Where a socket may be; its directory does not exist yet."""
    return tmp_path / "sockets" / "reverb"


@pytest.fixture
def over(path, tmp_path):
    """The address of the socket that a client in the server's process does not recognise."""
    link = tmp_path / "link"
    link.symlink_to(path.parent)
    return f"unix:{link}/{path.name}"


def add(writer, value, table="queue"):
    writer.append([value])
    writer.create_item(table, 1.0, {"a": writer.history[0][-1:]})


def taken(client, count):
    return [int(steps[0].data[0]) for steps in client.sample("queue", count)]


def peers(client):
    return {stream.peer for stream in client.status(with_streams=True).streams}


# --- Addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "mit Umlaut äöü 50%25,b?c#d"])
def test_a_server_tells_the_address_of_its_socket(start, tmp_path, name):
    server = start(unix_path=tmp_path / name)
    assert server.unix_address.startswith("unix:///")
    assert re.fullmatch(r"[\w:/.%~-]+", server.unix_address, re.ASCII)
    assert run(CLIENT, server.unix_address) == ["[7]"]


def test_an_address_is_written_in_several_ways(start, path):
    start(unix_path=path)
    for address in (f"unix://{path}", f"unix:{path}"):
        assert run(CLIENT, address) == ["[7]"]
    relative = f"import os\nos.chdir({str(path.parent)!r})\n"
    assert run(relative + CLIENT.replace("\n    ", "\n"), "unix:reverb") == ["[7]"]


def test_a_server_without_socket_has_no_address(start):
    assert start().unix_address is None


def test_in_the_process_of_the_server_no_socket_is_used(start, path, over):
    server = start(unix_path=path)
    local, remote = reverb.Client(server.unix_address), reverb.Client(over)
    names = {"this process": local, f"client unix:{os.getpid()}": remote}
    for name, client in names.items():
        with client.trajectory_writer(1) as writer:
            add(writer, 1, "table")
            writer.flush()
            assert peers(client) == {name}


def test_a_copy_knows_the_socket(start, path, over):
    start(unix_path=path)
    copy = pickle.loads(pickle.dumps(reverb.Client(over)))
    assert copy.server_address == over
    assert set(copy.server_info()) == {"table"}


# --- Where no server is ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: None, "there is no such socket: its server is not running"),
        (lambda path: abandon(path), "no server listens there: it has ended"),
    ],
    ids=["no socket", "nobody listens"],
)
def test_a_server_that_does_not_run_is_waited_for(tmp_path, make, what):
    path = tmp_path / "reverb"
    make(path)
    client = reverb.Client(f"unix:{path}", connect_timeout_s=0.3)
    with pytest.raises(UnavailableError, match=f"for 0.3 s.*unix:{path}: {what}"):
        client.server_info()


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: path.write_text(""), "that is not a socket"),
        (lambda path: path.parent.joinpath("x").symlink_to(path.parent), "that is not a socket"),
        (lambda path: datagram_socket(path), "that is a socket of another kind"),
    ],
    ids=["file", "directory", "datagrams"],
)
def test_what_can_be_no_server_is_not_tried_again(tmp_path, make, what):
    path = tmp_path / "x"
    make(path)
    with pytest.raises(UnavailableError, match=f"at unix:{path}: {what}"):
        reverb.Client(f"unix:{path}", connect_timeout_s=DEADLINE_S).server_info()


def abandon(path):
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def datagram_socket(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(path))
        bound.detach()


def test_who_may_not_enter_is_told_what_is_needed(start, path):
    """The client runs as another user, or the directory is closed to this one."""
    start(unix_path=path)
    source = """
        import os
        import pathlib
        import sys
        import reverb

        path = pathlib.Path(sys.argv[1])
        if os.geteuid():
            path.parent.chmod(0)
        else:
            os.setuid(65534)
        try:
            reverb.Client(f"unix:{path}", connect_timeout_s=20).server_info()
        except reverb.errors.UnavailableError as error:
            print(error)
        finally:
            if os.geteuid() != 65534:
                path.parent.chmod(0o700)
    """
    (line,) = run(source, path)
    assert "no permission: user " in line
    assert "must be allowed to write to the socket and to enter its directory" in line


# --- The file -------------------------------------------------------------------------------------


def test_the_directory_is_private_and_the_socket_is_removed(path):
    server = reverb.Server([testing.table()], unix_path=path)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.is_socket()
    server.stop()
    assert not path.exists()
    server.stop()
    assert server.unix_address == f"unix://{path}"


def test_a_file_that_is_no_socket_is_never_removed(start, tmp_path):
    path = tmp_path / "precious"
    path.write_text("data")
    table = testing.table()
    with pytest.raises(InvalidArgumentError, match="there is a file, not a socket"):
        start(table, unix_path=path)
    assert path.read_text() == "data"
    start(table)  # It is free again.


def test_open_connections_outlive_their_path(start, path, over):
    server = start(unix_path=path)
    client = reverb.Client(over)
    client.insert([1], {"table": 1.0})
    path.unlink()
    client.insert([2], {"table": 1.0})
    with pytest.raises(UnavailableError, match="there is no such socket"):
        reverb.Client(over, connect_timeout_s=0.2).server_info()
    server.stop()


# --- A server behind the socket -------------------------------------------------------------------


def test_clients_continue_after_a_killed_server_restarts(path):
    with Program(SERVER, path) as program:
        client = reverb.Client(program.line(), connect_timeout_s=DEADLINE_S)
        writer = client.trajectory_writer(1)
        for i in range(100):
            add(writer, i)
        writer.flush()
        program.kill()
    assert path.is_socket()
    for i in range(100, 200):
        add(writer, i)
    with Program(SERVER, path) as program:
        program.line()
        for i in range(200, 300):
            add(writer, i)
        writer.flush()
        assert taken(client, 200) == list(range(100, 300))


def test_a_drain_ends_its_streams_and_a_stop_its_connections(start, path, over, background, until):
    server = start(unix_path=path)
    client = reverb.Client(over, connect_timeout_s=0.3)
    sampling = background(client.sample_batch, "table", 1)
    until(lambda: peers(client))
    assert client.drain(10_000) == 0
    with pytest.raises(UnavailableError, match="drain"):
        sampling.result()
    server.stop()
    with pytest.raises(UnavailableError, match="no such socket"):
        client.server_info()


def test_a_port_and_a_socket_have_one_limit(start, path, over):
    server = start(unix_path=path, limits=reverb.Limits(connections=1))
    first = reverb.Client(f"127.1:{server.port}")
    first.server_info()
    with pytest.raises(UnavailableError, match=r"Limits\.connections is 1"):
        reverb.Client(over, connect_timeout_s=0.3).server_info()


def test_hundreds_of_clients_at_once(start, path, over, background):
    start(reverb.Table.queue("queue", 10_000), unix_path=path)
    clients = [reverb.Client(over) for _ in range(300)]
    before = open_files()
    calls = [background(client.insert, [i], {"queue": 1.0}) for i, client in enumerate(clients)]
    for call in calls:
        call.result()
    assert sorted(taken(clients[0], 300)) == list(range(300))
    assert open_files() >= before + 300


def test_a_forked_child_of_the_server_reaches_it_by_the_socket(path):
    source = """
        import os
        import sys
        import warnings
        import reverb
        from reverb import testing

        warnings.simplefilter("ignore", DeprecationWarning)
        server = reverb.Server([testing.table()], unix_path=sys.argv[1])
        client = server.unix_address and reverb.Client(server.unix_address)
        client.insert([1], {"table": 1.0})
        pid = os.fork()
        if not pid:
            with client.trajectory_writer(1) as writer:
                writer.append([2])
                writer.create_item("table", 1.0, {"a": writer.history[0][-1:]})
                writer.flush()
                peers = {it.peer for it in client.status(with_streams=True).streams}
            server.stop()  # Not the child's to stop.
            os._exit(0 if f"client unix:{os.getpid()}" in peers else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(client.server_info()["table"].current_size, os.path.exists(sys.argv[1]))
    """
    assert run(source, path) == ["0", "2 True"]


# --- Others on it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reverb", "a bä%20"])
def test_grpcio_of_python_reaches_it(start, tmp_path, name):
    path = tmp_path / name
    server = start(unix_path=path)
    for address in (f"unix:{path}", f"unix://{path}") if name == "reverb" else ():
        assert tables_by_grpcio(address) == ["table"]
    assert tables_by_grpcio(server.unix_address) == ["table"]


def tables_by_grpcio(address):
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary("/deepmind.reverb.ReverbService/ServerInfo")
        answer = protos.ServerInfoResponse.FromString(call(b"", timeout=DEADLINE_S))
    return [table.name for table in answer.table_info]


def test_a_client_reaches_a_server_of_grpcio(tmp_path):
    """Which says that it has no such call."""
    from concurrent import futures

    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_insecure_port(f"unix:{tmp_path}/grpcio")
    server.start()
    client = reverb.Client(f"unix:{tmp_path}/grpcio", connect_timeout_s=DEADLINE_S)
    with pytest.raises(reverb.errors.UnimplementedError):
        client.server_info()
    server.stop(None).wait()


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"\x16\x03\x01\x00\x05hello", b"\x15\x03\x01\x00\x02\x02\x28"),
    ],
    ids=["HTTP/1", "TLS"],
)
def test_who_speaks_something_else_is_told(start, path, words, answer):
    start(unix_path=path)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(DEADLINE_S)
        peer.connect(str(path))
        peer.sendall(words)
        peer.shutdown(socket.SHUT_WR)
        received = b""
        while data := peer.recv(1000):
            received += data
    assert received.startswith(answer)


def test_silent_peers_keep_nobody_out(start, path, over):
    start(unix_path=path)
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            peer = stack.enter_context(socket.socket(socket.AF_UNIX))
            peer.connect(str(path))
        assert reverb.Client(over).server_info()


def test_batches_of_megabytes_cross_it(start, path, over):
    start(reverb.Table.queue("queue", 100), unix_path=path)
    client = reverb.Client(over)
    data = np.random.default_rng(0).standard_normal((8, 250_000))
    received = []
    reader = threading.Thread(target=lambda: received.append(client.sample_batch("queue", 8)))
    reader.start()
    client.insert_batch([data], {"queue": 1.0})
    reader.join(DEADLINE_S)
    np.testing.assert_array_equal(np.sort(received[0].data[0][:, 0], axis=0), np.sort(data, axis=0))


def test_a_path_may_be_any_object_of_a_path(start, path):
    assert start(unix_path=pathlib.Path(path)).unix_address == f"unix://{path}"
    with pytest.raises(TypeError, match="unix_path must be a path, got int"):
        reverb.Server([testing.table()], unix_path=3)
    with pytest.raises(InvalidArgumentError, match="unix_path must be the path of a file"):
        reverb.Server([testing.table()], unix_path="")
