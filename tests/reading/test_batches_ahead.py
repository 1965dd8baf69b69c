# SPDX-License-Identifier: Apache-2.0
"""`reverb.batches`: batches ahead of the program, of one table or of several."""

import threading
import time

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb._batches.mixture import shares
from reverb.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    TableNotFoundError,
    UnavailableError,
)


def table(name="t", **options):
    options = {"sampler": reverb.selectors.Prioritized(1.0), "max_size": 10_000} | options
    return testing.table(name, **options)


def fill(client, count, name="t", offset=0):
    values = np.arange(offset, offset + count)
    client.insert_batch({"x": np.float32(values), "y": values}, {name: 1.0})


def num_threads(name):
    return sum(thread.name == name for thread in threading.enumerate())


def test_batches_are_what_sample_batch_returns(serve):
    signature = {"x": np.zeros([1], np.float32), "y": np.zeros([1], np.int64)}
    client = serve(table(signature=signature))
    fill(client, 100)
    with reverb.batches(client, "t", 32) as iterator:
        for _ in range(5):
            info, data = next(iterator)
            assert [field.shape for field in info[:7]] == [(32,)] * 7
            assert (info.key.dtype, data["y"].shape) == (np.uint64, (32, 1))
            assert np.array_equal(data["x"], np.float32(data["y"]))
            batch = next(iterator)
            assert batch.min_probability.tolist() == [0.01] * 32
            assert np.allclose(reverb.importance_weights(batch, 0.5), 1.0)
        stats = iterator.stats()
        assert (stats.num_returned, stats.queued <= 2) == (10, True)
        assert min(stats.age_s, stats.wait_s) >= 0


def test_single_items_and_items_that_are_processed(serve):
    client = serve(table(signature={"x": np.zeros([1], np.float32), "y": np.zeros([1], np.int64)}))
    fill(client, 100)
    with reverb.batches(client, "t", None) as iterator:
        info, data = next(iterator)
        assert (np.shape(info.key), data["y"].shape) == ((), (1,))
        assert np.array_equal(data["x"], np.float32(data["y"]))
    with reverb.batches(client, "t", 8, postprocess=lambda item: item.data["y"][0] * 2) as iterator:
        batch = next(iterator)
        assert batch.shape == (8,)
        assert not (batch % 2).any()


@pytest.mark.parametrize("argument", ["convert", "transform"])
def test_only_what_may_be_slow_needs_a_thread(serve, argument):
    client = serve(table())
    fill(client, 10)
    threads = []

    def told(batch):
        threads.append(threading.current_thread())
        return len(batch.info.key)

    with reverb.batches(client, "t", 4, **{argument: told}) as iterator:
        assert next(iterator) == 4
    is_here = threads[0] is threading.current_thread()
    assert is_here == (argument == "convert")
    assert is_here or threads[0].name == "reverb-prefetch"


def test_an_address_will_do(serve):
    client = serve(table())
    fill(client, 3)
    with reverb.batches(client.server_address, "t", 2) as iterator:
        assert len(next(iterator).info.key) == 2


def test_as_many_batches_as_asked_for_are_ahead(serve, until):
    client = serve(table())
    fill(client, 100)
    before = num_threads("reverb-prefetch")
    with reverb.batches(client, "t", 10, prefetch=3) as iterator:
        until(lambda: iterator.stats().queued == 3)
        time.sleep(0.1)
        assert client.server_info()["t"].rate_limiter_info.sample_stats.completed == 30
        next(iterator)
        until(lambda: iterator.stats().queued == 3)
        # The core has them ahead; a thread of Python only calls what the program gives.
        assert num_threads("reverb-prefetch") == before
    with reverb.batches(client, "t", 10, prefetch=3, transform=list) as iterator:
        until(lambda: iterator.stats().queued == 3)
        assert num_threads("reverb-prefetch") == before + 1
    assert num_threads("reverb-prefetch") == before


def test_priorities_are_updated_in_the_background_in_their_order(serve):
    client = serve(table())
    fill(client, 64)
    before = num_threads("reverb-priorities")
    with reverb.batches(client, "t", 16) as iterator:
        keys = next(iterator).info.key
        for priority in range(50):
            iterator.update_priorities(keys.view(np.int64), np.full(16, 1.0 + priority))
        iterator.flush()
        found = {sample.info.key: sample.info.priority for sample in client.scan("t")}
        assert {found[key] for key in keys.tolist()} == {50.0}
        iterator.update_priorities(keys, np.full(16, 3.0))
    # `close` waits for those on their way.
    found = {sample.info.key: sample.info.priority for sample in client.scan("t")}
    assert {found[key] for key in keys.tolist()} == {3.0}
    assert num_threads("reverb-priorities") == before


def test_an_update_that_fails_is_raised_by_the_next_call(serve):
    client = serve(table())
    fill(client, 8)
    with reverb.batches(client, "t", 4) as iterator:
        keys = next(iterator).info.key
        iterator.update_priorities(keys, [1.0, -1.0, 1.0, 1.0])
        with pytest.raises(InvalidArgumentError, match="Priority must not be negative"):
            iterator.flush()
        assert len(next(iterator).info.key) == 4
        for wrong in ([1.0], [[1.0] * 4]):
            with pytest.raises(InvalidArgumentError, match=r"priorities must have shape \[4\]"):
                iterator.update_priorities(keys, wrong)
        with pytest.raises(TypeError, match=r"keys must be integers.*float64"):
            iterator.update_priorities(np.float64(keys), [1.0] * 4)


def test_each_batch_has_its_part_of_each_table(serve):
    client = serve(table("a"), table("b"), table("c"))
    for number, name in enumerate("abc"):
        fill(client, 50, name, offset=1000 * number)
    tables = {"a": 0.5, "b": 0.5, "c": 0.0}
    with reverb.batches(client, tables, 10) as iterator:
        for _ in range(20):
            data = next(iterator).data
            assert (data[1].ravel() // 1000).tolist() == [0] * 5 + [1] * 5
    tables = {"a": 1.0, "b": 2.0, "c": 4.0}
    counts = np.zeros(3)
    with reverb.batches(client, tables, 10, seed=1) as iterator:
        for _ in range(200):
            batch = next(iterator)
            assert len(batch.info.key) == 10
            counts += np.bincount(batch.data[1].ravel() // 1000, minlength=3)
            assert batch.min_probability.shape == (10,)
            assert (reverb.importance_weights(batch, 0.5) <= 1.0).all()
            iterator.update_priorities(batch.info.key, np.full(10, 2.0))
        iterator.flush()
    assert np.abs(counts / 2000 - np.array([1, 2, 4]) / 7).max() < 0.02
    for name in "abc":
        assert 2.0 in {sample.info.priority for sample in client.scan(name)}


def test_each_batch_is_of_one_table(serve):
    client = serve(table("a"), table("b"))
    fill(client, 50, "a")
    fill(client, 50, "b", offset=1000)
    found = set()
    with reverb.batches(client, {"a": 1, "b": 1}, 8, mix="batch", seed=3) as iterator:
        for _ in range(40):
            (which,) = set((next(iterator).data[1].ravel() // 1000).tolist())
            found.add(which)
    assert found == {0, 1}


def test_shares_are_exact_on_average_and_off_by_less_than_one():
    random = np.random.default_rng(0)
    weights = [0.3, 1.7, 2.0, 0.01]
    exact = np.array(weights) / sum(weights) * 33
    drawn = np.array([shares(weights, 33, random) for _ in range(20_000)])
    assert (drawn.sum(axis=1) == 33).all()
    assert (np.abs(drawn - exact) < 1).all()
    assert np.abs(drawn.mean(axis=0) - exact).max() < 0.02


def test_a_full_batch_is_waited_for_and_a_short_one_is_not(serve, background):
    client = serve(table(sampler=reverb.selectors.Fifo(), max_times_sampled=1))
    fill(client, 3)
    with reverb.batches(client, "t", 5, prefetch=1, timeout_ms=600) as iterator:
        with pytest.raises(DeadlineExceededError, match=f"table t at {client.server_address}"):
            next(iterator)
        fill(client, 2, offset=3)
        assert next(iterator).data[1].ravel().tolist() == [0, 1, 2, 3, 4]
    fill(client, 3)
    with reverb.batches(client, "t", 5, prefetch=1, partial=True) as iterator:
        assert next(iterator).data[1].ravel().tolist() == [0, 1, 2]


END = {"end_after_ms": 300}


def sizes(iterator):
    return [len(batch.info.key) for batch in iterator]


@pytest.mark.parametrize("num_items", [0, 5, 7, 10])
def test_items_that_make_no_batch_at_the_end_stay_in_the_table(serve, caplog, num_items):
    client = serve(table(sampler=reverb.selectors.Fifo(), max_times_sampled=1))
    fill(client, num_items) if num_items else None
    with reverb.batches(client, "t", 5, **END) as iterator:
        assert sizes(iterator) == [5] * (num_items // 5)
    rest = num_items % 5
    assert client.server_info()["t"].current_size == rest
    told = [record.message for record in caplog.records]
    if not rest:
        assert not told
        return
    assert told == [
        f"the last batch of 5 items of table t at {client.server_address} is not complete: {rest} "
        "items are left, and stay in the table; partial=True returns them as a shorter batch"
    ]
    with reverb.batches(client, "t", 5, partial=True, **END) as iterator:
        assert sizes(iterator) == [rest]


def test_samples_without_a_whole_batch_are_left_to_others(serve, caplog):
    limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 1, error_buffer=10.0)
    client = serve(table(rate_limiter=limiter))
    fill(client, 3)
    with reverb.batches(client, "t", 5, **END) as iterator:
        found = sizes(iterator)
    samples = client.server_info()["t"].rate_limiter_info.sample_stats.completed
    assert samples == sum(found)
    assert set(found) == {5}
    assert "items are left, and stay in the table" in caplog.text


def test_a_writer_that_is_slow_does_not_end_the_iterator(serve, background):
    """Each item comes well within the time, a whole batch does not."""
    client = serve(table(sampler=reverb.selectors.Fifo(), max_times_sampled=1))

    def write():
        for number in range(8):
            fill(client, 1, offset=number)
            time.sleep(0.3)

    background(write)
    with reverb.batches(client, "t", 8, end_after_ms=1_500) as iterator:
        assert next(iterator).data[1].ravel().tolist() == list(range(8))


def test_a_table_that_never_has_a_whole_batch_gives_it_in_parts(serve, background):
    client = serve(reverb.Table.queue("t", 3))
    call = background(lambda: fill(client, 12))
    with reverb.batches(client, "t", 5, end_after_ms=1_500) as iterator:
        for start in (0, 5):
            assert next(iterator).data[1].ravel().tolist() == list(range(start, start + 5))
        with pytest.raises(DeadlineExceededError) as caught:
            next(iterator)
    assert [int(sample.data[1][0]) for sample in caught.value.samples] == [10, 11]
    call.result()


@pytest.mark.parametrize("partial", [True, False])
def test_rows_of_one_table_are_not_lost_when_another_one_ends(serve, partial):
    tables = [table(it, sampler=reverb.selectors.Fifo(), max_times_sampled=1) for it in "ab"]
    client = serve(*tables)
    fill(client, 6, "a")
    fill(client, 2, "b", offset=1000)
    with reverb.batches(client, {"a": 0.5, "b": 0.5}, 4, partial=partial, **END) as iterator:
        assert next(iterator).data[1].ravel().tolist() == [0, 1, 1000, 1001]
        if partial:
            assert [batch.data[1].ravel().tolist() for batch in iterator] == [[2, 3]]
            return
        with pytest.raises(DeadlineExceededError, match="another table of the mixture") as caught:
            next(iterator)
    assert [int(sample.data[1][0]) for sample in caught.value.samples] == [2, 3]
    assert client.server_info()["a"].current_size == 2


def test_updates_after_the_end_are_refused(serve):
    client = serve(table())
    fill(client, 8)
    with reverb.batches(client, "t", 4) as iterator:
        keys = next(iterator).info.key
    with pytest.raises(FailedPreconditionError, match="the iterator is closed"):
        iterator.update_priorities(keys, 2.0)
    iterator.flush()


def test_errors_come_out_of_next_and_name_table_and_address(start, connect):
    server = start(table())
    client = connect(server, connect_timeout_s=0.5)
    with (
        reverb.batches(client, "u", 5) as iterator,
        pytest.raises(TableNotFoundError, match="table u at"),
    ):
        next(iterator)
    fill(client, 10)
    with reverb.batches(client, "t", 5) as iterator:
        next(iterator)
        server.stop()
        with pytest.raises(UnavailableError, match=f"table t: .* at {client.server_address}"):
            list(iterator)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"prefetch": 0}, "prefetch must be at least 1, got 0"),
        ({"mix": "row"}, "mix must be 'item' or 'batch', got 'row'"),
        ({"table": {"t": 0.0}}, "at least one table with a positive weight"),
        ({"table": {"t": -1.0}}, "weights of tables must be at least 0 and finite"),
        ({"end_after_ms": -1}, "end_after_ms must be at least 0, got -1"),
        ({"ragged": "yes"}, "ragged must be 'error', 'pad' or 'packed', got 'yes'"),
        ({"pad": 1}, "pad is for ragged='pad', got 1 and ragged='error'"),
        ({"pad_to_multiple_of": 4}, "pad_to_multiple_of is for ragged='pad', got 4"),
        ({"max_batch_bytes": "much"}, "max_batch_bytes must be a number of bytes"),
        ({"max_batch": 5}, "unexpected keyword argument 'max_batch'"),
        ({"timeout_ms": -1}, "timeout_ms must be a number of milliseconds of at least 0, or None"),
        ({"timeout_ms": 0.5}, "timeout_ms must be an integer, got float"),
        ({"transform": 5}, "transform must be a function, got int"),
        ({"transform": len, "convert": len}, "only one of transform and convert, got both"),
        ({"batch_size": None, "columns": ["x"]}, "columns is for batches that the client makes"),
        ({"postprocess": len, "partial": True}, "partial is for batches that the client makes"),
        (
            {"postprocess": len, "table": {"a": 1.0, "b": 1.0}},
            "postprocess needs mix='batch' with several tables",
        ),
        ({"container_types": ["a"]}, "container_types must be classes, got 'a'"),
        ({"table": 5}, "table must be a name, or weights by name, got int"),
    ],
)
def test_wrong_arguments(options, text):
    client = reverb.Client("localhost:1")
    arguments = {"table": "t", "batch_size": 2} | options
    with pytest.raises((InvalidArgumentError, TypeError), match=text):
        reverb.batches(client, arguments.pop("table"), arguments.pop("batch_size"), **arguments)


def write_items(client, lengths, start=0):
    with client.trajectory_writer(max(lengths)) as writer:
        for number, length in enumerate(lengths, start):
            for step in range(length):
                writer.append({"x": np.float32(step), "y": np.int64(number)})
            columns = {"x": writer.history["x"][-length:], "y": writer.history["y"][-1]}
            writer.create_item("t", 1.0, columns)
            writer.end_episode()


@pytest.mark.parametrize("ragged", ["packed", "pad"])
def test_items_of_different_lengths_that_come_in_parts(serve, until, ragged):
    client = serve(table(sampler=reverb.selectors.Fifo(), max_times_sampled=1))
    options = {"pad": -1, "pad_to_multiple_of": 4} if ragged == "pad" else {}
    with reverb.batches(client, "t", 5, prefetch=1, ragged=ragged, **options) as iterator:
        write_items(client, [1, 3, 2])
        until(lambda: not client.server_info()["t"].current_size)
        write_items(client, [5, 2], start=3)
        batch = next(iterator)
    x, y = batch.data
    assert y.tolist() == [0, 1, 2, 3, 4]
    if ragged == "packed":
        assert x.offsets.tolist() == [0, 1, 4, 6, 11, 13]
        assert [it.tolist() for it in x] == [list(range(length)) for length in [1, 3, 2, 5, 2]]
        return
    assert x.shape == (5, 8)
    assert batch.lengths[0].tolist() == [1, 3, 2, 5, 2]
    assert batch.lengths[1].tolist() == [1] * 5
    for row, length in zip(x, batch.lengths[0], strict=True):
        assert row.tolist() == [*range(length), *[-1] * (8 - length)]


@pytest.mark.parametrize("prefetch", [1, 3])
def test_packed_batches_keep_their_values_while_more_are_taken(serve, prefetch):
    client = serve(table(sampler=reverb.selectors.Uniform()))
    # Batches of some 20 kB, whose memory is used again, and of another size each time.
    lengths = np.random.default_rng(0).integers(1, 40, 60).tolist()
    with client.trajectory_writer(max(lengths)) as writer:
        for number, length in enumerate(lengths):
            for step in range(length):
                writer.append({"x": np.full(16, 100 * number + step, np.float32), "y": number})
            columns = {"x": writer.history["x"][-length:], "y": writer.history["y"][-1]}
            writer.create_item("t", 1.0, columns)
            writer.end_episode()
    for options in ({}, {"columns": [0, 1]}):
        with reverb.batches(client, "t", 16, prefetch=prefetch, ragged="packed", **options) as it:
            batches = [next(it) for _ in range(40)]
        assert len({len(batch.data[0].values) for batch in batches}) > 10
        for batch in batches:
            x, numbers = batch.data
            assert x.offsets.dtype == np.int32
            assert x.lengths.tolist() == [lengths[number] for number in numbers]
            steps = [100 * number + step for number in numbers for step in range(lengths[number])]
            assert np.array_equal(x.values, np.float32(steps)[:, None].repeat(16, 1))
