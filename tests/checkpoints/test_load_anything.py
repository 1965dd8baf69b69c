# SPDX-License-Identifier: Apache-2.0
"""Records of any content, with good checksums: an error that names the checkpoint, or a load."""

import contextlib
import pathlib
import random
import shutil

import pytest

import reverb
from reverb import testing
from reverb.errors import ReverbError
from support.checkpoints import on_disk, tfrecords
from support.damaged_datasets import damaged_bytes


def sources(sample):
    """Records of good checkpoints of every layout, by file."""
    chunks = on_disk.simple([5, 6, 7, 8]).chunks
    items = [on_disk.old_item(1, [5, 6], 0, 2), on_disk.old_item(2, [6, 7, 8], 0, 3)]
    return [
        on_disk.read(sample),
        on_disk.simple([1, 2, 3]),
        on_disk.with_items_in_tables(on_disk.with_old_chunks(on_disk.simple([1, 2, 3]))),
        on_disk.Stored([on_disk.table_record(counters=(2, 0, 0))], items, chunks),
    ]


def write_mutated(rng, stored, path):
    """Writes a checkpoint with one record changed."""
    on_disk.write(path, stored)
    name = rng.choice([name for name in on_disk.FILES if (path / name).exists()])
    data = tfrecords.read_file(path / name)
    if data:
        at = rng.randrange(len(data))
        data[at] = damaged_bytes(data[at], rng)
    tfrecords.write_file(path / name, data)


def use(client, names):
    """Everything that reads what was loaded; errors are fine."""
    for name in names:
        for reading in (
            lambda name=name: list(client.scan(name)),
            lambda name=name: list(client.sample(name, 2, emit_timesteps=False, timeout_ms=1)),
        ):
            with contextlib.suppress(ReverbError):
                reading()
    client.checkpoint()


@pytest.mark.parametrize(
    ("seed", "count"),
    [
        (1, 100),
        pytest.param(2, 5000, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_it_is_loaded_or_refused(sample, root, try_to_serve, seed, count):
    rng = random.Random(seed)
    loaded = refused = 0
    for _ in range(count):
        stored = rng.choice(sources(sample))
        shutil.rmtree(root, ignore_errors=True)
        write_mutated(rng, stored, root / "1")
        names = [table.table_name for table in stored.tables]
        restore = rng.random() < 0.5
        client = try_to_serve(root / "1", *map(testing.table, names), restore_settings=restore)
        if client is None:
            refused += 1
        else:
            loaded += 1
            with client.server:
                use(client, names)
        with contextlib.suppress(ReverbError):
            checkpoint = reverb.checkpointers.read(pathlib.Path(root, "1"))
            for name in checkpoint.tables:
                list(checkpoint.scan(name))
            checkpoint.statistics()
    assert min(loaded, refused) > count / 20
