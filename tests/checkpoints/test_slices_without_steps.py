# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of items with slices without steps, which no server takes any more."""

import pytest

import reverb
from support.checkpoints import on_disk


def with_lengths(*lengths, make=lambda stored: stored):
    """A checkpoint of an item for each length of its only slice."""
    stored = on_disk.simple(range(len(lengths)))
    for item, length in zip(stored.items, lengths, strict=True):
        item.flat_trajectory.columns[0].chunk_slices[0].length = length
    return make(stored)


@pytest.mark.parametrize("make", [lambda it: it, on_disk.with_items_in_tables])
@pytest.mark.parametrize("length", [0, -1])
def test_are_loaded_without_them_and_the_log_says_so(serve, root, values, capfd, make, length):
    stored = with_lengths(1, length, 1, make=make)
    key = on_disk.simple(range(3)).items[1].key
    path = on_disk.write(root / "1", stored)
    client = serve(root)
    assert sorted(values(client)) == [0, 2]
    lines = [line for line in capfd.readouterr().err.splitlines() if "left out" in line]
    assert len(lines) == 1
    assert f"checkpoint {path}: item {key} is left out" in lines[0]
    assert f"length {length}" in lines[0]


def test_are_read_without_them_offline(root):
    path = on_disk.write(root / "1", with_lengths(1, 0, 1))
    items = list(reverb.checkpointers.read(str(path)).scan("table"))
    assert len(items) == 2


def test_other_damage_is_an_error_as_ever(root, try_to_serve):
    path = on_disk.write(root / "1", with_lengths(1, 2, 1))
    assert try_to_serve(path) is None
