# SPDX-License-Identifier: Apache-2.0
"""Errors of batches that one item spoils: they name the item."""

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb._client.joined_batches import joined
from reverb.errors import InvalidArgumentError


def fill(client, table, *, odd_at):
    """Writes items of `float32 [4]`, one of them with the values of `odd_at`; returns its key."""
    place, odd = odd_at
    for number in range(8):
        value = odd if number == place else np.zeros(4, np.float32)
        client.insert({"o": value}, {table: 1.0})
    keys = [sample.info.key for sample in client.scan(table)]
    return keys[place]


@pytest.mark.parametrize("place", [0, 5])
@pytest.mark.parametrize("ragged", ["error", "pad"])
def test_the_error_of_a_batch_names_the_odd_item(serve, place, ragged):
    client = serve(testing.table("t", sampler=reverb.selectors.Fifo(), max_size=20))
    key = fill(client, "t", odd_at=(place, np.zeros(4)))
    with pytest.raises(InvalidArgumentError) as caught:
        client.sample_batch("t", 8, ragged=ragged, distinct=True)
    shape = "[1,4]" if ragged == "error" else "[4]"
    assert f"float {shape}" in str(caught.value)
    assert str(caught.value).endswith(
        f"The item with key {key} has double {shape}, as 1 of 8 items. See "
        '"One item fails every batch" on the page of troubleshooting.'
    )


def test_a_queue_names_the_other_item_and_keeps_all(serve):
    client = serve(reverb.Table.queue("t", 20))
    key = fill(client, "t", odd_at=(3, np.zeros(5, np.float32)))
    with pytest.raises(InvalidArgumentError, match=rf"The other item has the key {key}\."):
        client.sample_batch("t", 8)
    assert client.server_info()["t"].current_size == 8


@pytest.mark.parametrize("ragged", ["error", "pad", "packed"])
def test_parts_of_a_batch_are_not_converted_to_one_dtype(serve, ragged):
    client = serve(testing.table("a"), testing.table("b"))
    for table, dtype in (("a", np.float32), ("b", np.float64)):
        client.insert([np.zeros(4, dtype)], {table: 1.0})
    parts = [client.sample_batch(table, 2, ragged=ragged) for table in ("a", "b")]
    with pytest.raises(InvalidArgumentError, match="must have the same shapes") as caught:
        joined(parts)
    for part in parts:
        assert f"key {part.info.key[0]}" in str(caught.value)
    assert "float32 [" in str(caught.value)
    assert "float64 [" in str(caught.value)
    assert len(caught.value.samples) == 4
