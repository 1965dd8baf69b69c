# SPDX-License-Identifier: Apache-2.0
"""Clients of servers that stop, crash, return, or never existed."""

import contextlib
import pathlib
import signal
import socket
import threading
import time

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import (
    DeadlineExceededError,
    SignatureMismatchError,
    UnavailableError,
    UnimplementedError,
)
from support import writer_kinds
from support.hosts import HOSTS
from support.programs import Program
from support.waiting import DEADLINE_S, PATIENCE, wait_until
from support.wire.raw_http2 import frame

CONNECT_TIMEOUT_S = 0.5
# How much longer a call may take than its timeout, on a busy machine.
SLACK_S = 10.0 * PATIENCE


@pytest.fixture
def nobody():
    """An address where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def silence():
    """An address where connections are taken and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def nowhere(request):
    """An address that leads to no server, by the name of what is wrong with it."""
    if request.param == "unknown name":
        return "no-such-host.invalid:8000"
    return request.getfixturevalue(request.param)


def open_item(client, table="table", **options):
    """A trajectory writer with an item that was not flushed."""
    writer = client.trajectory_writer(1, **options)
    add(writer, 1, table)
    return writer


def add(writer, value, table="table"):
    writer.append([value])
    writer.create_item(table, 1.0, {"a": writer.history[0][-1:]})


def sequence_writer(client):
    writer = client.sequence_writer("full", 1)
    writer.append([1])
    return writer


def open_structured_writer(client, table="table"):
    writer = writer_kinds.structured(client, table)[0]
    writer.append([1])
    return writer


def wait_for_room(client):
    """Fills an old writer, and lets it go without a word about what it could not deliver."""
    writer = client.writer(1, chunk_length=1, max_in_flight_items=1)
    writer.append([1])
    try:
        for _ in range(3):
            writer.create_item("full", 1, 1.0)
    finally:
        writer.close(retry_on_unavailable=False)


def contents(client, table="table"):
    """All values of a queue, which is empty afterwards."""
    size = client.server_info()[table].current_size
    return [int(steps[0].data[0]) for steps in client.sample(table, size)] if size else []


def raises_unavailable(call, address):
    with pytest.raises(UnavailableError, match="connect_timeout_s") as caught:
        call()
    assert address in str(caught.value)


# Calls that need a server, on an address where there is none.
UNSERVED = {
    "server_info": lambda client: client.server_info(),
    "insert": lambda client: client.insert([1], {"table": 1.0}),
    "insert_batch": lambda client: client.insert_batch(np.arange(2), {"table": 1.0}),
    "sample": lambda client: next(client.sample("table")),
    "sample with a timeout": lambda client: next(client.sample("table", timeout_ms=10)),
    "sample_batch": lambda client: client.sample_batch("table", 2),
    "mutate_priorities": lambda client: client.mutate_priorities("table", {1: 1.0}),
    "reset": lambda client: client.reset("table"),
    "writer": lambda client: client.writer(1),
    "trajectory_writer": lambda client: client.trajectory_writer(1),
    "batched_trajectory_writer": lambda client: client.batched_trajectory_writer(1, 1),
    "sequence_writer": lambda client: client.sequence_writer("table", 1),
    "flush": lambda client: open_item(client, validate_items=False).flush(),
    "end_episode": lambda client: open_item(client, validate_items=False).end_episode(),
    "structured flush": lambda client: open_structured_writer(client).flush(),
    "structured end_episode": lambda client: open_structured_writer(client).end_episode(),
}


@pytest.mark.parametrize("nowhere", ["nobody", "silence", "unknown name"], indirect=True)
def test_without_a_server_every_call_ends_and_names_the_address(nowhere, background):
    began = time.monotonic()
    calls = {
        name: background(
            raises_unavailable,
            lambda call=call: call(reverb.Client(nowhere, connect_timeout_s=CONNECT_TIMEOUT_S)),
            nowhere,
        )
        for name, call in UNSERVED.items()
    }
    for call in calls.values():
        call.result()
    assert CONNECT_TIMEOUT_S <= time.monotonic() - began < CONNECT_TIMEOUT_S + SLACK_S


def test_a_writer_that_gave_up_says_so_again(nobody):
    writer = open_item(reverb.Client(nobody, connect_timeout_s=0.1), validate_items=False)
    for call in (writer.flush, writer.flush, writer.end_episode, lambda: writer.append([1])):
        raises_unavailable(call, nobody)


def test_what_is_no_server_of_ours_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    with listening.accept()[0] as peer:
                        peer.recv(1000)
                        peer.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        raises_unavailable(
            reverb.Client(address, connect_timeout_s=CONNECT_TIMEOUT_S).server_info, address
        )
        listening.shutdown(socket.SHUT_RDWR)


def test_a_web_server_is_no_server_of_ours():
    def serve(listening):
        peer = listening.accept()[0]
        with peer, contextlib.suppress(OSError):
            ping, received = frame(6, 0, 0, b"12345678")[:9], b""
            while len(received.partition(ping)[2]) < 8:
                received += peer.recv(1 << 16)
            pong = frame(6, 1, 0, received.partition(ping)[2][:8])
            peer.sendall(frame(4, 0, 0) + frame(4, 1, 0) + pong)
            while frame(1, 4, 1)[3:9] not in received:
                received += peer.recv(1 << 16)
            peer.sendall(frame(1, 5, 1, b"\x8d"))  # `:status: 404`, by its number in RFC 7541.
            while peer.recv(1 << 16):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        serving = threading.Thread(target=serve, args=(listening,))
        serving.start()
        with pytest.raises(UnimplementedError, match=f"{address}.*404"):
            reverb.Client(address, connect_timeout_s=20).server_info()
        serving.join(DEADLINE_S)
        assert not serving.is_alive(), "the connection outlives its client"


def test_a_server_may_start_after_its_clients(path, start, background):
    with reverb.Server([testing.table()]) as server:
        port = server.port  # It is free again, and nobody takes it so soon.
    client = reverb.Client(f"{HOSTS[path]}:{port}")
    calls = [
        background(client.server_info),
        background(client.sample_batch, "table", 2),
        background(open_item(client, validate_items=False).flush),
        background(client.insert, [1], {"table": 1.0}),
    ]
    start(port=port)
    for call in calls:
        call.result()


@pytest.mark.parametrize("down", ["nobody", "silence"])
def test_one_of_several_servers_may_be_down(down, start, request):
    down = request.getfixturevalue(down)
    server = start()
    client = reverb.Client(f"{down},127.0.0.1:{server.port}", connect_timeout_s=2)
    for _ in range(4):
        assert set(client.server_info()) == {"table"}
    with client.trajectory_writer(1) as writer:
        add(writer, 1)
    client.insert([2], {"table": 1.0})
    assert len(list(client.sample("table", 3))) == 3
    assert client.server_info()["table"].current_size == 2


def test_if_all_of_several_servers_are_down_all_are_named(nobody, silence):
    client = reverb.Client(f"{nobody},{silence}", connect_timeout_s=CONNECT_TIMEOUT_S)
    raises_unavailable(client.server_info, nobody)
    raises_unavailable(client.server_info, silence)


# Calls that wait at a server: a queue `full` and a table `empty`.
WAITING = {
    "insert": lambda client: client.insert([1], {"full": 1.0}),
    "sample": lambda client: next(client.sample("empty")),
    "sample_batch": lambda client: client.sample_batch("empty", 2),
    "sample, later": lambda client: list(client.sample("full", 2)),
    "flush": lambda client: open_item(client, "full").flush(),
    "end_episode": lambda client: open_item(client, "full").end_episode(),
    "sequence flush": lambda client: sequence_writer(client).flush(),
    "structured flush": lambda client: open_structured_writer(client, "full").flush(),
    "old create_item": lambda client: wait_for_room(client),
}


def test_a_server_that_stops_ends_the_calls_that_wait(path, connect, background, until):
    full, empty = reverb.Table.queue("full", 1), testing.table("empty")
    server = reverb.Server([full, empty])
    client = connect(server, connect_timeout_s=CONNECT_TIMEOUT_S)
    client.insert([0], {"full": 1.0})
    calls = [background(call, client) for call in WAITING.values()]
    # The call that samples twice lets one insert in.
    until(lambda: full.info.rate_limiter_info.sample_stats.completed == 2)
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < SLACK_S
    failures = 0
    for call in calls:
        # An insert that the samples let in is allowed to have succeeded.
        with contextlib.suppress(UnavailableError):
            call.result()
            continue
        failures += 1
    assert failures >= len(calls) - 3
    assert time.monotonic() - began < CONNECT_TIMEOUT_S + SLACK_S


def test_waiting_long_does_not_use_up_the_time_to_reconnect(connect, start, background, until):
    table = testing.table()
    server = reverb.Server([table])
    client = connect(server, connect_timeout_s=1.5)
    sampling = background(client.sample_batch, "table", 1)
    writer = client.trajectory_writer(1)
    time.sleep(2.5)  # Longer than the timeout: nothing is wrong meanwhile, so nothing counts.
    assert sampling.running
    port = server.port
    server.stop()
    time.sleep(0.5)
    server = start(port=port)
    add(writer, 3)
    writer.flush()
    assert sampling.result().data == [3]


def test_a_writer_goes_on_at_a_server_that_came_back(connect, path):
    table = reverb.Table.queue("table", 10_000)
    server = reverb.Server([table])
    client = connect(server)
    writer = client.trajectory_writer(1)
    for i in range(500):
        add(writer, i)
    writer.flush()
    port = server.port
    server.stop()
    # Confirmed is confirmed, wherever the server went meanwhile.
    assert table.info.current_size == 500
    for i in range(500, 1000):
        add(writer, i)
    with reverb.Server([reverb.Table.queue("table", 10_000)], port=port) as server:
        for i in range(1000, 1500):
            add(writer, i)
        writer.flush()
        assert contents(client) == list(range(500, 1500))


def test_a_reader_goes_on_at_a_server_that_came_back(connect):
    server = reverb.Server([testing.table()])
    client = connect(server)
    client.insert([0], {"table": 1.0})
    samples = client.sample("table", 1000)
    first = [next(samples)[0].data[0] for _ in range(100)]
    port = server.port
    server.stop()
    with reverb.Server([testing.table()], port=port) as server:
        connect(server).insert([1], {"table": 1.0})
        rest = [steps[0].data[0] for steps in samples]
    values = [int(value) for value in first + rest]
    assert len(values) == 1000
    # Nothing but the new server's items once the samples that were on their way are used up.
    assert values == sorted(values)
    assert values[-1] == 1


@pytest.mark.parametrize("scheme", ["", "shards:///"])
def test_an_insert_finds_a_server_with_other_tables(path, scheme):
    host = HOSTS[path].removeprefix("shards:///")
    with reverb.Server([reverb.Table.queue("table", 100)]) as server:
        client = reverb.Client(f"{scheme}{host}:{server.port}")
        for _ in range(3):
            client.insert([np.zeros(2, np.float32)], {"table": 1.0})
    signature = [reverb.specs.TensorSpec((2,), np.float32)]
    table = reverb.Table.queue("table", 100, signature=signature)
    with reverb.Server([table], port=server.port):
        with pytest.raises(SignatureMismatchError, match="column 0 must have dtype float"):
            client.insert([np.zeros(3, np.int32)], {"table": 1.0})
        client.insert([np.zeros(2, np.float32)], {"table": 1.0})
        assert table.info.current_size == 1


def test_nothing_confirmed_is_lost_when_a_server_stops(connect, background, until):
    names = ["a", "b"]
    for _ in range(5):
        before = [reverb.Table.queue(name, 100_000) for name in names]
        after = [reverb.Table.queue(name, 100_000) for name in names]
        server = reverb.Server(before)
        client = connect(server)
        # The last value of each table that `flush` confirmed.
        confirmed = dict.fromkeys(names, -1)
        stop = threading.Event()

        def write(name, client=client, confirmed=confirmed, stop=stop):
            writer = client.trajectory_writer(1)
            for i in range(10**9):
                add(writer, i, name)
                if i % 20 == 0 or stop.is_set():
                    writer.flush()
                    confirmed[name] = i
                    if stop.is_set():
                        return i

        writers = [background(write, name) for name in names]
        until(lambda confirmed=confirmed: min(confirmed.values()) > 200)
        confirmed_before = confirmed.copy()
        port = server.port
        server.stop()
        with reverb.Server(after, port=port):
            stop.set()
            last = [writer.result() for writer in writers]
            for name, old, end in zip(names, before, last, strict=True):
                inserted = old.info.rate_limiter_info.insert_stats.completed
                values = contents(client, name)
                # The old table has a beginning, the new one an end, and what is in neither is lost.
                first = values[0] if values else end + 1
                assert values == list(range(first, end + 1))
                assert confirmed_before[name] < first <= inserted
                assert old.info.current_size == inserted


SERVER = """
    import sys
    import reverb

    port = int(sys.argv[1]) or None
    server = reverb.Server([reverb.Table.queue("table", 100_000)], port=port)
    print(server.port)
    server.wait()
"""


def test_a_crash_of_the_server_costs_only_what_it_held(background, until):
    with Program(SERVER, 0) as first:
        port = int(first.line())
        client = reverb.Client(f"127.0.0.1:{port}", connect_timeout_s=20)
        writer = client.trajectory_writer(1)
        confirmed = threading.Event()
        stop = threading.Event()
        flushed_to = 0

        def write():
            nonlocal flushed_to
            value = 0
            while not stop.is_set():
                for _ in range(50):
                    add(writer, value)
                    value += 1
                writer.flush()
                flushed_to = value
                if value > 2000:
                    confirmed.set()
            return value

        writing = background(write)
        sampling = background(lambda: list(client.sample("table", 500)))
        assert confirmed.wait(20)
        assert len(sampling.result()) == 500
        first.kill()
        held = flushed_to
    with Program(SERVER, port) as second:
        assert int(second.line()) == port
        until(lambda: flushed_to > held + 100)
        stop.set()
        end = writing.result()
        values = contents(client)
        # The new server has everything from the first item that was not confirmed, in order.
        assert values == list(range(values[0], end))
        assert values[0] <= held + 50


def test_readers_and_old_writers_outlive_a_crash(background):
    with Program(SERVER, 0) as first:
        port = int(first.line())
        client = reverb.Client(f"127.0.0.1:{port}", connect_timeout_s=20)
        sampling = background(lambda: list(client.sample("table", 10)))
        batch = background(client.sample_batch, "table", 10)
        old = client.writer(1, chunk_length=1)
        client.server_info()
        first.kill()
    with Program(SERVER, port) as second:
        second.line()
        for i in range(20):
            old.append([i])
            old.create_item("table", 1, 1.0)
        old.close()
        assert len(sampling.result()) == 10
        assert len(batch.result().info.key) == 10


def test_close_without_retry_does_not_wait_for_a_lost_server():
    with Program(SERVER, 0) as server:
        client = reverb.Client(f"127.0.0.1:{server.line()}", connect_timeout_s=60)
        old = client.writer(1, chunk_length=1)
        server.kill()
    old.append([1])
    old.create_item("table", 1, 1.0)
    began = time.monotonic()
    old.close(retry_on_unavailable=False)
    assert time.monotonic() - began < SLACK_S


def test_a_frozen_server_is_waited_for_and_then_goes_on(background, until):
    with Program(SERVER, 0) as server:
        client = reverb.Client(f"127.0.0.1:{server.line()}")
        client.server_info()
        server.signal(signal.SIGSTOP)
        stat = pathlib.Path(f"/proc/{server.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
        with pytest.raises(DeadlineExceededError, match="server_info"):
            client.server_info(timeout=1)
        flushing = background(open_item(client).flush)
        server.signal(signal.SIGCONT)
        flushing.result()
        assert client.server_info(timeout=20)["table"].current_size == 1


def test_a_slow_consumer_of_samples_loses_nothing(connect, start):
    table = reverb.Table.queue("table", 5000)
    client = connect(start(table))
    client.insert_batch(np.arange(5000), {"table": 1.0})
    samples = client.sample("table", 5000)
    values = []
    for steps in samples:
        values.append(int(steps[0].data[0]))
        if len(values) % 500 == 0:
            time.sleep(0.02)  # The next samples have arrived by now.
    assert values == list(range(5000))


def test_a_stopped_server_answers_nobody(start, connect):
    server = start()
    client = connect(server, connect_timeout_s=0.2)
    client.insert([1], {"table": 1.0})
    server.stop()
    for name, call in UNSERVED.items():
        if "writer" in name:
            continue  # The signatures are known, so there is nothing to ask for.
        with pytest.raises(UnavailableError):
            call(client)


def test_items_of_a_killed_writer_that_wait_are_withdrawn():
    source = """
        import sys
        import numpy as np
        import reverb
        writer = reverb.Client(sys.argv[1]).trajectory_writer(1)
        for number in range(int(sys.argv[2]), int(sys.argv[2]) + 20):
            writer.append([np.int64(number)])
            writer.create_item("queue", 1.0, [writer.history[0][-1]])
        print("created")
        sys.stdin.readline()
    """
    with reverb.Server([reverb.Table.queue("queue", 5)], host="127.0.0.1") as server:
        client = server.localhost_client()
        for first in (0, 100):
            with Program(source, f"127.0.0.1:{server.port}", first) as program:
                program.line()
                wait_until(lambda: server.status().memory.queued > 0)
                program.kill()
                wait_until(lambda: server.status().memory.queued == 0)
        assert client.server_info()["queue"].current_size == 5
        samples = client.sample("queue", 5, emit_timesteps=False)
        assert [int(sample.data[0]) for sample in samples] == [0, 1, 2, 3, 4]
        client.insert([np.int64(7)], {"queue": 1.0})
        (sample,) = client.sample("queue", 1, emit_timesteps=False)
        assert int(np.squeeze(sample.data[0])) == 7
