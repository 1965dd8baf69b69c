# SPDX-License-Identifier: Apache-2.0
"""Columns of a signature are found by name, or by place with a warning, in every writer."""

import asyncio
import collections
import functools

import numpy as np
import pytest

import reverb
from reverb import errors, testing
from reverb.specs import TensorSpec
from support import one_step_items
from support.programs import run

NAMES = ("alpha", "beta", "gamma")
# The value of each column, by its name.
VALUES = dict(zip(NAMES, (1.0, 2.0, 3.0), strict=True))
SIGNATURE = {name: TensorSpec([None], np.float32) for name in NAMES}
Ordered = collections.namedtuple("Ordered", NAMES)
Shuffled = collections.namedtuple("Shuffled", ("gamma", "alpha", "beta"))
Partly = collections.namedtuple("Partly", ("delta", "beta", "alpha"))
Foreign = collections.namedtuple("Foreign", ("x", "y", "z"))


def value(name):
    return np.float32(VALUES.get(name, 9.0))


def step_of(kind):
    if kind is dict:
        return {name: value(name) for name in reversed(NAMES)}
    if kind is list:
        return [value(name) for name in NAMES]
    return kind(*(value(name) for name in kind._fields))


def trajectory_by_name(client, step):
    one_step_items.trajectory(client, step, match_names=True)


async def awaited_trajectory_by_name(client, step):
    await one_step_items.awaited_trajectory(client, step, match_names=True)


def in_a_program(write):
    """The way of an asyncio program."""

    @functools.wraps(write)
    def run(client, step):
        async def main():
            async with reverb.aio.Client(client.server_address) as made:
                await write(made, step)

        asyncio.run(main())

    return run


BY_PLACE = (
    one_step_items.insert,
    one_step_items.legacy,
    one_step_items.trajectory,
    one_step_items.patterns,
    in_a_program(one_step_items.awaited_insert),
    in_a_program(one_step_items.awaited_trajectory),
)
BY_NAME = (
    one_step_items.insert_batch,
    trajectory_by_name,
    one_step_items.batched,
    one_step_items.sequence,
    in_a_program(one_step_items.awaited_insert_batch),
    in_a_program(awaited_trajectory_by_name),
    in_a_program(one_step_items.awaited_batched),
    in_a_program(one_step_items.awaited_sequence),
)


def stored(client):
    """The value in each column of the signature, of one item."""
    samples = client.scan("table")
    data = next(iter(samples)).data
    return {name: float(column[0]) for name, column in zip(NAMES, data, strict=True)}


@pytest.fixture(scope="module")
def server():
    with testing.server([testing.table("table", signature=SIGNATURE)]) as made:
        yield made


@pytest.fixture
def client(server, reach):
    made = reach(server)
    made.reset("table")
    return made


@pytest.mark.parametrize("write", BY_PLACE + BY_NAME)
@pytest.mark.parametrize("kind", [dict, Ordered, list])
def test_the_same_names_and_no_names_keep_their_places(client, capfd, write, kind):
    write(reconnected(client), step_of(kind))
    assert stored(client) == VALUES
    assert name_warnings(capfd) == []


@pytest.mark.parametrize("write", BY_NAME)
def test_names_are_sorted_as_in_the_signature(client, write):
    for _ in range(2):
        write(client, step_of(Shuffled))
        assert stored(client) == VALUES


@pytest.mark.parametrize("write", BY_NAME)
@pytest.mark.parametrize("kind", [Partly, Foreign])
def test_other_names_are_an_error_with_both_lists(client, write, kind):
    with pytest.raises(errors.SignatureMismatchError) as caught:
        write(client, step_of(kind))
    text = str(caught.value)
    assert f"[{', '.join(kind._fields)}]" in text
    assert f"[{', '.join(NAMES)}]" in text
    assert client.server_info()["table"].current_size == 0


@pytest.mark.parametrize("write", BY_PLACE)
@pytest.mark.parametrize("kind", [Shuffled, Partly, Foreign])
def test_places_decide_with_a_warning_as_in_dm_reverb(client, capfd, write, kind):
    write(reconnected(client), step_of(kind))
    assert list(stored(client).values()) == list(step_of(kind))
    (line,) = name_warnings(capfd)
    for text in ("'table'", f"[{', '.join(kind._fields)}]", f"[{', '.join(NAMES)}]"):
        assert text in line
    first = next(name for name, own in zip(kind._fields, NAMES, strict=True) if name != own)
    assert f"so {first} is stored as {NAMES[kind._fields.index(first)]}" in line


def test_a_client_is_warned_once_for_each_table(capfd):
    tables = [testing.table(name, signature=SIGNATURE) for name in ("one", "two")]
    with testing.server(tables) as client:
        for _ in range(3):
            client.insert(step_of(Foreign), {"one": 1.0})
            client.insert(step_of(Foreign), {"two": 1.0, "one": 1.0})
    of_tables = [line.partition("Items of table ")[2][:5] for line in name_warnings(capfd)]
    assert sorted(of_tables) == ["'one'", "'two'"]


def test_nested_names_are_paths():
    signature = {
        "obs": {"left": TensorSpec([None], np.float32), "right": TensorSpec([None], np.float32)}
    }
    pair = collections.namedtuple("Pair", ("right", "left"))
    with testing.server([testing.table("table", signature=signature)]) as client:
        rows = {"obs": pair(np.float32([2]), np.float32([1]))}
        client.insert_batch(rows, {"table": 1.0})
        (sample,) = client.scan("table")
        assert [column.tolist() for column in sample.data] == [[1.0], [2.0]]
        # A tuple has no names below "obs", but "other" is no "obs".
        client.insert_batch({"obs": (np.float32([1]), np.float32([2]))}, {"table": 1.0})
        with pytest.raises(errors.SignatureMismatchError, match=r"\[other/0, other/1\]"):
            client.insert_batch({"other": (np.float32([1]), np.float32([2]))}, {"table": 1.0})


def test_a_column_that_is_wrong_is_the_one_that_is_named(client):
    wrong = step_of(dict) | {"beta": np.float64(2)}
    for write in BY_PLACE + BY_NAME:
        with pytest.raises(errors.SignatureMismatchError, match="column beta must have dtype"):
            write(client, wrong)


WITHOUT_BETA = {"alpha": np.float32(1), "gamma": np.float32(3)}
DIFFERENT = {
    "missing": (WITHOUT_BETA, "the trajectory lacks [beta]"),
    "more": (step_of(dict) | {"delta": np.float32(4)}, "the signature lacks [delta]"),
    "renamed, and more": (
        WITHOUT_BETA | {"betas": np.float32(2), "delta": np.float32(4)},
        "the signature lacks [betas, delta], and the trajectory lacks [beta]",
    ),
}


@pytest.mark.parametrize("write", BY_PLACE + BY_NAME)
@pytest.mark.parametrize(("step", "text"), DIFFERENT.values(), ids=DIFFERENT)
def test_a_missing_or_extra_column_is_named(client, write, step, text):
    with pytest.raises(errors.SignatureMismatchError) as caught:
        write(client, step)
    assert str(caught.value).endswith(
        f"the trajectory has {len(step)} columns but the table signature has 3: {text}."
    )
    assert client.server_info()["table"].current_size == 0


@pytest.mark.parametrize("write", BY_NAME)
def test_a_renamed_column_is_named(client, write):
    with pytest.raises(errors.SignatureMismatchError) as caught:
        write(client, WITHOUT_BETA | {"delta": np.float32(4)})
    text = "the signature lacks [delta], and the trajectory lacks [beta]. It has the columns ["
    assert text in str(caught.value)


def test_a_structured_item_unlike_the_signature_is_refused(client):
    step = step_of(dict) | {"beta": np.zeros(2, np.float32)}
    with pytest.raises(errors.SignatureMismatchError, match=r"beta must have .* shape \[\?\]"):
        one_step_items.patterns(client, step)
    assert client.server_info()["table"].current_size == 0


def reconnected(client):
    """Another client of the same server: each warns once."""
    return reverb.Client(client.server_address)


def name_warnings(capfd):
    return [line for line in capfd.readouterr().err.splitlines() if " WARN client: Items" in line]


@pytest.mark.parametrize("maker", ["trajectory_writer(4)", "batched_trajectory_writer(2, 4)"])
def test_a_key_may_read_the_writer_from_other_threads(maker):
    """A lock that is held while Python code of a key runs would stop both threads for good."""
    program = f"""
        import enum, threading
        import numpy as np, reverb
        from reverb import testing

        class Key(str, enum.Enum):
            OBSERVATION = "observation"

            def __repr__(self):
                reader = threading.Thread(target=lambda: read.append(writer.episode_steps))
                reader.start()
                reader.join()
                return "key"

        read = []
        with reverb.Server([testing.table("t")]) as server:
            writer = server.localhost_client().{maker}
            writer.append({{Key.OBSERVATION: np.zeros(2)}})
            writer.close()
        print(len(read) > 0)
    """
    assert run(program) == ["True"]
