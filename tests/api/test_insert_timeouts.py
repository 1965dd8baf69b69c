# SPDX-License-Identifier: Apache-2.0
"""Inserts with a time limit: what the error says was not inserted is never there."""

import asyncio
import contextlib
import re
import time

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    UnavailableError,
    UnimplementedError,
)
from support.aio_tables import num_waiting
from support.aio_tables import until as until_true
from support.hosts import HOSTS, on_both_hosts
from support.relay import Relay
from support.waiting import DEADLINE_S
from support.wire.scripted_server import ScriptedServer

LONG_MS = 1000 * int(DEADLINE_S)
MEGABYTE = np.zeros((1, 2**20), np.uint8)
UNREAD = (
    r"^The server has not said within 10 s after the time limit \(timeout_ms\) what became of the "
    r"insert into table q\. Inserts wait for memory: .*[^.]\. The items may have been inserted\.$"
)


def put(client, *values, timeout_ms=0, table="q", **options):
    return client.insert_batch(np.array(values), {table: 1.0}, timeout_ms=timeout_ms, **options)


def take(client, number=1, table="q"):
    """The next items of a queue."""
    samples = client.sample(table, number, emit_timesteps=False, timeout_ms=LONG_MS)
    return [int(np.ravel(it.data[0])[0]) for it in samples]


def size(client, table="q"):
    return client.server_info()[table].current_size


@pytest.fixture
def client(serve):
    """A client of a queue of two items."""
    return serve(reverb.Table.queue("q", 2))


def test_what_has_room_is_inserted_at_once(client):
    keys = put(client, 1)
    assert len(keys["q"]) == 1
    client.insert_sequence(np.arange(3), {"q": 1.0}, timeout_ms=0)
    assert size(client) == 2


def test_a_limit_of_ages_is_none(client):
    for timeout_ms in (2**40 - 1, 2**40, 2**63, 10**30):
        put(client, 1, timeout_ms=timeout_ms)
        assert take(client) == [1]


@pytest.mark.parametrize("timeout_ms", [0, 20])
def test_what_would_wait_is_never_inserted(client, timeout_ms):
    put(client, 1, 2)
    with pytest.raises(DeadlineExceededError, match=r"1 of 1 items were not inserted"):
        put(client, 3, timeout_ms=timeout_ms)
    with pytest.raises(DeadlineExceededError, match=r"1 of 1 items were not inserted"):
        client.insert_sequence(np.arange(5, 9), {"q": 1.0}, timeout_ms=timeout_ms)
    assert client.status().tables["q"].inserting.waiting == 0
    assert take(client, 2) == [1, 2]
    put(client, 4)
    assert take(client) == [4]
    assert size(client) == 0


def test_an_insert_that_gets_room_in_time_succeeds(client, background, until):
    put(client, 1, 2)
    call = background(put, client, 3, timeout_ms=LONG_MS)
    until(lambda: client.status().tables["q"].inserting.waiting == 1)
    assert take(client) == [1]
    call.result()
    assert take(client, 2) == [2, 3]


def test_the_rows_before_are_inserted(client):
    with pytest.raises(DeadlineExceededError, match=r"3 of 5 items were not inserted"):
        put(client, 1, 2, 3, 4, 5)
    assert take(client, 2) == [1, 2]
    assert size(client) == 0


@pytest.mark.parametrize("timeout_ms", [0, 20])
def test_rows_of_later_messages_are_not_inserted(client, timeout_ms):
    """More than a message has: what follows refused rows is not sent."""
    with pytest.raises(DeadlineExceededError, match=r"4998 of 5000 items were not inserted"):
        put(client, *range(5000), timeout_ms=timeout_ms)
    assert take(client, 2) == [0, 1]
    assert size(client) == 0


def test_batches_of_many_messages_are_inserted(serve):
    client = serve(testing.table("t", max_size=10_000))
    put(client, *range(5000), table="t", timeout_ms=LONG_MS)
    assert [int(np.ravel(it.data[0])[0]) for it in client.scan("t")] == list(range(5000))


def test_the_error_says_what_it_waited_for(client):
    client.pause_table("q", samples=False)
    for timeout_ms in (0, 20):
        text = (
            f"the insert did not finish within {timeout_ms} ms. It was waiting for a place in table"
            " q. It is paused by "
        )
        with pytest.raises(DeadlineExceededError, match=re.escape(text)) as raised:
            put(client, 1, timeout_ms=timeout_ms)
        assert str(raised.value).endswith(". 1 of 1 items were not inserted.")
    client.resume_table("q")
    put(client, 1)


@pytest.fixture
def full(start):
    """A server whose memory is used up by a queue, and the number of its items."""
    server = start(reverb.Table.queue("q", 100), max_bytes="64MiB")
    client, number = server.localhost_client(compression="none"), 0
    with contextlib.suppress(DeadlineExceededError):
        while True:
            client.insert_batch(MEGABYTE, {"q": 1.0}, timeout_ms=100)
            number += 1
    assert 32 < size(client) == number < 80
    return server, number


def test_a_full_server_refuses_a_program_of_its_process(full):
    server, number = full
    client = server.localhost_client(compression="none")
    with pytest.raises(DeadlineExceededError, match=r"1 of 1 items were not inserted"):
        client.insert_batch(MEGABYTE, {"q": 1.0}, timeout_ms=0)
    client.sample_batch("q", number)
    client.insert_batch(MEGABYTE, {"q": 1.0}, timeout_ms=LONG_MS)
    assert size(client) == 1


@pytest.mark.slow
def test_a_full_server_that_reads_nothing_is_waited_for(full):
    """Some time longer: it does not know that there is a time limit."""
    server, number = full
    client = reverb.Client(f"{HOSTS['remote']}:{server.port}", compression="none")
    with pytest.raises(UnavailableError, match=UNREAD):
        client.insert_batch(MEGABYTE, {"q": 1.0}, timeout_ms=0)
    client.sample_batch("q", number)
    client.insert_batch(MEGABYTE, {"q": 1.0}, timeout_ms=LONG_MS)
    assert size(client) == 1


def test_each_table_inserts_or_refuses(serve):
    client = serve(reverb.Table.queue("q", 1), testing.table("t"))
    put(client, 1)
    with pytest.raises(DeadlineExceededError, match=r"1 of 2 items were not inserted"):
        client.insert_batch(np.array([2]), {"q": 1.0, "t": 1.0}, timeout_ms=0)
    assert (size(client), size(client, "t")) == (1, 1)


def test_the_next_insert_has_no_limit(client, background, until):
    """Though it uses the stream of one that had a limit."""
    put(client, 1, 2)
    with pytest.raises(DeadlineExceededError):
        put(client, 3)
    call = background(put, client, 4, timeout_ms=None)
    until(lambda: client.status().tables["q"].inserting.waiting == 1)
    assert take(client, 2) == [1, 2]
    call.result()
    assert take(client) == [4]


def test_a_limit_ends_with_its_insert(client, background, until):
    """One that was inserted before its time limit has no part in later inserts."""
    put(client, 1, timeout_ms=200)
    put(client, 2)
    call = background(put, client, 3, timeout_ms=None)
    until(lambda: client.status().tables["q"].inserting.waiting == 1)
    time.sleep(0.4)  # Time for a server that would still end the first one.
    assert take(client) == [1]
    call.result()
    assert take(client, 2) == [2, 3]


@on_both_hosts
async def test_a_cancelled_insert_is_never_inserted(start, host):
    server = start(reverb.Table.queue("q", 1))
    watcher = server.localhost_client()
    async with reverb.aio.Client(f"{host}:{server.port}") as client:
        await client.insert_batch(np.array([1]), {"q": 1.0})
        inserting = client.insert_batch(np.array([2]), {"q": 1.0}, timeout_ms=LONG_MS)
        task = asyncio.create_task(inserting)
        await until_true(lambda: num_waiting(watcher, "q") == (0, 1))
        task.cancel()
        await asyncio.wait([task])
        await until_true(lambda: num_waiting(watcher, "q") == (0, 0))
        assert take(watcher) == [1]
        assert size(watcher) == 0


def test_a_replacement_that_would_wait_leaves_the_old_item(client):
    put(client, 1, 2, keys=[1, 2])
    with pytest.raises(DeadlineExceededError):
        put(client, 3, keys=[1], replace=True)
    assert take(client, 2) == [1, 2]


@pytest.fixture
def relayed(start):
    """A client behind a relay, and one beside it, of a queue of one item."""
    with contextlib.closing(Relay(start(reverb.Table.queue("q", 1)).port)) as relay:
        port = relay._port
        client = reverb.Client(relay.address, connect_timeout_s=DEADLINE_S)
        put(client, 0)
        assert take(client) == [0]
        yield client, relay, reverb.Client(f"127.0.0.1:{port}")


def test_a_late_answer_is_waited_for(relayed, background, until):
    """An insert whose answer comes after its time has not failed."""
    client, relay, other = relayed
    relay.hold_answers()
    call = background(put, client, 1, timeout_ms=20)
    until(lambda: size(other) == 1)
    assert take(other) == [1]
    assert call.running
    relay.release_answers()
    assert len(call.result()["q"]) == 1


@pytest.mark.slow
def test_a_very_late_answer_is_waited_for(relayed, background, until):
    """A server that does not say that inserts wait may still be reading a large message."""
    client, relay, other = relayed
    relay.hold_answers()
    call = background(put, client, 1, timeout_ms=0)
    until(lambda: size(other) == 1)
    time.sleep(12)  # Longer than a server that reads nothing is waited for.
    assert call.running
    relay.release_answers()
    assert len(call.result()["q"]) == 1


def test_a_late_refusal_is_one(relayed, background):
    client, relay, other = relayed
    put(other, 1)
    relay.hold_answers()
    call = background(put, client, 2)
    time.sleep(0.2)  # Time for a client that would not wait for the answer.
    assert call.running
    relay.release_answers()
    with pytest.raises(DeadlineExceededError):
        call.result()
    assert take(other) == [1]
    put(other, 3)
    assert take(other) == [3]


def test_a_refusal_after_a_lost_connection_is_no_refusal(relayed, background, until):
    """It may have been inserted over the connection that was lost, as here."""
    client, relay, other = relayed
    relay.hold_answers()
    call = background(put, client, 1, timeout_ms=0)
    until(lambda: size(other) == 1)
    relay.lose()
    text = "The connection was lost during the insert. 1 of 1 items were not inserted when they"
    with pytest.raises(UnavailableError, match=re.escape(text)):
        call.result()
    assert take(other) == [1]


async def test_asyncio_programs_have_it(start):
    server = start(reverb.Table.queue("q", 1))
    async with reverb.aio.Client(f"127.1:{server.port}") as client:
        await client.insert_batch(np.array([1]), {"q": 1.0}, timeout_ms=0)
        with pytest.raises(DeadlineExceededError, match=r"1 of 1 items were not inserted"):
            await client.insert_batch(np.array([2]), {"q": 1.0}, timeout_ms=0)
        with pytest.raises(DeadlineExceededError, match=r"1 of 1 items were not inserted"):
            await client.insert_sequence(np.array([2]), {"q": 1.0}, timeout_ms=10)


@pytest.mark.parametrize(
    ("timeout_ms", "error"), [(-1, InvalidArgumentError), (1.5, TypeError), ("1", TypeError)]
)
def test_times_that_are_none(client, timeout_ms, error):
    with pytest.raises(error, match=r"^timeout_ms must be"):
        put(client, 1, timeout_ms=timeout_ms)
    assert size(client) == 0


def test_a_very_long_time_is_none(client):
    put(client, 1, timeout_ms=2**62)
    assert size(client) == 1


def test_older_servers_are_told_apart():
    server = ScriptedServer("q")
    with contextlib.closing(reverb.Client(server.address)) as client:
        text = r"does not know time limits of inserts \(timeout_ms\); start reverb_server"
        with pytest.raises(UnimplementedError, match=text):
            put(client, 1)
    assert not any(request.items for request in server.received)
    server.stop()


def test_groups_of_several_servers_refuse_it(start):
    ports = [start(testing.table("q")).port for _ in range(2)]
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    group = reverb.Client(f"shards:///{addresses}", connect_timeout_s=DEADLINE_S)
    with pytest.raises(InvalidArgumentError, match="timeout_ms is for an insert at one server"):
        put(group, 1)
