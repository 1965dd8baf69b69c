# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in the states of buffers: an archive that holds anything else is refused."""

import gzip
import io
import os
import pathlib
import tarfile

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.checkpointers import pack, unpack
from reverb.errors import DataLossError
from support.checkpoints import on_disk

FILES = (*on_disk.FILES, on_disk.DONE)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A checkpoint of one item."""
    root = tmp_path_factory.mktemp("packed")
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
    with reverb.Server([testing.table()], checkpointer=checkpointer) as server:
        client = server.localhost_client()
        client.insert([np.int64(7)], {"table": 1.0})
        return pack(client.checkpoint())


def members(packed):
    """The members of an archive with their content."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return [
            (it, archive.extractfile(it).read() if it.isreg() else b"")
            for it in archive.getmembers()
        ]


def archive_of(entries, **options):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", **options) as archive:
        for member, content in entries:
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


@pytest.mark.parametrize("is_file", [False, True], ids=["bytes", "file"])
def test_it_is_loaded_from_where_it_was_unpacked(packed, tmp_path, is_file):
    path = tmp_path / "checkpoint.tar"
    path.write_bytes(packed)
    (tmp_path / "root").mkdir()
    unpack(path if is_file else packed, str(tmp_path / "root"))
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path / "root"))
    with reverb.Server([testing.table()], checkpointer=checkpointer) as server:
        (sample,) = server.localhost_client().scan("table")
    assert sample.data[0] == 7


def changed(packed, changed_name, **fields):
    entries = members(packed)
    for member, _ in entries:
        if member.name.endswith(changed_name):
            for field, value in fields.items():
                setattr(member, field, value)
    return archive_of(
        [(it, content if it.isreg() else b"") for it, content in entries],
    )


ODD = {
    "link": {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd", "size": 0},
    "hard link": {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd", "size": 0},
    "pipe": {"type": tarfile.FIFOTYPE, "size": 0},
    "device": {"type": tarfile.CHRTYPE, "size": 0, "devmajor": 1, "devminor": 5},
    "directory": {"type": tarfile.DIRTYPE, "size": 0},
    "sparse": {"pax_headers": {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(2**40)}},
    "absolute": {"name": "/tmp/odd"},
    "above": {"name": "../odd"},
    "elsewhere": {"name": "other/DONE"},
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_of_a_checkpoint_is_refused(packed, tmp_path, kind, name):
    odd = changed(packed, name, **ODD[kind])
    with pytest.raises(DataLossError, match="the packed checkpoint is damaged"):
        unpack(odd, str(tmp_path))
    assert not list(tmp_path.rglob(on_disk.DONE))


@pytest.mark.parametrize("claimed", [2**20, 2**33, 2**40, 2**62])
@pytest.mark.parametrize("name", FILES)
def test_a_size_that_lies_is_refused(packed, tmp_path, name, claimed):
    lie = changed(packed, name, pax_headers={"size": str(claimed)})
    with pytest.raises(DataLossError):
        unpack(lie, str(tmp_path))
    assert not list(tmp_path.rglob(on_disk.DONE))


@pytest.mark.parametrize("claimed", [-1, -512, -(2**40)])
def test_a_negative_size_is_refused(packed, tmp_path, claimed):
    for lie in (
        changed(packed, on_disk.ITEMS, pax_headers={"size": str(claimed)}),
        long_name_of(claimed),
    ):
        with pytest.raises(DataLossError):
            unpack(lie, str(tmp_path))


def long_name_of(size):
    """The header of a name that is said to be so long, and a few blocks behind it."""
    header = tarfile.TarInfo("././@LongLink")
    header.type = tarfile.GNUTYPE_LONGNAME
    header.size = size
    return header.tobuf(tarfile.GNU_FORMAT) + bytes(4096)


def test_headers_of_any_length_are_refused(tmp_path):
    for size in (2**20, 2**40):
        with pytest.raises(DataLossError, match=f"it has a header of {size}"):
            unpack(long_name_of(size), str(tmp_path))
    nested = b"".join(long_name_of(1)[:512] + bytes(512) for _ in range(5000))
    with pytest.raises(DataLossError):
        unpack(nested, str(tmp_path))


def test_a_part_of_an_archive_is_refused(packed, tmp_path):
    for at, end in enumerate([*range(0, len(packed), 1000), 512, 1024]):
        root = tmp_path / str(at)
        root.mkdir()
        try:
            unpack(packed[:end], str(root))
        except DataLossError:
            assert not list(root.rglob(on_disk.DONE)), end
        else:
            assert len(list(root.rglob("*"))) == 5


@pytest.mark.parametrize(
    "bad",
    [b"", b"no archive" * 100, bytes(10_240), gzip.compress(b"x")],
    ids=["empty", "text", "zeros", "compressed"],
)
def test_what_is_no_archive_is_refused(tmp_path, bad):
    with pytest.raises(DataLossError, match="the packed checkpoint is damaged"):
        unpack(bad, str(tmp_path))


def test_a_compressed_archive_is_refused(packed, tmp_path):
    with pytest.raises(DataLossError):
        unpack(gzip.compress(packed), str(tmp_path))


def test_a_file_that_is_there_twice_is_refused(packed, tmp_path):
    entries = members(packed)
    with pytest.raises(DataLossError, match="is no file of a checkpoint"):
        unpack(archive_of([*entries, entries[-1]]), str(tmp_path))


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_an_archive_that_is_no_file_is_refused(tmp_path, kind):
    path = tmp_path / "checkpoint.tar"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(OSError, match=r"is not a file.*checkpoint\.tar"):
        unpack(path, str(tmp_path))


def test_a_sparse_file_of_a_terabyte_is_refused(tmp_path):
    path = pathlib.Path(tmp_path / "checkpoint.tar")
    path.touch()
    os.truncate(path, 2**40)
    with pytest.raises(DataLossError, match=r"checkpoint\.tar is damaged"):
        unpack(path, str(tmp_path))
