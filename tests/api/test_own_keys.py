# SPDX-License-Identifier: Apache-2.0
"""Items with keys of the program's own: new priorities, and new data in place."""

import hashlib
import re
import threading

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from support.rollout_tables import table as rollout_table

MOST = 2**64 - 1


@pytest.fixture
def client(serve):
    """A client of a server with the tables `t` and `u` of ten items, oldest first."""
    return serve(testing.table("t", max_size=10), testing.table("u", max_size=10))


def items(client, table="t"):
    """The items in the order of their inserts: key, value, priority."""
    found = client.scan(table)
    return [(it.info.key, int(np.ravel(it.data[0])[0]), it.info.priority) for it in found]


def fetched(client, key, table="t"):
    """The values of one item."""
    return np.ravel(client.fetch(table, [key]).data[0]).tolist()


def removed(client, table="t"):
    return client.status().tables[table].removed


def test_a_key_of_a_text_is_the_start_of_its_hash():
    digest = hashlib.sha256("épisode 3".encode()).digest()
    assert reverb.key_of("épisode 3") == int.from_bytes(digest[:8], "big")
    assert reverb.key_of("") == 0xE3B0C44298FC1C14
    with pytest.raises(TypeError, match=re.escape("text must be a str, got bytes")):
        reverb.key_of(b"x")  # type: ignore[arg-type]


def test_rows_have_the_keys_that_they_were_given(client):
    keys = [0, 7, MOST]
    given = client.insert_batch(np.arange(3), {"t": 1.0, "u": 2.0}, keys=keys)
    assert {table: values.tolist() for table, values in given.items()} == {"t": keys, "u": keys}
    assert items(client) == [(0, 0, 1.0), (7, 1, 1.0), (MOST, 2, 1.0)]
    assert items(client, "u") == [(0, 0, 2.0), (7, 1, 2.0), (MOST, 2, 2.0)]
    assert fetched(client, 7) == [1]


def test_a_known_key_is_a_new_priority(client):
    client.insert_batch(np.arange(2), {"t": 1.0}, keys=[1, 2])
    client.insert_batch(np.arange(10, 12), {"t": [5.0, 6.0]}, keys=[1, 3])
    assert items(client) == [(1, 0, 5.0), (2, 1, 1.0), (3, 11, 6.0)]
    assert removed(client).total == 0
    assert client.status().tables["t"].inserts == 3


def test_a_replaced_item_is_a_new_one(client):
    client.insert_batch(np.arange(3), {"t": 1.0}, keys=[1, 2, 3])
    (sample,) = client.sample("t", 1, emit_timesteps=False)
    client.insert_batch(np.array([10]), {"t": 5.0}, keys=[1], replace=True)
    assert (sample.info.key, sample.data[0].tolist()) == (1, [0])
    assert items(client) == [(2, 1, 1.0), (3, 2, 1.0), (1, 10, 5.0)]
    assert (fetched(client, 1), client.fetch("t", [1]).info.times_sampled.tolist()) == ([10], [0])


def test_it_leaves_and_comes_in_the_statistics(client):
    client.insert_batch(np.arange(3), {"t": 1.0}, keys=[1, 2, 3])
    next(iter(client.sample("t", 1)))
    client.insert_batch(np.arange(2), {"t": 1.0}, keys=[1, 2], replace=True)
    table = client.status().tables["t"]
    assert (table.inserts, table.items) == (5, 3)
    assert (table.removed.replaced, table.removed.total, table.removed.unsampled) == (2, 2, 1)
    limiter = client.server_info()["t"].rate_limiter_info
    assert (limiter.insert_stats.completed, limiter.sample_stats.completed) == (5, 1)


def test_a_key_that_is_not_there_is_inserted(client):
    client.insert_batch(np.arange(2), {"t": 1.0}, keys=[1, 2], replace=True)
    assert items(client) == [(1, 0, 1.0), (2, 1, 1.0)]
    assert removed(client).total == 0


def test_of_equal_keys_in_a_batch_the_last_counts(client):
    rows, priorities = np.arange(4), [1.0, 2.0, 3.0, 4.0]
    client.insert_batch(rows, {"t": priorities}, keys=[5, 6, 5, 5], replace=True)
    client.insert_batch(rows, {"u": priorities}, keys=[5, 6, 5, 5])
    assert items(client) == [(6, 1, 2.0), (5, 3, 4.0)]
    assert items(client, "u") == [(5, 0, 4.0), (6, 1, 2.0)]


def test_a_sequence_replaces_one_of_another_length(client):
    key = reverb.key_of("episode 0")
    client.insert_sequence(np.arange(5), {"t": 1.0, "u": 1.0}, key=key)
    client.insert_sequence(np.arange(3), {"t": 2.0}, key=key)
    assert fetched(client, key, "t") == [0, 1, 2, 3, 4]
    client.insert_sequence(np.arange(3), {"t": 2.0}, key=key, replace=True)
    assert fetched(client, key, "t") == [0, 1, 2]
    assert fetched(client, key, "u") == [0, 1, 2, 3, 4]


def test_the_old_data_is_freed(serve):
    client = serve(testing.table("t", max_size=10))
    row = np.zeros((1, 100_000), np.uint8)
    client.insert_batch(row, {"t": 1.0}, keys=[1])
    before = client.status().tables["t"]
    for _ in range(5):
        client.insert_batch(row, {"t": 1.0}, keys=[1], replace=True)
    after = client.status().tables["t"]
    assert (before.bytes, before.chunks) == (after.bytes, after.chunks)


def test_a_table_that_is_full_of_bytes_replaces(serve):
    """The old data makes room for the new, and more has to wait."""
    row = np.random.default_rng(0).integers(0, 256, (1, 1000), np.uint8)
    client = serve(testing.table("t", max_size=10, max_bytes=3000, when_full="wait"))
    client.insert_batch(np.concatenate([row, row]), {"t": 1.0}, keys=[1, 2])
    client.insert_batch(255 - row, {"t": 1.0}, keys=[1], replace=True)
    assert fetched(client, 1) == (255 - row)[0].tolist()
    larger = np.random.default_rng(1).integers(0, 256, (1, 1800), np.uint8)
    with pytest.raises(DeadlineExceededError):
        client.insert_batch(larger, {"t": 1.0}, keys=[1], replace=True, timeout_ms=0)
    # A new priority takes no room.
    client.insert_batch(larger, {"t": 7.0}, keys=[1], timeout_ms=0)
    assert fetched(client, 1) == (255 - row)[0].tolist()
    assert removed(client).replaced == 1


def test_of_a_full_table_nothing_is_evicted(serve):
    client = serve(testing.table("t", max_size=3))
    client.insert_batch(np.arange(3), {"t": 1.0}, keys=[1, 2, 3])
    client.insert_batch(np.arange(10, 12), {"t": 1.0}, keys=[1, 2], replace=True)
    assert items(client) == [(3, 2, 1.0), (1, 10, 1.0), (2, 11, 1.0)]
    client.insert(np.int64(4), {"t": 1.0})
    assert [key for key, *_ in items(client)][:2] == [1, 2]


def test_a_queue_stays_as_long_as_it_is(serve):
    """An item that was not sampled is replaced: the queue has as many places as before."""
    client = serve(reverb.Table.queue("t", 3))
    for value in range(20):
        client.insert_batch(np.array([value]), {"t": 1.0}, keys=[1], replace=True)
    client.insert_batch(np.arange(2), {"t": 1.0})
    taken = list(client.sample("t", 3, emit_timesteps=False))
    assert [int(it.data[0][0]) for it in taken] == [19, 0, 1]
    assert client.server_info()["t"].current_size == 0
    client.insert_batch(np.arange(3), {"t": 1.0})


def test_a_ratio_counts_it_as_an_insert(serve):
    """Where items are sampled without limit, new data allows new samples."""
    limiter = reverb.rate_limiters.SampleToInsertRatio(1.0, 1, (0.0, 2.0))
    client = serve(testing.table("t", rate_limiter=limiter))
    for value in range(5):
        client.insert_batch(np.array([value]), {"t": 1.0}, keys=[1], replace=True)
        (sample,) = client.sample("t", 1, emit_timesteps=False)
        assert sample.data[0].tolist() == [value]
    with pytest.raises(reverb.DeadlineExceededError):
        list(client.sample("t", 1, timeout_ms=0))


def test_an_item_that_was_used_up_is_inserted_anew(serve):
    client = serve(testing.table("t", max_times_sampled=2))
    client.insert_batch(np.arange(1), {"t": 1.0}, keys=[1])
    next(iter(client.sample("t", 1)))
    client.insert_batch(np.arange(1), {"t": 1.0}, keys=[1], replace=True)
    # It allows both samples again.
    assert [it[0].info.times_sampled for it in client.sample("t", 2)] == [1, 2]
    client.insert_batch(np.arange(1), {"t": 1.0}, keys=[1], replace=True)
    assert removed(client).replaced == 1
    assert removed(client).sampled_out == 1


def test_what_an_iterator_has_requested_is_the_old_or_new(serve):
    """A sampler that has requested items ahead gives whole items, each of one insert."""
    client = serve(testing.table("t", sampler=reverb.selectors.Uniform()))
    keys = np.arange(8)
    rows = {"a": np.arange(8), "b": np.arange(8)}
    client.insert_batch(rows, {"t": 1.0}, keys=keys)
    samples = client.sample("t", 400, emit_timesteps=False)
    for round_ in range(1, 100):
        moved = {name: values + 100 * round_ for name, values in rows.items()}
        client.insert_batch(moved, {"t": 1.0}, keys=keys, replace=True)
        for _ in range(4):
            a, b = next(samples).data
            assert a == b
    assert client.server_info()["t"].current_size == 8


def test_many_threads_replace_one_item(client):
    """Whichever is last: one item, and each of the others has left."""
    threads = [
        threading.Thread(
            target=lambda i=i: [
                client.insert_batch(np.array([i]), {"t": 1.0}, keys=[1], replace=True)
                for _ in range(20)
            ]
        )
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    table = client.status().tables["t"]
    assert (table.items, table.inserts, table.removed.replaced) == (1, 80, 79)


def test_no_reader_misses_what_is_replaced(client):
    keys = np.arange(10)
    client.insert_batch(np.zeros(10), {"t": 1.0}, keys=keys)
    done = threading.Event()

    def replace():
        while not done.is_set():
            client.insert_batch(np.ones(10), {"t": 1.0}, keys=keys, replace=True)

    threads = [threading.Thread(target=replace) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(500):
            assert client.fetch("t", keys).info.key.tolist() == keys.tolist()
            assert sorted(item.info.key for item in client.scan("t")) == keys.tolist()
    finally:
        done.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    ("keys", "error", "text"),
    [
        ([1], InvalidArgumentError, "keys must have shape [2], one for each row of the batch"),
        (5, InvalidArgumentError, "keys must have shape [B], one for each item, got shape []"),
        ([[1], [2]], InvalidArgumentError, "keys must have shape [B]"),
        ([1.0, 2.0], TypeError, "keys must be integers, got 1.0"),
        (np.array([1.0, 2.0]), TypeError, "keys must be integers, got an array of float64"),
        ([True, False], TypeError, "keys must be integers, got an array of bool"),
        (["a", "b"], TypeError, "keys must be integers, got an array of <U1"),
        ([1, 2**64], TypeError, f"keys must be integers in [-2^63, 2^64), got {2**64}"),
        ([1, -(2**63) - 1], TypeError, "keys must be integers in [-2^63, 2^64), got -"),
    ],
)
def test_keys_that_are_none(client, keys, error, text):
    with pytest.raises(error, match=re.escape(text)):
        client.insert_batch(np.arange(2), {"t": 1.0}, keys=keys)
    assert items(client) == []


@pytest.mark.parametrize("key", [True, 1.0, "a", [1], 2**64])
def test_a_key_of_a_sequence_that_is_none(client, key):
    with pytest.raises((TypeError, InvalidArgumentError), match=r"^key must "):
        client.insert_sequence(np.arange(2), {"t": 1.0}, key=key)
    assert items(client) == []


def test_negative_keys_are_the_bits_of_int64(client):
    """As in all calls with keys, because TensorFlow has them so."""
    client.insert_batch(np.arange(1), {"t": 1.0}, keys=np.array([-1]))
    assert items(client) == [(MOST, 0, 1.0)]


def test_nothing_is_replaced_without_keys(client):
    with pytest.raises(InvalidArgumentError, match=r"^replace=True needs keys, which say what"):
        client.insert_batch(np.arange(2), {"t": 1.0}, replace=True)
    with pytest.raises(InvalidArgumentError, match=r"^replace=True needs key, which say what"):
        client.insert_sequence(np.arange(2), {"t": 1.0}, replace=True)
    with pytest.raises(TypeError, match=r"^replace must be a bool, got int"):
        client.insert_batch(np.arange(2), {"t": 1.0}, keys=[1, 2], replace=1)


def test_an_item_of_other_columns_replaces_nothing(client, serve):
    spec = {"x": reverb.specs.TensorSpec([], np.int64)}
    client = serve(testing.table("t", signature=spec))
    client.insert_batch({"x": np.arange(1)}, {"t": 1.0}, keys=[1])
    with pytest.raises(reverb.errors.SignatureMismatchError):
        client.insert_batch({"x": np.ones((1, 2))}, {"t": 1.0}, keys=[1], replace=True)
    assert fetched(client, 1) == [0]


@pytest.mark.parametrize("replace", [False, True])
def test_tables_with_rollouts_refuse_own_keys(serve, replace):
    client = serve(rollout_table())
    rows = {
        "prompt": np.zeros((1, 2), np.int32),
        "tokens": np.zeros((1, 2), np.int32),
        "score": np.zeros(1, np.float32),
    }
    text = "Table train has rollouts, whose items have random keys; use insert_item with a name."
    with pytest.raises(FailedPreconditionError, match=re.escape(text)):
        client.insert_batch(rows, {"train": 1.0}, keys=[1], replace=replace)


def test_a_group_of_several_servers_refuses_own_keys(start):
    addresses = [f"127.0.0.1:{start(testing.table('t')).port}" for _ in range(2)]
    group = reverb.Client(f"shards:///{','.join(addresses)}", connect_timeout_s=20)
    text = "has several servers, and keys of the program's own are for one server"
    for replace in (False, True):
        with pytest.raises(InvalidArgumentError, match=text):
            group.insert_batch(np.arange(1), {"t": 1.0}, keys=[1], replace=replace)
        with pytest.raises(InvalidArgumentError, match=text):
            group.insert_sequence(np.arange(1), {"t": 1.0}, key=1, replace=replace)
    assert group.server_info()["t"].current_size == 0


def test_a_group_of_one_server_replaces(start):
    address = f"127.0.0.1:{start(testing.table('t')).port}"
    group = reverb.Client(f"shards:///{address}", connect_timeout_s=20)
    group.insert_batch(np.arange(2), {"t": 1.0}, keys=[1, 2])
    group.insert_batch(np.arange(8, 10), {"t": 1.0}, keys=[1, 3], replace=True)
    assert items(group) == [(2, 1, 1.0), (1, 8, 1.0), (3, 9, 1.0)]


async def test_asyncio_programs_replace(start):
    server = start(testing.table("t"))
    async with reverb.aio.Client(f"127.1:{server.port}") as client:
        given = await client.insert_batch(np.arange(2), {"t": 1.0}, keys=[1, 2])
        assert given["t"].tolist() == [1, 2]
        await client.insert_batch(np.array([9]), {"t": 1.0}, keys=[1], replace=True)
        await client.insert_sequence(np.arange(3), {"t": 1.0}, key=2, replace=True)
        found = [await client.fetch("t", [key]) for key in (1, 2)]
        assert [np.ravel(it.data[0]).tolist() for it in found] == [[9], [0, 1, 2]]


def test_a_checkpoint_has_the_new_data(tmp_path):
    def make():
        checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path))
        return reverb.Server([testing.table("t")], checkpointer=checkpointer)

    with make() as server:
        client = server.localhost_client()
        client.insert_batch(np.arange(3), {"t": 1.0}, keys=[1, 2, 3])
        client.insert_batch(np.array([10]), {"t": 4.0}, keys=[1], replace=True)
        client.checkpoint()
        client.insert_batch(np.array([11]), {"t": 5.0}, keys=[2], replace=True)
    with make() as server:
        assert items(server.localhost_client()) == [(2, 1, 1.0), (3, 2, 1.0), (1, 10, 4.0)]
