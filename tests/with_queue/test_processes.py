# SPDX-License-Identifier: Apache-2.0
"""Queues between processes: producers and consumers that die, freeze, fork and are interrupted."""

import contextlib
import itertools
import multiprocessing
import queue
import signal
import time

import pytest

import reverb
from reverb.adapters.queue import Queue
from reverb.errors import UnavailableError
from support.programs import FreshProgram, Program
from support.served_apart import served_apart
from support.waiting import wait_until

WITH_QUEUE = """
import sys
from reverb.adapters.queue import Queue

values = Queue(*sys.argv[1:3])
"""
PUTS = """
for number in range(200):
    values.put((sys.argv[3], number))
print("done")
"""
GETS = """
print("ready")
while (item := values.get()) is not None:
    print(*item)
"""
INTERRUPTED = """
def interrupted(call):
    try:
        print("waits", flush=True)
        call()
    except KeyboardInterrupt:
        print("interrupted", flush=True)

values.put(1)
interrupted(lambda: values.put(2, timeout=600))
print(values.get(), values.qsize(), flush=True)
interrupted(values.get)
values.put(3)
print(values.get(), flush=True)
values.put(1)
interrupted(lambda: values.put(2))
print(values.get(), flush=True)
"""
FORKS = """
import os
values.put("parent")
if child := os.fork():
    os.waitpid(child, 0)
    print(values.get())
else:
    values.put(values.get() + " and child")
    os._exit(0)
"""
# Tables by their size, and a number for each test.
SIZES, NUMBERS = (1, 5, 100), itertools.count()
TABLES = "*(reverb.Table.queue(f'{size}-{number}', size) for size in %s for number in range(20))"


class Apart:
    """A queue of a server in another process.

    Attributes:
      program: The process.
      queue: The queue, over a table that no other test uses.
      arguments: Those of a program with a queue over the same table.
    """

    def __init__(self, served, table):
        self.program, self._client, self._table = served.program, served.client, table
        self.queue = Queue(served.client, table)
        self.arguments = served.address, table

    def waiting(self, side):
        """Number of calls that wait at the table."""
        return getattr(self._client.status().tables[self._table], side).waiting

    @contextlib.contextmanager
    def frozen(self):
        """Freezes the server for the block."""
        self.program.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.program.signal(signal.SIGCONT)


@pytest.fixture(scope="module")
def served():
    with served_apart(TABLES % repr(SIZES)) as served:
        yield served


@pytest.fixture
def apart(served):
    """Makes a queue of a server in another process: `apart(5)`."""
    return lambda size=100: Apart(served, f"{size}-{next(NUMBERS)}")


def test_each_item_is_with_one_of_several_consumers(apart):
    apart = apart(5)
    with contextlib.ExitStack() as stack:

        def start(program, *args):
            return stack.enter_context(Program(WITH_QUEUE + program, *apart.arguments, *args))

        consumers = [start(GETS) for _ in range(2)]
        assert [it.line() for it in consumers] == ["ready"] * 2
        producers = [start(PUTS, name) for name in "ab"]
        assert [it.line() for it in producers] == ["done"] * 2
        for _ in consumers:
            apart.queue.put(None)
        got = [[line.split() for line in it.rest()] for it in consumers]
    for name in "ab":
        numbers = [[int(number) for who, number in each if who == name] for each in got]
        assert sorted(itertools.chain(*numbers)) == list(range(200))
        assert all(each == sorted(each) for each in numbers)


def test_a_killed_consumer_takes_one_item_with_it_at_most(apart):
    apart = apart()
    with Program(WITH_QUEUE + GETS, *apart.arguments) as consumer:
        assert consumer.line() == "ready"
        wait_until(lambda: apart.waiting("sampling") == 1)
        consumer.kill()
    for number in range(10):
        apart.queue.put(number)
    got = [apart.queue.get(timeout=30) for _ in range(9)]
    with contextlib.suppress(queue.Empty):
        got.append(apart.queue.get(timeout=0.1))
    assert got in (list(range(10)), list(range(1, 10)))


def test_a_consumer_has_fetched_nothing_ahead(apart):
    apart = apart()
    with Program(WITH_QUEUE + GETS, *apart.arguments) as consumer:
        assert consumer.line() == "ready"
        wait_until(lambda: apart.waiting("sampling") == 1)
        consumer.signal(signal.SIGSTOP)
        for number in range(10):
            apart.queue.put(number)
        assert apart.queue.qsize() == 9
        assert [apart.queue.get_nowait() for _ in range(9)] == list(range(1, 10))


@pytest.mark.parametrize("held", [0, 1])
def test_full_of_a_frozen_server_means_not_delivered(apart, held):
    apart = apart(1)
    for number in range(held):
        apart.queue.put(number)
    assert apart.queue.qsize() == held
    with apart.frozen(), pytest.raises(queue.Full):
        apart.queue.put("not there", timeout=0.2)
    assert [apart.queue.get() for _ in range(held)] == list(range(held))
    with pytest.raises(queue.Empty):
        apart.queue.get(timeout=0.2)
    apart.queue.put("there")
    assert apart.queue.get() == "there"


def test_a_put_that_waits_delivers_nothing_after_full(apart, background):
    apart = apart(1)
    apart.queue.put(1)
    put = background(apart.queue.put, "not there", timeout=0.3)
    with apart.frozen(), pytest.raises(queue.Full):
        put.result()
    assert apart.queue.get() == 1
    with pytest.raises(queue.Empty):
        apart.queue.get(timeout=0.2)


@pytest.mark.parametrize("held", [0, 1])
def test_a_get_from_a_frozen_server_loses_nothing(apart, background, held):
    apart = apart()
    for number in range(held):
        apart.queue.put(number)
    with apart.frozen():
        get = background(apart.queue.get, timeout=0.1)
        time.sleep(0.3)  # Time to give up, and to lose what then comes.
    if held:
        assert get.result() == 0
    else:
        with pytest.raises(queue.Empty):
            get.result()
    apart.queue.put("later")
    assert apart.queue.get_nowait() == "later"


def test_a_server_that_stops_for_good_ends_calls(background):
    server = reverb.Server([reverb.Table.queue(name, 1) for name in ("full", "empty")])
    full, empty = (Queue(f"127.1:{server.port}", name) for name in ("full", "empty"))
    full.put(1)
    calls = [background(full.put, 2), background(full.put, 2, timeout=60), background(empty.get)]
    wait_until(lambda: server.status().tables["empty"].sampling.waiting == 1)
    server.stop(final=True)
    for call in calls:
        with pytest.raises(UnavailableError):
            call.result()


def test_ctrl_c_ends_calls_that_wait(apart):
    apart = apart(1)
    with Program(WITH_QUEUE + INTERRUPTED, *apart.arguments) as one:
        assert one.line() == "waits"
        one.signal(signal.SIGINT)
        assert [one.line(), one.line(), one.line()] == ["interrupted", "1 0", "waits"]
        wait_until(lambda: apart.waiting("sampling") == 1)
        one.signal(signal.SIGINT)
        assert [one.line(), one.line(), one.line()] == ["interrupted", "3", "waits"]
        wait_until(lambda: apart.waiting("inserting") == 1)
        one.signal(signal.SIGINT)
        assert [one.line(), one.line()] == ["interrupted", "1"]
        assert one.ended() == 0, one.errors


def test_a_forked_child_uses_the_queue_of_its_parent(apart):
    with FreshProgram(WITH_QUEUE + FORKS, *apart().arguments) as both:
        assert both.line() == "parent and child"


def test_it_is_sent_to_processes_of_multiprocessing(apart):
    values = apart().queue
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=values.put, args=(21,))
    process.start()
    assert values.get(timeout=30) == 21
    process.join()
    assert process.exitcode == 0


FORKED = """
import os

values.maxsize = 50
with values._putting:  # As a thread of the parent that is in `put` at the fork.
    child = os.fork()
    if child == 0:
        values.put("of the child", timeout=30)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print(values.get(), flush=True)
"""


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(apart):
    with Program(WITH_QUEUE + FORKED, *apart().arguments) as program:
        assert program.line() == "of the child"
