# SPDX-License-Identifier: Apache-2.0
"""Batches of samples for learners."""

import collections

import numpy as np
import pytest
from dm_env import specs

import reverb
from reverb import testing
from reverb.adapters.acme import adders, datasets
from reverb.adapters.acme.specs import EnvironmentSpec
from reverb.adapters.acme.types import Transition
from reverb.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    SignatureMismatchError,
    TableNotFoundError,
)

SIGNATURE = adders.NStepTransitionAdder.signature(
    EnvironmentSpec(
        observations=specs.Array((3,), np.float32),
        actions=specs.Array((), np.int32),
        rewards=specs.Array((), np.float32),
        discounts=specs.Array((), np.float32),
    )
)
# A client that reaches the server through a socket counts what arrives there.
TABLE = "priority_table"


def replay_table(name=TABLE, **options):
    return testing.table(name, **({"signature": SIGNATURE} | options))


@pytest.fixture
def fill(play, episode):
    """Writes `count` transitions with the observations 0, 1, 2, ..."""

    def fill(client, count, table=TABLE):
        adder = adders.NStepTransitionAdder(client, 1, 1.0, priority_fns={table: None})
        play(adder, episode(count, observation=lambda i: np.full(3, i, np.float32)))
        adder.close()

    return fill


@pytest.fixture
def client(serve_tables, fill):
    """A client of a table that returns 20 transitions in order, each of them once."""
    client = serve_tables(replay_table(max_times_sampled=1))
    fill(client, 20)
    return client


def make(client, *args, **kwargs):
    return datasets.make_reverb_dataset(client.server_address, *args, **kwargs)


def test_batches_are_nested_like_the_signature(client):
    dataset = make(client, batch_size=4)
    with dataset.as_numpy_iterator() as iterator:
        for start in (0, 4):
            info, data = next(iterator)
            assert type(data) is Transition
            assert data.extras == ()
            assert (data.observation.shape, data.observation.dtype) == ((4, 3), np.float32)
            assert (data.action.shape, data.action.dtype) == ((4,), np.int32)
            np.testing.assert_array_equal(data.action, np.arange(start, start + 4))
            assert [field.shape for field in info] == [(4,)] * 5
            assert info.key.dtype == np.uint64


def test_single_items(client):
    with make(client).as_numpy_iterator() as iterator:
        for i in range(20):
            info, data = next(iterator)
            assert type(data) is Transition
            assert (data.observation.shape, data.action) == ((3,), i)
        assert [type(field) for field in info] == [
            np.uint64,
            np.float64,
            np.int64,
            np.float64,
            np.int32,
        ]


def test_the_three_ways_to_iterate(client):
    dataset = make(client, batch_size=2, prefetch_size=1)
    for make_iterator in (
        iter,
        datasets.NumpyIterator,
        lambda dataset: dataset.as_numpy_iterator(),
    ):
        with make_iterator(dataset) as iterator:
            assert len(next(iterator).data.action) == 2


def test_a_client_in_place_of_its_address(client):
    with iter(datasets.make_reverb_dataset(client, batch_size=2)) as iterator:
        assert next(iterator).data.action.tolist() == [0, 1]


def test_a_loop_ends_with_the_timeout_of_the_rate_limiter(client):
    dataset = make(client, batch_size=8, end_after_ms=1)
    # The four that are no batch are not handed out.
    assert [sample.data.action[0] for sample in dataset] == [0, 8]


def test_single_items_end_with_the_timeout_of_the_rate_limiter(client):
    dataset = make(client, end_after_ms=1)
    assert [int(sample.data.action) for sample in dataset] == list(range(20))


def test_a_batch_that_comes_bit_by_bit(client, fill):
    with make(client, batch_size=30, timeout_ms=20_000).as_numpy_iterator() as iterator:
        # The existing items were requested long before the rest is written.
        while client.server_info()[TABLE].current_size:
            pass
        fill(client, 10)
        info, data = next(iterator)
    np.testing.assert_array_equal(data.action, [*range(20), *range(10)])
    assert info.key.shape == (30,)
    assert len(set(info.key.tolist())) == 30


def test_postprocess_sees_items(client):
    def reward_only(sample):
        assert sample.data.observation.shape == (3,)
        return {"reward": sample.data.reward, "key": sample.info.key}

    with iter(make(client, batch_size=5, postprocess=reward_only)) as iterator:
        batch = next(iterator)
    np.testing.assert_array_equal(batch["reward"], [1, 2, 3, 4, 5])
    assert batch["key"].dtype == np.uint64


def test_postprocess_makes_items_of_one_length(serve_tables, play, episode):
    client = serve_tables(testing.table(TABLE, max_times_sampled=1))
    play(adders.EpisodeAdder(client, 10), episode(2), episode(5))
    dataset = make(client, batch_size=2, postprocess=lambda sample: sample.data[0].sum())
    with iter(dataset) as iterator:
        np.testing.assert_array_equal(next(iterator), [0 + 1 + 2, 0 + 1 + 2 + 3 + 4 + 5])


def test_windows_of_episodes(serve_tables, play, episode):
    table = testing.table(TABLE, sampler=reverb.selectors.Uniform())
    client = serve_tables(table)
    play(adders.EpisodeAdder(client, 10), episode(2), episode(8))
    window = reverb.Window(4, before=1)
    with iter(make(client, batch_size=16, window=window)) as iterator:
        info, data = next(iterator)
    assert {column.shape[:2] for column in data} == {(16, 5)}
    # The observations of an episode are 0, 1, 2, ...; it has one more of them than of actions.
    expected = info.window_start[:, None] + np.arange(5)
    np.testing.assert_array_equal(data[0].reshape(16, 5, -1)[..., 0], expected)
    assert (info.num_windows == 5).all()
    assert info.window_mask.all()
    text = "window is for batches that the client makes: leave it out with postprocess"
    with pytest.raises(InvalidArgumentError, match=text):
        make(client, batch_size=16, window=window, postprocess=lambda sample: sample)


def test_map_sees_batches(client):
    dataset = make(client, batch_size=5).map(lambda sample: sample.data.action * 2)
    with iter(dataset) as iterator:
        np.testing.assert_array_equal(next(iterator), [0, 2, 4, 6, 8])


def test_no_signature_means_a_flat_list(serve_tables):
    client = serve_tables(testing.table(TABLE, max_times_sampled=1))
    client.insert({"a": 1.0, "b": np.zeros(2)}, {TABLE: 1.0})
    with iter(make(client, batch_size=1)) as iterator:
        data = next(iterator).data
    assert [column.shape for column in data] == [(1, 1), (1, 1, 2)]


def test_classes_are_the_same_in_every_iterator(serve_tables, fill):
    Mine = collections.namedtuple("Mine", ["x", "nested"])
    spec = reverb.specs.TensorSpec((1,), np.float64)
    signature = Mine(x=[spec, (spec,)], nested={"y": spec})
    client = serve_tables(testing.table(TABLE, signature=signature))
    client.insert(Mine([1.0, (2.0,)], {"y": 3.0}), {TABLE: 1.0})
    classes = set()
    for _ in range(2):
        with iter(make(client, batch_size=1)) as iterator:
            data = next(iterator).data
            assert data._fields == Mine._fields
            assert type(data.x[1]) is tuple
            classes.add(type(data))
    assert len(classes) == 1
    with iter(make(client, batch_size=1, container_types=[Mine])) as iterator:
        assert type(next(iterator).data) is Mine


@pytest.mark.parametrize(
    ("arguments", "num_ahead"),
    [
        ({"batch_size": 2}, 4),
        ({"batch_size": 2, "prefetch_size": 3}, 6),
        ({"batch_size": 2, "prefetch_size": 0}, 4),
        ({"batch_size": 2, "max_in_flight_samples_per_worker": 10}, 10),
        ({"batch_size": 4, "max_in_flight_samples_per_worker": 1}, 4),
        ({"max_in_flight_samples_per_worker": 3}, 3),
        ({"prefetch_size": 7}, 7),
    ],
)
def test_how_much_is_sampled_ahead(serve_tables, fill, until, arguments, num_ahead):
    table = replay_table()
    client = serve_tables(table)
    fill(client, 1)

    def num_sampled():
        return table.info.rate_limiter_info.sample_stats.completed

    with iter(make(client, **arguments)) as iterator:
        until(lambda: num_sampled() == num_ahead)
        step = arguments.get("batch_size", 1)
        for num_taken in range(1, 4):
            next(iterator)
            until(lambda taken=num_taken: num_sampled() == num_ahead + taken * step)
    assert num_sampled() == num_ahead + 3 * step


def test_the_ratio_of_samples_to_inserts_is_kept(serve_tables, fill, until):
    limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 1, 4.0)
    table = replay_table(rate_limiter=limiter)
    client = serve_tables(table)
    fill(client, 3)
    with iter(make(client, batch_size=2, prefetch_size=100, timeout_ms=300)) as iterator:
        # 3 inserts, 2 samples each, and 2 more that the error buffer allows.
        for _ in range(4):
            next(iterator)
        with pytest.raises(DeadlineExceededError, match=TABLE):
            next(iterator)
        assert table.info.rate_limiter_info.sample_stats.completed == 8
        fill(client, 1)
        assert len(next(iterator).info.key) == 2


def test_tables_are_drawn_by_weight(serve_tables, fill):
    client = serve_tables(replay_table("a"), replay_table("b"), replay_table("c"))
    for number, table in enumerate("abc", 1):
        for _ in range(number):
            fill(client, 1, table)
    dataset = make(client, batch_size=1, table={"a": 3, "b": 1.0, "c": 0.0}, seed=1)
    with iter(dataset) as iterator:
        sizes = [int(next(iterator).info.table_size[0]) for _ in range(400)]
    assert set(sizes) == {1, 2}
    assert 250 < sizes.count(1) < 350


def test_a_table_that_does_not_exist(client):
    with (
        iter(make(client, batch_size=2, table="other")) as iterator,
        pytest.raises(TableNotFoundError, match="other"),
    ):
        next(iterator)


def test_items_that_differ_in_length(serve_tables, play, episode):
    client = serve_tables(testing.table(TABLE))
    play(adders.EpisodeAdder(client, 10), episode(2), episode(5))
    table = testing.table(TABLE, sampler=reverb.selectors.Fifo(), max_times_sampled=1)
    client = serve_tables(table)
    play(adders.EpisodeAdder(client, 10), episode(2), episode(5))
    with (
        iter(make(client, batch_size=2)) as iterator,
        pytest.raises(InvalidArgumentError, match="shape"),
    ):
        next(iterator)


def test_items_with_other_columns_than_the_first(serve_tables):
    client = serve_tables(testing.table(TABLE, max_times_sampled=1))
    client.insert([1.0], {TABLE: 1.0})
    client.insert([1.0, 2.0], {TABLE: 1.0})
    with iter(make(client)) as iterator:
        next(iterator)
        with pytest.raises(SignatureMismatchError, match="has 2 columns, but"):
            next(iterator)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"prefetch_size": -1}, "prefetch_size must be at least 0, got -1"),
        (
            {"max_in_flight_samples_per_worker": 0},
            "max_in_flight_samples_per_worker must be at least 1, got 0",
        ),
        ({"end_after_ms": -1}, "end_after_ms must be at least 0, got -1"),
        (
            {"timeout_ms": -1},
            "timeout_ms must be a number of milliseconds of at least 0, or None for no limit, got "
            "-1",
        ),
        (
            {"table": {"a": 0.0}},
            "table must have at least one table with a positive weight, got {'a': 0.0}",
        ),
        (
            {"table": {}},
            "table must have at least one table with a positive weight, got {}",
        ),
        (
            {"table": {"a": 1.0, "b": -1.0}},
            "the weights of tables must be at least 0 and finite, got {'a': 1.0, 'b': -1.0}",
        ),
        (
            {"environment_spec": 1},
            "make_reverb_dataset no longer takes environment_spec and extra_spec: use them for the "
            "signature of the table",
        ),
    ],
)
def test_bad_arguments(error_says, arguments, message):
    error_says(
        lambda: datasets.make_reverb_dataset("localhost:1", **arguments),
        InvalidArgumentError,
        message,
    )


def test_prefetch_sets_how_much_is_fetched_ahead(serve_tables, fill, until):
    table = replay_table()
    client = serve_tables(table)
    fill(client, 1)
    with iter(make(client, batch_size=2).prefetch(5)):
        until(lambda: table.info.rate_limiter_info.sample_stats.completed == 10)
