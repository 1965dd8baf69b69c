# SPDX-License-Identifier: Apache-2.0
"""`insert_sequence`: columns `[T, ...]` become one item in each table."""

import numpy as np
import pytest

import reverb
from reverb import aio, errors, specs, testing
from support.waiting import DEADLINE_S

SIGNATURE = {
    "obs": specs.TensorSpec((None, 2), np.float32),
    "reward": specs.TensorSpec((None,), np.float64),
    "text": specs.TensorSpec((None,), str),
}
# The columns differ in their lengths.
EPISODE = {
    "obs": np.arange(12, dtype=np.float32).reshape(6, 2),
    "reward": np.arange(5.0),
    "text": np.array(["a", "bb"]),
}


def tables():
    steps = {"obs": specs.TensorSpec((2,), np.float32), "reward": specs.TensorSpec((), np.float64)}
    turned = [specs.TensorSpec((None,), np.float64), specs.TensorSpec((None, 2), np.float32)]
    turned = dict(zip(("reward", "obs"), turned, strict=True))
    return [
        reverb.Table.queue("episodes", 10, signature=SIGNATURE),
        reverb.Table.queue("others", 10, signature=SIGNATURE),
        reverb.Table.queue("steps", 10, signature=steps),
        reverb.Table.queue("turned", 10, signature=turned),
        reverb.Table.queue("free", 2),
        testing.table("removal", remover=reverb.selectors.MinHeap(), max_size=2),
    ]


@pytest.fixture
def client(serve):
    return serve(*tables())


def items(client, table):
    return list(client.scan(table, unpack_as_table_signature=True))


def check(item):
    np.testing.assert_array_equal(item.data["obs"], EPISODE["obs"])
    np.testing.assert_array_equal(item.data["reward"], EPISODE["reward"])
    assert item.data["text"].tolist() == [b"a", b"bb"]


def test_a_sequence_is_one_item_in_each_table(client):
    assert client.insert_sequence(EPISODE, {"episodes": 2.0, "others": 3.0}) is None
    for table, priority in {"episodes": 2.0, "others": 3.0}.items():
        (item,) = items(client, table)
        check(item)
        assert item.info.priority == priority
    assert client.size("free") == 0


async def test_the_same_of_a_coroutine(client):
    async with aio.Client(client.server_address, connect_timeout_s=DEADLINE_S) as awaited:
        await awaited.insert_sequence(EPISODE, {"episodes": 2.0, "others": 3.0})
        with pytest.raises(errors.SignatureMismatchError, match="column reward must have"):
            await awaited.insert_sequence(EPISODE | {"reward": np.zeros((5, 2))}, {"episodes": 1.0})
    for table in ("episodes", "others"):
        (item,) = items(client, table)
        check(item)


@pytest.mark.parametrize("kind", ["zeros", "noise"])
def test_long_columns_come_in_chunks(client, kind):
    shape = (700, 50, 40)
    noise = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    data = {
        "frames": noise if kind == "noise" else np.zeros(shape, np.uint8),
        "wide": np.full((3, 400_000), 7, np.uint8),
        "actions": np.arange(700),
        "texts": np.array([str(i) * 100 for i in range(700)]),
        "flag": np.array([True]),
    }
    client.insert_sequence(data, {"free": 1.0, "removal": 1.0})
    for table in ("free", "removal"):
        (item,) = items(client, table)
        actions, flag, frames, texts, wide = item.data
        np.testing.assert_array_equal(actions, data["actions"])
        np.testing.assert_array_equal(flag, data["flag"])
        np.testing.assert_array_equal(frames, data["frames"])
        np.testing.assert_array_equal(wide, data["wide"])
        assert [it.decode() for it in texts] == data["texts"].tolist()
    batch = client.sample_batch("free", 1)
    np.testing.assert_array_equal(batch.data[2][0], data["frames"])


def test_its_chunks_are_shared_by_the_tables(client):
    data = {"frames": np.random.default_rng(0).integers(0, 256, (100, 10_000), np.uint8)}
    client.insert_sequence(data, {"free": 1.0})
    alone = client.status().tables["free"].bytes
    client.reset("free")
    client.insert_sequence(data, {"free": 1.0, "removal": 1.0})
    status = client.status()
    assert status.tables["free"].bytes == alone
    assert status.memory.tables < 1.5 * alone


def test_the_signature_may_be_that_of_steps(client):
    data = {name: EPISODE[name] for name in ("obs", "reward")}
    client.insert_sequence(data, {"steps": 1.0})
    (item,) = items(client, "steps")
    np.testing.assert_array_equal(item.data["obs"], EPISODE["obs"])


def test_columns_are_matched_by_name(client):
    data = {name: EPISODE[name] for name in ("obs", "reward")}
    client.insert_sequence(data, {"turned": 1.0, "steps": 1.0})
    for table in ("turned", "steps"):
        (item,) = items(client, table)
        np.testing.assert_array_equal(item.data["obs"], EPISODE["obs"])
        np.testing.assert_array_equal(item.data["reward"], EPISODE["reward"])


BAD = {
    "shape": ({"obs": np.zeros((3, 4), np.float32)}, "column obs must have dtype float and shape"),
    "dtype": ({"reward": np.zeros(3, np.int32)}, "column reward must have dtype double and shape"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_a_signature_names_the_column(client, name):
    change, text = BAD[name]
    with pytest.raises(errors.SignatureMismatchError, match=text):
        client.insert_sequence(EPISODE | change, {"others": 1.0, "episodes": 1.0})
    assert client.size("episodes") == client.size("others") == 0


def test_names_and_numbers_of_columns_are_checked(client):
    with pytest.raises(
        errors.SignatureMismatchError, match="has 4 columns but the table signature has 3"
    ):
        client.insert_sequence(EPISODE | {"extra": np.zeros(3)}, {"episodes": 1.0})
    with pytest.raises(errors.SignatureMismatchError, match="1 columns"):
        client.insert_sequence([np.zeros((3, 2), np.float32)], {"episodes": 1.0})


@pytest.mark.parametrize("leaf", [1.0, np.zeros(()), np.zeros((0, 2), np.float32)])
def test_a_column_without_steps_is_named(client, leaf):
    text = r"column obs of a sequence must have shape \[T, \.\.\.\] with at least one step"
    with pytest.raises(errors.InvalidArgumentError, match=text):
        client.insert_sequence(EPISODE | {"obs": leaf}, {"episodes": 1.0})
    with pytest.raises(errors.InvalidArgumentError, match="column 1 of a sequence"):
        client.insert_sequence([np.zeros(2), leaf], {"free": 1.0})
    with pytest.raises(errors.InvalidArgumentError, match="column 0 of a sequence"):
        client.insert_sequence(leaf, {"free": 1.0})


def test_other_arguments_are_checked(client):
    with pytest.raises(errors.InvalidArgumentError, match="priorities must name at least one"):
        client.insert_sequence(EPISODE, {})
    with pytest.raises(errors.InvalidArgumentError, match="data must have at least one leaf"):
        client.insert_sequence({}, {"free": 1.0})
    with pytest.raises(errors.InvalidArgumentError, match="NaN"):
        client.insert_sequence(EPISODE, {"free": float("nan")})
    with pytest.raises(errors.TableNotFoundError, match="'no'"):
        client.insert_sequence(EPISODE, {"free": 1.0, "no": 1.0})
    with pytest.raises(errors.InvalidArgumentError, match="removal_priorities names table"):
        client.insert_sequence(EPISODE, {"free": 1.0}, removal_priorities={"episodes": 1.0})
    assert client.size("free") == 0


def test_removal_priorities(client):
    for number, removal in enumerate([5.0, 1.0, 7.0]):
        client.insert_sequence(
            [np.full(2, number)], {"removal": 1.0}, removal_priorities={"removal": removal}
        )
    assert [item.data[0].tolist() for item in client.scan("removal")] == [[0, 0], [2, 2]]


def test_a_slice_of_a_larger_array_is_a_column(client):
    whole = np.arange(40.0).reshape(10, 4)
    client.insert_sequence([whole[::2], whole[:, 1]], {"free": 1.0})
    (item,) = items(client, "free")
    np.testing.assert_array_equal(item.data[0], whole[::2])
    np.testing.assert_array_equal(item.data[1], whole[:, 1])


def test_sequences_of_a_group(start):
    servers = [start(*tables()) for _ in range(2)]
    seeds = ",".join(f"127.0.0.1:{it.port}" for it in servers)
    client = reverb.Client(f"shards:///{seeds}", connect_timeout_s=DEADLINE_S)
    for _ in range(8):
        client.insert_sequence(EPISODE, {"episodes": 1.0, "others": 1.0})
    for table in ("episodes", "others"):
        found = items(client, table)
        assert len(found) == 8
        for item in found:
            check(item)
