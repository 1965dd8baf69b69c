# SPDX-License-Identifier: Apache-2.0
"""Batches with many options at once, by every way to ask for them: each row is an item, whole.

Every value of an item follows from its number, so a row tells whether it is that item. What one
option does alone is in the tests of its own; here they meet.
"""

import asyncio
import itertools
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reverb
from reverb import aio, specs, testing
from support.hosts import IN_PROCESS, REMOTE

LENGTHS = [1, 5, 2, 7, 3, 3, 4, 6]
NUM_ITEMS = len(LENGTHS)
FIELDS = ("half", "info", "last", "text")
# Names that `columns` may have, and the columns that they stand for.
COLUMNS = {
    "half": ["half"],
    "info": ["info/pixel", "info/token"],
    ("info", "token"): ["info/token"],
    "last": ["last"],
    "text": ["text"],
}

# The default padding after shorter items.
PADS = {"half": 0, "info/pixel": 0, "info/token": 0, "last": 0, "text": b""}
OTHER_PADS = {"half": -1.5, "text": b"end"}


def step(number, at):
    """Step `at` of item `number`."""
    return {
        "half": np.float16(number + at / 8),
        "info": {
            "pixel": np.full((2, 3), number * 8 + at, np.uint8),
            "token": np.int32(number * 100 + at),
        },
        "last": np.int64(number),
        "text": f"{number}-{at}",
    }


def item(number, length):
    """Columns of an item by their names; `last` is its last step alone."""
    steps = [step(number, at) for at in range(length)]
    return {
        "half": np.stack([it["half"] for it in steps]),
        "info/pixel": np.stack([it["info"]["pixel"] for it in steps]),
        "info/token": np.stack([it["info"]["token"] for it in steps]),
        "last": steps[-1]["last"],
        "text": np.array([it["text"].encode() for it in steps], object),
    }


def spec(is_ragged):
    length = None if is_ragged else 3
    of_steps = lambda dtype, *shape: specs.TensorSpec([length, *shape], dtype)  # noqa: E731
    return {
        "half": of_steps(np.float16),
        "info": {"pixel": of_steps(np.uint8, 2, 3), "token": of_steps(np.int32)},
        "last": specs.TensorSpec([], np.int64),
        "text": of_steps(np.object_),
    }


def tables():
    return [
        testing.table("ragged", signature=spec(is_ragged=True)),
        testing.table("equal", signature=spec(is_ragged=False)),
        testing.table("other", signature=spec(is_ragged=False)),
    ]


def write(client, table, lengths):
    """Writes the items; returns number and length of each by its key."""
    written = {}
    for number, length in enumerate(lengths):
        with client.trajectory_writer(length) as writer:
            for at in range(length):
                writer.append(step(number, at))
            history = writer.history
            columns = {
                "half": history["half"][:],
                "info": {name: history["info"][name][:] for name in ("pixel", "token")},
                "last": history["last"][-1],
                "text": history["text"][:],
            }
            writer.create_item(table, 1.0 + number, columns)
    for sample in client.scan(table, unpack_as_table_signature=True):
        number = int(sample.data["last"])
        written[sample.info.key] = number, lengths[number]
    return written


@pytest.fixture(scope="module")
def served():
    """Addresses of servers with items, and number and length of each item by its key."""
    with (
        testing.server(tables()) as one,
        testing.server(tables()) as two,
    ):
        ports = [it.server_address.rpartition(":")[2] for it in (one, two)]
        plain = REMOTE.removeprefix("shards:///")
        group = f"shards:///{plain}:{ports[0]},{plain}:{ports[1]}"
        items = {}
        for client in (one, two):
            for table in ("ragged", "equal", "other"):
                lengths = LENGTHS if table == "ragged" else [3] * NUM_ITEMS
                items |= write(client, table, lengths)
        addresses = {
            "in process": f"{IN_PROCESS}:{ports[0]}",
            "TCP": f"{REMOTE}:{ports[0]}",
            "shards": group,
        }
        yield types.SimpleNamespace(addresses=addresses, items=items)


def by_call(client, address, table, size, options):
    """One call."""
    yield client.sample_batch(table, size, unpack_as_table_signature=True, **options)


def by_await(client, address, table, size, options):
    """One call of an asyncio program."""

    async def program():
        async with aio.Client(address) as own:
            return await own.sample_batch(table, size, unpack_as_table_signature=True, **options)

    yield asyncio.run(program())


def ahead(client, address, table, size, options):
    """Some batches of an iterator, asked for one after another."""
    with reverb.batches(client, table, size, **options) as iterator:
        yield from itertools.islice(iterator, 6)


def of_two_tables(client, address, table, size, options):
    """Batches with rows of two tables."""
    other = "other" if table == "equal" else "equal"
    with reverb.batches(client, {table: 2, other: 1}, size, seed=3, **options) as iterator:
        yield from itertools.islice(iterator, 3)


def into_given_memory(client, address, table, size, options):
    """Several batches into the memory of the first one."""
    out = client.sample_batch(table, size, unpack_as_table_signature=True, **options)
    for _ in range(3):
        yield client.sample_batch(table, size, out=out, unpack_as_table_signature=True, **options)


def into_memory_of_a_sampler(client, address, table, size, options):
    with client.batch_sampler(table, size, unpack_as_table_signature=True, **options) as batches:
        yield from itertools.islice(batches, 4)


ANY_LENGTH = [by_call, by_await, ahead, of_two_tables]
IN_GIVEN_MEMORY = [into_given_memory, into_memory_of_a_sampler]
EQUAL_LENGTHS = [*ANY_LENGTH, *IN_GIVEN_MEMORY]


def flat(data, prefix=""):
    """Columns by their names, without those that were not chosen."""
    columns = {}
    for name, value in data.items():
        if isinstance(value, dict):
            columns |= flat(value, f"{prefix}{name}/")
        elif value is not None:
            columns[f"{prefix}{name}"] = value
    return columns


def row_of(column, row, lengths, pad):
    """One item of a column, without padding, which is checked."""
    if isinstance(column, reverb.Ragged):
        return list(column)[row]
    values = column[row]
    if lengths is None:
        return values
    rest = values[lengths[row] :]
    assert np.array_equal(rest, np.full_like(rest, pad))
    return values[: lengths[row]]


def check(batch, size, items, options):
    """Each row is the item of its key, with the columns that were asked for."""
    keys = batch.info.key.tolist()
    assert len(keys) == size
    if options.get("distinct"):
        assert len(set(keys)) == size
    columns = flat(batch.data)
    chosen = options.get("columns") or list(FIELDS)
    assert set(columns) == {name for it in chosen for name in COLUMNS[it]}
    lengths = {} if batch.lengths == () else flat(batch.lengths)
    pads = PADS | options.get("pad", {})
    if lengths:
        assert lengths.keys() == columns.keys()
        assert {of.dtype for of in lengths.values()} == {np.dtype(np.int32)}
    if "last" in lengths:
        assert lengths.pop("last").tolist() == [1] * size
    for row, key in enumerate(keys):
        number, length = items[key]
        expected = item(number, length)
        for name, column in columns.items():
            found = row_of(column, row, lengths.get(name), pads[name])
            assert np.array_equal(found, expected[name]), (name, row, found, expected[name])
        assert batch.info.priority[row] == 1.0 + number
        assert 0 < batch.info.probability[row] <= 1
    multiple = options.get("pad_to_multiple_of", 1)
    assert {columns[name].shape[1] % multiple for name in lengths} <= {0}


@st.composite
def requests(draw):
    table = draw(st.sampled_from(["ragged", "equal"]))
    options = {}
    if table == "ragged":
        options["ragged"] = draw(st.sampled_from(["pad", "packed"]))
    else:
        options["ragged"] = draw(st.sampled_from(["error", "pad", "packed"]))
    way = draw(st.sampled_from(EQUAL_LENGTHS if options["ragged"] == "error" else ANY_LENGTH))
    if options["ragged"] == "pad" and draw(st.booleans()):
        options["pad_to_multiple_of"] = draw(st.sampled_from([1, 4, 8]))
    if options["ragged"] == "pad" and draw(st.booleans()):
        options["pad"] = OTHER_PADS
    # Strings cannot be written into given memory.
    if way in IN_GIVEN_MEMORY or draw(st.booleans()):
        some = [it for it in COLUMNS if way not in IN_GIVEN_MEMORY or it != "text"]
        options["columns"] = draw(
            st.lists(st.sampled_from(some), min_size=1, max_size=3, unique=True)
        )
    if draw(st.booleans()):
        options["distinct"] = True
    if way is into_memory_of_a_sampler:
        options.pop("ragged")
    if way is not into_memory_of_a_sampler and draw(st.booleans()):
        options["partial"] = draw(st.booleans())
    return way, table, options


@settings(max_examples=150)
@given(
    request=requests(),
    size=st.integers(1, NUM_ITEMS),
    address=st.sampled_from(["in process", "TCP", "shards"]),
)
def test_each_row_is_an_item(served, request, size, address):
    way, table, options = request
    address = served.addresses[address]
    client = reverb.Client(address)
    for batch in way(client, address, table, size, options):
        check(batch, size, served.items, options)
