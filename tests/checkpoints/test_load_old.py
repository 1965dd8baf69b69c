# SPDX-License-Identifier: Apache-2.0
"""The layouts that early releases of dm-reverb wrote."""

import numpy as np
import pytest

from reverb.errors import ReverbError
from support.checkpoints import chunk_tensors, on_disk

both = pytest.mark.parametrize("compressed", [True, False], ids=["compressed", "uncompressed"])


@both
def test_items_in_the_records_of_their_tables(serve, root, values, state, compressed):
    new = on_disk.simple([5, 6, 7])
    new.items[1].times_sampled = 3
    new.items[1].priority = 0.25
    on_disk.write(root / "1", on_disk.with_items_in_tables(new), compressed=compressed)
    on_disk.write(root.parent / "new" / "1", new)
    client = serve(root)
    assert values(client) == [5, 6, 7]
    assert state(client) == state(serve(root.parent / "new"))


def test_items_in_both_places_are_an_error(serve, root):
    stored = on_disk.with_items_in_tables(on_disk.simple([1]))
    stored.items = on_disk.simple([2]).items
    stored.chunks += on_disk.simple([2]).chunks
    path = on_disk.write(root / "1", stored)
    with pytest.raises(ReverbError) as caught:
        serve(root)
    assert str(path) in str(caught.value)


@both
def test_tensors_in_their_old_field(serve, root, values, compressed):
    stored = on_disk.with_old_chunks(on_disk.simple([5, 6]))
    on_disk.write(root / "1", stored, compressed=compressed)
    client = serve(root)
    assert values(client) == [5, 6]
    # A new save uses the new field, which is the only one that clients read.
    saved = on_disk.read(client.checkpoint())
    assert [saved.columns(item)[0].tolist() for item in saved.items] == [[5], [6]]
    assert not any(chunk.deprecated_data for chunk in saved.chunks)


def test_tensors_in_both_fields_are_an_error(serve, root):
    stored = on_disk.simple([1])
    stored.chunks[0].deprecated_data.extend(stored.chunks[0].data.tensors)
    path = on_disk.write(root / "1", stored)
    with pytest.raises(ReverbError) as caught:
        serve(root)
    assert str(path) in str(caught.value)


def steps_chunk(key, start, count):
    """A chunk of two columns, as the legacy writer makes them."""
    numbers = np.arange(start, start + count, dtype=np.int64)
    pairs = np.stack([numbers, -numbers], 1).astype(np.float32)
    return chunk_tensors.chunk(key, [numbers, pairs], episode=9, start=start)


@both
@pytest.mark.parametrize("old_field", [False, True], ids=["data", "deprecated_data"])
@pytest.mark.parametrize("explicit_length", [True, False], ids=["data_tensors_len", "counted"])
def test_items_that_list_chunks(serve, root, compressed, old_field, explicit_length):
    chunks = [steps_chunk(11, 0, 4), steps_chunk(12, 4, 4), steps_chunk(13, 8, 2)]
    items = [
        on_disk.old_item(1, [11], 0, 4),
        on_disk.old_item(2, [11, 12], 2, 4),
        on_disk.old_item(3, [11, 12, 13], 3, 7),
        on_disk.old_item(4, [12], 1, 1),
    ]
    if not explicit_length:
        for chunk in chunks:
            chunk.ClearField("data_tensors_len")
    stored = on_disk.Stored([on_disk.table_record(counters=(4, 0, 0))], items, chunks)
    if old_field:
        stored = on_disk.with_old_chunks(stored)
    on_disk.write(root / "1", on_disk.with_items_in_tables(stored), compressed=compressed)
    client = serve(root)
    expected = [range(4), range(2, 6), range(3, 10), range(5, 6)]
    for sample, steps in zip(client.scan("table"), expected, strict=True):
        numbers, pairs = sample.data
        assert numbers.tolist() == list(steps)
        assert pairs.tolist() == [[step, -step] for step in steps]
    (first, *_) = client.sample("table", 1, emit_timesteps=True)
    assert len(first) == 4


def test_old_items_are_saved_in_the_new_form(serve, root, state):
    chunks = [steps_chunk(11, 0, 4), steps_chunk(12, 4, 4)]
    record = on_disk.table_record(counters=(1, 0, 0))
    on_disk.write(
        root / "1", on_disk.Stored([record], [on_disk.old_item(1, [11, 12], 3, 3)], chunks)
    )
    client = serve(root)
    saved = on_disk.read(client.checkpoint())
    (item,) = saved.items
    assert not item.deprecated_chunk_keys
    assert not item.HasField("deprecated_sequence_range")
    assert saved.columns(item)[0].tolist() == [3, 4, 5]
    before = state(client)
    client.server.stop()
    assert state(serve(root)) == before


def broken_old_items():
    in_both_forms = on_disk.old_item(1, [11], 0, 1)
    in_both_forms.flat_trajectory.columns.add().chunk_slices.add(chunk_key=11, length=1)
    return {
        "both forms": in_both_forms,
        "no chunk": on_disk.old_item(1, [], 0, 1),
        "a missing chunk": on_disk.old_item(1, [11, 99], 0, 6),
        "an offset behind the chunk": on_disk.old_item(1, [11], 4, 1),
        "a negative offset": on_disk.old_item(1, [11], -1, 2),
        "too long": on_disk.old_item(1, [11], 2, 3),
        "no length": on_disk.old_item(1, [11], 0, 0),
        "a negative length": on_disk.old_item(1, [11], 0, -1),
        "far too long": on_disk.old_item(1, [11, 11], 1, 2**31 - 1),
    }


@pytest.mark.parametrize("broken", broken_old_items())
def test_broken_old_items_are_an_error(serve, root, broken):
    record = on_disk.table_record(counters=(1, 0, 0))
    stored = on_disk.Stored([record], [broken_old_items()[broken]], [steps_chunk(11, 0, 4)])
    path = on_disk.write(root / "1", stored)
    with pytest.raises(ReverbError) as caught:
        serve(root)
    assert str(path) in str(caught.value)
