# SPDX-License-Identifier: Apache-2.0
"""Checkpoints read without a server: the same as a server holds, and nothing of damaged ones."""

import pathlib
import statistics
import zlib

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import DataLossError, FailedPreconditionError, TableNotFoundError
from support.checkpoints import on_disk, tfrecords

read = reverb.checkpointers.read


def plain(samples):
    return [
        (sample.info, [(column.dtype, column.tolist()) for column in sample.data])
        for sample in samples
    ]


@pytest.fixture
def client(serve, root):
    """A client of a server with a few items, sampled and changed."""
    tables = [
        testing.table("a", sampler=reverb.selectors.MaxHeap(), max_size=6),
        testing.table("b", sampler=reverb.selectors.Prioritized(0.5), max_times_sampled=9),
        testing.table("empty"),
    ]
    client = serve(root, *tables)
    with client.trajectory_writer(5) as writer:
        for step in range(8):
            writer.append([step, np.full(3, step, np.float32)])
            window = writer.history[0][-min(step + 1, 3) :]
            writer.create_item("a", float(step % 3), [window, writer.history[1][-1]])
            writer.create_item("b", float(step), [writer.history[1][-1:]])
    assert len(list(client.sample("a", 3, emit_timesteps=False))) == 3
    return client


def test_tables_are_those_of_the_server(client):
    checkpoint = read(client.checkpoint())
    shown = client.server_info()
    assert set(checkpoint.tables) == set(shown)
    for name, info in checkpoint.tables.items():
        for field in (
            *("name", "sampler_options", "remover_options", "max_size", "max_times_sampled"),
            *("rate_limiter_info", "signature", "current_size", "num_unique_samples"),
            "num_deleted_episodes",
        ):
            assert getattr(info, field) == getattr(shown[name], field), field


def test_items_are_those_of_the_server(client):
    checkpoint = read(client.checkpoint())
    for name in ("a", "b", "empty"):
        assert plain(checkpoint.scan(name)) == plain(client.scan(name))
    pairs = list(checkpoint.scan("a", with_inserted_at=True))
    assert plain(sample for _, sample in pairs) == plain(client.scan("a"))
    times = [seconds for seconds, _ in pairs]
    assert times == sorted(times)


def test_statistics_are_counted_right(client):
    calls = []
    checkpoint = read(client.checkpoint())
    numbers = checkpoint.statistics(lambda done, total: calls.append((done, total)))
    stored = on_disk.read(checkpoint.path)
    for name in ("a", "b"):
        items = stored.items_of(name)
        priorities = [item.priority for item in items]
        times = [item.times_sampled for item in items]
        lengths = [max(map(rows_of, item.flat_trajectory.columns)) for item in items]
        keys = {
            part.chunk_key
            for item in items
            for column in item.flat_trajectory.columns
            for part in column.chunk_slices
        }
        number = numbers[name]
        assert (number.num_items, number.num_chunks) == (len(items), len(keys))
        assert (number.priority_min, number.priority_max) == (min(priorities), max(priorities))
        assert number.priority_mean == pytest.approx(statistics.mean(priorities))
        assert min(priorities) <= number.priority_median <= max(priorities)
        assert number.priority_zeros == priorities.count(0)
        assert (number.times_sampled_min, number.times_sampled_max) == (min(times), max(times))
        assert number.times_sampled_mean == pytest.approx(statistics.mean(times))
        assert (number.length_min, number.length_max) == (min(lengths), max(lengths))
        assert number.length_mean == pytest.approx(statistics.mean(lengths))
        inserted = [it.inserted_at.seconds + it.inserted_at.nanos / 1e9 for it in items]
        assert number.oldest_inserted_at == pytest.approx(inserted[0], abs=1e-3)
        assert number.newest_inserted_at == pytest.approx(inserted[-1], abs=1e-3)
    assert numbers["empty"].num_items == 0
    assert numbers["empty"].priority_min is None
    assert all(0 <= done <= total == 14 for done, total in calls)


def rows_of(column):
    return sum(part.length for part in column.chunk_slices)


def test_the_sample_of_dm_reverb(sample):
    checkpoint = read(sample)
    assert sorted(checkpoint.tables) == ["empty", "fifo", "prio"]
    stored = on_disk.read(sample)
    for name in checkpoint.tables:
        scanned = [[column.tolist() for column in one.data] for one in checkpoint.scan(name)]
        expected = [[c.tolist() for c in stored.columns(it)] for it in stored.items_of(name)]
        assert scanned == expected
    assert checkpoint.statistics()["prio"].num_items == 4


def test_a_root_gives_its_latest(serve, root, insert):
    client = serve(root, keep_latest=5)
    for value in range(3):
        insert(client, value)
        path = client.checkpoint()
        checkpoint = read(root)
        assert checkpoint.path == path
        assert len(list(checkpoint.scan("table"))) == value + 1
    assert repr(read(pathlib.Path(path))) == f"Checkpoint(path={path!r}, tables=['table'])"


def test_a_scan_goes_on_while_the_checkpoint_is_replaced(serve, root):
    client = serve(root, testing.table(max_size=10**6))
    client.insert_batch([np.arange(50_000)], {"table": 1.0})
    checkpoint = read(client.checkpoint())
    scan = checkpoint.scan("table")
    first = [int(next(scan).data[0].flat[0]) for _ in range(10)]
    for _ in range(3):
        client.checkpoint()
    assert not pathlib.Path(checkpoint.path).exists()
    rest = [int(sample.data[0].flat[0]) for sample in scan]
    assert first + rest == list(range(50_000))


class TestErrors:
    def test_nothing_there(self, root):
        for _ in range(2):
            with pytest.raises(FailedPreconditionError) as caught:
                read(root)
            assert str(root) in str(caught.value)
            root.mkdir(exist_ok=True)

    def test_no_such_table(self, sample):
        with pytest.raises(TableNotFoundError, match="empty, fifo, prio"):
            list(read(sample).scan("nope"))

    @pytest.mark.parametrize("name", [on_disk.ITEMS, on_disk.CHUNKS])
    @pytest.mark.parametrize("signed", [False, True], ids=["theirs", "ours"])
    def test_damage(self, root, name, signed):
        path = on_disk.write(root / "1", on_disk.simple(range(1, 100)), signed=signed)
        good = (path / name).read_bytes()
        for at in range(0, len(good), len(good) // 20):
            damaged = bytearray(good)
            damaged[at] ^= 4
            (path / name).write_bytes(damaged)
            checkpoint = read(path)
            for reading in (checkpoint.statistics, lambda: list(read(path).scan("table"))):
                with pytest.raises(DataLossError, match=name):
                    reading()

    @pytest.mark.parametrize("counts", [(2**63 - 1, 0, -5), (-(2**63), 0, 5), (3, -1, 0)])
    def test_counters_of_any_kind(self, root, counts):
        path = on_disk.write(root / "1", on_disk.simple([1, 2, 3], counters=counts))
        checkpoint = read(path)
        assert checkpoint.tables["table"].name == "table"
        assert len(list(checkpoint.scan("table"))) == 3
        assert checkpoint.statistics()["table"].num_items == 3


@pytest.mark.parametrize("read_items", [lambda it: it.statistics(), lambda it: list(it.scan("a"))])
def test_items_that_are_not_there_are_noticed(client, read_items):
    """A file that was cut between two records, and zipped anew, so that no checksum tells."""
    path = pathlib.Path(client.checkpoint())
    items = path / on_disk.ITEMS
    stream = tfrecords.unzip(items.read_bytes())
    items.write_bytes(zlib.compress(stream[: tfrecords.decode(stream)[-1].start]))
    with pytest.raises(DataLossError, match=r"items\.tfrecord .* has 13 records, and DONE says 14"):
        read_items(read(path))
