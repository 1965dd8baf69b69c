# SPDX-License-Identifier: Apache-2.0
"""Conformance vectors of tables and clients: what dm-reverb 0.14 does, to the number.

The tests use only the public interface of dm-reverb, so they run on the released package too (see
`../test_vectors_on_peer.py`); where this package differs on purpose, `PEER` says so.
"""

import contextlib
import socket
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

import reverb
from support.waiting import PATIENCE, wait_until

# The released package has no version attribute.
PEER = not hasattr(reverb, "__version__")

MinSize = reverb.rate_limiters.MinSize


@contextlib.contextmanager
def serve(*tables, **arguments):
    """Runs a server with `tables` and yields a client of it."""
    server = reverb.Server(list(tables), **arguments)
    try:
        yield reverb.Client(f"localhost:{server.port}")
    finally:
        server.stop()


def fifo_table(name="table", **arguments):
    """Returns a Fifo/Fifo table of 100 items, changed by `arguments`."""
    settings: dict[str, Any] = {
        "sampler": reverb.selectors.Fifo(),
        "remover": reverb.selectors.Fifo(),
        "max_size": 100,
        "rate_limiter": MinSize(1),
    }
    return reverb.Table(name, **{**settings, **arguments})


def insert(client, *values, table="table", priority=1.0):
    """Inserts one item per value, each its own episode."""
    for value in values:
        client.insert([np.asarray(value)], {table: priority})


def sample(client, table="table"):
    """Samples one item of one step and returns its value and its info."""
    ((step,),) = client.sample(table, 1)
    return int(step.data[0]), step.info


def append_items(writer, *values):
    """Appends one step per value and creates an item of each."""
    for value in values:
        writer.append([np.asarray(value)])
        writer.create_item("table", 1.0, [writer.history[0][-1:]])


def checkpointer(path):
    """Returns a checkpointer with its root at `path`, which restores settings."""
    # The peer always does this; in this package it is an option.
    options = {} if PEER else {"restore_settings": True}
    return reverb.checkpointers.DefaultCheckpointer(str(path), **options)


def test_vector_1_sample_to_insert_ratio():
    limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 3, 4.0)
    table = fifo_table(rate_limiter=limiter)
    with serve(table) as client:
        inserts = 0
        while table.can_insert(1):
            insert(client, inserts)
            inserts += 1
        assert inserts == 5
        samples = 0
        while table.can_sample(1):
            sample(client)
            samples += 1
        assert samples == 8
        assert [table.can_insert(k) for k in range(1, 6)] == [True, True, True, True, False]
        assert [table.can_sample(k) for k in (1, 2)] == [False, False]


def test_vector_2_queue():
    table = reverb.Table.queue("table", 5)
    with serve(table) as client:
        insert(client, *range(5))
        assert not table.can_insert(1)
        assert table.can_sample(5)
        assert not table.can_sample(6)
        sample(client)
        info = table.info
        assert (info.current_size, info.num_deleted_episodes, info.num_unique_samples) == (4, 1, 1)


def test_vector_3_counters():
    table = fifo_table(max_size=2, max_times_sampled=2)

    def counters():
        info = table.info
        inserts = info.rate_limiter_info.insert_stats.completed
        return info.current_size, info.num_episodes, info.num_deleted_episodes, inserts

    with serve(table) as client:
        insert(client, 0, 1, 2)
        assert counters() == (2, 2, 1, 3)

        writer = client.trajectory_writer(4)
        for value in range(4):
            writer.append([np.asarray(value)])
        writer.create_item("table", 1.0, [writer.history[0][-4:]])
        writer.create_item("table", 1.0, [writer.history[0][-2:]])
        writer.flush()
        assert counters() == (2, 1, 3, 5)

        writer.end_episode()
        writer.append([np.asarray(4)])
        writer.create_item("table", 1.0, [writer.history[0][-1:]])
        writer.flush()
        assert counters() == (2, 2, 3, 6)
        writer.close()

        infos = [next(client.sample("table", 1, emit_timesteps=False)).info for _ in range(2)]
        assert infos[0].key == infos[1].key
        assert [(info.times_sampled, info.table_size) for info in infos] == [(1, 2), (2, 2)]
        assert counters() == (1, 1, 4, 6)
        assert table.info.num_unique_samples == 1
        assert table.info.rate_limiter_info.sample_stats.completed == 2


def test_vector_4_heap_order():
    table = fifo_table(
        sampler=reverb.selectors.MaxHeap(), remover=reverb.selectors.MinHeap(), max_size=3
    )
    with serve(table) as client:
        for value, priority in enumerate([5, 5, 5, 1, 7]):
            insert(client, value, priority=priority)
        seen = []
        for _ in range(3):
            value, info = sample(client)
            seen.append((value, info.priority, info.probability))
            client.mutate_priorities("table", deletes=[info.key])
        assert seen == [(4, 7.0, 1.0), (1, 5.0, 1.0), (2, 5.0, 1.0)]


def test_vector_4_an_updated_heap_item_goes_behind_its_equals():
    with serve(fifo_table(sampler=reverb.selectors.MaxHeap())) as client:
        insert(client, 0, 1, 2)
        value, info = sample(client)
        assert value == 0
        client.mutate_priorities("table", updates={info.key: 1.0})
        assert sample(client)[0] == 1


def test_vector_5_lifo_remover_evicts_the_newcomer():
    table = fifo_table(remover=reverb.selectors.Lifo(), max_size=2)
    with serve(table) as client:
        insert(client, *range(5))
        assert sample(client)[0] == 0
        assert table.info.current_size == 2
        assert table.info.rate_limiter_info.insert_stats.completed == 5
        assert table.info.num_deleted_episodes == 3


def test_vector_6_prioritized_with_exponent_zero():
    with serve(fifo_table(sampler=reverb.selectors.Prioritized(0.0))) as client:
        for value, priority in enumerate([0.0, 1.0, 9.0]):
            insert(client, value, priority=priority)
        samples = [sample(client) for _ in range(60)]
        assert {value for value, _ in samples} == {1, 2}
        assert {info.probability for _, info in samples} == {0.5}


def test_vector_6_prioritized_with_zero_priorities_only():
    with serve(fifo_table(sampler=reverb.selectors.Prioritized(0.8))) as client:
        insert(client, 0, 1, 2, 3, priority=0.0)
        assert sample(client)[1].probability == 0.25


def test_vector_7_max_times_sampled():
    table = fifo_table(max_times_sampled=2, rate_limiter=MinSize(2))
    with serve(table) as client:
        insert(client, 0, 1, 2)
        seen = [
            (int(step.data[0]), step.info.times_sampled, step.info.table_size)
            for (step,) in client.sample("table", 3)
        ]
        assert seen == [(0, 1, 3), (0, 2, 3), (1, 1, 2)]
        assert table.info.current_size == 2


def test_vector_8_table_smaller_than_its_minimum():
    table = fifo_table(max_size=2, rate_limiter=MinSize(3))
    with serve(table) as client:
        insert(client, *range(5))
        assert table.info.current_size == 2
        assert not table.can_sample(1)
        assert table.can_insert(1)


def test_vector_21_client_sample_prefetches_within_num_samples():
    table = fifo_table()
    with serve(table) as client:
        insert(client, *range(10))

        def completed():
            return table.info.rate_limiter_info.sample_stats.completed

        generator = client.sample("table", 5)
        assert completed() == 0
        next(generator)
        # The peer keeps one sample ready. Fetching more of those that were asked for at once is
        # where this package gets its speed; it never fetches more than `num_samples`.
        wait_until(lambda: completed() == 2 if PEER else 1 <= completed() <= 5)
        assert len(list(generator)) == 4
        assert completed() == 5


def test_vector_22_checkpoint_restores_settings_and_counters(tmp_path):
    saved = fifo_table(max_size=4, sampler=reverb.selectors.Prioritized(0.5))
    with serve(saved, checkpointer=checkpointer(tmp_path)) as client:
        insert(client, *range(6))
        sample(client)
        client.checkpoint()

    other = fifo_table(
        max_size=99,
        max_times_sampled=1,
        rate_limiter=MinSize(7),
        signature=None,
    )
    with serve(other, checkpointer=checkpointer(tmp_path)) as client:
        info = client.server_info()["table"]
        assert (info.current_size, info.max_size, info.max_times_sampled) == (4, 4, 0)
        assert (info.num_episodes, info.num_deleted_episodes, info.num_unique_samples) == (4, 2, 1)
        limiter = info.rate_limiter_info
        assert (limiter.insert_stats.completed, limiter.sample_stats.completed) == (6, 1)
        assert limiter.min_size_to_sample == 1
        assert info.sampler_options.prioritized.priority_exponent == 0.5
        assert info.signature is None
        insert(client, 6)
        info = client.server_info()["table"]
        assert (info.current_size, info.num_deleted_episodes) == (4, 3)
        assert info.rate_limiter_info.insert_stats.completed == 7


@pytest.mark.parametrize(
    ("selector", "order"),
    [("Fifo", [0, 1, 2, 3, 4]), ("Lifo", [4, 3, 2, 1, 0]), ("MaxHeap", [0, 1, 2, 3, 4])],
)
def test_vector_23_restored_items_keep_the_order_of_insertion(tmp_path, selector, order):
    table = fifo_table(sampler=getattr(reverb.selectors, selector)())
    with serve(table, checkpointer=checkpointer(tmp_path)) as client:
        insert(client, *range(5))
        _, first = sample(client)
        # In a heap this moves the item behind its equals; a checkpoint forgets that.
        client.mutate_priorities("table", updates={first.key: 1.0})
        client.checkpoint()
    with serve(fifo_table(), checkpointer=checkpointer(tmp_path)) as client:
        seen = []
        for _ in range(5):
            value, info = sample(client)
            seen.append(value)
            client.mutate_priorities("table", deletes=[info.key])
        assert seen == order


def test_vector_24_reset_lets_queued_inserts_through():
    table = reverb.Table.queue("table", 1)
    with serve(table) as client:
        writer = client.trajectory_writer(1)
        append_items(writer, 0, 1, 2)
        wait_until(lambda: table.info.current_size == 1)
        for _ in range(2):
            client.reset("table")
            wait_until(lambda: table.info.current_size == 1)
        writer.flush(timeout_ms=10_000)
        writer.close()
        assert table.info.current_size == 1
        assert sample(client)[0] == 2


_NUMBERS = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "c8", "c16"]
_ROUND_TRIPS = [
    (1, np.int64, 1),
    (1.5, np.float64, 1.5),
    (True, np.bool_, True),
    (np.bool_(False), np.bool_, False),
    (2j, np.complex128, 2j),
    (2**63, np.uint64, 2**63),
    *((np.asarray([1, 2], dtype), dtype, [1, 2]) for dtype in _NUMBERS),
    ("grüße", np.object_, "grüße".encode()),
    (b"a\0b", np.object_, b"a\0b"),
    (np.asarray(["a", "bc"]), np.object_, [b"a", b"bc"]),
    (np.asarray([b"a", b"bc"]), np.object_, [b"a", b"bc"]),
    (np.asarray([b"a", "ü"], object), np.object_, [b"a", "ü".encode()]),
    (np.zeros((0, 3), np.float32), np.float32, np.zeros((0, 3))),
    (np.asfortranarray([[1, 2, 3], [4, 5, 6]]), np.int64, [[1, 2, 3], [4, 5, 6]]),
]


@pytest.mark.parametrize(("value", "dtype", "expected"), _ROUND_TRIPS)
@pytest.mark.parametrize("writer", ["trajectory", "legacy"])
def test_vector_25_leaf_round_trip(value, dtype, expected, writer):
    with serve(fifo_table()) as client:
        if writer == "legacy":
            client.insert([value], {"table": 1.0})
        else:
            with client.trajectory_writer(1) as trajectory_writer:
                trajectory_writer.append([value])
                column = trajectory_writer.history[0][-1:]
                trajectory_writer.create_item("table", 1.0, [column])
        ((step,),) = client.sample("table", 1)
        (leaf,) = step.data
        assert isinstance(leaf, np.ndarray)
        assert leaf.dtype == dtype
        np.testing.assert_array_equal(leaf, np.asarray(expected, dtype))
        assert leaf.flags.c_contiguous


_REFUSED = [
    np.longdouble(1),
    np.datetime64("2026-01-01"),
    np.timedelta64(1, "s"),
    np.zeros((), [("a", np.int32)]),
    2**70,
    {1, 2},
    object(),
    np.asarray([None, 1], object),
]


@pytest.mark.parametrize("value", _REFUSED, ids=lambda value: type(value).__name__)
def test_vector_25_unsupported_leaves_are_type_errors(value):
    with serve(fifo_table()) as client:
        writer = client.trajectory_writer(1)
        with pytest.raises(TypeError):
            writer.append([np.asarray(0), value])
        writer.close()
        with pytest.raises(TypeError):
            client.insert([value], {"table": 1.0})


def test_vector_25_none_is_refused_by_the_legacy_writer_only():
    with serve(fifo_table()) as client:
        with pytest.raises(TypeError):
            client.insert([None], {"table": 1.0})
        writer = client.trajectory_writer(1)
        writer.append({"a": 1, "b": None})
        writer.close()


def test_vector_25_dict_columns_are_stored_by_sorted_key():
    with serve(fifo_table()) as client:
        with client.trajectory_writer(1) as writer:
            writer.append({"a": 1, "b": 2})
            history = writer.history
            writer.create_item("table", 1.0, {"b": history["b"][-1:], "a": history["a"][-1:]})
        ((step,),) = client.sample("table", 1)
        assert [int(leaf) for leaf in step.data] == [1, 2]


def test_vector_26_unknown_tables():
    with serve(fifo_table()) as client:
        with pytest.raises(RuntimeError):
            next(client.sample("nope"))
        with pytest.raises(ValueError, match="table"):
            next(client.sample("nope", unpack_as_table_signature=True))
        with pytest.raises(ValueError, match="nope"):
            client.insert([1], {"nope": 1.0})
        with pytest.raises(RuntimeError, match="nope"):
            client.reset("nope")
        with pytest.raises(RuntimeError, match="nope"):
            client.mutate_priorities("nope", updates={1: 1.0})


def test_vector_26_server_info_timeout_must_be_whole_seconds():
    with serve(fifo_table()) as client, pytest.raises(TypeError):
        client.server_info(timeout=1.5)


def test_vector_26_unreachable_server(unused_port):
    client = reverb.Client(f"localhost:{unused_port}")
    started = time.monotonic()
    with pytest.raises(RuntimeError):
        client.checkpoint()
    assert time.monotonic() - started < 1.0 * PATIENCE
    with pytest.raises(reverb.DeadlineExceededError):
        client.server_info(timeout=1)
    assert 0.9 < time.monotonic() - started < 5.0 * PATIENCE


def test_vector_27_item_written_while_the_server_is_down_arrives(unused_port):
    server = reverb.Server([fifo_table()], port=unused_port)
    client = reverb.Client(f"localhost:{unused_port}")
    writer = client.trajectory_writer(1)
    append_items(writer, 0)
    writer.flush()
    server.stop()
    append_items(writer, 1)
    with serve(fifo_table(), port=unused_port):
        writer.flush(timeout_ms=30_000)
        writer.close()
        assert sample(client)[0] == 1


@pytest.mark.skipif(PEER, reason="the peer confirms what it did not insert when it stops (D-02)")
def test_vector_27_a_blocked_item_arrives_after_a_restart(unused_port):
    server = reverb.Server([reverb.Table.queue("table", 1)], port=unused_port)
    client = reverb.Client(f"localhost:{unused_port}")
    writer = client.trajectory_writer(1)
    append_items(writer, 0, 1)
    writer.flush(block_until_num_items=1)
    server.stop()
    with serve(fifo_table(), port=unused_port):
        writer.flush(timeout_ms=30_000)
        writer.close()
        assert sample(client)[0] == 1


_SERVER_PROGRAM = """
import sys, reverb
table = reverb.Table.queue("table", 10)
server = reverb.Server([table], port=int(sys.argv[1]))
reverb.Client(f"localhost:{server.port}").insert([int(sys.argv[2])], {"table": 1.0})
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.timeout(120)  # The peer's channel waits up to 30 s before it tries again.
def test_vector_27_client_sample_resumes_after_a_crash(unused_port):
    with _server_process(unused_port, 1):
        samples = reverb.Client(f"localhost:{unused_port}").sample("table", 2)
        assert next(samples)[0].data[0] == 1
    with _server_process(unused_port, 2):
        assert next(samples)[0].data[0] == 2


@contextlib.contextmanager
def _server_process(port, value):
    """Runs a server with one item in a process that is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER_PROGRAM, str(port), str(value)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()


@pytest.fixture
def unused_port():
    """A port that nothing listens on, as far as one can know."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
