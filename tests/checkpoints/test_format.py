# SPDX-License-Identifier: Apache-2.0
"""The independent reader and writer, which the other tests here stand on."""

import zlib

import pytest

from support.checkpoints import on_disk, tfrecords


def test_checksums_are_those_of_castagnoli():
    assert tfrecords.crc32c(b"123456789") == 0xE3069283
    assert tfrecords.masked(0xE3069283) == 0xC78AB0E5
    assert tfrecords.crc32c(bytes(32)) == 0x8A9136AA
    assert tfrecords.masked(0x8A9136AA) == 0x0FD7FFFA


def test_a_record_has_length_data_and_two_checksums():
    chunk = bytes.fromhex(
        "0887e2d48489a19df6c401120c08c8a8dfeae491ec984418022a1a0a180803120412020803220e0c2c"
        "05000000070000000400000030013 80c".replace(" ", "")
    )
    encoded = tfrecords.encode(chunk)
    assert encoded.startswith(bytes.fromhex("39000000000000008b0737f1"))
    assert encoded.endswith(bytes.fromhex("531f3c97"))
    (record,) = tfrecords.decode(encoded)
    assert (record.start, record.end, record.data) == (0, 12 + 57 + 4, chunk)


def test_damage_is_noticed():
    good = tfrecords.encode(b"first") + tfrecords.encode(b"second")
    assert [record.data for record in tfrecords.decode(good)] == [b"first", b"second"]
    for at in range(len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 1
        with pytest.raises(tfrecords.BadRecordError):
            tfrecords.decode(bytes(damaged))
    for end in set(range(1, len(good))) - {len(tfrecords.encode(b"first"))}:
        with pytest.raises(tfrecords.BadRecordError):
            tfrecords.decode(good[:end])
    for end in range(len(zlib.compress(good))):
        with pytest.raises(tfrecords.BadRecordError):
            tfrecords.unzip(zlib.compress(good)[:end])


def test_the_sample_of_dm_reverb_is_understood(sample):
    stored = on_disk.read(sample)
    assert sorted(table.table_name for table in stored.tables) == ["empty", "fifo", "prio"]
    assert (len(stored.items), len(stored.chunks)) == (8, 6)
    limiter = stored.table("prio").rate_limiter
    assert (limiter.insert_count, limiter.sample_count, limiter.delete_count) == (5, 4, 1)
    assert stored.table("prio").num_unique_samples == 3
    sizes = {name: len(tfrecords.unzip((sample / name).read_bytes())) for name in on_disk.FILES}
    assert sizes == {on_disk.TABLES: 287, on_disk.ITEMS: 803, on_disk.CHUNKS: 490}
    for item in stored.items:
        assert stored.columns(item)
    # Records are written as they were read, except for the order that protobuf leaves open.
    for name in on_disk.FILES:
        stream = tfrecords.unzip((sample / name).read_bytes())
        assert b"".join(tfrecords.encode(r.data) for r in tfrecords.decode(stream)) == stream
