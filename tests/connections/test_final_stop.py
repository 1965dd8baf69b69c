# SPDX-License-Identifier: Apache-2.0
"""Servers that stop for good, which clients do not wait for, and those that are away for long."""

import asyncio
import contextlib
import threading

import grpc
import numpy as np
import pytest

import reverb
from reverb import aio, errors
from support.hosts import HOSTS
from support.waiting import DEADLINE_S, Background, wait_until
from support.writer_kinds import EVERY_WRITER

# A client that waits for a server would wait for as long as this.
HOUR_S = 3600.0

# A group without a map, and one whose shards know of each other.
WAYS = [*HOSTS, "unix", "group", "mapped group"]


min_size = reverb.rate_limiters.MinSize


def selectors():
    return reverb.selectors.Uniform(), reverb.selectors.Fifo()


def tables(size=1):
    """A table of which nothing can be sampled, and one that takes so many items."""
    return [
        reverb.Table("empty", *selectors(), 100, min_size(5)),
        reverb.Table.queue("full", size),
    ]


class Run:
    """Servers, and the address of clients that wait for them for an hour."""

    def __init__(self, way, start, tmp_path):
        shards = [None]
        if way == "group":
            shards = [None, None]
        if way == "mapped group":
            shards = [reverb.cluster.Shard(index, 2) for index in range(2)]
        self.servers = [start(*tables(1 if shard is None else 2), shard=shard) for shard in shards]
        ports = [server.port for server in self.servers]
        if len(shards) > 1 or way == "group of one":
            self.address = "shards:///" + ",".join(f"127.1:{port}" for port in ports)
        elif way == "unix":
            (tmp_path / "real").mkdir()
            (tmp_path / "link").symlink_to("real")
            self.servers.append(start(*tables(), unix_path=tmp_path / "real" / "socket"))
            self.address = f"unix:{tmp_path}/link/socket"
        else:
            self.address = f"{HOSTS[way]}:{ports[0]}"

    def client(self, **options):
        return reverb.Client(self.address, **{"connect_timeout_s": HOUR_S} | options)

    def fill(self):
        """Fills a table of every server, and gives the other too few items.

        A group asks no shard for samples of a table that has none.
        """
        for server in self.servers:
            server.localhost_client().insert([0.0], {"full": 1.0, "empty": 1.0})

    def waiting(self):
        """Number of calls that wait at the tables of all servers."""
        statuses = [server.status().tables.values() for server in self.servers]
        sides = [(it.inserting, it.sampling) for tables in statuses for it in tables]
        return sum(side.waiting for both in sides for side in both)

    def stop(self, **options):
        for server in self.servers:
            server.stop(final=True, **options)


@pytest.fixture(params=WAYS)
def run(request, start, tmp_path):
    """Servers that may be stopped for good, and clients of them."""
    made = Run(request.param, start, tmp_path)
    made.fill()
    return made


CALLS = {
    "sample": lambda client: next(client.sample("empty", 1)),
    "sample_batch": lambda client: client.sample_batch("empty", 2),
    "batches": lambda client: next(iter(reverb.batches(client, "empty", 2))),
    "insert": lambda client: client.insert([1.0], {"full": 1.0}),
    "insert_batch": lambda client: client.insert_batch([np.ones(2)], {"full": 1.0}),
    **{
        name: (lambda client, write=write: write(client, "full"))
        for name, write in EVERY_WRITER.items()
    },
}


def scanned(client):
    """The items of a scan, or none if a shard does not answer."""
    try:
        return list(client.scan("t"))
    except errors.UnavailableError:
        return []


def check(error):
    assert isinstance(error, errors.UnavailableError)
    assert len(str(error)) <= 200
    assert "stopped for good" in str(error)


@contextlib.contextmanager
def stopped_for_good():
    """Expects the error of a call whose server has stopped for good."""
    with pytest.raises(errors.UnavailableError) as caught:
        yield
    check(caught.value)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_that_waits_ends_at_once(run, call):
    waiting = Background(call, run.client())
    wait_until(run.waiting)
    run.stop()
    with stopped_for_good():
        waiting.result()


@pytest.mark.parametrize("drain_s", [0.0, 5.0])
def test_many_calls_of_one_client_end_at_once(run, drain_s):
    client = run.client()
    waiting = [Background(call, client) for call in CALLS.values()]
    wait_until(lambda: run.waiting() >= len(CALLS) - 1)  # Two writers may wait as one.
    run.stop(drain_s=drain_s)
    for call in waiting:
        with stopped_for_good():
            call.result()


def test_awaited_calls_end_at_once(run):
    async def program():
        async with aio.Client(run.address, connect_timeout_s=HOUR_S) as client:
            writer = await client.sequence_writer("full", 1)
            await writer.append([1.0])
            calls = [
                client.sample_batch("empty", 2),
                client.insert([1.0], {"full": 1.0}),
                writer.flush(),
            ]
            tasks = [asyncio.ensure_future(call) for call in calls]
            while run.waiting() < 3:
                await asyncio.sleep(0.001)
            await asyncio.to_thread(run.stop)
            return await asyncio.gather(*tasks, return_exceptions=True)

    for error in asyncio.run(program()):
        check(error)


def test_a_writer_that_did_not_wait_learns_it(run):
    """Its stream is open, so its next calls raise, and so do the client's other calls."""
    client = run.client()
    writer = client.trajectory_writer(1)
    writer.append([1.0])
    writer.create_item("empty", 1.0, [writer.history[0][-1:]])
    writer.flush()
    run.stop()

    def write():
        while True:
            writer.append([1.0])
            writer.create_item("empty", 1.0, [writer.history[0][-1:]])
            writer.flush()

    with stopped_for_good():
        Background(write).result()
    with stopped_for_good():
        Background(client.server_info).result()


@pytest.mark.parametrize("call", ["insert", "insert_batch", "sample_batch", "trajectory_writer"])
@pytest.mark.parametrize("way", [*HOSTS, "unix", "group of one"])
def test_an_idle_client_has_learned_it(start, tmp_path, way, call):
    """The stream of an insert stays open for the next one, so a stop is told on it."""
    made = Run(way, start, tmp_path)
    client = made.client()
    client.insert([1.0], {"empty": 1.0})
    made.stop()
    with stopped_for_good():
        Background(CALLS[call], client).result()


def test_one_shard_that_stops_for_good_is_a_shard_that_is_down(start):
    made = Run("group", start, None)
    made.fill()
    client = made.client()
    sampled = Background(client.sample_batch, "empty", 2)
    writer = client.trajectory_writer(1)
    wait_until(made.waiting)
    first, second = made.servers
    first.stop(final=True)

    def write():
        for _ in range(4):
            writer.append([1.0])
            writer.create_item("empty", 1.0, [writer.history[0][-1:]])
        writer.flush()

    Background(write).result()
    assert len(sampled.result().info.key) == 2
    waiting = Background(client.insert, [1.0], {"full": 1.0})
    wait_until(lambda: second.status().tables["full"].inserting.waiting)
    second.stop(final=True)
    with stopped_for_good():
        waiting.result()


def test_a_server_that_may_come_back_is_waited_for(start, path):
    server = start(*tables())
    client = reverb.Client(f"{HOSTS[path]}:{server.port}", connect_timeout_s=HOUR_S)
    waiting = Background(client.sample_batch, "full", 1)
    wait_until(lambda: server.status().tables["full"].sampling.waiting)
    server.stop()
    start(*tables(), port=server.port).localhost_client().insert([1.0], {"full": 1.0})
    assert waiting.result().data[0].item() == 1.0


def test_a_new_server_ends_what_a_client_knew(start, path):
    server = start(*tables())
    client = reverb.Client(f"{HOSTS[path]}:{server.port}", connect_timeout_s=HOUR_S)
    waiting = Background(client.sample_batch, "full", 1)
    wait_until(lambda: server.status().tables["full"].sampling.waiting)
    server.stop(final=True)
    with pytest.raises(errors.UnavailableError):
        waiting.result()
    second = start(*tables(), port=server.port)
    assert client.size("full") == 0
    # It is as any server again: one that stops may come back.
    waiting = Background(client.sample_batch, "full", 1)
    wait_until(lambda: second.status().tables["full"].sampling.waiting)
    second.stop()
    start(*tables(), port=server.port).localhost_client().insert([2.0], {"full": 1.0})
    assert waiting.result().data[0].item() == 2.0


def test_one_of_several_servers_of_an_address_is_not_all(start):
    servers = [start(*tables()) for _ in range(2)]
    address = "ipv4:" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
    client = reverb.Client(address, connect_timeout_s=HOUR_S)
    waiting = [Background(client.sample_batch, "full", 1) for _ in range(2)]
    wait_until(lambda: sum(it.status().tables["full"].sampling.waiting for it in servers) == 2)
    servers[0].stop(final=True)
    for value in (1.0, 2.0):
        servers[1].localhost_client().insert([value], {"full": 1.0})
    assert sorted(it.result().data[0].item() for it in waiting) == [1.0, 2.0]


ENDS = {
    "sample_batch": lambda client: client.sample_batch("empty", 9),
    "insert": lambda client: [client.insert([0.0], {"full": 1.0}) for _ in range(9)],
}


@pytest.mark.parametrize("final", [True, False], ids=["final", "plain"])
@pytest.mark.parametrize("call", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("way", ["address", "group"])
def test_the_last_of_several_servers_ends_the_wait(start, way, call, final):
    """Whatever is known of those that have stopped before."""
    servers = [start(*tables()) for _ in range(3)]
    scheme, host = ("shards:///", "127.1") if way == "group" else ("ipv4:", "127.0.0.1")
    places = ",".join(f"{host}:{server.port}" for server in servers)
    client = reverb.Client(scheme + places, connect_timeout_s=HOUR_S)

    def waits(server):
        table = server.status().tables
        return table["empty"].sampling.waiting + table["full"].inserting.waiting

    for server in servers:
        server.localhost_client().insert([0.0], {"full": 1.0, "empty": 1.0})
    waiting = Background(call, client)
    while len(servers) > 1:
        wait_until(lambda: any(map(waits, servers)))
        servers.pop(0).stop(final=final)
    wait_until(lambda: waits(servers[0]))
    servers[0].stop(final=True)
    with stopped_for_good():
        waiting.result()
    with stopped_for_good():
        Background(client.server_info).result()


def test_nobody_waits_for_the_items_of_a_shard_that_has_ended(start):
    """A scan and a fetch need all shards that have their items."""
    servers = [start(reverb.Table("t", *selectors(), 100, min_size(1))) for _ in range(2)]
    places = ",".join(f"127.1:{server.port}" for server in servers)
    client = reverb.Client(f"shards:///{places}", connect_timeout_s=HOUR_S)
    for server in servers:
        server.localhost_client().insert_batch([np.arange(9)], {"t": 1.0})
    keys = [sample.info.key for sample in client.scan("t")]
    # From here on the client follows the changes of both.
    assert len(client.sample_batch("t", 200).info.key) == 200
    servers[0].stop(final=True)
    for call in (lambda: list(client.scan("t")), lambda: client.fetch("t", keys)):
        with pytest.raises(errors.UnavailableError, match=r"shard 0 \(.*\) has stopped for good"):
            Background(call).result()
    assert len(client.sample_batch("t", 20).info.key) == 20
    # Another server in its place ends that.
    start(reverb.Table("t", *selectors(), 100, min_size(1)), port=servers[0].port)
    wait_until(lambda: len(scanned(client)) == 9)


def test_other_clients_see_a_server_that_is_unavailable(start):
    """The status of the wire is that of any stop; those who know it find a trailer beside it."""
    server = start(*tables())
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        next(watch)
        server.stop(final=True)
        with pytest.raises(grpc.RpcError) as caught:
            list(watch)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert ("reverb-stopped-for-good", "1") in caught.value.trailing_metadata()


def test_a_long_absence_is_told_once_and_its_end_once(start, path, reported_waits, caplog):
    server = start(*tables())
    client = reverb.Client(f"{HOSTS[path]}:{server.port}", connect_timeout_s=1.5)
    calls = [Background(client.sample_batch, "empty", 1) for _ in range(3)]
    wait_until(lambda: server.status().tables["empty"].sampling.waiting == 3)
    server.stop()
    for call in calls:
        with pytest.raises(errors.UnavailableError, match="No server answered"):
            call.result()
    wait_until(lambda: any("gives up" in text for text in caplog.messages))
    away = [text for text in caplog.messages if "cannot be reached" in text]
    given_up = [text for text in caplog.messages if "gives up" in text]
    assert (len(away), len(given_up)) == (1, 1), caplog.messages
    assert all(len(text) <= 200 for text in away + given_up)
    assert f":{server.port}" in away[0]
    assert f":{server.port}" in given_up[0]


def test_a_stop_for_good_interrupts_stop_only_once(start):
    server = start(*tables())
    server.stop(final=True)
    server.stop()
    server.stop(final=True)
    with pytest.raises(errors.InvalidArgumentError, match="drain_s"):
        server.stop(-1.0, final=True)


def test_threads_of_one_client_hear_it_together(start, path):
    server = start(*tables())
    client = reverb.Client(f"{HOSTS[path]}:{server.port}", connect_timeout_s=HOUR_S)
    ended = []

    def loop():
        try:
            while True:
                client.sample_batch("empty", 1, timeout_ms=50)
        except errors.UnavailableError as error:
            ended.append(error)
        except errors.DeadlineExceededError:
            loop()

    threads = [threading.Thread(target=loop, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    held = Background(client.sample_batch, "empty", 1)
    wait_until(lambda: server.status().tables["empty"].sampling.waiting)
    server.stop(final=True)
    with pytest.raises(errors.UnavailableError):
        held.result()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert len(ended) == 2
