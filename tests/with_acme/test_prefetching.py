# SPDX-License-Identifier: Apache-2.0
"""The life of an iterator that fetches ahead: waiting, errors, closing, dropping, the exit."""

import gc
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import reverb
from reverb import testing
from reverb.adapters.acme import datasets
from reverb.errors import DeadlineExceededError, ReverbError
from support.waiting import PATIENCE

TABLE = "priority_table"


@pytest.fixture
def dataset(client):
    """A dataset of an empty table that will return 1.0, 2.0, ... once."""
    return datasets.make_reverb_dataset(client, batch_size=1, prefetch_size=2)


def insert(client, *values):
    for value in values:
        client.insert([float(value)], {TABLE: 1.0})


def value(sample):
    return float(sample.data[0][0, 0])


def num_threads():
    return sum(thread.name == "reverb-prefetch" for thread in threading.enumerate())


def test_ready_and_how_many_were_taken(client, dataset, until):
    with iter(dataset) as iterator:
        assert not iterator.ready()
        insert(client, 1)
        until(iterator.ready)
        assert iterator.retrieved_elements() == 0
        assert value(iterator.next()) == 1.0
        assert iterator.retrieved_elements() == 1
        assert not iterator.ready()


def test_an_agent_that_inserts_and_learns_in_one_thread(client, dataset):
    learned = []
    with iter(dataset) as iterator:
        for i in range(20):
            insert(client, i)
            while iterator.ready():
                learned.append(value(next(iterator)))
        while len(learned) < 20:
            learned.append(value(next(iterator)))
    assert learned == list(range(20))


def test_next_waits_for_data(client, dataset, background):
    with iter(dataset) as iterator:
        waiting = background(next, iterator)
        insert(client, 7)
        assert value(waiting.result()) == 7.0


def test_next_with_a_timeout_says_what_it_waits_for(client, until):
    dataset = datasets.make_reverb_dataset(client, batch_size=1, timeout_ms=500)
    with iter(dataset) as iterator:
        with pytest.raises(DeadlineExceededError) as caught:
            next(iterator)
        assert str(caught.value).startswith(
            "no element after 500 ms, waiting for a sample of table priority_table"
        )
        insert(client, 1)
        until(iterator.ready)
        assert value(next(iterator)) == 1.0  # It goes on.


def test_close_ends_iteration(client, dataset, background):
    insert(client, 1, 2)
    iterator = iter(dataset)
    next(iterator)
    iterator.close()
    assert list(iterator) == []
    assert iterator.ready()  # It would not block.
    iterator.close()
    iterator = iter(dataset)
    waiting = background(list, iterator)
    iterator.close()
    assert waiting.result() == []


def test_close_is_quick_behind_a_rate_limiter(dataset):
    iterator = iter(dataset)
    time.sleep(0.3)  # The thread is inside a request.
    start = time.monotonic()
    iterator.close()
    assert time.monotonic() - start < 3.0 * PATIENCE
    assert num_threads() == 0


def test_a_dropped_iterator_ends_its_thread(dataset, until):
    before = num_threads()
    iterators = [iter(dataset) for _ in range(3)]
    assert num_threads() == before + 3
    del iterators
    gc.collect()
    until(lambda: num_threads() == before)


def test_errors_come_after_what_was_fetched_before(client, until):
    def fail(sample):
        if value(sample) == 3:
            raise KeyError("mine")
        return value(sample)

    dataset = datasets.make_reverb_dataset(client, batch_size=1, prefetch_size=5).map(fail)
    insert(client, 1, 2, 3, 4)
    with iter(dataset) as iterator:
        assert [next(iterator), next(iterator)] == [1, 2]
        for _ in range(2):
            with pytest.raises(KeyError, match="mine"):
                next(iterator)
        assert iterator.ready()


def test_a_server_that_stops():
    server = reverb.Server([testing.table(TABLE, max_times_sampled=1)], host="127.0.0.1")
    client = reverb.Client(f"127.0.0.1:{server.port}", connect_timeout_s=0.2)
    with iter(datasets.make_reverb_dataset(client, batch_size=1)) as iterator:
        insert(client, 1)
        next(iterator)
        server.stop()
        with pytest.raises(ReverbError, match=str(server.port)):
            next(iterator)


# --- Programs that end ----------------------------------------------------------------------------

PROGRAM = """
import signal, sys, threading, time
import reverb
from reverb import testing
from reverb.adapters.acme import datasets

# The parent of the test run may ignore this signal, and its children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
server = reverb.Server([testing.table("priority_table")], host="127.0.0.1")
client = reverb.Client(f"127.0.0.1:{server.port}", connect_timeout_s=60)
make = lambda **options: iter(datasets.make_reverb_dataset(client, batch_size=1, **options))
"""

ENDINGS = {
    "waiting for the rate limiter": "iterator = make(); time.sleep(0.3)",
    "full": (
        "client.insert([1.0], {'priority_table': 1.0}); iterator = make(); next(iterator);"
        "time.sleep(0.3)"
    ),
    "without its server": "iterator = make(); time.sleep(0.1); server.stop(); time.sleep(0.3)",
    "in a function of the program": (
        "client.insert([1.0], {'priority_table': 1.0});"
        "iterator = make(postprocess=lambda sample: time.sleep(1000)); time.sleep(0.3)"
    ),
    "while fetching at full speed": (
        "client.insert([1.0], {'priority_table': 1.0}); iterator = make(prefetch_size=10_000)"
    ),
    "with a thread that waits": (
        "iterator = make(); threading.Thread(target=iterator.next, daemon=True).start();"
        "time.sleep(0.3)"
    ),
}


def run(body):
    program = PROGRAM + textwrap.dedent(body)
    root = pathlib.Path(reverb.__file__).parents[1]
    return subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("body", ENDINGS.values(), ids=ENDINGS)
def test_exit_does_not_wait_for_an_iterator(body):
    process = run(body + "\nprint('end', flush=True)")
    try:
        out, err = process.communicate(timeout=40)
    finally:
        process.kill()
    assert (out, err, process.returncode) == ("end\n", "", 0)


def test_ctrl_c_interrupts_next():
    process = run(
        """
        iterator = make()
        try:
            print("waiting", flush=True)
            next(iterator)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    )
    try:
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.3)  # It waits by now; if not, it is interrupted before.
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=40)
    finally:
        process.kill()
    assert (out, err, process.returncode) == ("interrupted\n", "", 0)
