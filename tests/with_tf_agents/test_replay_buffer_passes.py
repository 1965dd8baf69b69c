# SPDX-License-Identifier: Apache-2.0
"""Everything in a table at once: single deterministic passes and `gather_all`."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.replay_buffers import reverb_replay_buffer as theirs
from tf_agents.specs import tensor_spec

import reverb
from reverb import errors, item_selectors, testing
from reverb.adapters.tf_agents import reverb_replay_buffer as ours
from reverb.core import protos
from support.counted_items import fill

SPEC = {"a": tf.TensorSpec([2], tf.float32), "b": tf.TensorSpec([], tf.int64)}
LENGTH = 4
PRIORITIES = [3.0, 1.0, 5.0, 1.0, 4.0]
SAMPLERS = {
    "fifo": (reverb.selectors.Fifo, [0, 1, 2, 3, 4]),
    "lifo": (reverb.selectors.Lifo, [4, 3, 2, 1, 0]),
    "min_heap": (reverb.selectors.MinHeap, [1, 3, 0, 4, 2]),
    "max_heap": (reverb.selectors.MaxHeap, [2, 4, 0, 1, 3]),
}


def is_deterministic(kind):
    make = item_selectors.BY_KIND[kind]
    selector = make(1.0) if kind in ("prioritized", "recent") else make()
    return protos.KeyDistributionOptions.FromString(selector.to_options()).is_deterministic


def test_every_deterministic_selector_is_tried():
    assert set(SAMPLERS) == set(filter(is_deterministic, item_selectors.BY_KIND))


@pytest.fixture
def serve():
    servers = []

    def start(sampler="fifo", lengths=(LENGTH,) * 5, **options):
        defaults = {"sampler": SAMPLERS[sampler][0]()}
        if len(set(lengths)) == 1:
            defaults["signature"] = tensor_spec.add_outer_dim(SPEC, LENGTH)
        server = reverb.Server([testing.table("table", **(defaults | options))])
        servers.append(server)
        client = server.localhost_client()
        fill(client, "table", lengths, PRIORITIES)
        return server

    yield start
    for server in servers:
        server.stop()


def buffer_of(server, sequence_length=LENGTH, module=ours, **options):
    return module.ReverbReplayBuffer(SPEC, "table", sequence_length, local_server=server, **options)


def firsts(dataset):
    return [(data["b"][..., 0].numpy() // 100).tolist() for data, _ in dataset]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("max_times_sampled", [0, 1, 7])
def test_a_pass_gives_every_item_once_in_the_samplers_order(serve, sampler, max_times_sampled):
    server = serve(sampler, max_times_sampled=max_times_sampled)
    buffer = buffer_of(server)
    dataset = buffer.as_dataset(single_deterministic_pass=True)
    assert firsts(dataset) == SAMPLERS[sampler][1]
    if max_times_sampled == 1:
        assert buffer.num_frames() == 0
        assert firsts(dataset) == []
        fill(buffer.py_client, "table", [LENGTH] * 5, PRIORITIES)
    else:
        assert buffer.num_frames() == 5
    assert firsts(dataset) == SAMPLERS[sampler][1]


@pytest.mark.parametrize(("batch_size", "num_steps"), [(None, 2), (2, None), (2, 2), (1, 4)])
def test_a_pass_is_that_of_tf_agents_where_theirs_ends(serve, batch_size, num_steps):
    elements = []
    for module in (ours, theirs):
        server = serve(max_times_sampled=1)
        buffer = buffer_of(server, module=module, rate_limiter_timeout_ms=50)
        dataset = buffer.as_dataset(batch_size, num_steps, single_deterministic_pass=True)
        elements.append((dataset.element_spec, [data["b"].numpy().tolist() for data, _ in dataset]))
    assert elements[0] == elements[1]
    # A scan gives the same as the sampler.
    dataset = buffer_of(serve()).as_dataset(batch_size, num_steps, single_deterministic_pass=True)
    found = (dataset.element_spec, [data["b"].numpy().tolist() for data, _ in dataset])
    assert found == elements[0]


@pytest.mark.parametrize("max_times_sampled", [0, 1])
def test_a_last_batch_may_be_kept(serve, max_times_sampled):
    buffer = buffer_of(serve(max_times_sampled=max_times_sampled), drop_remainder=False)
    dataset = buffer.as_dataset(2, single_deterministic_pass=True)
    assert dataset.element_spec[0]["b"].shape.as_list() == [None, LENGTH]
    assert firsts(dataset) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("max_times_sampled", [0, 1])
def test_items_of_a_pass_are_preprocessed(serve, max_times_sampled):
    buffer = buffer_of(serve(max_times_sampled=max_times_sampled))
    dataset = buffer.as_dataset(
        2,
        num_steps=2,
        sequence_preprocess_fn=lambda data: {"sum": tf.cumsum(data["b"])},
        single_deterministic_pass=True,
    )
    sums = [data["sum"].numpy().tolist() for data, _ in dataset]
    assert sums[:2] == [[[0, 1], [3, 6]], [[100, 201], [303, 406]]]
    assert len(sums) == 5


@pytest.mark.parametrize("max_times_sampled", [0, 1])
def test_a_pass_takes_items_of_any_length(serve, max_times_sampled):
    server = serve(lengths=(3, 3, 5, 1, 4), max_times_sampled=max_times_sampled)
    dataset = buffer_of(server, None).as_dataset(single_deterministic_pass=True)
    assert [data["b"].shape[0] for data, _ in dataset] == [3, 3, 5, 1, 4]
    if max_times_sampled == 0:
        dataset = buffer_of(server, None).as_dataset(1, 2, single_deterministic_pass=True)
        values = [data["b"][0].numpy().tolist() for data, _ in dataset]
        assert values == [[0, 1], [100, 101], [200, 201], [202, 203], [400, 401], [402, 403]]


def test_many_items_pass(serve):
    server = serve(lengths=(LENGTH,) * 300)
    dataset = buffer_of(server).as_dataset(single_deterministic_pass=True)
    assert firsts(dataset.take(200)) == list(range(200))
    assert firsts(dataset) == list(range(300))


def test_info_of_a_scan_does_not_count_as_sampled(serve):
    buffer = buffer_of(serve())
    for _ in range(2):
        infos = [info for _, info in buffer.as_dataset(single_deterministic_pass=True)]
        assert [info.priority.numpy().tolist() for info in infos] == [[p] * 4 for p in PRIORITIES]
        assert all(info.times_sampled.numpy().max() == 0 for info in infos)


def test_a_pass_waits_for_the_frames_that_were_added(serve):
    for max_times_sampled in (0, 1):
        buffer = buffer_of(serve(max_times_sampled=max_times_sampled))
        buffer.clear()
        dataset = buffer.as_dataset(single_deterministic_pass=True)
        for value in range(LENGTH + 2):
            buffer.add_batch({"a": np.zeros([1, 2], np.float32), "b": np.int64([value])})
        assert [data["b"][0] for data, _ in dataset] == [0, 1, 2]
        buffer.close()


def test_a_random_remover_allows_no_pass(serve):
    server = serve(remover=reverb.selectors.Uniform())
    with pytest.raises(ValueError, match="either the sampler or the remover is not deterministic"):
        buffer_of(server).as_dataset(single_deterministic_pass=True)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("in_graph", [False, True])
def test_gather_all_gives_all_items_in_the_order_of_insertion(serve, sampler, in_graph):
    buffer = buffer_of(serve(sampler, lengths=(LENGTH,) * 7))
    gather = tf.function(buffer.gather_all) if in_graph else buffer.gather_all
    for _ in range(2):
        data = gather()
        assert data["a"].shape == (7, LENGTH, 2)
        assert data["a"].dtype == tf.float32
        expected = 100 * np.arange(7)[:, np.newaxis] + np.arange(LENGTH)
        np.testing.assert_array_equal(data["b"], expected)
    assert buffer.get_table_info().current_size == 7


def test_nothing_is_gathered_from_an_empty_table(serve):
    buffer = buffer_of(serve())
    buffer.clear()
    data = buffer.gather_all()
    assert data["a"].shape == (0, LENGTH, 2)
    assert data["b"].dtype == tf.int64


def test_items_of_other_lengths_are_not_gathered(serve):
    buffer = buffer_of(serve(lengths=(3, 5, 3)), None)
    with pytest.raises(errors.InvalidArgumentError, match=r"their lengths differ: 3, 5; read them"):
        buffer.gather_all()
    dataset = buffer.as_dataset(2, single_deterministic_pass=True)
    with pytest.raises(tf.errors.OpError, match="their lengths differ: 3, 5; read them one by one"):
        list(dataset)


def test_items_that_are_not_as_the_spec_says_name_the_field(serve):
    server = serve(lengths=(3, 5, 3))
    with pytest.raises(
        errors.SignatureMismatchError,
        match=r"field a of an item of table table must be float32 \[4, 2\], got float32 \[3, 2\]",
    ):
        buffer_of(server).gather_all()
    spec = {"a": SPEC["a"]}
    buffer = ours.ReverbReplayBuffer(spec, "table", None, local_server=server)
    with pytest.raises(errors.SignatureMismatchError, match="has 2 columns, data_spec has 1: a"):
        buffer.gather_all()
