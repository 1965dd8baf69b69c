# SPDX-License-Identifier: Apache-2.0
"""Clients that are closed: calls that wait, later calls, and what was made of them."""

import copy
import multiprocessing
import pickle
import threading

import numpy as np
import pytest

import reverb
from reverb import errors, testing
from support import writer_kinds
from support.client_calls import CALLS, INSERTS
from support.hosts import HOSTS, on_both_hosts
from support.waiting import DEADLINE_S, Background, wait_until

CLOSED = "This reverb.Client is closed; make a new one"


@pytest.fixture
def server(start):
    """A server with a queue, and a table that everybody may sample."""
    return start(
        reverb.Table.queue("queue", 2),
        testing.table(max_size=100),
    )


@pytest.fixture(params=HOSTS)
def client(request, server):
    """A client that the test closes; its server is in this process, or behind the network."""
    client = reverb.Client(f"{HOSTS[request.param]}:{server.port}", connect_timeout_s=DEADLINE_S)
    client.server_info()
    return client


LATER_CALLS = {
    **CALLS,
    **INSERTS,
    "sample": lambda client: next(client.sample("table")),
    "batch_sampler": lambda client: client.batch_sampler("table", 1),
    "batches": lambda client: client.batches("table", 1),
    "scan": lambda client: next(client.scan("table")),
    "rate_limiter_off": lambda client: client.rate_limiter_off("table").__enter__(),
    "trajectory_writer": lambda client: client.trajectory_writer(1),
    "no_validation": lambda client: client.trajectory_writer(1, validate_items=False),
    "batched_trajectory_writer": lambda client: client.batched_trajectory_writer(2, 1),
    "sequence_writer": lambda client: client.sequence_writer("table", 1),
    "structured_writer": lambda client: writer_kinds.structured(client, "table")[0],
    "writer": lambda client: client.writer(1),
    "reverb.batches": lambda client: reverb.batches(client, "table", 1),
}


@pytest.mark.parametrize("call", LATER_CALLS.values(), ids=LATER_CALLS)
def test_a_later_call_fails(client, call):
    client.close()
    client.close()
    with pytest.raises(errors.FailedPreconditionError, match=CLOSED):
        call(client)


def test_a_block_closes_its_client(client):
    with client as entered:
        assert entered is client
        client.insert([1.0], {"table": 1.0})
    with pytest.raises(errors.FailedPreconditionError, match=CLOSED):
        client.size("table")
    assert str(client.server_address) in repr(client)


def waits(server, number):
    """Whether that many calls wait for samples of the queue."""
    return lambda: server.status().tables["queue"].sampling.waiting == number


def test_all_threads_that_wait_get_the_error(server, client):
    calls = [Background(client.sample_batch, "queue", 1) for _ in range(3)]
    calls.append(Background(lambda: next(client.batch_sampler("queue", 1))))
    wait_until(waits(server, 4))
    client.close()
    for call in calls[:3]:
        with pytest.raises(errors.FailedPreconditionError, match=CLOSED):
            call.result()
    # An iterator goes on; the server has forgotten the other calls.
    wait_until(waits(server, 1))
    assert calls[3].running
    reverb.Client(f"localhost:{server.port}").insert([5.0], {"queue": 1.0})
    assert calls[3].result().data[0].tolist() == [[5.0]]


def test_an_insert_that_waits_gets_the_error(server, client):
    client.insert_batch([np.arange(2.0)], {"queue": 1.0})
    call = Background(client.insert, [2.0], {"queue": 1.0})
    wait_until(lambda: server.status().tables["queue"].inserting.waiting == 1)
    client.close()
    with pytest.raises(errors.FailedPreconditionError, match=CLOSED):
        call.result()


def test_what_arrived_before_is_in_the_error(server, client):
    client.insert_batch([np.arange(2.0)], {"queue": 1.0})
    call = Background(client.sample_batch, "queue", 3)
    wait_until(lambda: server.status().tables["queue"].items == 0)
    wait_until(waits(server, 1))
    client.close()
    with pytest.raises(errors.FailedPreconditionError, match=CLOSED) as raised:
        call.result()
    assert [float(it.data[0][0]) for it in raised.value.samples] in ([0.0, 1.0], [])


def test_writers_and_iterators_go_on(server, client):
    client.insert_batch([np.arange(4.0)], {"table": 1.0})
    items = client.sample("table", 4)
    next(items)
    rows = client.scan("table")
    next(rows)
    sampler = client.batch_sampler("table", 2)
    ahead = client.batches("table", 2, prefetch=1)
    threaded = client.batches("table", 2, prefetch=1, transform=lambda batch: batch)
    writers = [
        client.trajectory_writer(1),
        client.batched_trajectory_writer(2, 1),
        client.sequence_writer("table", 1),
        writer_kinds.structured(client, "table")[0],
        client.writer(1),
    ]
    off = client.rate_limiter_off("table")
    off.__enter__()
    client.close()

    assert len(list(items)) == 3
    assert len(list(rows)) == 3
    assert next(sampler).data[0].shape == (2, 1)
    for batches in (ahead, threaded):
        for _ in range(3):
            batch = next(batches)
        batches.update_priorities(batch.info.key, 2.0)
        batches.flush()
        batches.close()
    trajectory, batched, sequence, patterns, legacy = writers
    trajectory.append([9.0])
    trajectory.create_item("table", 1.0, [trajectory.history[0][-1:]])
    trajectory.flush()
    batched.append([np.ones(2)])
    batched.create_items("table", 1.0, [batched.history[0][-1:]])
    batched.flush()
    sequence.append([9.0])
    sequence.flush()
    patterns.append([9.0])
    patterns.flush()
    legacy.append([9.0])
    legacy.create_item("table", 1, 1.0)
    legacy.flush()
    for writer in (trajectory, batched, sequence, legacy):
        writer.close()
    off.__exit__(None, None, None)
    assert server.status().tables["table"].items == 4 + 6
    with reverb.Client(f"localhost:{server.port}").rate_limiter_off("table"):
        pass  # It would be an error if it were off still.


def test_copies_are_clients_of_their_own(client):
    copies = [copy.copy(client), copy.deepcopy(client), pickle.loads(pickle.dumps(client))]
    client.close()
    copies.append(pickle.loads(pickle.dumps(client)))
    for other in copies:
        assert other.size("table") == 0
        other.close()


def test_a_client_of_nothing_closes():
    client = reverb.Client("localhost:1", connect_timeout_s=DEADLINE_S)
    call = Background(client.server_info)
    client.close()
    with pytest.raises(errors.FailedPreconditionError, match=CLOSED):
        call.result()


def test_its_connection_ends(start):
    server = start(reverb.Table.queue("queue", 10))
    client = reverb.Client(f"{HOSTS['remote']}:{server.port}")
    client.insert([1.0], {"queue": 1.0})

    def streams():
        return server.status(with_streams=True).streams

    assert streams()
    client.close()
    wait_until(lambda: not streams())


def in_child(client, outcome):
    try:
        outcome.put(client.size("queue"))
    except errors.FailedPreconditionError as error:
        outcome.put(str(error))


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_what_its_parent_had(start, is_closed):
    server = start(reverb.Table.queue("queue", 10))
    client = reverb.Client(f"{HOSTS['remote']}:{server.port}")
    client.insert([1.0], {"queue": 1.0})
    if is_closed:
        client.close()
    context = multiprocessing.get_context("fork")
    outcome = context.SimpleQueue()
    child = context.Process(target=in_child, args=(client, outcome))
    child.start()
    assert outcome.get() == (CLOSED if is_closed else 1)
    child.join(DEADLINE_S)
    if not is_closed:
        client.close()
        with pytest.raises(errors.FailedPreconditionError):
            client.size("queue")


@on_both_hosts
def test_a_group_is_closed_too(start, host):
    servers = [start(reverb.Table.queue("queue", 10)) for _ in range(2)]
    seeds = ",".join(f"{host.rpartition('/')[2]}:{it.port}" for it in servers)
    client = reverb.Client(f"shards:///{seeds}", connect_timeout_s=DEADLINE_S)
    client.insert_batch([np.arange(4.0)], {"queue": 1.0})
    assert client.sample_batch("queue", 4).data[0].shape == (4, 1)
    call = Background(client.sample_batch, "queue", 1)
    wait_until(lambda: sum(it.status().tables["queue"].sampling.waiting for it in servers) > 0)
    client.close()
    with pytest.raises(errors.FailedPreconditionError, match=CLOSED):
        call.result()
    with pytest.raises(errors.FailedPreconditionError, match=CLOSED):
        client.shard_info()


def test_clients_close_while_threads_call(server, client):
    client.insert([1.0], {"table": 1.0})
    begun = threading.Barrier(5)

    def call():
        begun.wait(DEADLINE_S)
        while True:
            client.sample_batch("table", 1)

    calls = [Background(call) for _ in range(4)]
    begun.wait(DEADLINE_S)
    client.close()
    for each in calls:
        with pytest.raises(errors.FailedPreconditionError, match=CLOSED):
            each.result()
