# SPDX-License-Identifier: Apache-2.0
"""The replay buffer beside that of TF-Agents: arguments, datasets, errors, what it tells."""

import inspect
import logging
import re
import socket
import time

import gin
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.replay_buffers import replay_buffer
from tf_agents.replay_buffers import reverb_replay_buffer as theirs
from tf_agents.specs import tensor_spec

import reverb
from reverb import errors, testing
from reverb.adapters.tf_agents import reverb_replay_buffer as ours
from support.counted_items import fill

SPEC = {"a": tf.TensorSpec([2], tf.float32), "b": tf.TensorSpec([], tf.int64)}
LENGTH = 4


def table(name="uniform", **options):
    defaults = {
        "sampler": reverb.selectors.Uniform(),
        "signature": tensor_spec.add_outer_dim(SPEC, LENGTH),
    }
    return testing.table(name, **(defaults | options))


@pytest.fixture
def client():
    tables = [
        table(),
        table("varying", signature=None),
        table("fifo", sampler=reverb.selectors.Fifo()),
        table("prioritized", sampler=reverb.selectors.Prioritized(1.0)),
    ]
    with testing.server(tables) as made:
        for name in ("uniform", "fifo", "prioritized"):
            fill(made, name, [LENGTH] * 8)
        fill(made, "varying", [3, 4, 5, 6, 1])
        yield made


def buffer_of(client, name="uniform", sequence_length=LENGTH, module=ours, **options):
    return module.ReverbReplayBuffer(
        SPEC, name, sequence_length, server_address=client.server_address, **options
    )


def test_arguments_are_those_of_tf_agents():
    for name in ("ReverbReplayBuffer", "make_reverb_dataset", "truncate_reshape_rows_by_num_steps"):
        expected = inspect.signature(getattr(theirs, name)).parameters
        found = inspect.signature(getattr(ours, name)).parameters
        positional = [p for p in found.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        assert [(p.name, p.default) for p in positional] == [
            (p.name, p.default) for p in expected.values()
        ]
    assert ours.DEFAULT_TABLE == theirs.DEFAULT_TABLE


def test_gin_knows_both_classes():
    assert issubclass(ours.ReverbReplayBuffer, replay_buffer.ReplayBuffer)
    name = "reverb.adapters.tf_agents.reverb_replay_buffer.ReverbReplayBuffer"
    with gin.unlock_config():
        gin.bind_parameter(f"{name}.max_cycle_length", 3)
        gin.bind_parameter(f"{theirs.__name__}.ReverbReplayBuffer.max_cycle_length", 4)
    assert gin.query_parameter(f"{name}.max_cycle_length") == 3
    gin.clear_config()


def test_properties(client):
    buffer = buffer_of(client)
    assert isinstance(buffer.py_client, reverb.Client)
    assert isinstance(buffer.tf_client, reverb.TFClient)
    assert buffer.py_client.server_address == client.server_address
    assert buffer.local_server is None
    assert buffer.table_name == "uniform"
    assert buffer.data_spec == SPEC
    assert buffer.capacity == 1000
    assert buffer.stateful_dataset


def test_a_local_server_serves():
    with reverb.Server([table(max_size=7)]) as server:
        buffer = ours.ReverbReplayBuffer(SPEC, "uniform", LENGTH, local_server=server)
        assert buffer.local_server is server
        assert buffer.capacity == 7
        assert buffer.num_frames() == 0


def test_items_are_counted_and_cleared(client):
    buffer = buffer_of(client)
    assert buffer.num_frames() == buffer_of(client, module=theirs).num_frames() == 8
    assert tf.function(buffer.num_frames)() == 8
    assert buffer.get_table_info().current_size == 8
    buffer.clear()
    assert buffer.num_frames() == 0
    assert buffer.get_table_info().current_size == 0
    fill(client, "uniform", [LENGTH])

    @tf.function
    def clear():
        buffer.clear()

    clear()
    assert buffer.num_frames() == 0


@pytest.mark.parametrize(
    ("name", "length", "batch_size", "num_steps"),
    [
        ("uniform", LENGTH, 3, None),
        ("uniform", LENGTH, 3, LENGTH),
        ("uniform", LENGTH, 3, 2),
        ("uniform", LENGTH, None, None),
        ("uniform", LENGTH, None, 2),
        ("varying", None, 1, None),
        ("varying", None, None, None),
        ("varying", None, 3, 2),
        ("varying", None, None, 2),
    ],
)
def test_elements_are_those_of_tf_agents(client, name, length, batch_size, num_steps):
    found = buffer_of(client, name, length).as_dataset(batch_size, num_steps)
    expected = buffer_of(client, name, length, theirs).as_dataset(batch_size, num_steps)
    assert found.element_spec == expected.element_spec
    values = set()
    for data, info in found.take(40):
        tf.nest.map_structure(
            lambda spec, leaf: spec.shape.assert_is_compatible_with(leaf.shape),
            found.element_spec,
            (data, info),
        )
        for row in np.atleast_2d(data["b"].numpy()):
            assert row.tolist() == list(range(row[0], row[0] + len(row)))
            assert num_steps is None or row[0] % 100 % num_steps == 0
            values.add(int(row[0]))
        np.testing.assert_array_equal(data["a"][..., 0], data["b"])
        assert info.key.shape == data["b"].shape
        assert np.ptp(np.atleast_2d(info.key.numpy()), axis=1).max() == 0
    starts = {100 * item for item in range(8 if name == "uniform" else 5)}
    if num_steps == 2 and name == "varying":
        starts = {0, 100, 102, 200, 202, 300, 302, 304}  # The item of one step has no two.
    elif num_steps == 2:
        starts |= {start + 2 for start in starts}
    assert values <= starts
    assert len(values) > len(starts) / 2


def test_info_tells_of_its_own_fragment(client):
    buffer = buffer_of(client, "prioritized")
    priorities = {}
    for sample in client.sample("prioritized", 200, emit_timesteps=False):
        priorities[int(sample.data[1][0])] = (int(sample.info.key), sample.info.priority)
    for data, info in buffer.as_dataset(8, num_steps=2).take(10):
        for row in range(8):
            key, priority = priorities[int(data["b"][row, 0]) // 100 * 100]
            assert set(info.key[row].numpy().tolist()) == {key}
            assert set(info.priority[row].numpy().tolist()) == {priority}


def test_fragments_of_a_batch_of_items_are_mixed():
    queue = table(sampler=reverb.selectors.Fifo(), max_times_sampled=1)
    with testing.server([queue]) as client:
        fill(client, "uniform", [LENGTH] * 17)
        buffer = buffer_of(client, rate_limiter_timeout_ms=50)
        batches = [data["b"][:, 0].numpy() for data, _ in buffer.as_dataset(8, num_steps=1)]
    # The last item makes half a batch.
    assert [batch.shape for batch in batches] == [(8,)] * 8
    rows = np.concatenate(batches)
    for half in (rows[:32], rows[32:]):
        assert half.tolist() != sorted(half)
        assert len(set(half)) == 32
    assert set(rows[:32]) == {100 * item + step for item in range(8) for step in range(4)}


def test_items_are_preprocessed_one_by_one(client):
    shapes = []

    def preprocess(data):
        shapes.append(data["a"].shape.as_list())
        return {**data, "sum": tf.fill([LENGTH], tf.reduce_sum(data["b"]))}

    for num_steps, steps in ((None, LENGTH), (2, 2)):
        found = buffer_of(client).as_dataset(3, num_steps, sequence_preprocess_fn=preprocess)
        expected = buffer_of(client, module=theirs).as_dataset(
            3, num_steps, sequence_preprocess_fn=preprocess
        )
        assert found.element_spec == expected.element_spec
        for data, info in found.take(5):
            assert data["sum"].shape == info.key.shape == (3, steps)
            start = data["b"].numpy() // 100 * 100
            np.testing.assert_array_equal(data["sum"], 4 * start + 6)
    assert {tuple(shape) for shape in shapes} == {(LENGTH, 2)}


def test_datasets_can_be_read_again_and_in_functions(client):
    dataset = buffer_of(client).as_dataset(4, 2, num_parallel_calls=3).prefetch(3)

    @tf.function
    def total(count):
        result = tf.constant(0, tf.int64)
        for data, _ in dataset.take(count):
            result += tf.reduce_sum(tf.ones_like(data["b"]))
        return result

    assert total(5) == 5 * 4 * 2
    for _ in range(2):
        assert sum(1 for _ in dataset.take(6)) == 6
    iterator = iter(dataset)
    assert next(iterator)[0]["b"].shape == (4, 2)
    assert next(iterator)[0]["b"].shape == (4, 2)


def test_order_of_a_queue_is_kept(client):
    fill(client, "fifo", [LENGTH])
    dataset = buffer_of(client, "fifo", dataset_buffer_size=1).as_dataset(2)
    assert [data["b"][:, 0].numpy().tolist() for data, _ in dataset.take(2)] == [[0, 0]] * 2


def test_a_timeout_ends_the_dataset():
    with testing.server([table(rate_limiter=reverb.rate_limiters.MinSize(2))]) as client:
        fill(client, "uniform", [LENGTH])
        assert not list(buffer_of(client, rate_limiter_timeout_ms=10).as_dataset(2))


@pytest.mark.parametrize(("size", "ahead"), [(5, 5), (None, 20)])
def test_few_items_are_fetched_ahead(size, ahead):
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # TensorFlow's own.
    with testing.server([table(max_times_sampled=1)]) as client:
        fill(client, "uniform", [LENGTH] * 100)
        buffer = buffer_of(client, dataset_buffer_size=size)
        iterator = iter(buffer.as_dataset(10).with_options(options))
        next(iterator)
        time.sleep(0.2)
        assert 100 - 10 - ahead <= buffer.num_frames() <= 90


def test_streams_are_as_long_as_asked_for(client, monkeypatch):
    options = {}

    def remember(*args, **kwargs):
        options.update(kwargs)
        return dataset_class(*args, **kwargs)

    dataset_class = reverb.TrajectoryDataset
    monkeypatch.setattr(reverb, "TrajectoryDataset", remember)
    buffer = buffer_of(
        client, num_workers_per_iterator=3, max_samples_per_stream=7, rate_limiter_timeout_ms=9
    )
    buffer.as_dataset(30)
    assert options["num_workers_per_iterator"] == 3
    assert options["max_samples_per_stream"] == 7
    assert options["rate_limiter_timeout_ms"] == 9
    assert options["max_in_flight_samples_per_worker"] == 20


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("in_graph", [False, True])
def test_priorities_are_updated(client, rank, in_graph):
    buffer = buffer_of(client, "prioritized")
    _, info = next(iter(buffer.as_dataset(8)))
    keys = info.key if rank == 2 else info.key[:, 0]

    def update(*arguments):
        buffer.update_priorities(*arguments)

    (tf.function(update) if in_graph else update)(keys, tf.fill([8], tf.constant(77.0, tf.float32)))
    found = {
        int(sample.info.key): sample.info.priority
        for sample in client.sample("prioritized", 200, emit_timesteps=False)
    }
    assert all(found[int(key)] == 77.0 for key in info.key[:, 0] if int(key) in found)
    assert 77.0 in found.values()


@pytest.mark.parametrize("shape", [[8, LENGTH], [7]])
def test_priorities_are_one_for_each_item(client, shape):
    buffer = buffer_of(client, "prioritized")
    _, info = next(iter(buffer.as_dataset(8)))
    with pytest.raises(errors.InvalidArgumentError, match=r"priorities must have the shape \[B\]"):
        buffer.update_priorities(info.key, tf.ones(shape))


def test_exactly_one_server_is_given(client):
    match = "Exactly one of the server_address or local_server must be provided"
    with pytest.raises(ValueError, match=match):
        ours.ReverbReplayBuffer(SPEC, "uniform", LENGTH)
    with pytest.raises(ValueError, match=match):
        ours.ReverbReplayBuffer(SPEC, "uniform", LENGTH, client.server_address, object())


def test_an_unknown_table_is_a_key_error_that_tells_the_others(client):
    with pytest.raises(KeyError, match="no table nope; its tables are: fifo, prioritized, uniform"):
        buffer_of(client, "nope")


def test_a_missing_server_is_waited_for_not_for_ever(caplog):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(errors.UnavailableError, match=f"No server answered at {address}"),
        ):
            ours.ReverbReplayBuffer(SPEC, "uniform", LENGTH, address, connect_timeout_s=3.5)
    assert f"waiting up to 3.5 s for the server at {address}, to use its table" in caplog.text


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (SPEC | {"b": tf.TensorSpec([], tf.int32)}, r"field b is int32 \[4\] .*, int64 \[4\]"),
        (SPEC | {"a": tf.TensorSpec([3], tf.float32)}, r"a is float32 \[4, 3\] .*float32 \[4, 2\]"),
        (SPEC | {"c": tf.TensorSpec([], tf.int32)}, "data_spec has 3 fields, the signature 2"),
    ],
)
def test_a_spec_that_is_not_the_tables_is_told_at_once(client, caplog, spec, text):
    buffer = ours.ReverbReplayBuffer(spec, "uniform", LENGTH, client.server_address)
    assert "items of table uniform cannot be read" in caplog.text
    assert re.search(text, caplog.text)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"incompatible tensor|number of tensors"
    ):
        next(iter(buffer.as_dataset(2)))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num_steps": LENGTH + 1}, r"num_steps > sequence_length \(5 vs. 4\)"),
        ({"num_steps": 3}, r"not a multiple of num_steps \(4 vs. 3\)"),
        ({"num_steps": 0}, "num_steps must be an integer of at least 1, got 0"),
        ({"sample_batch_size": 0}, "sample_batch_size must be an integer of at least 1, got 0"),
        ({"sample_batch_size": 2, "num_parallel_calls": 3}, "num_parallel_calls .* 3 > 2"),
        ({"single_deterministic_pass": True}, "sampler or the remover is not deterministic"),
    ],
)
def test_what_cannot_be_had_is_refused(client, arguments, text):
    with pytest.raises(ValueError, match=text):
        buffer_of(client).as_dataset(**arguments)


def test_lists_in_the_spec_are_refused(client):
    buffer = ours.ReverbReplayBuffer([SPEC], "uniform", LENGTH, client.server_address)
    with pytest.raises(ValueError, match="lists"):
        buffer.as_dataset(2)


def test_items_of_other_lengths_are_no_batch(client):
    with pytest.raises(tf.errors.InvalidArgumentError, match="same shapes"):
        list(buffer_of(client, "varying", None).as_dataset(4).take(20))


def test_wrapped_specs_are_understood(client):
    module = tf.Module()
    module.spec = SPEC  # A `tf.Module` wraps dicts and tuples, and agents are modules.
    buffer = ours.ReverbReplayBuffer(module.spec, "uniform", LENGTH, client.server_address)
    data, _ = next(iter(buffer.as_dataset(2)))
    assert type(data) is dict


def test_make_reverb_dataset_is_that_of_tf_agents(client):
    for options in (
        {},
        {"batch_size": 2, "sequence_length": LENGTH},
        {"batch_size": 2, "sequence_length": LENGTH, "per_sequence_fn": lambda sample: sample.data},
        {"dataset_transformation": lambda dataset: dataset.take(3), "prefetch_size": 2},
    ):
        arguments = (client.server_address, "uniform", SPEC)
        found = ours.make_reverb_dataset(*arguments, **options)
        assert found.element_spec == theirs.make_reverb_dataset(*arguments, **options).element_spec
        element = next(iter(found))
        data = element["b"] if isinstance(element, dict) else element.data["b"]
        np.testing.assert_array_equal(data[..., 1:] - data[..., :-1], tf.ones_like(data[..., 1:]))


def test_sequences_are_cut_as_tf_agents_does():
    sample = {"a": tf.range(7), "b": tf.reshape(tf.range(14), [7, 2])}
    for num_steps in (1, 3, 8):
        found = ours.truncate_reshape_rows_by_num_steps(sample, num_steps)
        expected = theirs.truncate_reshape_rows_by_num_steps(sample, num_steps)
        tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
