# SPDX-License-Identifier: Apache-2.0
"""`get_next` of the replay buffer, eagerly and in graphs."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.replay_buffers import tf_uniform_replay_buffer
from tf_agents.specs import tensor_spec

import reverb
from reverb import errors, testing
from reverb.adapters.tf_agents import remote_table, reverb_replay_buffer
from support.counted_items import fill
from support.wire.scripted_server import ScriptedServer

SPEC = {"a": tf.TensorSpec([2], tf.float32), "b": tf.TensorSpec([], tf.int64)}
LENGTH = 4
TABLES = ("even", "varying")


@pytest.fixture(scope="module")
def client():
    signature = tensor_spec.add_outer_dim(SPEC, LENGTH)
    tables = [
        testing.table("even", sampler=reverb.selectors.Uniform(), signature=signature),
        testing.table("varying", sampler=reverb.selectors.Uniform()),
    ]
    with testing.server(tables) as made:
        fill(made, "even", [LENGTH] * 6)
        fill(made, "varying", [3, 4, 6])
        yield made


@pytest.fixture(params=["eagerly", "in a graph"])
def get_next(request):
    """Calls `get_next` of a buffer."""

    def call(buffer, **arguments):
        if request.param == "eagerly":
            return buffer.get_next(**arguments)
        return tf.function(lambda: buffer.get_next(**arguments), autograph=False)()

    return call


@pytest.fixture
def even(client):
    return reverb_replay_buffer.ReverbReplayBuffer(SPEC, "even", LENGTH, client.server_address)


@pytest.fixture
def varying(client):
    return reverb_replay_buffer.ReverbReplayBuffer(SPEC, "varying", None, client.server_address)


@pytest.fixture
def client_cuts(monkeypatch):
    """Buffers take the server for one that does not know windows."""
    monkeypatch.setattr(reverb.Client, "capabilities", lambda client: frozenset())


@pytest.mark.parametrize("batch_size", [None, 1, 5])
@pytest.mark.parametrize("num_steps", [None, 1, 2, 4])
def test_shapes_are_batch_and_time(even, get_next, batch_size, num_steps):
    data, info = get_next(even, sample_batch_size=batch_size, num_steps=num_steps)
    leading = [] if batch_size is None else [batch_size]
    shape = [*leading, num_steps or LENGTH]
    assert data["a"].shape == [*shape, 2]
    assert data["b"].shape == shape
    assert [leaf.shape.as_list() for leaf in info] == [shape] * 5
    assert [leaf.dtype for leaf in info] == list(reverb.SampleInfo.tf_dtypes())
    steps = np.diff(data["b"].numpy(), axis=-1)
    np.testing.assert_array_equal(steps, np.ones_like(steps))


def test_steps_are_taken_from_everywhere(even, varying, get_next):
    for buffer, starts in ((even, {0, 1, 2}), (varying, {0, 1, 2, 3, 4})):
        found = set()
        for _ in range(3):
            data, _ = get_next(buffer, sample_batch_size=60, num_steps=2)
            found |= set((data["b"][:, 0].numpy() % 100).tolist())
        assert found == starts


def test_what_is_sampled_is_new_each_time(even, get_next):
    first, second = (get_next(even, sample_batch_size=40)[0]["b"].numpy() for _ in range(2))
    assert first.tolist() != second.tolist()
    assert set(first[:, 0]) <= {0, 100, 200, 300, 400, 500}


def test_no_more_is_sampled_than_asked_for(get_next):
    with testing.server([testing.table(max_times_sampled=1)]) as client:
        fill(client, "table", [LENGTH] * 30)
        buffer = reverb_replay_buffer.ReverbReplayBuffer(
            SPEC, "table", LENGTH, client.server_address
        )
        for batch_size, num_steps in ((7, None), (5, 2), (None, None)):
            before = buffer.num_frames()
            get_next(buffer, sample_batch_size=batch_size, num_steps=num_steps)
            assert buffer.num_frames() == before - (batch_size or 1)


def test_items_of_any_length_come_one_by_one(varying, get_next):
    lengths = {get_next(varying)[0]["b"].shape[0] for _ in range(8)}
    assert lengths <= {3, 4, 6}
    assert len(lengths) > 1


@pytest.mark.parametrize("batch_size", [None, 3])
def test_time_may_be_unstacked_as_in_other_buffers(even, get_next, batch_size):
    arguments = {"sample_batch_size": batch_size, "num_steps": 2, "time_stacked": False}
    data, info = get_next(even, **arguments)
    other = tf_uniform_replay_buffer.TFUniformReplayBuffer(SPEC, batch_size=1, max_length=4)
    for value in range(4):
        other.add_batch({"a": tf.zeros([1, 2]), "b": tf.constant([value], tf.int64)})
    expected, _ = other.get_next(**arguments)
    assert isinstance(data, tuple)
    tf.nest.map_structure(lambda a, b: a.shape.assert_is_compatible_with(b.shape), data, expected)
    np.testing.assert_array_equal(data[1]["b"], data[0]["b"] + 1)
    assert len(info.key) == 2
    np.testing.assert_array_equal(info.key[0], info.key[1])


def test_items_that_are_too_short_are_drawn_again(varying, get_next):
    data, _ = get_next(varying, sample_batch_size=60, num_steps=4)
    first = data["b"][:, 0].numpy()
    assert set(first) == {100, 200, 201, 202}
    # Each item as often as the other, and not each window.
    assert 10 < (first == 100).sum() < 50


def test_items_that_are_too_short_are_named_if_the_client_cuts(varying, client_cuts):
    with pytest.raises(
        errors.InvalidArgumentError, match=r"at most the length of an item, 3 .*got 4"
    ):
        varying.get_next(sample_batch_size=60, num_steps=4)


@pytest.mark.parametrize("batch_size", [None, 5])
def test_older_servers_send_whole_items(even, varying, get_next, client_cuts, batch_size):
    for buffer in (even, varying):
        data, info = get_next(buffer, sample_batch_size=batch_size, num_steps=2)
        shape = [2] if batch_size is None else [batch_size, 2]
        assert data["b"].shape == info.key.shape == shape
        steps = np.diff(data["b"].numpy(), axis=-1)
        np.testing.assert_array_equal(steps, np.ones_like(steps))


def test_the_server_is_asked_whether_it_knows_windows(client):
    server = ScriptedServer("even")
    try:
        older = remote_table.RemoteTable(server.address, "even", 10.0)
        assert older.window(3) is None
    finally:
        server.stop()
    newer = remote_table.RemoteTable(client.server_address, "even", 10.0)
    samples = [client.server_info()[name].rate_limiter_info.sample_stats for name in TABLES]
    assert newer.window(3) == reverb.Window(3)
    assert newer.window(100_000) is None
    assert samples == [client.server_info()[it].rate_limiter_info.sample_stats for it in TABLES]


def test_the_seed_of_the_table_decides_where_steps_begin(get_next):
    starts = []
    for seed in (1, 1, 2):
        table = testing.table(sampler=reverb.selectors.Uniform(), seed=seed)
        with testing.server([table]) as client:
            fill(client, "table", [100])
            buffer = reverb_replay_buffer.ReverbReplayBuffer(
                SPEC, "table", None, client.server_address
            )
            data, _ = get_next(buffer, sample_batch_size=20, num_steps=5)
            starts.append(data["b"][:, 0].numpy().tolist())
    assert starts[0] == starts[1] != starts[2]


def test_items_of_another_length_than_declared_are_refused(client, get_next):
    buffer = reverb_replay_buffer.ReverbReplayBuffer(SPEC, "varying", 8, client.server_address)
    kinds = (errors.SignatureMismatchError, tf.errors.InvalidArgumentError)
    with pytest.raises(kinds, match="items of table varying must have the sequence_length"):
        get_next(buffer, sample_batch_size=4, num_steps=2)


def test_a_batch_is_collected_while_items_come_one_by_one(get_next):
    table = testing.table(max_times_sampled=1)
    with testing.server([table]) as client:
        buffer = reverb_replay_buffer.ReverbReplayBuffer(
            SPEC, "table", None, client.server_address, rate_limiter_timeout_ms=60_000
        )
        done = []
        thread = threading.Thread(
            target=lambda: done.append(get_next(buffer, sample_batch_size=3, num_steps=2))
        )
        thread.start()
        for _ in range(3):
            fill(client, "table", [LENGTH])
        thread.join()
        assert done[0][0]["b"].shape == [3, 2]


def test_items_of_other_lengths_are_no_batch(varying):
    with pytest.raises(errors.InvalidArgumentError, match="lengths differ: 3, 4, 6"):
        varying.get_next(sample_batch_size=60)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num_steps": 5}, "num_steps > sequence_length"),
        ({"num_steps": 0}, "num_steps must be an integer of at least 1"),
        ({"sample_batch_size": -1}, "sample_batch_size must be an integer of at least 1, got -1"),
    ],
)
def test_what_cannot_be_had_is_refused(even, get_next, arguments, text):
    with pytest.raises(ValueError, match=text):
        get_next(even, **arguments)


def test_a_graph_cannot_unstack_what_it_does_not_know(varying):
    call = tf.function(lambda: varying.get_next(time_stacked=False), autograph=False)
    with pytest.raises(
        errors.InvalidArgumentError, match="time_stacked must be True, or num_steps given"
    ):
        call()


def test_it_waits_for_items(get_next):
    with testing.server() as client:
        buffer = reverb_replay_buffer.ReverbReplayBuffer(
            SPEC, "table", LENGTH, client.server_address
        )
        done = []
        thread = threading.Thread(target=lambda: done.append(get_next(buffer)))
        thread.start()
        thread.join(0.3)
        assert not done
        fill(client, "table", [LENGTH])
        thread.join()
        assert done[0][0]["b"].numpy().tolist() == [0, 1, 2, 3]


def test_it_waits_as_long_as_the_buffer_says(get_next):
    with testing.server() as client:
        buffer = reverb_replay_buffer.ReverbReplayBuffer(
            SPEC, "table", LENGTH, client.server_address, rate_limiter_timeout_ms=10
        )
        with pytest.raises((errors.DeadlineExceededError, tf.errors.InvalidArgumentError)):
            get_next(buffer)
