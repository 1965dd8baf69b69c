# SPDX-License-Identifier: Apache-2.0
"""Observers whose server goes away, or keeps them waiting."""

import os
import signal
import threading

import pytest

import reverb
from reverb import errors, testing
from reverb.adapters.tf_agents import reverb_utils
from support.hosts import on_both_hosts
from support.waiting import Background, wait_until

LAST = 2

# Each takes a client and a table, and writes an item for each frame.
KINDS = {
    "trajectory": lambda client, table: reverb_utils.ReverbAddTrajectoryObserver(client, table, 1),
    "sequence": lambda client, table: reverb_utils.ReverbTrajectorySequenceObserver(
        client, table, 1
    ),
    "episode": lambda client, table: reverb_utils.ReverbAddEpisodeObserver(client, table, 1),
    "batched": lambda client, table: reverb_utils.ReverbBatchedTrajectoryObserver(
        client, table, 1, 1
    ),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def boundary(kind, frame):
    """`boundary(value)`: a frame that is the last of its episode."""

    def boundary(value):
        made = frame(value, LAST)
        if kind != "batched":
            return made
        return made._replace(
            **{name: getattr(made, name)[None] for name in made._fields if name != "policy_info"}
        )

    return boundary


def tables():
    return [testing.table("table", max_times_sampled=1)]


def write_until_error(observer, boundary):
    """Writes until an error comes, which takes as many calls as items may be on their way."""
    for value in range(10_000):
        observer(boundary(value))
        observer.flush()


@on_both_hosts
def test_a_server_that_goes_away_closes_the_observer(kind, boundary, items, host):
    with reverb.Server(tables(), host="127.0.0.1") as server:
        port = server.port
        client = reverb.Client(f"{host}:{port}", connect_timeout_s=1)
        observer = KINDS[kind](client, "table")
        observer(boundary(1))
        observer.flush()
        assert client.server_info()["table"].current_size == 1
    with pytest.raises(errors.ReverbError) as failure:
        write_until_error(observer, boundary)
    assert isinstance(failure.value, errors.UnavailableError | errors.CancelledError)
    with pytest.raises(reverb_utils.ObserverClosedError, match=r"is closed \(.+\): call open\(\)"):
        observer.flush()
    observer.close()  # Nothing is left to do.
    with pytest.raises(errors.UnavailableError):
        observer.open()
    with reverb.Server(tables(), host="127.0.0.1", port=port):
        observer.reset()
        observer(boundary(2))
        observer.close()
        assert items(client) == [[2]]


def test_what_was_confirmed_stays(kind, boundary, items):
    with testing.server(tables()) as client:
        observer = KINDS[kind](client, "table")
        observer(boundary(1))
        observer.flush()
        observer(boundary(2))
        observer.flush()
        with pytest.raises(KeyError, match="mistake"), observer:
            raise KeyError("mistake")
        assert items(client) == [[1], [2]]


def test_a_blocked_flush_says_what_it_waits_for(kind, boundary, caplog, reported_waits):
    with testing.server([reverb.Table.queue("queue", 1)]) as client:
        observer = KINDS[kind](client, "queue")
        observer(boundary(0))

        def run():
            observer(boundary(1))
            observer.flush()

        waiting = Background(run)
        wait_until(lambda: "1 call waits for inserts into table queue at " in caplog.text)
        assert len(list(client.sample("queue", 1))) == 1
        waiting.result()
        observer.close()


@pytest.mark.parametrize("kind", ["sequence", "batched"], indirect=True)
def test_a_flush_with_a_timeout_leaves_the_items_queued(kind, boundary):
    with testing.server([reverb.Table.queue("queue", 1)]) as client:
        observer = KINDS[kind](client, "queue")
        observer(boundary(0))
        observer(boundary(1))
        for timeout_ms in (0, 50):
            with pytest.raises(errors.DeadlineExceededError, match="queue"):
                observer.flush(timeout_ms=timeout_ms)
        assert len(list(client.sample("queue", 2))) == 2
        observer.flush(timeout_ms=10_000)
        observer.close()


@pytest.fixture
def heeds_ctrl_c():
    """The parent of the tests may have made them ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_ends_a_blocked_call_and_nothing_is_lost(frame, items):
    with testing.server([reverb.Table.queue("queue", 1)]) as client:
        observer = KINDS["trajectory"](client, "queue")
        observer(frame(0, LAST))
        observer(frame(1))  # The queue is full.
        interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            observer(frame(2, LAST))
        taken = [steps[0].data[2] for steps in client.sample("queue", 3)]
        observer(frame(3, LAST))
        assert [*taken, *(window[0] for window in items(client, "queue"))] == [0, 1, 2, 3]
        observer.close()
