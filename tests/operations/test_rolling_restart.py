# SPDX-License-Identifier: Apache-2.0
"""Servers restarted one after the other under load: nothing is lost, nobody sees an error."""

import collections

import numpy as np
import pytest

import reverb
from support.rolling_restart import QUEUE_SIZE, SAMPLERS, WRITERS, load, two_servers
from support.waiting import Background, wait_until

# Those of the short test: the ways in which a client sends and receives items.
FEW_WRITERS = (
    "insert_batch:replay,queue",
    "trajectory_writer:replay,queue",
    "late_flush:queue",
    "batched_writer:replay,queue",
    "legacy_writer:replay,queue",
)
FEW_SAMPLERS = ("sample_batch:queue", "sample:queue", "learner:replay")


@pytest.fixture(params=["checkpoints", "stores"])
def servers(tmp_path, request):
    with two_servers(tmp_path, has_stores=request.param == "stores") as servers:
        yield servers


def address_of(servers):
    return ",".join(server.address for server in servers)


def restart_under_load(servers, rounds, *roles):
    """Restarts each server `rounds` times, and accounts for each value afterwards."""
    with load(address_of(servers), *roles) as clients:
        for _ in range(rounds):
            for server in servers:
                server.stop()
                clients.wait_until_all_go_round()  # Served by the other one, if there is one.
                server.start()
                clients.wait_until_all_go_round()
        outcome = clients.stop()
    account_for(servers, outcome)
    return outcome


def account_for(servers, outcome):
    assert outcome.errors == []
    for table in ("replay", "queue"):
        values = [value for server in servers for value in server.values(table)]
        if table == "queue":
            values += outcome.sampled["queue"]
            assert outcome.sampled["queue"]
        assert outcome.confirmed[table]
        # Each once. All that was written was confirmed in the end, so nothing else is there.
        assert collections.Counter(values) == collections.Counter(outcome.confirmed[table])


def test_a_rolling_restart_loses_nothing_and_shows_no_error(servers):
    restart_under_load(servers, 1, FEW_WRITERS, FEW_SAMPLERS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rolling_restarts_under_all_kinds_of_clients(servers):
    outcome = restart_under_load(servers, 3, WRITERS, WRITERS, SAMPLERS, SAMPLERS)
    assert len(outcome.confirmed["replay"]) > 10_000


def counters(server):
    limiters = {name: it.rate_limiter_info for name, it in server.client().server_info().items()}
    return {
        name: (it.insert_stats.completed, it.sample_stats.completed)
        for name, it in limiters.items()
    }


def test_counters_are_those_before_the_restart(servers):
    client = servers[0].client()
    client.insert_batch([np.arange(10)], {"replay": 1.0, "queue": 1.0})
    client.sample_batch("queue", 4)
    client.sample_batch("replay", 3)
    before = counters(servers[0])
    assert before == {"replay": (10, 3), "queue": (10, 4)}
    servers[0].restart()
    assert counters(servers[0]) == before


def waiting(server):
    table = server.client().status().tables["queue"]
    return table.inserting.waiting, table.sampling.waiting


def write_one(client, value):
    with client.trajectory_writer(1) as writer:
        writer.append([value])
        writer.create_item("queue", 1.0, [writer.history[0][-1:]])


def test_writers_that_wait_turn_to_the_other_server(servers):
    """The stop waits for nothing that the rate limiter forbids."""
    values = np.arange(QUEUE_SIZE)
    for server in servers:
        server.client().insert_batch([values], {"queue": 1.0})
    client = reverb.Client(address_of(servers))
    calls = [
        Background(client.insert, [1001], {"queue": 1.0}),
        Background(client.insert, [1002], {"queue": 1.0}),
        Background(write_one, client, 1003),
        Background(write_one, client, 1004),
    ]
    first, second = servers
    wait_until(lambda: waiting(first)[0] + waiting(second)[0] == 4)
    assert waiting(first)[0]
    first.stop()
    wait_until(lambda: waiting(second)[0] == 4)
    batch = second.client().sample_batch("queue", QUEUE_SIZE + 4)
    for call in calls:
        call.result()
    assert sorted(batch.data[0].ravel()) == [*values, 1001, 1002, 1003, 1004]
    first.start()
    assert sorted(first.values("queue")) == list(values)


def test_samplers_that_wait_turn_to_the_other_server(servers):
    """Items that one of them has received by then are part of its batch."""
    client = reverb.Client(address_of(servers))
    calls = [Background(client.sample_batch, "queue", 3) for _ in range(4)]
    first, second = servers
    wait_until(lambda: waiting(first)[1] + waiting(second)[1] == 4)
    assert waiting(first)[1]
    first.client().insert([1], {"queue": 1.0})
    wait_until(lambda: not first.values("queue"))
    first.stop()
    wait_until(lambda: waiting(second)[1] == 4)
    second.client().insert_batch([np.arange(2, 13)], {"queue": 1.0})
    values = [value for call in calls for value in call.result().data[0].ravel()]
    assert sorted(values) == list(range(1, 13))


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_clients_of_one_server_wait_until_it_is_back(servers, rounds):
    server = servers[0]
    with load(server.address, FEW_WRITERS, FEW_SAMPLERS) as clients:
        for _ in range(rounds):
            server.restart()
            clients.wait_until_all_go_round()
        outcome = clients.stop()
    account_for(servers[:1], outcome)
