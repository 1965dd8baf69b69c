# SPDX-License-Identifier: Apache-2.0
"""Constants in trajectories: numbers, texts and arrays that are in no history."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reverb
from reverb import aio, errors, testing
from reverb.specs import TensorSpec
from support.waiting import DEADLINE_S


def appended(writer, count=3):
    for step in range(count):
        writer.append({"obs": np.float32([step, -step])})
    return writer.history["obs"]


def only(client, table="t", count=1):
    """The data of the items of a table, in the order of insertion."""
    found = [sample.data for sample in client.scan(table)]
    assert len(found) == count
    return found if count > 1 else found[0]


CONSTANTS = {
    "int": (3, np.int64(3)),
    "negative": (-(2**63), np.int64(-(2**63))),
    "large": (2**63, np.uint64(2**63)),
    "float": (0.1, np.float64(0.1)),
    "bool": (True, np.bool_(True)),
    "complex": (1 + 2j, np.complex128(1 + 2j)),
    "scalar": (np.int8(-3), np.int8(-3)),
    "array": (np.arange(6, dtype=np.int16).reshape(2, 3), np.arange(6).reshape(2, 3)),
    "empty": (np.zeros((0, 2), np.float32), np.zeros((0, 2))),
    "not contiguous": (np.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T),
    "large array": (np.arange(40_000.0), np.arange(40_000.0)),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_is_one_step(serve, name):
    value, expected = CONSTANTS[name]
    client = serve(testing.table("t"))
    with client.trajectory_writer(3) as writer:
        history = appended(writer)
        writer.create_item("t", 1.0, {"a": value, "obs": history[-2:], "z": value})
    for at in (0, 2):
        found = only(client)[at]
        assert found.shape == np.shape(value)
        assert found.dtype == np.asarray(value).dtype
        np.testing.assert_array_equal(found, expected)
        batch = client.sample_batch("t", 2).data[at]
        np.testing.assert_array_equal(batch, [expected, expected])
    np.testing.assert_array_equal(only(client)[1], [[1, -1], [2, -2]])


def test_texts(serve):
    client = serve(testing.table("t"))
    with client.trajectory_writer(3) as writer:
        history = appended(writer)
        texts = np.array(["x", "longer"])
        writer.create_item("t", 1.0, {"a": "näh", "b": b"\0\1\0", "c": texts, "obs": history[-1]})
    data = only(client)
    assert [it.tolist() for it in data[:3]] == ["näh".encode(), b"\0\1\0", [b"x", b"longer"]]


def test_a_nest_may_hold_any_number_of_them(serve):
    client = serve(testing.table("t"))
    with client.trajectory_writer(3) as writer:
        history = appended(writer)
        for version in range(3):
            trajectory = {"v": (version, [version + 0.5, {"deep": "x"}]), "obs": history[-1:]}
            writer.create_item("t", 1.0, trajectory)
        writer.create_item("t", 1.0, {"only": 7})
    *items, alone = only(client, count=4)
    assert [[it.tolist() for it in item] for item in items] == [
        [[[2, -2]], version, version + 0.5, b"x"] for version in range(3)
    ]
    assert [it.tolist() for it in alone] == [7]


def test_constants_belong_to_the_episode(serve):
    client = serve(testing.table("t"))
    with client.trajectory_writer(3) as writer:
        for episodes in range(1, 4):
            writer.create_item("t", 1.0, {"obs": appended(writer)[-1:], "version": 3})
            writer.end_episode()
            assert client.server_info()["t"].num_episodes == episodes


def signed(dtype, shape=(), name="t"):
    return testing.table(
        name,
        signature={
            "obs": TensorSpec([None, 2], np.float32, "obs"),
            "version": TensorSpec(shape, dtype),
        },
    )


FITTING = [
    (np.int8, -128),
    (np.uint8, 255),
    (np.int16, -1),
    (np.uint16, 2**16 - 1),
    (np.int32, 2**31 - 1),
    (np.uint32, 2**32 - 1),
    (np.int64, -1),
    (np.uint64, 2**64 - 1),
    (np.float32, 2**24),
    (np.float32, 0.1),
    (np.float32, float("inf")),
    (np.float16, 0.1),
    (np.float64, 2**53),
    (np.float64, 0.1),
    (np.bool_, False),
]


@pytest.mark.parametrize(("dtype", "value"), FITTING)
def test_a_number_takes_the_dtype_of_the_signature(serve, dtype, value):
    client = serve(signed(dtype))
    with client.trajectory_writer(3) as writer:
        history = appended(writer)
        writer.create_item("t", 1.0, {"obs": history[-2:], "version": value})
    found = only(client)[1]
    assert found.dtype == dtype
    assert found == dtype(value)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (np.int8, 128),
        (np.uint8, -1),
        (np.int32, 2**31),
        (np.uint64, -1),
        (np.float32, 2**24 + 1),
        (np.float64, 2**53 + 1),
        (np.float32, 1e39),
        (np.int64, 1.0),
        (np.int64, True),
        (np.bool_, 1),
        (np.int32, np.int64(1)),
        (np.float32, np.float64(0.5)),
        (np.str_, 1),
        (np.int64, "1"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(serve, dtype, value):
    client = serve(signed(dtype))
    with client.trajectory_writer(3) as writer:
        history = appended(writer)
        with pytest.raises(errors.SignatureMismatchError, match="column version must have dtype"):
            writer.create_item("t", 1.0, {"obs": history[-2:], "version": value})
        with pytest.raises(errors.SignatureMismatchError, match="and shape"):
            writer.create_item("t", 1.0, {"obs": history[-2:], "version": np.zeros(3, dtype)})
    assert list(client.scan("t")) == []


def test_without_validation_numbers_keep_their_dtype(serve):
    client = serve(testing.table("t"))
    with client.trajectory_writer(3, validate_items=False) as writer:
        writer.create_item("t", 1.0, {"obs": appended(writer)[-1:], "version": 3})
    assert only(client)[1].dtype == np.int64


def test_columns_in_another_order_are_matched_by_name(serve):
    signature = {"b": TensorSpec([], np.uint8), "a": TensorSpec([None, 2], np.float32)}
    client = serve(testing.table("t", signature=[signature["b"], signature["a"]]))
    named = serve(testing.table("t", signature=signature))
    for target, options in ((client, {}), (named, {"match_names": True})):
        with target.trajectory_writer(3, **options) as writer:
            history = appended(writer)
            nest = [5, history[-2:]] if target is client else {"b": 5, "a": history[-2:]}
            writer.create_item("t", 1.0, nest)
        data = only(target)
        at = 0 if target is client else 1
        assert (data[at].dtype, data[at].tolist()) == (np.uint8, 5)


def test_an_error_queues_nothing(serve):
    client = serve(testing.table("t"))
    with client.trajectory_writer(3) as writer:
        history = appended(writer)
        for bad in (object(), None, history, 2**70, np.datetime64("2020-01-01"), {1, 2}):
            with pytest.raises(TypeError):
                writer.create_item("t", 1.0, {"obs": history[-1:], "version": bad})
        with pytest.raises(errors.InvalidArgumentError, match="NaN"):
            writer.create_item("t", float("nan"), {"version": 3})
    assert list(client.scan("t")) == []


def test_a_group(start):
    servers = [start(testing.table("t")) for _ in range(2)]
    seeds = ",".join(f"127.0.0.1:{it.port}" for it in servers)
    client = reverb.Client(f"shards:///{seeds}", connect_timeout_s=DEADLINE_S)
    for version in range(4):
        with client.trajectory_writer(3) as writer:
            writer.create_item("t", 1.0, {"obs": appended(writer)[-2:], "version": version})
    assert sorted(int(sample.data[1]) for sample in client.scan("t")) == [0, 1, 2, 3]


async def test_asyncio(serve):
    client = serve(testing.table("t"))
    async with aio.Client(client.server_address) as twin:
        async with twin.trajectory_writer(3) as writer:
            history = appended(writer)
            await writer.create_item("t", 1.0, {"obs": history[-2:], "version": 3})
            with pytest.raises(TypeError, match="or constants"):
                await writer.create_item("t", 1.0, {"version": object()})
        async with twin.batched_trajectory_writer(2, 3) as writer:
            writer.append({"obs": np.zeros((2, 2))})
            columns = {"obs": writer.history["obs"][-1:], "version": 4}
            assert await writer.create_items("t", 1.0, columns) == 2
    assert [int(item[1]) for item in only(client, count=3)] == [3, 4, 4]


def batched(client, count=3, **options):
    writer = client.batched_trajectory_writer(3, 4, **options)
    for step in range(count):
        writer.append({"obs": np.float32([[step, env] for env in range(3)])})
    return writer


def test_one_value_for_all_environments(serve):
    client = serve(
        testing.table(
            "t",
            signature={"obs": TensorSpec([2, 2], np.float32), "version": TensorSpec([], np.int32)},
        )
    )
    with batched(client) as writer:
        for version in range(2):
            columns = {"version": version, "obs": writer.history["obs"][-2:]}
            assert writer.create_items("t", 1.0, columns) == 3
    found = only(client, count=6)
    assert [item[1].tolist() for item in found] == [0, 0, 0, 1, 1, 1]
    assert {item[1].dtype for item in found} == {np.dtype(np.int32)}
    assert [item[0].tolist() for item in found] == 2 * [[[1, e], [2, e]] for e in range(3)]


def test_a_row_for_each_environment(serve):
    client = serve(testing.table("t"))
    with batched(client) as writer:
        rows = np.arange(6).reshape(3, 2)
        columns = {"a": rows, "obs": writer.history["obs"][-1], "t": np.array(["x", "y", "z"])}
        writer.create_items("t", 1.0, columns)
        writer.create_items("t", 1.0, columns, where=[False, True, False])
    found = [[it.tolist() for it in item] for item in only(client, count=4)]
    expected = [[[2 * e, 2 * e + 1], [2, e], b"xyz"[e : e + 1]] for e in range(3)]
    assert found == [*expected, expected[1]]


def test_an_environment_without_steps_has_no_item(serve):
    client = serve(testing.table("t"))
    with batched(client, 1) as writer:
        writer.append({"obs": np.zeros((3, 2), np.float32)}, where=[True, False, True])
        columns = {"obs": writer.history["obs"][-2:], "version": "x"}
        assert writer.create_items("t", 1.0, columns) == 2
        text = "column version must be one value for all environments, or have a row for each"
        with pytest.raises(errors.InvalidArgumentError, match=text):
            writer.create_items("t", 1.0, columns | {"version": np.zeros(2)})
    assert [item[1].tolist() for item in only(client, count=2)] == [b"x", b"x"]


@settings(max_examples=30)
@given(st.data())
def test_random_items(data):
    """Whatever columns and constants follow each other, each item has its own values."""
    with testing.server([testing.table("t", max_size=1000)]) as client:
        expected = []
        with client.trajectory_writer(4) as writer:
            for step in range(data.draw(st.integers(1, 6))):
                writer.append({"x": np.int32(step), "y": np.full(300, step, np.uint8)})
                for _ in range(data.draw(st.integers(0, 3))):
                    constant = data.draw(st.sampled_from([1, 2, 0.5, b"a", np.arange(3)]))
                    order = data.draw(st.permutations(["x", "y", "constant"]))
                    values = {
                        "x": (writer.history["x"][-1], np.int32(step)),
                        "y": (writer.history["y"][-1:], np.full((1, 300), step, np.uint8)),
                        "constant": (constant, constant),
                    }
                    writer.create_item("t", 1.0, [values[name][0] for name in order])
                    expected.append([values[name][1] for name in order])
                if data.draw(st.booleans()):
                    writer.end_episode(clear_buffers=data.draw(st.booleans()))
                    writer.append({"x": np.int32(-1), "y": np.zeros(300, np.uint8)})
        found = [sample.data for sample in client.scan("t")]
        assert len(found) == len(expected)
        for item, wanted in zip(found, expected, strict=True):
            for column, value in zip(item, wanted, strict=True):
                np.testing.assert_array_equal(column, value)
