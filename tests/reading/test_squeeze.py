# SPDX-License-Identifier: Apache-2.0
"""`squeeze=True`: items of one step become batches without a dimension of steps."""

import numpy as np
import pytest

import reverb
from reverb import aio, errors, specs
from support.waiting import DEADLINE_S

SIGNATURE = {
    "obs": specs.TensorSpec((3,), np.float32),
    "one": specs.TensorSpec((1,), np.float32),
    "text": specs.TensorSpec((), str),
    "reward": specs.TensorSpec((), np.float64),
}
DATA = {
    "obs": np.arange(12, dtype=np.float32).reshape(4, 3),
    "one": np.arange(4, dtype=np.float32).reshape(4, 1),
    "text": np.array(["a", "b", "c", "d"]),
    "reward": np.arange(4.0),
}


def table(name="table", **options):
    # A batch of all items has each once, in any order.
    sampler, remover = reverb.selectors.Shuffle(), reverb.selectors.Fifo()
    limiter = reverb.rate_limiters.MinSize(1)
    return reverb.Table(name, sampler, remover, 100, limiter, **options)


@pytest.fixture
def client(serve):
    client = serve(table(signature=SIGNATURE), table("other"), reverb.Table.queue("queue", 100))
    client.insert_batch(DATA, {"table": 1.0})
    return client


def check(data):
    assert data["obs"].shape == (4, 3)
    # The dimension of the data stays.
    assert data["one"].shape == (4, 1)
    assert data["reward"].shape == (4,)
    assert sorted(data["text"].tolist()) == [b"a", b"b", b"c", b"d"]
    order = np.argsort(data["reward"])
    for name in ("obs", "one", "reward"):
        np.testing.assert_array_equal(data[name][order], DATA[name])


def test_columns_have_no_dimension_of_steps(client):
    batch = client.sample_batch("table", 4, squeeze=True, unpack_as_table_signature=True)
    check(batch.data)
    assert batch.lengths == ()
    assert [it.shape for it in client.sample_batch("table", 4, squeeze=True).data] == [
        (4, 3),
        (4, 1),
        (4,),
        (4,),
    ]
    assert client.sample_batch("table", 4, squeeze=False).data[0].shape == (4, 1, 3)


def test_every_way_to_a_batch_takes_it(client):
    options = {"squeeze": True, "unpack_as_table_signature": True}
    with client.batch_sampler("table", 4, **options) as batches:
        for _ in range(4):
            check(next(batches).data)
    for more in (
        {},
        {"transform": lambda batch: batch},
        {"convert": lambda batch: batch},
        {"partial": True},
        {"end_after_ms": 10_000},
    ):
        with reverb.batches(client, "table", 4, squeeze=True, **more) as batches:
            check(next(batches).data)


async def test_awaited_batches(client):
    address = client.server_address
    async with aio.Client(address, connect_timeout_s=DEADLINE_S) as awaited:
        options = {"squeeze": True, "unpack_as_table_signature": True}
        check((await awaited.sample_batch("table", 4, **options)).data)
        async with awaited.batch_sampler("table", 4, **options) as batches:
            check((await anext(batches)).data)
        async with awaited.batches("table", 4, squeeze=True) as batches:
            check((await anext(batches)).data)


def test_chosen_columns_and_given_memory(client):
    batch = client.sample_batch("table", 4, squeeze=True, columns=["one", "obs"])
    assert [it.shape for it in batch.data] == [(4, 3), (4, 1)]
    out = {"obs": np.empty((4, 3), np.float32), "reward": np.empty(4)}
    options = {"squeeze": True, "columns": ["obs", "reward"], "out": out}
    batch = client.sample_batch("table", 4, **options)
    assert batch.data["obs"] is out["obs"]
    order = np.argsort(out["reward"])
    np.testing.assert_array_equal(out["obs"][order], DATA["obs"])
    np.testing.assert_array_equal(out["reward"][order], DATA["reward"])
    wrong = {"obs": np.empty((4, 1, 3), np.float32), "reward": np.empty(4)}
    text = r'out\["obs"\] must be float32 \[4, 3\], C-contiguous and writable; got float32'
    with pytest.raises(errors.InvalidArgumentError, match=text):
        client.sample_batch("table", 4, **options | {"out": wrong})


def test_distinct_and_whole_batches(client):
    client.insert_batch([np.arange(4.0)], {"queue": 1.0})
    batch = client.sample_batch("queue", 4, squeeze=True, distinct=True, partial=False)
    assert batch.data[0].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_single_steps_and_columns_of_one_step_meet(client):
    # A column that is a single step already has no dimension of steps.
    with client.trajectory_writer(2) as writer:
        for step in range(3):
            writer.append({"x": np.full(2, step), "y": float(step)})
            history = writer.history
            writer.create_item("other", 1.0, {"x": history["x"][-1:], "y": history["y"][-1]})
    x, y = client.sample_batch("other", 3, squeeze=True).data
    assert sorted(x.tolist()) == [[0, 0], [1, 1], [2, 2]]
    assert sorted(y.tolist()) == [0.0, 1.0, 2.0]


def sequences(client, lengths):
    for length in lengths:
        data = [np.full(length, length), np.ones((1, 2))]
        client.insert_sequence(data, {"other": 1.0})


def test_longer_items_are_an_error_that_has_the_lengths(client):
    sequences(client, [1, 3, 2])
    text = (
        r"squeeze=True is for items of one step, but column 0 has 1 to 3 steps, 3 in item \d+\. "
        r"Sample without squeeze\."
    )
    with pytest.raises(errors.InvalidArgumentError, match=text) as raised:
        client.sample_batch("other", 3, squeeze=True)
    assert sorted(len(it.data[0]) for it in raised.value.samples) == [1, 2, 3]
    # The columns that have one step can be had.
    batch = client.sample_batch("other", 3, squeeze=True, columns=[1])
    assert batch.data[0].shape == (3, 2)
    for more in ({}, {"transform": lambda batch: batch}):
        with (
            reverb.batches(client, "other", 3, squeeze=True, **more) as batches,
            pytest.raises(errors.InvalidArgumentError, match="has 1 to 3 steps"),
        ):
            next(batches)


@pytest.mark.parametrize("ragged", ["pad", "packed"])
def test_it_is_not_for_ragged_batches(client, ragged):
    text = f"give only one of them, got squeeze=True and ragged='{ragged}'"
    with pytest.raises(errors.InvalidArgumentError, match=text):
        client.sample_batch("table", 4, squeeze=True, ragged=ragged)
    with pytest.raises(errors.InvalidArgumentError, match=text):
        reverb.batches(client, "table", 4, squeeze=True, ragged=ragged)
    with pytest.raises(errors.InvalidArgumentError, match="ragged must be 'error', 'pad'"):
        client.sample_batch("table", 4, ragged="squeeze")


def test_a_group(start):
    uniform, fifo = reverb.selectors.Uniform, reverb.selectors.Fifo
    limiter = reverb.rate_limiters.MinSize
    servers = [start(reverb.Table("table", uniform(), fifo(), 9, limiter(1))) for _ in range(2)]
    seeds = ",".join(f"127.0.0.1:{it.port}" for it in servers)
    client = reverb.Client(f"shards:///{seeds}", connect_timeout_s=DEADLINE_S)
    client.insert_batch(DATA, {"table": 1.0})
    batch = client.sample_batch("table", 8, squeeze=True)
    assert [it.shape for it in batch.data] == [(8, 3), (8, 1), (8,), (8,)]
