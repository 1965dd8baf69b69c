# SPDX-License-Identifier: Apache-2.0
"""Selectors, draws and priorities that dm-reverb does not have, through clients."""

import copy
import pickle
import struct

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb._batches.importance import MAX_PRIORITY
from reverb.core import native, protos
from reverb.errors import InvalidArgumentError


def insert(client, table, priorities):
    """Inserts items with these priorities; their data are 0, 1, ..."""
    client.insert_batch(np.arange(len(priorities)), {table: np.asarray(priorities, np.float64)})


def priorities_of(client, table):
    return [sample.info.priority for sample in client.scan(table)]


def test_a_seed_repeats_the_order(serve):
    names = ("a", "b", "c")
    seeds = (5, 5, 6)
    tables = [
        testing.table(name, sampler=reverb.selectors.Shuffle(seed), seed=i)
        for i, (name, seed) in enumerate(zip(names, seeds, strict=True))
    ]
    client = serve(*tables)
    orders = []
    for name in names:
        insert(client, name, np.ones(50))
        orders.append(list(client.sample_batch(name, 50).data[0].ravel()))
    assert orders[0] == orders[1] != orders[2]


def test_sampling_parameters_of_a_running_table_change(serve):
    client = serve(
        testing.table("age", sampler=reverb.selectors.Recent(1.0), seed=3),
        testing.table("draw", sampler=reverb.selectors.Prioritized(1.0)),
    )
    insert(client, "age", np.ones(500))
    insert(client, "draw", np.arange(1.0, 5.0))
    info = client.configure_table("age", sampler=reverb.selectors.Recent(50.0))
    assert info.sampler_options.extension.recent.expected_age == 50.0
    ages = 499 - client.sample_batch("age", 4000).data[0].ravel()
    assert abs(ages.mean() - 50) < 5
    client.configure_table("draw", sampler=reverb.selectors.Prioritized(0.0, draw="systematic"))
    counts = np.bincount(client.sample_batch("draw", 400).data[0].ravel())
    np.testing.assert_array_equal(counts, 100)
    changes = {"age": reverb.TableChange(sampler=reverb.selectors.Recent(9.0))}
    (changed,) = client.configure_tables(changes, dry_run=True)
    assert str(changed) == "expected_age of table age is 9 now, not 50"


def test_the_kind_of_a_sampler_does_not_change(serve):
    client = serve(testing.table("t", sampler=reverb.selectors.Uniform()))
    with pytest.raises(
        InvalidArgumentError, match=r"sampler of table t is uniform and cannot become recent: a run"
    ):
        client.configure_table("t", sampler=reverb.selectors.Recent(5.0))
    with pytest.raises(TypeError, match=r"sampler must be one of reverb\.selectors, got 'fifo'"):
        client.configure_table("t", sampler="fifo")


def test_arguments_are_checked():
    with pytest.raises(InvalidArgumentError, match="expected_age must be finite and above 0, got"):
        reverb.selectors.Recent(0.0)
    with pytest.raises(InvalidArgumentError, match='draw must be "independent", "stratified" or'):
        reverb.selectors.Prioritized(1.0, draw="sorted")
    with pytest.raises(InvalidArgumentError, match='max_priority must be "present" or "ever"'):
        testing.table("t", sampler=reverb.selectors.Fifo(), max_priority="never")


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (reverb.selectors.Shuffle(), "ShuffleSelector()"),
        (reverb.selectors.Shuffle(seed=4), "ShuffleSelector(seed=4)"),
        (reverb.selectors.Recent(2.5), "RecentSelector(expected_age=2.5)"),
        (
            reverb.selectors.Prioritized(0.5, draw="stratified"),
            "PrioritizedSelector(priority_exponent=0.5, draw='stratified')",
        ),
    ],
    ids=str,
)
def test_copies_and_texts(selector, text):
    assert repr(selector) == text
    options = protos.KeyDistributionOptions.FromString(selector.to_options())
    again = reverb.selectors.from_options(options)
    assert repr(again) == text.replace("seed=4", "")
    table = testing.table("t", sampler=again).replace(name="u")
    assert table.info.sampler_options == options


def test_the_nearest_selector_of_dm_reverb_stands_beside():
    options = [
        protos.KeyDistributionOptions.FromString(selector.to_options())
        for selector in (reverb.selectors.Shuffle(), reverb.selectors.Recent(3.0))
    ]
    assert [it.WhichOneof("distribution") for it in options] == ["uniform", "uniform"]


def test_max_priority_is_one_value():
    assert struct.pack("d", MAX_PRIORITY) == struct.pack("d", native.MAX_PRIORITY)
    assert repr(MAX_PRIORITY) == "reverb.MAX_PRIORITY"
    assert pickle.loads(pickle.dumps(MAX_PRIORITY)) is MAX_PRIORITY
    assert copy.deepcopy(MAX_PRIORITY) is MAX_PRIORITY


def test_a_new_item_gets_the_largest_priority(serve):
    client = serve(testing.table("t", sampler=reverb.selectors.Prioritized(0.6)))
    client.insert(0, {"t": MAX_PRIORITY})
    insert(client, "t", [3.5, MAX_PRIORITY, 0.5])
    insert(client, "t", np.array([MAX_PRIORITY, 2.0], np.float32))
    assert priorities_of(client, "t") == [1.0, 3.5, 3.5, 0.5, 3.5, 2.0]
    assert client.server_info()["t"].max_priority == 3.5
    keys = [sample.info.key for sample in client.scan("t")]
    client.update_priorities("t", keys, np.arange(6) / 10)
    client.insert(0, {"t": MAX_PRIORITY})
    assert priorities_of(client, "t")[-1] == 0.5


def test_every_writer_takes_max_priority(serve):
    table = testing.table("t", sampler=reverb.selectors.Prioritized(1.0))
    client = serve(table)
    client.insert(np.zeros(2, np.float32), {"t": 4.0})
    data = np.zeros(2, np.float32)
    with client.writer(max_sequence_length=1) as writer:
        writer.append(data)
        writer.create_item("t", 1, MAX_PRIORITY)
    with client.trajectory_writer(num_keep_alive_refs=1) as writer:
        writer.append(data)
        writer.create_item("t", MAX_PRIORITY, writer.history[-1:])
        writer.flush()
    with client.batched_trajectory_writer(batch_size=2, num_keep_alive_refs=1) as writer:
        writer.append(np.zeros((2, 2), np.float32))
        writer.create_items("t", [MAX_PRIORITY, 1.0], writer.history[-1:])
        writer.flush()
    assert priorities_of(client, "t") == [4.0, 4.0, 4.0, 4.0, 1.0]


def test_max_priority_is_for_new_items(serve):
    client = serve(testing.table("t", sampler=reverb.selectors.Prioritized(1.0)))
    insert(client, "t", [1.0])
    (sample,) = client.scan("t")
    with pytest.raises(InvalidArgumentError, match="Priority must not be NaN"):
        client.mutate_priorities("t", updates={sample.info.key: MAX_PRIORITY})
    with pytest.raises(InvalidArgumentError, match="priority must not be NaN"):
        client.insert(0, {"t": float("nan")})
    with pytest.raises(InvalidArgumentError, match="Priority must be finite for a prioritized"):
        client.insert(0, {"t": float("inf")})


def test_the_remover_goes_by_its_own_priority(serve):
    table = testing.table(
        "t",
        sampler=reverb.selectors.Prioritized(1.0),
        remover=reverb.selectors.MinHeap(),
        max_size=3,
    )
    client = serve(table)
    for value, (priority, removal) in enumerate([(1.0, 5.0), (2.0, 9.0), (3.0, 1.0)]):
        client.insert(value, {"t": priority}, removal_priorities={"t": removal})
    with client.trajectory_writer(num_keep_alive_refs=1) as writer:
        for value, removal in ((3, 4.0), (4, None)):
            writer.append(np.int64(value))
            writer.create_item("t", 7.0, writer.history[-1:], removal_priority=removal)
            writer.flush()
    # 2 has left for 3, and then 3 for 4, which is removed by its priority.
    assert [int(sample.data[0][0]) for sample in client.scan("t")] == [0, 1, 4]
    keys = [sample.info.key for sample in client.scan("t")]
    client.update_priorities("t", keys, [0.0, 0.0, 8.0])
    client.insert(5, {"t": 1.0}, removal_priorities={"t": 6.0})
    assert [int(sample.data[0][0]) for sample in client.scan("t")] == [1, 4, 5]


def test_no_item_twice_in_a_batch(serve):
    client = serve(
        testing.table("replay", sampler=reverb.selectors.Prioritized(2.0)),
        testing.table("queue", sampler=reverb.selectors.Fifo(), max_times_sampled=1),
    )
    for table in ("replay", "queue"):
        insert(client, table, np.arange(1.0, 201.0))
    for _ in range(3):
        values = client.sample_batch("replay", 150, distinct=True).data[0].ravel()
        assert len(set(values)) == 150
    with pytest.raises(
        InvalidArgumentError, match="256 distinct items asked of table replay, which has 200"
    ):
        client.sample_batch("replay", 256, distinct=True)
    assert list(client.sample_batch("queue", 5, distinct=True).data[0].ravel()) == [0, 1, 2, 3, 4]


def test_samples_tell_the_smallest_probability_and_the_epoch(serve):
    client = serve(
        testing.table("p", sampler=reverb.selectors.Prioritized(1.0)),
        testing.table("s", sampler=reverb.selectors.Shuffle()),
    )
    insert(client, "p", [1.0, 3.0, 4.0])
    insert(client, "s", np.ones(4))
    batch = client.sample_batch("p", 8)
    np.testing.assert_allclose(batch.min_probability, 1 / 8)
    weights = reverb.importance_weights(batch, beta=1.0)
    np.testing.assert_allclose(weights, 1 / batch.info.priority, rtol=1e-6)
    epochs = [client.sample_batch("s", 4).epoch.tolist() for _ in range(2)]
    assert epochs == [[0] * 4, [1] * 4]
    # A batch may be of two epochs.
    epochs = [client.sample_batch("s", 3).epoch.tolist() for _ in range(2)]
    assert epochs == [[2, 2, 2], [2, 3, 3]]


def test_weights_of_new_data_first_are_relative_to_the_batch(serve):
    """Beside an item that is hardly ever sampled all others would weigh nothing."""
    client = serve(testing.table("r", sampler=reverb.selectors.Recent(5.0)))
    insert(client, "r", np.ones(200))
    batch = client.sample_batch("r", 256)
    assert batch.min_probability.tolist() == [0.0] * 256
    weights = reverb.importance_weights(batch, beta=1.0)
    np.testing.assert_allclose(
        weights, batch.info.probability.min() / batch.info.probability, rtol=1e-6
    )
    assert weights.max() == 1.0


def test_a_group_of_servers_refuses_samplers_that_need_all_items():
    for sampler in (reverb.selectors.Shuffle(), reverb.selectors.Recent(5.0)):
        with pytest.raises(InvalidArgumentError, match="which a group of servers cannot have"):
            reverb.cluster.split_table(testing.table("t", sampler=sampler), 0, 2)


def test_a_checkpoint_keeps_every_new_kind(tmp_path):
    def tables():
        return [
            testing.table("shuffle", sampler=reverb.selectors.Shuffle(seed=1)),
            testing.table("recent", sampler=reverb.selectors.Recent(7.0)),
            testing.table("draw", sampler=reverb.selectors.Prioritized(0.5, draw="stratified")),
            testing.table(
                "ever", sampler=reverb.selectors.Prioritized(1.0), max_size=2, max_priority="ever"
            ),
            testing.table(
                "remover",
                sampler=reverb.selectors.Fifo(),
                remover=reverb.selectors.MinHeap(),
                max_size=3,
            ),
        ]

    def checkpointer():
        return reverb.checkpointers.DefaultCheckpointer(str(tmp_path))

    server = reverb.Server(tables(), checkpointer=checkpointer())
    client = server.localhost_client()
    for name in ("shuffle", "recent", "draw"):
        insert(client, name, np.ones(10))
    insert(client, "ever", [9.0, 2.0, 1.0])
    for value in range(3):
        client.insert(value, {"remover": 1.0}, removal_priorities={"remover": 5.0 - value})
    kinds = {name: info.sampler_options for name, info in client.server_info().items()}
    client.checkpoint()
    server.stop()

    server = reverb.Server(tables(), checkpointer=checkpointer())
    client = server.localhost_client()
    assert {name: it.sampler_options for name, it in client.server_info().items()} == kinds
    assert sorted(client.sample_batch("shuffle", 10).data[0].ravel()) == list(range(10))
    assert (client.sample_batch("recent", 500).info.probability.max()) > 0.12
    client.insert(0, {"ever": MAX_PRIORITY})
    assert priorities_of(client, "ever") == [1.0, 9.0]
    client.insert(3, {"remover": 1.0}, removal_priorities={"remover": 9.0})
    assert [int(sample.data[0][0]) for sample in client.scan("remover")] == [0, 1, 3]
    server.stop()
