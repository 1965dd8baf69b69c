# SPDX-License-Identifier: Apache-2.0
"""The errors of saving and loading: class and text."""

import zlib

import reverb
from reverb import errors, testing
from support.checkpoints import on_disk, tfrecords


def advice(path):
    return (
        "Nothing of the checkpoint was loaded. Restore the file from a copy, or move "
        f"{path} away to continue from an older checkpoint or from nothing."
    )


def test_a_group(serve, root, error_says):
    error_says(
        serve(root, group="mine").checkpoint,
        errors.InvalidArgumentError,
        "Checkpoints have no groups: group must be empty, got 'mine'.",
    )


def test_a_file_in_the_way(serve, root, error_says):
    client = serve(root / "below")
    root.write_text("mine")
    error_says(
        client.checkpoint,
        errors.FailedPreconditionError,
        f"Checkpoint: cannot create directory {root / 'below'}: Not a directory (os error 20). "
        "The path of a checkpointer must be a directory.",
    )


def test_a_table_that_is_not_there(serve, root, error_says):
    path = on_disk.write(root / "1", on_disk.simple([1]))
    error_says(
        lambda: serve(root, testing.table("b"), testing.table("a")),
        errors.InvalidArgumentError,
        f"Checkpoint {path} has a table table, and the server has none of that name; its tables "
        "are: a, b. Add the table, or start without this checkpoint.",
    )


def test_two_items_of_one_key(serve, root, error_says):
    stored = on_disk.simple([1, 2])
    stored.items[1].key = 1
    path = on_disk.write(root / "1", stored)
    error_says(
        lambda: serve(root),
        errors.FailedPreconditionError,
        f"Checkpoint {path}: Table table has two items with the key 1.",
    )


def test_a_chunk_that_is_not_there(serve, root, error_says):
    stored = on_disk.simple([1, 2])
    del stored.chunks[1]
    path = on_disk.write(root / "1", stored)
    stream = tfrecords.unzip((path / on_disk.ITEMS).read_bytes())
    offset = tfrecords.decode(stream)[1].start
    text = (
        f"Checkpoint file {path / on_disk.ITEMS} is damaged in record 1, at byte {offset} of its "
        "uncompressed content: item 2 of table table refers to chunk 2, which is not in "
        f"{on_disk.CHUNKS}. {advice(path)}"
    )
    for reads in (lambda: serve(root), reverb.checkpointers.read(path).statistics):
        error_says(reads, errors.DataLossError, text)


def test_a_record_with_other_data(serve, root, error_says):
    path = on_disk.write(root / "1", on_disk.simple([1, 2]))
    stream = bytearray(tfrecords.unzip((path / on_disk.CHUNKS).read_bytes()))
    stream[-5] ^= 1
    (path / on_disk.CHUNKS).write_bytes(zlib.compress(stream))
    offset = len(tfrecords.encode(on_disk.simple([1]).chunks[0].SerializeToString()))
    error_says(
        lambda: serve(root),
        errors.DataLossError,
        f"Checkpoint file {path / on_disk.CHUNKS} is damaged in record 1, at byte {offset} of its "
        "uncompressed content: the checksum of its data is wrong. "
        f"{advice(path)}",
    )


def test_a_file_that_was_cut(serve, root, error_says):
    path = on_disk.write(root / "1", on_disk.simple([1, 2]))
    data = (path / on_disk.ITEMS).read_bytes()
    (path / on_disk.ITEMS).write_bytes(data[:20])
    error_says(
        lambda: serve(root),
        errors.DataLossError,
        f"Checkpoint file {path / on_disk.ITEMS} is damaged at byte 20: the compressed stream has "
        f"no end; the file was cut off. {advice(path)}",
    )


def test_a_file_that_is_not_there(serve, root, error_says):
    path = on_disk.write(root / "1", on_disk.simple([1, 2]))
    (path / on_disk.CHUNKS).unlink()
    error_says(
        lambda: serve(root),
        errors.DataLossError,
        f"Checkpoint file {path / on_disk.CHUNKS} is damaged as a whole: it is missing. "
        f"{advice(path)}",
    )
