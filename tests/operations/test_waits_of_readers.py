# SPDX-License-Identifier: Apache-2.0
"""Readers that wait: whoever repeats their requests, all that shows a wait knows how long it is."""

import asyncio
import contextlib
import itertools
import threading
import time

import numpy as np
import pytest

import reverb
from reverb import command, testing
from reverb.core import protos
from reverb.errors import DeadlineExceededError, ReverbError
from support.pages import get
from support.waiting import DEADLINE_S, wait_until
from support.wire.wire_client import WireClient

# Longer than any request of a reader that polls: 0.2 s at one server, 2 s at a shard.
LONG_S = 0.7
LONG_IN_GROUP_S = 2.5


def first_of(iterator):
    with iterator:
        next(iterator)


def again_and_again(client, table):
    """A loop of a program, which catches the timeouts."""
    for _ in itertools.count():
        with contextlib.suppress(DeadlineExceededError):
            return client.sample_batch(table, 8, timeout_ms=100)


def with_timeouts(client, table):
    """The reader fetches on while `next` times out."""
    with reverb.batches(client, table, 8, timeout_ms=50) as batches:
        for _ in itertools.count():
            with contextlib.suppress(DeadlineExceededError):
                return next(batches)


def awaited(client, table):
    async def run():
        twin = reverb.aio.Client(client.server_address, connect_timeout_s=0.2)
        async with twin, twin.batches(table, 8) as batches:
            await anext(batches)

    asyncio.run(run())


def of_function(batch):
    return batch


READERS = {
    "sample": lambda client, table: next(client.sample(table, 8)),
    "sample_batch": lambda client, table: client.sample_batch(table, 8),
    "a_loop": again_and_again,
    "batch_sampler": lambda client, table: first_of(client.batch_sampler(table, 8)),
    "batches": lambda client, table: first_of(reverb.batches(client, table, 8)),
    "items": lambda client, table: first_of(reverb.batches(client, table, None)),
    "transform": lambda client, table: first_of(
        reverb.batches(client, table, 8, transform=of_function)
    ),
    "partial": lambda client, table: first_of(reverb.batches(client, table, 8, partial=True)),
    "timeouts": with_timeouts,
    "mixture": lambda client, table: first_of(reverb.batches(client, {table: 1.0, "full": 1.0}, 8)),
    "aio": awaited,
}


@contextlib.contextmanager
def waiting(reader, *args):
    """Runs a reader in a thread until the server of the block has stopped."""

    def run():
        with contextlib.suppress(ReverbError, StopIteration):
            reader(*args)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), "the reader goes on without its server"


def table(name, min_size=50):
    return testing.table(name, rate_limiter=reverb.rate_limiters.MinSize(min_size))


@pytest.fixture(scope="module")
def server():
    """A server with a starved table for each reader, which has waited for some time."""
    with contextlib.ExitStack() as stack:
        tables = [table("full", 1), *map(table, READERS)]
        server = reverb.Server(tables, host="127.0.0.1", http_port=0)
        server.localhost_client().insert(np.zeros(3), {"full": 1.0})
        client = reverb.Client(f"127.1:{server.port}", connect_timeout_s=0.2)
        for name, reader in READERS.items():
            stack.enter_context(waiting(reader, client, name))
        stack.callback(server.stop)
        yield server


def oldest_wait_s(server, table):
    return server.status().tables[table].sampling.oldest_wait_s or 0.0


def metric(server, table):
    lines = get(server, "/metrics").text.splitlines()
    name = f'reverb_table_oldest_wait_seconds{{table="{table}",side="sample"}} '
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def stream_wait_s(server, table):
    client = reverb.Client(f"127.1:{server.port}")
    streams = client.status(with_streams=True).streams
    return max((it.wait_s for it in streams if it.table == table), default=0.0)


@pytest.mark.parametrize("shows", [oldest_wait_s, metric, stream_wait_s])
@pytest.mark.parametrize("reader", READERS)
def test_a_wait_counts_from_the_first_request(server, reader, shows):
    wait_until(lambda: shows(server, reader) > LONG_S)


def test_why_tells_long_waits(server, capsys):
    arguments = ["why", f"127.1:{server.port}", "batches", "--longer-than", str(LONG_S)]
    wait_until(lambda: command.main(arguments) == 3)


@pytest.mark.parametrize("reader", ["batches", "sample_batch"])
@pytest.mark.parametrize("make_table", [table, lambda name: reverb.Table.queue(name, 9)])
def test_a_reader_of_a_group_waits_for_all_shards(make_table, reader):
    """Nobody has what it asks for, or even nobody anything."""
    with contextlib.ExitStack() as stack:
        servers = [reverb.Server([make_table("t")], host="127.0.0.1") for _ in range(2)]
        if make_table is table:
            for server in servers:
                server.localhost_client().insert(np.zeros(3), {"t": 1.0})
        address = "shards:///" + ",".join(f"127.1:{server.port}" for server in servers)
        client = reverb.Client(address, connect_timeout_s=0.2)
        stack.enter_context(waiting(READERS[reader], client, "t"))
        for server in servers:
            stack.callback(server.stop)
        wait_until(lambda: oldest_wait_s(client, "t") > LONG_IN_GROUP_S)
        why = ["why", address, "--longer-than", str(LONG_IN_GROUP_S)]
        wait_until(lambda: command.main(why) == 3)


def test_a_reader_that_got_its_batch_begins_at_zero():
    with contextlib.ExitStack() as stack:
        server = reverb.Server([reverb.Table.queue("t", 100)], host="127.0.0.1")
        client = reverb.Client(f"127.1:{server.port}", connect_timeout_s=0.2)
        batches = stack.enter_context(reverb.batches(client, "t", 2, prefetch=1))
        stack.callback(server.stop)
        for _ in range(2):
            wait_until(lambda: oldest_wait_s(server, "t") > LONG_S)
            began = time.monotonic()
            server.localhost_client().insert_batch([np.zeros((4, 3))], {"t": 1.0})
            next(batches), next(batches)
            wait_until(lambda: server.status().tables["t"].sampling.waiting)
            assert oldest_wait_s(server, "t") <= time.monotonic() - began
        waits = server.status().tables["t"].sampling.wait_s
        assert waits.sum > 2 * LONG_S, "a wait is counted as a whole when it ends"


def test_a_peer_cannot_claim_more_than_its_connection_is_old():
    began = time.monotonic()
    with (
        reverb.Server([table("t")], host="127.0.0.1") as server,
        WireClient(f"127.0.0.1:{server.port}") as wire,
    ):
        stream = wire.sample_stream()
        stream.send(protos.SampleStreamRequest(table="t", num_samples=1, waited_ms=2**64 - 1))
        wait_until(lambda: oldest_wait_s(server, "t"))
        assert 0 < oldest_wait_s(server, "t") <= time.monotonic() - began
