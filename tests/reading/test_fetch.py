# SPDX-License-Identifier: Apache-2.0
"""`fetch`: the items of some keys as a batch, without a trace in the table."""

import dataclasses

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    TableNotFoundError,
)
from reverb.specs import TensorSpec

SIGNATURE = {
    "obs": TensorSpec([None, 3], np.float32),
    "reward": TensorSpec([], np.float64),
    "text": TensorSpec([None], str),
}


@pytest.fixture
def client(serve):
    """A client of a table with the items 0 to 99, whose priorities are their numbers."""
    client = serve(testing.table())
    data = [np.arange(100), np.arange(100) * 0.5]
    client.keys = client.insert_batch(data, {"table": np.arange(100.0)})["table"]
    return client


def write(client, lengths):
    """Writes an item of each length; returns their keys."""
    with client.trajectory_writer(10) as writer:
        for length in lengths:
            for i in range(length):
                writer.append(
                    {
                        "obs": np.full(3, length * 10 + i, np.float32),
                        "reward": np.float64(length),
                        "text": f"step {i}",
                    }
                )
            history = writer.history
            item = {
                "obs": history["obs"][-length:],
                "reward": history["reward"][-1],
                "text": history["text"][-length:],
            }
            writer.create_item("table", float(length), item)
    return [sample.info.key for sample in client.scan("table")]


class TestItems:
    def test_rows_have_the_order_of_the_keys(self, client):
        order = np.random.default_rng(0).permutation(100)
        batch = client.fetch("table", client.keys[order])
        assert type(batch) is reverb.ReplayBatch
        assert batch.data[0].ravel().tolist() == order.tolist()
        assert batch.data[1].shape == (100, 1)
        assert batch.info.key.tolist() == client.keys[order].tolist()
        assert batch.info.priority.tolist() == order.tolist()

    def test_the_data_is_what_a_sample_has(self, serve):
        client = serve(testing.table(signature=SIGNATURE))
        write(client, [2, 2, 2])
        sampled = client.sample_batch("table", 5, unpack_as_table_signature=True)
        fetched = client.fetch("table", sampled.info.key, unpack_as_table_signature=True)
        assert fetched.data.keys() == sampled.data.keys()
        for name, column in sampled.data.items():
            np.testing.assert_array_equal(fetched.data[name], column)
            assert fetched.data[name].dtype == column.dtype

    def test_keys_that_are_gone_are_left_out(self, client):
        client.mutate_priorities("table", deletes=[int(client.keys[2])])
        unknown = np.uint64(client.keys[0] ^ np.uint64(1))
        batch = client.fetch("table", [client.keys[3], client.keys[2], unknown, client.keys[1]])
        assert batch.info.key.tolist() == [client.keys[3], client.keys[1]]
        assert batch.data[0].ravel().tolist() == [3, 1]

    def test_a_key_that_is_there_twice_has_two_rows(self, client):
        batch = client.fetch("table", client.keys[[4, 7, 4, 4]])
        assert batch.data[0].ravel().tolist() == [4, 7, 4, 4]

    def test_more_keys_than_a_message_has_room_for(self, serve):
        client = serve(testing.table(max_size=20_000))
        keys = client.insert_batch([np.arange(20_000)], {"table": 1.0})["table"]
        order = np.random.default_rng(0).permutation(20_000)
        # The same key may be in two messages.
        order[-1] = order[0]
        batch = client.fetch("table", keys[order])
        assert batch.data[0].ravel().tolist() == order.tolist()

    def test_keys_may_be_int64_with_the_same_bits(self, client):
        batch = client.fetch("table", client.keys[:5].view(np.int64))
        assert batch.data[0].ravel().tolist() == list(range(5))


class TestNobodyNotices:
    def test_nothing_is_counted_and_nothing_leaves(self, serve):
        table = reverb.Table.queue("table", 10)
        client = serve(table)
        keys = client.insert_batch([np.arange(10)], {"table": 1.0})["table"]
        before = dataclasses.replace(table.info, table_worker_time=None)
        info = client.fetch("table", keys).info
        assert dataclasses.replace(table.info, table_worker_time=None) == before
        assert info.times_sampled.tolist() == [0] * 10
        assert info.table_size.tolist() == [10] * 10
        for field in (info.probability, info.min_probability, info.epoch):
            assert field.tolist() == [0] * 10

    def test_samples_so_far_are_told(self, serve):
        client = serve(testing.table(sampler=reverb.selectors.Fifo()))
        keys = client.insert_batch([np.arange(2)], {"table": 1.0})["table"]
        client.sample_batch("table", 3)
        assert client.fetch("table", keys).info.times_sampled.tolist() == [3, 0]


class TestForms:
    def test_columns_are_chosen_by_name_or_position(self, client, serve):
        assert [c.tolist() for c in client.fetch("table", client.keys[:2], columns=1).data] == [
            [[0.0], [0.5]]
        ]
        named = serve(testing.table(signature=SIGNATURE))
        keys = write(named, [2, 2])
        batch = named.fetch("table", keys, columns=["reward"], unpack_as_table_signature=True)
        assert {name: column.tolist() for name, column in batch.data.items()} == {"reward": [2, 2]}

    def test_items_of_different_lengths_need_a_form(self, serve):
        client = serve(testing.table(signature=SIGNATURE))
        keys = write(client, [2, 3])
        with pytest.raises(
            InvalidArgumentError, match="must have the same shapes, but column obs is"
        ):
            client.fetch("table", keys)

    def test_items_are_padded_or_packed_as_in_a_sample(self, serve):
        client = serve(testing.table(signature=SIGNATURE))
        keys = write(client, [2, 4, 1])
        padded = client.fetch("table", keys, ragged="pad", pad={"obs": -1}, pad_to_multiple_of=3)
        assert padded.data[0].shape == (3, 6, 3)
        assert (padded.data[0][2, 1:] == -1).all()
        assert [it.tolist() for it in padded.lengths] == [[2, 4, 1], [1, 1, 1], [2, 4, 1]]
        packed = client.fetch("table", keys, ragged="packed", columns=["obs", "text"])
        assert [len(row) for row in packed.data[0].to_list()] == [2, 4, 1]

    def test_items_of_one_step_are_squeezed(self, client):
        squeezed = client.fetch("table", client.keys[:4], squeeze=True)
        assert squeezed.data[0].tolist() == [0, 1, 2, 3]
        with pytest.raises(InvalidArgumentError, match="give only one of them"):
            client.fetch("table", client.keys[:4], squeeze=True, ragged="pad")

    def test_a_batch_may_be_too_large(self, client):
        with pytest.raises(ResourceExhaustedError, match="max_batch_bytes"):
            client.fetch("table", client.keys, max_batch_bytes=100)


class TestNoItems:
    @pytest.mark.parametrize("keys", [[], [1, 2]])
    def test_columns_are_those_of_the_signature(self, serve, keys):
        client = serve(testing.table(signature=SIGNATURE))
        batch = client.fetch("table", keys, unpack_as_table_signature=True)
        shapes = {name: column.shape for name, column in batch.data.items()}
        assert shapes == {"obs": (0, 0, 3), "reward": (0,), "text": (0, 0)}
        dtypes = {name: column.dtype for name, column in batch.data.items()}
        assert dtypes == {"obs": np.float32, "reward": np.float64, "text": object}
        assert [len(field) for field in batch.info[:7]] == [0] * 7
        assert batch.info.key.dtype == np.uint64

    def test_other_forms_have_no_rows_either(self, serve):
        client = serve(testing.table(signature=SIGNATURE))
        padded = client.fetch("table", [1], ragged="pad", pad=-1, columns=["obs", "reward"])
        assert [column.shape for column in padded.data] == [(0, 0, 3), (0,)]
        assert [it.tolist() for it in padded.lengths] == [[], []]
        packed = client.fetch("table", [1], ragged="packed", columns=["obs", "reward"])
        assert packed.data[0].to_list() == []
        assert packed.data[0].values.shape == (0, 3)
        assert packed.data[1].shape == (0,)
        squeezed = client.fetch("table", [1], squeeze=True, columns=["obs", "reward"])
        assert [column.shape for column in squeezed.data] == [(0, 3), (0,)]

    def test_a_column_of_unknown_rank_has_one_dimension_more(self, serve):
        client = serve(testing.table(signature=[TensorSpec(None, np.int8)]))
        (column,) = client.fetch("table", [1]).data
        assert (column.shape, column.dtype) == ((0, 0), np.int8)

    def test_without_a_signature_there_are_no_columns(self, serve):
        client = serve(testing.table())
        batch = client.fetch("table", [5])
        assert batch.data == []
        assert len(batch.info.key) == 0


class TestEnds:
    @pytest.mark.parametrize("keys", [[], [1]])
    def test_an_unknown_table_is_named_with_those_there_are(self, serve, keys):
        client = serve(testing.table("one"))
        with pytest.raises(TableNotFoundError, match=r"three.*one"):
            client.fetch("three", keys)

    def test_a_server_that_starts_later_is_waited_for(self, start, connect, background):
        first = start(testing.table())
        client = connect(first)
        first.stop()
        call = background(lambda: client.fetch("table", [1]).info.key.tolist())
        start(testing.table(), port=first.port)
        assert call.result() == []

    @pytest.mark.parametrize("keys", [["a"], [1.5], None, "text"])
    def test_keys_are_integers(self, client, keys):
        with pytest.raises((TypeError, InvalidArgumentError), match="keys must"):
            client.fetch("table", keys)
