# SPDX-License-Identifier: Apache-2.0
"""Batches of items with rollouts: their columns, parts of them, and micro-batches."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reverb
from support.rollout_tables import info, prompt, ready, rollout, table

LENGTHS = st.lists(st.integers(0, 50), max_size=30)


@given(lengths=LENGTHS, parts=st.integers(1, 6), cost=st.sampled_from(["tokens", "squared"]))
def test_parts_are_about_equal(lengths, parts, cost):
    found = reverb.split_balanced(lengths, parts=parts, cost=cost)
    assert len(found) == parts
    assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
    costs = np.array(lengths, np.int64) ** (2 if cost == "squared" else 1)
    sums = [costs[part].sum() for part in found]
    # Graham's bound, with the best possible part from below.
    best = max(costs.sum() / parts, costs.max(initial=0))
    assert max(sums) <= costs.sum() / parts + (1 - 1 / parts) * costs.max(initial=0)
    assert max(sums) <= 2 * best
    for part in found:
        assert sorted(costs[part], reverse=True) == costs[part].tolist()


@given(lengths=LENGTHS, max_tokens=st.integers(50, 90))
def test_no_part_has_more_than_max_tokens(lengths, max_tokens):
    found = reverb.split_balanced(lengths, max_tokens=max_tokens)
    assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
    sums = [np.array(lengths, np.int64)[part].sum() for part in found]
    assert max(sums) <= max_tokens


def test_a_batch_can_be_pickled_and_selected(served):
    client = served(2)
    ready(client, *"abc")
    batch = pickle.loads(pickle.dumps(client.take("train", 3)))
    for chosen in ([2, 0], slice(1, None), np.array([1]), np.array([True, False, True])):
        part, names = batch.select(chosen), np.array(batch.name)[chosen].tolist()
        assert (part.name, len(part)) == (names, len(names))
        assert part.item.tolist() == np.repeat(np.arange(len(names)), 2).tolist()
        assert part.info.key.tolist() == batch.info.key[chosen].tolist()
        assert len(part.data["tokens"]) == len(part.data["score"]) == 2 * len(names)
        assert len(part.data["prompt"]) == len(names)
    assert len(batch.select([])) == 0


SCORES = [
    [1.0, 2.0],
    (1, 2),
    [np.float64(1), np.int64(2)],
    [np.array(1.0, np.float32), 2.0],
    np.array([1.0, 2.0]),
    np.array([1, 2]),
    np.array([1, 2], np.float16),
    np.float32([1, 2]),
]


@pytest.mark.parametrize("scores", SCORES, ids=range(len(SCORES)))
def test_scalars_of_all_kinds_are_a_late_column(served, scores):
    client = served(1)
    for name in "ab":
        client.insert_item("train", prompt(0), [{"tokens": [1, 2]}], name=name)
    batch = client.take("train", 2, lacks="score")
    assert client.extend(batch, {"score": scores}).tolist() == [True, True]
    data = client.take("train", 2).data["score"]
    assert (data.dtype, data.tolist()) == (np.float32, [1, 2])


@pytest.mark.parametrize("score", [1, 1.0, True, np.float64(1), np.int64(1), np.float16(1)])
def test_scalars_of_all_kinds_are_a_column_of_a_rollout(served, score):
    client = served(1)
    client.insert_item("train", prompt(0), [{"tokens": [1, 2], "score": score}])
    assert client.take("train", 1).data["score"].tolist() == [1]


def test_a_scalar_of_another_kind_is_refused(serve):
    signature = {"count": reverb.specs.TensorSpec([], np.int32)}
    client = serve(reverb.Table.rollouts("train", 1, signature, item=()))
    for count in (np.int8(5), np.int64(-3), np.uint64(7)):
        client.insert_item("train", {}, [{"count": count}])
        assert client.take("train", 1, ack=True).data["count"].tolist() == [count]
    for odd in (np.float64(1.0), np.int64(2**40), np.complex64(1)):
        with pytest.raises(reverb.errors.SignatureMismatchError):
            client.insert_item("train", {}, [{"count": odd}])


def test_another_process_may_ack_a_pickled_batch(two):
    client, other = two(1)
    ready(client, *"ab", num_rollouts=1)
    batch = client.take("train", 2)
    assert other.ack(pickle.loads(pickle.dumps(batch))).tolist() == []
    assert client.size("train") == 0


def test_items_of_different_columns_have_those_that_all_have(serve):
    spec = reverb.specs.TensorSpec
    names = ("prompt", "tokens", "score", "reward")
    client = serve(reverb.Table.rollouts("train", 1, {it: spec([], np.float32) for it in names}))
    one = np.float32(1)
    for name, more in (("a", {}), ("b", {"score": one})):
        client.insert_item("train", {"prompt": one}, [{"tokens": one, **more}], name=name)
    batch = client.take("train", 2, lacks="reward")
    assert sorted(batch.data) == ["prompt", "tokens"]
    assert client.fetch_rollouts(batch.select([1])).data["score"].tolist() == [1]
    assert client.extend(batch, {"score": np.float32([5, 6]), "reward": np.float32([7, 8])}).all()
    taken = client.take("train", 2)
    assert taken.data["score"].tolist() == [5, 1]
    assert taken.data["reward"].tolist() == [7, 8]


@pytest.mark.parametrize("kind", ["ragged", "list"])
def test_a_late_column_may_have_a_value_for_each_step(serve, kind):
    spec = reverb.specs.TensorSpec
    signature = {it: spec([None], np.float32) for it in ("prompt", "tokens", "logprobs")}
    client = serve(reverb.Table.rollouts("train", 2, signature))
    tokens = [np.float32([1, 2]), np.float32([3])]
    client.insert_item("train", {"prompt": tokens[0]}, [{"tokens": it} for it in tokens])
    batch = client.take("train", 1, lacks="logprobs")
    late = batch.data["tokens"] if kind == "ragged" else [-row for row in tokens]
    assert client.extend(batch, {"logprobs": late}).tolist() == [True]
    found = client.take("train", 1).data["logprobs"].to_list()
    expected = tokens if kind == "ragged" else [-row for row in tokens]
    assert [row.tolist() for row in found] == [row.tolist() for row in expected]


DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
DTYPES += ["float16", "float32", "float64", "complex64", "complex128"]


def test_values_of_all_dtypes_come_back_byte_for_byte(serve):
    spec = reverb.specs.TensorSpec
    rng = np.random.default_rng(0)
    signature = {f"x_{it}": spec([None, 3], it) for it in DTYPES}
    signature |= {f"prompt_{it}": spec([2], it) for it in DTYPES}
    prompts = [it for it in signature if it.startswith("prompt")]
    client = serve(reverb.Table.rollouts("train", 2, signature, item=prompts))

    def values(shape, dtype):
        size = np.dtype(dtype).itemsize * int(np.prod(shape))
        raw = np.frombuffer(rng.bytes(size), np.uint8)
        return (
            (raw % 2).astype(bool).reshape(shape)
            if dtype == "bool"
            else raw.view(dtype).reshape(shape)
        )

    data = {it: values((2,), it.removeprefix("prompt_")) for it in prompts}
    made = [{f"x_{it}": values((length, 3), it) for it in DTYPES} for length in (2, 5)]
    client.insert_item("train", data, name="a")
    with client.open_item("train") as item:
        assert {it: item.data[it].tobytes() for it in prompts} == {
            it: data[it].tobytes() for it in prompts
        }
        for columns in made:
            client.add_rollout(item, columns)
    batch = client.take("train", 1)
    for it in prompts:
        assert batch.data[it].dtype == data[it].dtype
        assert batch.data[it][0].tobytes() == data[it].tobytes()
    for name in made[0]:
        rows = batch.data[name].to_list()
        assert [row.tobytes() for row in rows] == [columns[name].tobytes() for columns in made]


def test_large_rollouts_do_not_wait_for_a_full_table(serve, background):
    client = serve(table(2, max_bytes="1MiB"))
    for name in "ab":
        client.insert_item("train", prompt(0), name=name)
    noise = np.random.default_rng(0).integers(0, 2**31, 100_000, np.int32)
    for _ in range(2):
        with client.open_item("train") as item:
            for _ in range(2):
                assert client.add_rollout(item, {"tokens": noise, "score": np.float32(1)})
    waiting = background(client.insert_item, "train", prompt(0), name="c")
    batch = client.take("train", 2)
    assert batch.length.tolist() == [100_000] * 4
    assert waiting.running
    client.ack(batch)
    assert waiting.result()
    assert info(client).open == 1


def test_a_rollout_may_have_many_sequences(served):
    client = served(2)
    rows = [rollout(number, length=1) for number in range(500)]
    client.insert_item("train", prompt(0), [rows, rollout(7)], name="a")
    batch = client.take("train", 1)
    assert batch.rollout.tolist() == [0] * 500 + [1]
    assert batch.data["score"].tolist() == [*range(500), 7]
