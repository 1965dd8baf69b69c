# SPDX-License-Identifier: Apache-2.0
"""`epochs`: passes over a table with the sampler `Shuffle`, of batches and of batch samplers."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reverb
from reverb import testing
from reverb.checkpointers import DefaultCheckpointer
from reverb.errors import DeadlineExceededError, InvalidArgumentError


def table(name="t", **options):
    return testing.table(name, **({"sampler": reverb.selectors.Shuffle()} | options))


def fill(client, count, name="t", offset=0):
    values = np.arange(offset, offset + count)
    client.insert_batch({"x": np.float32(values), "y": values}, {name: 1.0})


def numbers(batch):
    return batch.data[1].ravel().tolist()


def times_sampled(client):
    return [sample.info.times_sampled for sample in client.scan("t")]


def sampler_of(client, name, batch_size, **options):
    return client.batch_sampler(name, batch_size, **options)


READERS = pytest.mark.parametrize("read", [reverb.batches, sampler_of])


@READERS
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("items", "size"), [(10, 5), (11, 4), (3, 7), (1, 1)])
def test_every_item_comes_once_an_epoch(serve, caplog, read, items, size, drop_last):
    client = serve(table())
    fill(client, items)
    with read(client, "t", size, epochs=3, drop_last=drop_last) as iterator:
        found = [(batch.epoch.tolist(), numbers(batch)) for batch in iterator]
        assert list(iterator) == []
    whole, rest = divmod(items, size)
    sizes = [size] * whole + ([rest] if rest and not drop_last else [])
    assert [len(values) for _, values in found] == 3 * sizes
    for epoch in range(3):
        of_epoch = found[epoch * len(sizes) : (epoch + 1) * len(sizes)]
        assert all(set(epochs) == {epoch} for epochs, _ in of_epoch)
        values = sorted(value for _, part in of_epoch for value in part)
        assert len(set(values)) == len(values) == sum(sizes)
    # Nothing is sampled beyond the last epoch.
    assert times_sampled(client) == [3] * items
    warnings = [text for text in caplog.messages if "ended without a batch" in text]
    assert len(warnings) == (not found)


@READERS
def test_the_first_epoch_is_new(serve, read):
    client = serve(table())
    fill(client, 4)
    client.sample_batch("t", 3)
    for epoch in (1, 2):
        with read(client, "t", 4, epochs=1) as iterator:
            (batch,) = iterator
        assert sorted(numbers(batch)) == [0, 1, 2, 3]
        assert batch.epoch.tolist() == [epoch] * 4


def test_one_that_stops_early_leaves_no_trace(serve):
    client = serve(table())
    fill(client, 6)
    with reverb.batches(client, "t", 2, prefetch=1, epochs=1) as iterator:
        next(iterator)
    with reverb.batches(client, "t", 6, epochs=1) as iterator:
        assert [sorted(numbers(batch)) for batch in iterator] == [list(range(6))]


@READERS
@pytest.mark.parametrize("remove", [1, 2])
def test_items_that_leave_after_sampling(serve, read, remove):
    client = serve(table(max_times_sampled=remove))
    fill(client, 7)
    with read(client, "t", 3, epochs=remove) as iterator:
        found = [numbers(batch) for batch in iterator]
    assert [len(values) for values in found] == remove * [3, 3, 1]
    assert client.size("t") == 0


def test_a_batch_waits_for_the_rate_limiter(serve, until):
    # Two samples of three items, and a third one after two more items.
    limiter = reverb.rate_limiters.SampleToInsertRatio(0.5, 1, error_buffer=1.0)
    client = serve(table(rate_limiter=limiter))
    fill(client, 3)
    options = {"prefetch": 1, "epochs": 1, "timeout_ms": 50, "end_after_ms": 800}
    with reverb.batches(client, "t", 3, **options) as iterator:
        with pytest.raises(DeadlineExceededError, match="waiting for a sample of table t at"):
            next(iterator)
        fill(client, 2, offset=3)
        until(iterator.ready)
        assert len(set(numbers(next(iterator)))) == 3
        until(iterator.ready)
        assert list(iterator) == []


def test_a_reset_table_begins_anew(serve):
    client = serve(table())
    fill(client, 3)
    with client.batch_sampler("t", 3, epochs=3) as iterator:
        next(iterator)
        assert next(iterator).epoch.tolist() == [1] * 3
        client.reset("t")
        fill(client, 3, offset=10)
        assert sorted(numbers(next(iterator))) == [10, 11, 12]
        # The second epoch was not over, so there are two more.
        assert [len(batch.info.key) for batch in iterator] == [3]


@pytest.mark.parametrize("ragged", ["pad", "packed", "error"])
def test_options_of_batches(serve, ragged):
    signature = {"x": np.zeros([1], np.float32), "y": np.zeros([1], np.int64)}
    client = serve(table(signature=signature))
    fill(client, 5)
    options = {"columns": ["y"]} | ({"pad": -1} if ragged == "pad" else {})
    with reverb.batches(
        client, "t", 2, epochs=2, ragged=ragged, distinct=True, **options
    ) as iterator:
        found = [(len(batch.info.key), batch.data) for batch in iterator]
    assert [size for size, _ in found] == 2 * [2, 2, 1]
    assert all(set(data) == {"y"} for _, data in found)


def test_memory_of_the_program(serve):
    client = serve(table())
    fill(client, 5)
    out = [np.empty([2, 1], np.float32), np.empty([2, 1], np.int64)]
    with reverb.batches(client, "t", 2, prefetch=1, epochs=1, out=lambda: out) as iterator:
        sizes = []
        for batch in iterator:
            sizes.append(len(batch.info.key))
            assert np.shares_memory(batch.data[1], out[1])
    assert sizes == [2, 2, 1]


@READERS
def test_other_batches_of_the_process_have_no_epoch(serve, read):
    client = serve(table())
    fill(client, 4)
    with read(client, "t", 3, epochs=1, squeeze=True) as iterator:
        assert [len(batch.info.key) for batch in iterator] == [3, 1]
    # They would end with the epoch of that reader.
    for _ in range(3):
        assert len(client.sample_batch("t", 3, squeeze=True).info.key) == 3


def test_transforms_and_updates_of_priorities(serve):
    client = serve(table())
    fill(client, 5)
    with reverb.batches(client, "t", 2, epochs=2, transform=lambda it: it) as iterator:
        for batch in iterator:
            iterator.update_priorities(batch.info.key, 3.0)
        iterator.flush()
    assert {sample.info.priority for sample in client.scan("t")} == {3.0}


def test_a_memory_of_a_batch_sampler_is_used_again(serve):
    client = serve(table())
    fill(client, 6)
    with client.batch_sampler("t", 2, num_buffers=1, epochs=2) as iterator:
        pointers = {batch.data[1].ctypes.data for batch in iterator}
    assert len(pointers) == 1


def test_a_restored_table_begins_a_new_epoch(tmp_path, start):
    options = {"checkpointer": DefaultCheckpointer(str(tmp_path)), "host": "127.0.0.1"}
    server = start(table(), **options)
    client = reverb.Client(f"127.1:{server.port}", connect_timeout_s=20)
    fill(client, 9)
    client.checkpoint()
    with client.batch_sampler("t", 4, epochs=1) as iterator:
        next(iterator)
        server.stop()
        start(table(), port=server.port, **options)
        found = [numbers(batch) for batch in iterator]
    assert [len(values) for values in found] == [4, 4, 1]
    assert sorted(value for values in found for value in values) == list(range(9))


class TestRefused:
    @READERS
    def test_another_sampler(self, serve, read):
        client = serve(testing.table("t"))
        fill(client, 1)
        text = "Epochs need a table whose sampler is Shuffle, and table t has another one"
        with (
            read(client, "t", 1, epochs=1) as iterator,
            pytest.raises(InvalidArgumentError, match=text),
        ):
            next(iterator)
        assert times_sampled(client) == [0]

    @READERS
    def test_a_group(self, start, read):
        # It cannot have the sampler `Shuffle` either.
        servers = [
            start(testing.table("t", sampler=reverb.selectors.Uniform()), host="127.0.0.1")
            for _ in range(2)
        ]
        address = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        client = reverb.Client(f"shards:///{address}")
        fill(client, 10)
        with (
            read(client, "t", 1, epochs=1) as iterator,
            pytest.raises(InvalidArgumentError, match="Epochs are of one server: the shards"),
        ):
            next(iterator)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"epochs": 0}, "epochs must be at least 1, got 0"),
            ({"drop_last": True}, "drop_last is for readers of epochs, got epochs=None"),
            ({"epochs": 1, "drop_last": True, "partial": True}, "partial must be False with drop"),
            (
                {"epochs": 1, "table": {"a": 1.0, "b": 1.0}},
                "epochs is for one table, got ['a', 'b']: each table has epochs of its own",
            ),
            ({"epochs": 1, "postprocess": len}, "epochs is for batches that the client makes"),
            ({"epochs": 1, "batch_size": None}, "epochs is for batches that the client makes"),
        ],
    )
    def test_arguments(self, options, text):
        arguments = {"table": "t", "batch_size": 2} | options
        with pytest.raises(InvalidArgumentError, match=re.escape(text)):
            reverb.BatchIterator.check_arguments(**arguments)

    def test_arguments_of_batch_samplers(self):
        client = reverb.Client("localhost:1")
        for options, text in [
            ({"epochs": 0}, "epochs must be at least 1, got 0"),
            ({"drop_last": True}, "drop_last is for readers of epochs"),
        ]:
            with pytest.raises(InvalidArgumentError, match=text):
                client.batch_sampler("t", 2, **options)


STEP = st.one_of(
    st.tuples(st.just("read"), st.just(0)),
    st.tuples(st.just("read"), st.just(0)),
    st.tuples(st.just("insert"), st.integers(1, 4)),
    st.tuples(st.just("delete"), st.integers(0, 30)),
)


@settings(max_examples=60)
@given(
    size=st.integers(1, 5),
    epochs=st.integers(1, 4),
    first=st.integers(1, 9),
    drop_last=st.booleans(),
    steps=st.lists(STEP, max_size=40),
    is_remote=st.booleans(),
)
def test_random_programs(size, epochs, first, drop_last, steps, is_remote):
    """Model: the items that are left of the running epoch."""
    with reverb.Server([table()], port=None, host="127.0.0.1") as server:
        remote = reverb.Client(f"127.1:{server.port}")
        client = remote if is_remote else server.localhost_client()
        fill(client, first)
        present = [sample.info.key for sample in client.scan("t")]
        left, num_read, is_over = set(present), 0, False
        with client.batch_sampler("t", size, epochs=epochs, drop_last=drop_last) as iterator:
            for step, number in steps:
                if step == "insert":
                    fill(client, number)
                    new = {sample.info.key for sample in client.scan("t")} - set(present)
                    present += new
                    # Even after its last item was read, as long as the end was not reached.
                    left |= new
                elif step == "delete" and len(present) > 1:
                    key = present.pop(number % len(present))
                    client.mutate_priorities("t", deletes=[int(key)])
                    left.discard(key)
                elif step == "read":
                    batch = next(iterator, None)
                    # A short batch that is dropped ends its epoch, too.
                    while not is_over and (not left or (drop_last and len(left) < size)):
                        num_read, left = num_read + 1, set(present)
                        is_over = num_read == epochs
                    if is_over:
                        assert batch is None
                        continue
                    keys = batch.info.key.tolist()
                    assert len(set(keys)) == len(keys) == min(size, len(left))
                    assert set(keys) <= left
                    assert set(batch.epoch.tolist()) == {num_read}
                    left -= set(keys)
                    if len(keys) < size:
                        # The end was reached, so what comes now is of the next epoch.
                        num_read, left = num_read + 1, set(present)
                        is_over = num_read == epochs
