# SPDX-License-Identifier: Apache-2.0
"""Errors about columns: they name the column by its path in the table."""

import numpy as np
import pytest

import reverb
from reverb import aio, errors, testing
from reverb.specs import TensorSpec
from support.waiting import DEADLINE_S

SIGNATURE = {
    "a": TensorSpec([None], np.int64),
    "obs": {"flat": TensorSpec([None, None], np.float32), "image": TensorSpec(None, np.uint8)},
}
COLUMNS = [("obs", "image"), ("obs", "flat")]


def table(name="table", **options):
    return testing.table(name, **({"sampler": reverb.selectors.Shuffle()} | options))


def item(length, width=2, dtype=np.uint8):
    """Arrays of one item: images differ in dtype or size, and all columns in length."""
    return {
        "a": np.arange(3),
        "obs": {
            "flat": np.zeros((1, 2), np.float32),
            "image": np.zeros((length, width), dtype),
        },
    }


def fill(client, *items, name="table"):
    for one in items:
        client.insert_sequence(one, {name: 1.0})


LENGTHS = [item(1), item(2)]
WIDTHS = [item(1, 2), item(1, 3)]
CASES = {
    "error": (LENGTHS, {}, r"column obs/image is uint8 \[[12],2\] in one and"),
    "pad": (WIDTHS, {"ragged": "pad"}, r"a step of column obs/image is uint8 \[[23]\] in one"),
    "packed": (
        WIDTHS,
        {"ragged": "packed"},
        r"a step of column obs/image is uint8 \[[23]\] in one",
    ),
    "squeeze": (LENGTHS, {"squeeze": True}, "column obs/image has 1 to 2 steps"),
    "padding": (LENGTHS, {"ragged": "pad", "pad": [0.0, 300]}, "pad of column 'obs/image' must be"),
}


def check_text(client, keys, text, **options):
    """Every way to a batch names the column."""
    with pytest.raises(errors.InvalidArgumentError, match=text):
        client.sample_batch("table", 2, **options)
    with pytest.raises(errors.InvalidArgumentError, match=text):
        client.fetch("table", keys, **options)
    readers = [client.batches] if "ragged" in options else [client.batches, client.batch_sampler]
    for reader in readers:
        with (
            reader("table", 2, **options) as batches,
            pytest.raises(errors.InvalidArgumentError, match=text),
        ):
            next(batches)


@pytest.mark.parametrize("name", CASES)
def test_a_chosen_column_is_named(serve, name):
    items, options, text = CASES[name]
    client = serve(table(signature=SIGNATURE))
    fill(client, *items)
    keys = [sample.info.key for sample in client.scan("table")]
    check_text(client, keys, text, columns=COLUMNS, **options)


@pytest.mark.parametrize("name", CASES)
async def test_asyncio(serve, name):
    items, options, text = CASES[name]
    client = serve(table(signature=SIGNATURE))
    fill(client, *items)
    keys = [sample.info.key for sample in client.scan("table")]
    async with aio.Client(client.server_address) as twin:
        with pytest.raises(errors.InvalidArgumentError, match=text):
            await twin.sample_batch("table", 2, columns=COLUMNS, **options)
        with pytest.raises(errors.InvalidArgumentError, match=text):
            await twin.fetch("table", keys, columns=COLUMNS, **options)
        async with twin.batches("table", 2, columns=COLUMNS, **options) as batches:
            with pytest.raises(errors.InvalidArgumentError, match=text):
                await anext(batches)


# The first column is the first that does not fit.
OF_ALL = {name: CASES[name] for name in ("error", "pad", "packed")}
OF_ALL["squeeze"] = (LENGTHS, {"squeeze": True}, "column a has 3 steps in every item")


@pytest.mark.parametrize("name", OF_ALL)
def test_a_column_is_named_if_none_are_chosen(serve, name):
    items, options, text = OF_ALL[name]
    client = serve(table(signature=SIGNATURE))
    fill(client, *items)
    keys = [sample.info.key for sample in client.scan("table")]
    # A client that knows no signature yet, and one that does.
    for reader in (reverb.Client(client.server_address), client):
        check_text(reader, keys, text, **options)


def test_without_a_signature_the_position_is_that_in_the_table(serve):
    client = serve(table())
    fill(client, *LENGTHS)
    with pytest.raises(errors.InvalidArgumentError, match="but column 2 is uint8"):
        client.sample_batch("table", 2, columns=[2])
    with pytest.raises(errors.InvalidArgumentError, match="but column 2 has 1 to 2 steps"):
        client.sample_batch("table", 2, columns=[2], squeeze=True)


@pytest.mark.parametrize("options", [{}, {"distinct": True}], ids=["", "distinct"])
@pytest.mark.parametrize("columns", [None, COLUMNS], ids=["all", "chosen"])
def test_a_queue_names_the_columns_of_the_table(serve, columns, options):
    client = serve(table(signature=SIGNATURE, max_times_sampled=1))
    fill(client, *LENGTHS)
    # The server checks the items before it takes them, with all columns.
    with pytest.raises(errors.InvalidArgumentError, match="but column obs/image is uint8"):
        client.sample_batch("table", 2, columns=columns, **options)
    assert client.size("table") == 2


def test_a_queue_without_a_signature_counts_its_columns(serve):
    """Also those that are not chosen. The name of a chosen one stood for another one."""
    client = serve(table(max_times_sampled=1))
    for length in (1, 2):
        fill(client, [np.zeros(length), np.zeros(3), np.zeros(3)])
    for columns in (None, [1], [1, 2]):
        with pytest.raises(errors.InvalidArgumentError, match="but column 0 is double"):
            client.sample_batch("table", 2, columns=columns)
    assert client.size("table") == 2


def test_columns_without_a_common_window_are_named(serve):
    client = serve(table(signature=SIGNATURE, sampler=reverb.selectors.Uniform(), max_size=1))
    fill(client, item(2))
    text = r"Columns a \(3 steps\) and obs/flat \(1 steps\) of item"
    with pytest.raises(errors.InvalidArgumentError, match=text):
        client.sample_batch("table", 1, window=reverb.Window(1))


def test_a_column_without_a_path_keeps_its_position(serve):
    client = serve(table(signature=TensorSpec([None], np.int64), max_times_sampled=1))
    fill(client, np.arange(1), np.arange(2))
    with pytest.raises(errors.InvalidArgumentError, match="but column 0 is int64"):
        client.sample_batch("table", 2)


def test_a_group(start):
    uniform = reverb.selectors.Uniform
    servers = [start(table(signature=SIGNATURE, sampler=uniform())) for _ in range(2)]
    seeds = ",".join(f"127.0.0.1:{it.port}" for it in servers)
    client = reverb.Client(f"shards:///{seeds}", connect_timeout_s=DEADLINE_S)
    fill(client, *4 * [item(2)])
    text = "but column obs/image has 2 steps in every item"
    with pytest.raises(errors.InvalidArgumentError, match=text):
        client.sample_batch("table", 8, columns=COLUMNS, squeeze=True)


class TestSignaturesOfItems:
    """A step that is compared with a signature of items is shown as an item of one step."""

    @pytest.mark.parametrize(
        ("shape", "data", "text"),
        [
            (
                [None, 2],
                np.zeros((3, 2), np.float32),
                r"shape \[\?,2\], got dtype float and shape \[1,2\]\.",
            ),
            ([None], np.zeros(3, np.float32), r"shape \[\?\], got dtype float and shape \[1\]\."),
            ([1], np.zeros(3, np.float32), r"shape \[1\], got dtype float and shape \[1\]\."),
            (
                [None, 3],
                np.zeros((3, 2), np.int64),
                r"shape \[\?,3\], got dtype int64 and shape \[1,2\]\.",
            ),
            ([], np.zeros(3, np.float32), r"shape \[\], got dtype float and shape \[\]\."),
            ([2], np.zeros(3, np.int64), r"shape \[2\], got dtype int64 and shape \[\]\."),
            (None, np.zeros(3, np.float32), r"shape <unknown>, got dtype float and shape \[1\]\."),
        ],
        ids=str,
    )
    def test_rows(self, serve, shape, data, text):
        client = serve(testing.table("t", signature={"x": TensorSpec(shape, np.int64)}))
        text = "column x must have dtype int64 and " + text
        with pytest.raises(errors.SignatureMismatchError, match=text):
            client.insert_batch({"x": data}, {"t": 1.0})
        with pytest.raises(errors.SignatureMismatchError, match=text):
            client.insert({"x": data[0]}, {"t": 1.0})

    def test_sequences_of_a_signature_of_steps(self, serve):
        client = serve(testing.table("t", signature={"x": TensorSpec([2], np.int64)}))
        text = r"must have dtype int64 and shape \[2\], got dtype float and shape \[2\]\."
        with pytest.raises(errors.SignatureMismatchError, match=text):
            client.insert_sequence({"x": np.zeros((5, 2), np.float32)}, {"t": 1.0})
