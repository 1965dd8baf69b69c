# SPDX-License-Identifier: Apache-2.0
"""Batches of items of different lengths."""

import sys
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reverb
from reverb import testing
from reverb.errors import InvalidArgumentError
from support.hosts import HOSTS


def write(client, lengths, name="table", start=0):
    """Items of steps `(token, [x, x], one)`; the last is a single step without a length."""
    with client.trajectory_writer(max(lengths)) as writer:
        token = start
        for length in lengths:
            for _ in range(length):
                step = np.array([token, -token], np.float32)
                writer.append({"token": np.int32(token), "pair": step, "one": token})
                token += 1
            history = writer.history
            writer.create_item(
                name,
                1.0,
                {
                    "token": history["token"][-length:],
                    "pair": history["pair"][-length:],
                    "one": history["one"][-1],
                },
            )
        writer.flush()


def test_packed(serve):
    client = serve(testing.table(max_times_sampled=1))
    write(client, [3, 1, 2])
    batch = client.sample_batch("table", 3, ragged="packed")
    one, pair, token = batch.data
    assert one.tolist() == [2, 3, 5]
    assert isinstance(token, reverb.Ragged)
    assert token.values.tolist() == [0, 1, 2, 3, 4, 5]
    assert token.values.dtype == np.int32
    assert token.offsets.tolist() == [0, 3, 4, 6]
    assert token.offsets.dtype == np.int32
    assert token.offsets is pair.offsets
    assert (token.lengths.tolist(), token.max_length, len(token)) == ([3, 1, 2], 3, 3)
    assert [item.tolist() for item in token.to_list()] == [[0, 1, 2], [3], [4, 5]]
    assert token[-1].tolist() == [4, 5]
    with pytest.raises(IndexError):
        token[3]
    assert token.padded(-1).tolist() == [[0, 1, 2], [3, -1, -1], [4, 5, -1]]
    assert token.padded(to_multiple_of=4).shape == (3, 4)
    assert pair.values.shape == (6, 2)
    assert batch.lengths == ()


@pytest.mark.parametrize("dtype", [object, "S3", "U3"])
def test_texts_are_padded_with_empty_ones(dtype):
    texts = np.array(["a", "bc", "d"] if dtype == "U3" else [b"a", b"bc", b"d"], dtype)
    empty = "" if dtype == "U3" else b""
    padded = reverb.Ragged(texts, [0, 2, 3]).padded()
    assert padded.tolist() == [texts[:2].tolist(), [texts[2], empty]]
    assert padded.dtype == dtype


def test_pad_values_by_name(serve):
    client = serve(
        testing.table(
            signature={
                "token": reverb.specs.TensorSpec((None,), np.int32),
                "pair": reverb.specs.TensorSpec((None, 2), np.float32),
                "one": reverb.specs.TensorSpec((), np.int64),
            },
            max_times_sampled=1,
        )
    )
    write(client, [2, 1])
    options = {"ragged": "pad", "unpack_as_table_signature": True}
    batch = client.sample_batch("table", 2, pad={"token": -1}, **options)
    assert batch.data["token"].tolist() == [[0, 1], [2, -1]]
    assert batch.data["pair"][1].tolist() == [[2, -2], [0, 0]]
    assert batch.lengths["token"].tolist() == [2, 1]
    assert batch.lengths["one"].tolist() == [1, 1]
    write(client, [1, 2])
    out = {
        "token": np.full((2, 5), 7, np.int32),
        "pair": np.full((2, 5, 2), 7, np.float32),
        "one": np.zeros(2, np.int64),
    }
    client.sample_batch("table", 2, out=out, pad=9, ragged="pad")
    assert out["token"].tolist() == [[0, 9, 9, 9, 9], [1, 2, 9, 9, 9]]
    for pad, text in [
        ({"nope": 1}, "pad has 'nope', which is no column"),
        ({"token": 2**40}, "pad of column 'token' must be a value of int32"),
        ([1, 2], "pad must have a value for each of the 3 columns, got 2"),
    ]:
        with pytest.raises(InvalidArgumentError, match=text):
            client.sample_batch("table", 1, pad=pad, **options, timeout_ms=0)


def test_items_that_are_too_long_for_given_memory(serve):
    client = serve(testing.table(max_times_sampled=1))
    client.insert([np.arange(3)], {"table": 1.0})
    with client.trajectory_writer(2) as writer:
        for value in range(2):
            writer.append([np.full(3, value)])
        writer.create_item("table", 1.0, [writer.history[0][:]])
        writer.flush()
    out = [np.zeros((2, 1, 3), np.int64)]
    with pytest.raises(InvalidArgumentError) as caught:
        client.sample_batch("table", 2, out=out, ragged="pad")
    text = "out[0] must be int64 [2, 2, 3], C-contiguous and writable; got int64 [2, 1, 3]"
    assert str(caught.value) == text
    assert [len(sample.data[0]) for sample in caught.value.samples] == [1, 2]


def test_steps_must_be_alike(serve):
    client = serve(testing.table(max_times_sampled=1))
    client.insert([np.zeros(2)], {"table": 1.0})
    client.insert([np.zeros(3)], {"table": 1.0})
    with pytest.raises(InvalidArgumentError, match=r"step of column 0 is double \[2\]") as caught:
        client.sample_batch("table", 2, ragged="packed")
    assert len(caught.value.samples) == 2


def test_strings(serve):
    client = serve(testing.table())
    with client.trajectory_writer(2) as writer:
        for value in ("a", "b"):
            writer.append([value])
        writer.create_item("table", 1.0, [writer.history[0][:]])
        writer.create_item("table", 1.0, [writer.history[0][-1:]])
        writer.flush()
    keys = client.sample_batch("table", 2, ragged="packed", partial=False).data[0]
    assert keys.values.dtype == object
    padded = client.sample_batch("table", 2, ragged="pad", pad="-").data[0]
    assert padded.shape in [(2, 2), (2, 1)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ragged": "no"}, "ragged must be 'error', 'pad' or 'packed', got 'no'"),
        ({"pad": 1}, "pad is for ragged='pad', got 1 and ragged='error'"),
        ({"pad_to_multiple_of": 2}, "pad_to_multiple_of is for ragged='pad', got 2"),
        ({"ragged": "pad", "pad_to_multiple_of": 0}, "pad_to_multiple_of must be at least 1"),
    ],
)
def test_wrong_options(serve, options, text):
    client = serve(testing.table())
    with pytest.raises(InvalidArgumentError, match=text):
        client.sample_batch("table", 1, **options)


@pytest.fixture(scope="module")
def shared(path):
    with testing.server([testing.table(max_times_sampled=1, max_size=100_000)]) as made:
        yield reverb.Client(made.server_address.replace("127.0.0.1", HOSTS[path]))


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    multiple=st.integers(1, 5),
)
def test_all_forms_are_the_items_in_order(shared, lengths, multiple):
    """Packed is the concatenation of single samples, and padded is packed with zeros between."""
    shared.reset("table")
    for _ in range(3):
        write(shared, lengths)
    count = len(lengths)
    packed = shared.sample_batch("table", count, ragged="packed").data
    padded = shared.sample_batch("table", count, ragged="pad", pad_to_multiple_of=multiple)
    items = [sample.data for sample in shared.sample("table", count, emit_timesteps=False)]
    for column in (1, 2):
        single = np.concatenate([item[column] for item in items])
        np.testing.assert_array_equal(packed[column].values, single)
        assert packed[column].lengths.tolist() == lengths == padded.lengths[column].tolist()
        np.testing.assert_array_equal(
            padded.data[column], packed[column].padded(to_multiple_of=multiple)
        )
    assert packed[0].tolist() == [item[0] for item in items]


class TestRagged:
    def test_wrong_offsets(self):
        for offsets in ([1, 2], [0, 2, 1], [], [[0, 3]]):
            with pytest.raises(InvalidArgumentError, match="offsets must begin with 0"):
                reverb.Ragged(np.arange(3), offsets)
        with pytest.raises(InvalidArgumentError, match="the last offset must be the number"):
            reverb.Ragged(np.arange(3), [0, 2])

    def test_no_items(self):
        ragged = reverb.Ragged(np.zeros((0, 2)), [0])
        assert (len(ragged), ragged.max_length, ragged.padded().shape) == (0, 0, (0, 0, 2))
        assert "offsets=[0]" in repr(ragged)

    def test_a_nested_tensor_is_made_of_values_and_offsets(self, monkeypatch):
        """PyTorch is played by a stand-in."""
        made = types.SimpleNamespace(
            from_numpy=lambda values: ("tensor", values),
            nested=types.SimpleNamespace(
                nested_tensor_from_jagged=lambda *parts, **ends: (*parts, ends)
            ),
        )
        monkeypatch.setitem(sys.modules, "torch", made)
        ragged = reverb.Ragged(np.arange(3), [0, 2, 3])
        (_, values), (_, offsets), ends = ragged.torch_nested()
        assert ends == {"min_seqlen": 1, "max_seqlen": 2}
        assert values is ragged.values
        assert (offsets.dtype, offsets.tolist()) == (np.int64, [0, 2, 3])
