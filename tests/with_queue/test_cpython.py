# SPDX-License-Identifier: Apache-2.0
"""Python's own tests of `queue.Queue`, unchanged, over a queue of a server."""

import itertools
import queue
import types
import unittest

import pytest

import reverb
from reverb.adapters.queue import Queue

test_queue = pytest.importorskip("test.test_queue", reason="this Python has no tests")

# They count tasks, which are no items of a table.
TASKS = {"test_queue_task_done", "test_queue_join"}
# They shut a queue down, which is for the server to do.
SHUTDOWN = {it for it in dir(test_queue.PyQueueTest) if "shutdown" in it}
MOST = 50

TESTS = unittest.defaultTestLoader.getTestCaseNames(test_queue.PyQueueTest)


@pytest.fixture(scope="module")
def ours():
    """A module like `queue`, whose queues have a table each."""
    tables = [reverb.Table.queue(str(number), 1000) for number in range(MOST)]
    numbers = itertools.count()
    with reverb.Server(tables) as server:
        client = reverb.Client(f"127.1:{server.port}")

        def make(maxsize=0):
            return Queue(client, str(next(numbers)), maxsize=maxsize)

        yield types.SimpleNamespace(Queue=make, Full=queue.Full, Empty=queue.Empty)


@pytest.mark.parametrize("name", sorted(set(TESTS) - TASKS - SHUTDOWN))
def test_python_s_own_test_passes(ours, monkeypatch, name):
    monkeypatch.setattr(test_queue.PyQueueTest, "queue", ours)
    result = unittest.TestResult()
    test_queue.PyQueueTest(name).run(result)
    assert (result.testsRun, result.errors, result.failures, result.skipped) == (1, [], [], [])


def test_most_of_them_are_run():
    assert {"test_basic", "test_nowait", "test_shrinking_queue"} <= set(TESTS)
