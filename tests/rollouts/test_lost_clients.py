# SPDX-License-Identifier: Apache-2.0
"""Clients that are killed, interrupted, frozen, or hold an item for too long."""

import signal

import pytest

import reverb
from support.programs import Program
from support.rollout_tables import info, prompt, ready, removed, rollout, table
from support.waiting import DEADLINE_S

# Holds what it is told to, and says what it has.
HOLDER = """
import sys, time
import reverb
from support.rollout_tables import rollout
client = reverb.Client(sys.argv[1])
if sys.argv[2] == "ready":
    print(*client.take("train", 2).name)
    sys.stdin.readline()
else:
    with client.open_item("train") as item:
        client.add_rollout(item, rollout(1), rollout=0)
        client.add_rollout(item, rollout(2), rollout=1, partial=True)
        print(item.name)
        sys.stdin.readline()
"""


# Waits for what does not come.
WAITER = """
import sys
import reverb
client = reverb.Client(sys.argv[1])
print(flush=True)
"""


# A server in a process of its own, which can stand still.
SERVER = """
import sys
import reverb
from support.rollout_tables import table
server = reverb.Server([table(1)], host="127.0.0.1")
print(server.port)
sys.stdin.readline()
"""
# Takes from a server that stands still, until Ctrl-C or a cancellation.
TAKER = """
import asyncio, sys
import reverb
client = reverb.Client(sys.argv[1], connect_timeout_s=0.3)
awaited = reverb.aio.Client(sys.argv[1], connect_timeout_s=0.3)

def wait_as_long_as_a_call():
    # One that is connected already waits until its pings were not answered.
    other = client if sys.argv[3] == "lost" else reverb.Client(sys.argv[1], connect_timeout_s=0.3)
    try:
        other.server_info()
    except reverb.ReverbError:
        print("stands still")

async def cancel():
    async with awaited:
        await awaited.take("train", 1, timeout_ms=0)
        print("ready")
        sys.stdin.readline()
        tasks = [asyncio.create_task(awaited.take("train", 1)) for _ in range(3)]
        await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        wait_as_long_as_a_call()
        sys.stdin.readline()

if sys.argv[2] == "cancel":
    asyncio.run(cancel())
else:
    client.take("train", 1, timeout_ms=0)
    print("ready")
    sys.stdin.readline()
    try:
        print("takes")
        client.take("train", 1)
    except KeyboardInterrupt:
        wait_as_long_as_a_call()
    sys.stdin.readline()
"""


@pytest.fixture
def server(start):
    return start(table(3), lease_grace_s=0.5)


@pytest.fixture
def client(server):
    return server.localhost_client()


def address(server):
    return f"127.1:{server.port}"


def test_others_go_on_with_an_item_of_a_killed_generator(server, client):
    client.insert_item("train", prompt(0), name="a")
    with Program(HOLDER, address(server), "open") as program:
        assert program.line() == "a"
        program.kill()
        with client.open_item("train", timeout_ms=20_000) as item:
            assert (item.attempts, item.missing, list(item.partial)) == (1, [1, 2], [1])
            client.add_rollout(item, rollout(3), rollout=1)
            client.add_rollout(item, rollout(4), rollout=2)
    assert client.take("train", 1).data["score"].tolist() == [1, 3, 4]


def test_items_of_a_killed_learner_come_again_first(server, client):
    ready(client, *"abc", num_rollouts=3)
    with Program(HOLDER, address(server), "ready") as program:
        assert program.line() == "a b"
        program.kill()
        batch = client.take("train", 3, timeout_ms=20_000)
    assert (batch.name, batch.attempts.tolist()) == (["a", "b", "c"], [1, 1, 0])


def test_an_item_leaves_when_too_many_clients_lost_it(start, until):
    server = start(table(3, max_attempts=1), lease_grace_s=0)
    client = server.localhost_client()
    client.insert_item("train", prompt(0), name="a")
    for left in (1, 0):
        with Program(HOLDER, address(server), "open") as program:
            assert program.line() == "a"
            program.kill()
        until(lambda: info(client).leased == 0)
        assert client.size("train") == left


def test_ctrl_c_gives_a_take_up(server, client, until):
    source = """
    import sys
    import reverb
    client = reverb.Client(sys.argv[1])
    try:
        client.take("train", 1)
    except KeyboardInterrupt:
        print("interrupted")
        sys.stdin.readline()
    """
    with Program(source, address(server)) as program:
        until(lambda: client.status().tables["train"].sampling.waiting == 1)
        program.signal(signal.SIGINT)
        assert program.line() == "interrupted"
        ready(client, "a", num_rollouts=3)
        assert client.take("train", 1, timeout_ms=20_000).name == ["a"]


@pytest.mark.parametrize(
    ("how", "connection"),
    [
        ("cancel", "there"),
        ("ctrl-c", "there"),
        pytest.param("ctrl-c", "lost", marks=pytest.mark.slow),
    ],
)
def test_a_take_given_up_at_a_frozen_server_takes_nothing(how, connection):
    with Program(SERVER) as frozen:
        where = f"127.0.0.1:{frozen.line()}"
        client = reverb.Client(where, connect_timeout_s=DEADLINE_S)
        ready(client, *"abcdef", num_rollouts=1)
        with Program(TAKER, where, how, connection) as taker:
            assert taker.line() == "ready"  # It holds one.
            frozen.signal(signal.SIGSTOP)
            try:
                taker.tell()
                if how == "ctrl-c":
                    assert taker.line() == "takes"
                    taker.signal(signal.SIGINT)
                assert taker.line() == "stands still"
            finally:
                frozen.signal(signal.SIGCONT)
            assert client.take("train", 5, timeout_ms=20_000).name == [*"bcdef"]
            assert info(client).leased == 6


def test_nobody_holds_an_open_item_for_too_long(start):
    server = start(table(2, open_timeout_s=0.2))
    client, other = server.localhost_client(), server.localhost_client()
    client.insert_item("train", prompt(0), name="a")
    with client.open_item("train") as item:
        client.add_rollout(item, rollout(1))
        with other.open_item("train", timeout_ms=20_000) as again:
            assert (again.name, again.attempts, again.missing) == ("a", 1, [1])
            assert not client.add_rollout(item, rollout(9), rollout=1)
            other.add_rollout(again, rollout(2))
    assert client.take("train", 1).data["score"].tolist() == [1, 2]


def test_an_item_timed_out_too_often_is_trained_or_leaves(start, until):
    tables = [
        table(2, name="train", open_timeout_s=0.05, max_attempts=1),
        table(2, name="enough", open_timeout_s=0.05, max_attempts=1, min_rollouts=1),
    ]
    client = start(*tables).localhost_client()
    for name in ("train", "enough"):
        client.insert_item(name, prompt(0), name="a")
        for attempts in range(2):
            with client.open_item(name, timeout_ms=20_000) as item:
                assert item.attempts == attempts
                if attempts == 0:
                    client.add_rollout(item, rollout(7))
                until(lambda name=name: info(client, name).leased == 0, 20)
    assert client.size("train") == 0
    assert client.take("enough", 1, timeout_ms=0).data["score"].tolist() == [7]


def test_a_released_item_is_no_lost_one(start):
    client = start(table(1, max_attempts=1)).localhost_client()
    client.insert_item("train", prompt(0), name="a")
    for _ in range(5):
        with client.open_item("train") as item:
            assert item.attempts == 0
    assert removed(client) == {}


@pytest.mark.parametrize("waits", ["take('train', 1)", "take('train', 1, lacks='score')", "open"])
def test_a_client_that_dies_while_it_waits_gets_nothing(two, waits, until):
    client, _ = two(1, lease_grace_s=0.1)
    call = "client.open_item('train').__enter__()" if waits == "open" else f"client.{waits}"
    with Program(WAITER + call, client.server_address) as dying:
        dying.line()
        until(lambda: num_waiting(client) == 1)
        dying.kill()
    until(lambda: num_waiting(client) == 0)
    if waits == "open":
        client.insert_item("train", prompt(0), name="a")
        with client.open_item("train", timeout_ms=0) as item:
            assert item.name == "a"
        return
    lacks = {"lacks": "score"} if "lacks" in waits else {}
    rows = [{name: it for name, it in rollout().items() if name not in lacks.values()}]
    client.insert_item("train", prompt(0), rows, name="a")
    assert client.take("train", 1, timeout_ms=0, **lacks).name == ["a"]


def num_waiting(client):
    status = client.status().tables["train"]
    rollouts = status.rollouts
    return status.sampling.waiting + rollouts.waiting_open + rollouts.waiting_settled
