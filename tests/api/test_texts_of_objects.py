# SPDX-License-Identifier: Apache-2.0
"""`repr` and `str` of objects that programs hold, and the names that `dir(reverb)` shows."""

import inspect

import numpy as np
import pytest

import reverb
from reverb import aio, testing


@pytest.fixture
def client(start):
    server = start(reverb.Table.queue("q", 100), testing.table("t"))
    client = reverb.Client(server.address)
    client.insert([np.zeros((2, 3), np.float32), 1.0], {"t": 1.0})
    return client


def test_writers_and_their_histories(client):
    writer = client.trajectory_writer(2)
    assert repr(writer) == "TrajectoryWriter(episode_steps=0, closed=False)"
    for step in range(4):
        writer.append({"x": np.full((2,), step, np.float32)})
    column = writer.history["x"][-2:]
    assert repr(column) == "TrajectoryColumn(shape=[2,2], dtype=float32)"
    assert repr(writer.history["x"][-1]) == "TrajectoryColumn(shape=[2], dtype=float32)"
    assert repr(column[:0]) == "TrajectoryColumn(steps=0)"
    assert repr(next(iter(column))) == "CellRef(shape=[2], dtype=float32)"
    cell = next(iter(column))
    for step in range(4):
        writer.append({"x": np.full((2,), step, np.float32)})
    assert repr(column) == "TrajectoryColumn(steps=2, expired)"
    assert repr(cell) == "CellRef(expired)"
    writer.close()
    assert repr(writer) == "TrajectoryWriter(episode_steps=8, closed=True)"

    writer = client.batched_trajectory_writer(3, 2)
    writer.append([np.zeros(3)])
    assert repr(writer) == "BatchedTrajectoryWriter(batch_size=3, closed=False)"
    assert repr(writer.history[0]) == "BatchedColumnHistory(steps=1)"
    assert repr(writer.history[0][-1:]) == "BatchedTrajectoryColumn(is_squeezed=False)"
    assert repr(writer.history[0][-1]) == "BatchedTrajectoryColumn(is_squeezed=True)"
    writer = client.sequence_writer("t", 3)
    assert repr(writer) == "SequenceWriter(batch_size=None, closed=False)"
    pattern = reverb.structured.pattern_from_transform([0], lambda step: [step[0][-1]])
    writer = client.structured_writer([reverb.structured.create_config(pattern, "t")])
    assert repr(writer) == "StructuredWriter(step_is_open=False)"
    writer = client.writer(2)
    assert repr(writer).startswith("Writer(chunk_length=2, max_timesteps=2, ")
    assert str(writer) == "open Writer"
    writer.close()
    assert str(writer) == "closed Writer"


def test_batches_show_shapes(client):
    batch = client.sample_batch("t", 2)
    info = (
        "BatchInfo(key=uint64 [2], probability=float64 [2], table_size=int64 [2], "
        "priority=float64 [2], times_sampled=int32 [2], min_probability=float64 [2], "
        "epoch=int64 [2], lengths=())"
    )
    assert repr(batch.info) == str(batch.info) == info
    assert repr(batch) == f"ReplayBatch(info={info}, data=[float32 [2, 1, 2, 3], float64 [2, 1]])"
    nested = reverb.ReplayBatch(batch.info, {"a": (np.zeros(2), "text"), "b": None})
    assert repr(nested).endswith("data={'a': (float64 [2], 'text'), 'b': None})")
    packed = client.sample_batch("t", 2, ragged="packed").data[1]
    assert repr(packed) == "Ragged(values=float64 [2], offsets=[0, 1, 2])"
    # Samples are those of dm-reverb.
    (step,) = next(client.sample("t"))
    assert repr(step).startswith("ReplaySample(info=SampleInfo(key=")


async def test_iterators(client):
    with client.batch_sampler("t", 2) as batches:
        assert repr(batches) == "BatchSampler(table='t', batch_size=2, closed=False)"
    with client.batches("q", 2) as batches:
        assert repr(batches) == "BatchIterator(queued=0, num_returned=0)"
    async with aio.Client(client.server_address) as awaited:
        assert repr(awaited) == f"aio.Client, server_address={client.server_address}"
        assert str(awaited) == f"aio.Client of {client.server_address}"
        async with awaited.batches("q", 2) as batches:
            assert repr(batches) == "aio.BatchIterator(queued=0, num_returned=0)"
        batches = awaited.batch_sampler("t", 2)
        assert repr(batches) == "aio.BatchSampler(table='t', batch_size=2, closed=False)"
        items = awaited.sample("t")
        assert repr(items) == "aio.SampleIterator(has_begun=False, closed=False)"
        assert "when it is awaited" in repr(awaited.trajectory_writer(1))
        async with awaited.trajectory_writer(1) as writer:
            assert repr(writer) == "aio.TrajectoryWriter(closed=False)"
        async with awaited.sequence_writer("t", 1) as writer:
            assert repr(writer) == "aio.SequenceWriter(closed=False)"


def test_servers_and_tables_have_a_text_beside_that_of_dm_reverb(client, start):
    assert repr(client) == f"Client, server_address={client.server_address}"
    assert str(client) == f"Client of {client.server_address}"
    table = reverb.Table.queue("small", 3)
    assert repr(table).startswith("Table(sampler=FifoSelector, remover=FifoSelector, max_size=3,")
    text = "table small with 0 of at most 3 items, each sampled 1 times"
    assert str(table) == text
    server = start(table)
    assert repr(server).startswith(f"Server(port={server.port}, reverb_service=")
    assert str(server) == f"Server at {server.address} with {text}"
    info = client.server_info()["t"]
    assert repr(info).startswith("TableInfo(name='t', sampler_options=")
    assert str(info).startswith("table t with 1 of at most 1000 items, each sampled any number of")


def test_rate_limiters():
    limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 10, 4.0)
    assert repr(limiter).startswith("RateLimiter(samples_per_insert=2, min_diff_=")
    text = "SampleToInsertRatio with samples_per_insert=2, min_size_to_sample=10, min_diff=16, "
    assert str(limiter) == f"{text}max_diff=24"
    text = "MinSize with samples_per_insert=1, min_size_to_sample=5"
    assert str(reverb.rate_limiters.MinSize(5)) == text


def test_the_package_shows_public_names():
    names = dir(reverb)
    assert {*reverb.__all__, "aio", "errors", "testing", "server_status"} <= set(names)
    assert not [name for name in names if name.startswith("_") and name != "__version__"]
    assert not {"core", "shown_text"} & set(names)
    assert all(hasattr(reverb, name) for name in names)
    # As many modules as `dir` of dm-reverb shows, whatever the program has imported.
    modules = [name for name in names if inspect.ismodule(getattr(reverb, name))]
    assert {"aio", "datasets", "logging"} < set(modules)
    assert len(modules) <= 20, modules
