# SPDX-License-Identifier: Apache-2.0
"""Checkpoints whose files are in order and whose contents are not."""

import contextlib

import pytest

import reverb
from reverb import testing
from reverb.errors import ReverbError
from support.checkpoints import on_disk, tfrecords
from support.wire.messages import varint


def fails(serve, root, *tables):
    """The error of a server that cannot start; it names the checkpoint."""
    with pytest.raises(ReverbError) as caught:
        serve(root, *tables)
    assert str(root / "1") in str(caught.value)
    return caught.value


def rows_of(stored):
    """The rows of the second item."""
    return stored.items[1].flat_trajectory.columns[0].chunk_slices[0]


# Changes of a good checkpoint of items 1, 2, 3 that make it a bad one, and a word of the error.
BROKEN = {
    "an item of an unknown table": (lambda it: setattr(it.items[1], "table", "nope"), "nope"),
    "the same table twice": (lambda it: it.tables.append(it.tables[0]), "table"),
    "no column": (lambda it: it.items[1].flat_trajectory.Clear(), "2"),
    "an empty column": (lambda it: it.items[1].flat_trajectory.columns.add(), "2"),
    "rows behind the chunk": (lambda it: setattr(rows_of(it), "offset", 1), "2"),
    "negative rows": (lambda it: setattr(rows_of(it), "offset", -1), "2"),
    "a tensor that is not there": (lambda it: setattr(rows_of(it), "index", 1), "2"),
    "a priority of NaN": (lambda it: setattr(it.items[1], "priority", float("nan")), "2"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_the_error_names_the_checkpoint_and_what_is_wrong(serve, root, broken, values):
    stored = on_disk.simple([1, 2, 3])
    function, word = BROKEN[broken]
    function(stored)
    on_disk.write(root / "1", stored)
    error = fails(serve, root)
    assert word in str(error).replace(str(root), "")
    # Once it is out of the way, the server starts.
    (root / "1" / on_disk.DONE).unlink()
    assert values(serve(root)) == []


@pytest.mark.parametrize("name", on_disk.FILES)
def test_a_missing_file_is_named(serve, root, name):
    path = on_disk.write(root / "1", on_disk.simple([1]))
    (path / name).unlink()
    assert name in str(fails(serve, root))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_items_that_are_counted_and_not_there_are_missed(serve, root, count):
    stored = on_disk.simple([1, 2, 3])
    stored.items = stored.items[:count]
    on_disk.write(root / "1", stored, compressed=False)
    error = fails(serve, root)
    assert isinstance(error, reverb.errors.DataLossError)
    assert on_disk.ITEMS in str(error)


@pytest.mark.parametrize("name", on_disk.FILES)
def test_a_record_that_is_no_message_is_named(serve, root, name):
    path = on_disk.write(root / "1", on_disk.simple([1]))
    data = tfrecords.read_file(path / name)
    tfrecords.write_file(path / name, [*data, b"\xff\xff\xff"])
    error = fails(serve, root)
    assert isinstance(error, reverb.errors.DataLossError)
    assert name in str(error)


def test_a_table_that_is_nested_too_deep_is_named(serve, root):
    path = on_disk.write(root / "1", on_disk.simple([1]))
    (record,) = tfrecords.read_file(path / on_disk.TABLES)
    signature = b""
    for _ in range(20_000):
        for tag in (b"\x0a", b"\x9a\x03"):  # Fields `values` and `list_value`.
            signature = tag + varint(len(signature)) + signature
    signature = b"\x4a" + varint(len(signature)) + signature
    tfrecords.write_file(path / on_disk.TABLES, [record + signature])
    error = fails(serve, root)
    assert isinstance(error, reverb.errors.DataLossError)
    assert on_disk.TABLES in str(error)


# Inserts, samples, deletes; three items are there.
COUNTERS = [
    (0, 0, 0),
    (2, 0, 0),
    (10, 0, 0),
    (3, 0, 3),
    (3, 0, -5),
    (-1, 0, 0),
    (3, -7, 0),
    (3, 10**6, 0),
    (2**62, 0, 2**62 - 3),
    (2**63 - 1, 2**63 - 1, 2**63 - 1),
    (-(2**63), -(2**63), -(2**63)),
]


@pytest.mark.parametrize("counts", COUNTERS)
@pytest.mark.parametrize("num_items", [0, 3])
def test_counters_that_do_not_fit_neither_hang_nor_crash(
    try_to_serve, root, counts, num_items, values
):
    stored = on_disk.simple(range(1, num_items + 1), counters=counts)
    path = on_disk.write(root / "1", stored)
    client = try_to_serve(path)
    if client is None:
        return
    assert values(client) == list(range(1, num_items + 1))
    with contextlib.suppress(reverb.DeadlineExceededError):
        list(client.sample("table", 2, timeout_ms=50))
    client.reset("table")
    client.insert([9], {"table": 1.0})
    assert [int(steps[0].data[0]) for steps in client.sample("table", 1)] == [9]
    client.checkpoint()


@pytest.mark.parametrize("unique", [-1, 7, 2**63 - 1])
@pytest.mark.parametrize("deleted", [-1, 2**63 - 1])
def test_other_counters_may_be_anything(try_to_serve, root, unique, deleted):
    stored = on_disk.simple([1], num_unique_samples=unique, num_deleted_episodes=deleted)
    path = on_disk.write(root / "1", stored)
    client = try_to_serve(path)
    if client is None:
        return
    list(client.sample("table", 1))
    keys = [sample.info.key for sample in client.scan("table")]
    client.mutate_priorities("table", deletes=keys)
    client.checkpoint()


@pytest.mark.parametrize(
    "fields",
    [
        {"max_size": 0},
        {"max_size": -1},
        {"limiter": (0.0, 0.0, 1.0, 1)},
        {"limiter": (-1.0, 0.0, 1.0, 1)},
        {"limiter": (float("nan"), 0.0, 1.0, 1)},
        {"limiter": (1.0, 0.0, 1.0, 0)},
        {"sampler": {}},
        {"remover": {}},
        {"sampler": {"prioritized": {"priority_exponent": float("nan")}}},
    ],
    ids=str,
)
def test_stored_settings_that_cannot_be(serve, root, fields, values):
    path = on_disk.write(root / "1", on_disk.simple([], **fields))
    with pytest.raises(ReverbError) as caught:
        serve(root, testing.table(), restore_settings=True)
    assert str(path) in str(caught.value)
    # The settings of the code are good ones, and they win.
    assert values(serve(root)) == []
