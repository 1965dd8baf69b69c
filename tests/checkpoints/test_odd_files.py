# SPDX-License-Identifier: Apache-2.0
"""Pipes, devices and bombs in the place of a checkpoint's files: an error that names the file.

Every reader of such files is tried: no wait, no endless reading, and little memory.
"""

import contextlib
import itertools
import os
import pathlib
import shutil
import struct
import sys
import zlib

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.cluster import group_checkpoint
from reverb.core import native
from reverb.errors import FailedPreconditionError
from support.checkpoints import on_disk
from support.odd_files import MIB, ODD, record_head, replace
from support.programs import FreshProgram, peak_bytes
from support.waiting import PATIENCE
from support.wire.messages import varint

MAX_PEAK_BYTES = 300 * MIB
MAX_WAIT_S = 20 * PATIENCE

on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="the peak of a process is read from /proc"
)
pytestmark = on_linux

# Reads what it is told by each reader, and prints the error.
CHILD = """
    import contextlib
    import io
    import sys

    import reverb
    from reverb import command, testing
    from reverb.cluster import group_checkpoint

    def start(path, **options):
        checkpointer = reverb.checkpointers.DefaultCheckpointer(path, **options)
        with reverb.Server([testing.table()], checkpointer=checkpointer):
            pass

    def run(*arguments):
        with contextlib.redirect_stderr(io.StringIO()) as told:
            code = command.main([*arguments, "--no-progress"])
        if code:
            raise RuntimeError(f"code {code}: {told.getvalue()}")

    READERS = {
        "start": start,
        "start named": lambda path: start(path, name="learner"),
        "fallback": lambda path: start(f"{path}-none", fallback_checkpoint_path=f"{path}/1"),
        "statistics": lambda path: reverb.checkpointers.read(path).statistics(),
        "scan": lambda path: list(reverb.checkpointers.read(path).scan("table")),
        "inspect": lambda path: run("inspect", path),
        "export": lambda path: run(
            "export", path, "--table=table", "--format=npz", f"--output={path}-out"
        ),
        "group": lambda path: group_checkpoint.latest(path),
        "reshard": lambda path: run(
            "reshard", "--shards=1", f"{path}/{sys.argv[1]}", f"{path}-out"
        ),
    }
    print("ready")
    for line in sys.stdin:
        reader, path = line.rstrip("\\n").split("|")
        try:
            READERS[reader](path)
            print("no error")
        except Exception as error:
            print(type(error).__name__, " ".join(str(error).split()))
"""


class Readers:
    """A process that reads odd files."""

    def __init__(self, *arguments):
        self._arguments = arguments
        self._program = None

    def read(self, reader, path):
        """Returns what a reader said of a path."""
        if self._program is None:
            self._program = FreshProgram(CHILD, *self._arguments)
            assert self._program.line() == "ready"
            self._idle_bytes = peak_bytes(self._program.pid)
        self._program.tell(f"{reader}|{path}")
        try:
            said = self._program.line(MAX_WAIT_S)
            assert peak_bytes(self._program.pid) - self._idle_bytes <= MAX_PEAK_BYTES, reader
        except AssertionError:
            self.close()
            raise
        return said

    def close(self):
        if self._program is not None:
            self._program.__exit__()
            self._program = None


@pytest.fixture(scope="module")
def readers():
    """A process for the readers of checkpoints."""
    with contextlib.closing(Readers("none")) as made:
        yield made


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A checkpoint of this package."""
    root = tmp_path_factory.mktemp("good")
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
    with reverb.Server([testing.table()], checkpointer=checkpointer) as server:
        client = server.localhost_client()
        client.insert_batch(np.zeros((20, 100), np.float32), {"table": 1.0})
        return pathlib.Path(client.checkpoint())


def odd_copy(good, root, name, kind):
    """Copies a checkpoint to `root/1`, with something odd in the place of a file."""
    path = shutil.copytree(good, root / "1")
    replace(path / name, kind)
    return path / name


NAMES = (*on_disk.FILES, on_disk.DONE)
# An unknown text in `DONE` is that of another program, and may be large.
CASES = [case for case in itertools.product(ODD, NAMES) if case != ("bomb", on_disk.DONE)]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_every_reader_names_the_odd_file(readers, good, tmp_path, kind, name):
    file = odd_copy(good, tmp_path / "root", name, kind)
    root = tmp_path / "root"
    for reader in ("start", "fallback", "statistics", "scan", "inspect", "export"):
        said = readers.read(reader, root)
        assert str(file) in said, (reader, said)
        assert said.startswith(("DataLossError", "RuntimeError code 1")), (reader, said)


@pytest.mark.parametrize("name", NAMES)
def test_a_link_to_a_file_is_one(readers, good, tmp_path, name):
    path = shutil.copytree(good, tmp_path / "root" / "1")
    (path / name).rename(tmp_path / name)
    (path / name).symlink_to(tmp_path / name)
    assert readers.read("start", tmp_path / "root") == "no error"


@pytest.mark.parametrize(
    ("name", "max_bytes"),
    [(on_disk.TABLES, 64 * MIB), (on_disk.ITEMS, 64 * MIB), (on_disk.CHUNKS, 2**31)],
)
def test_the_head_of_a_record_tells_that_it_is_too_long(readers, good, tmp_path, name, max_bytes):
    path = shutil.copytree(good, tmp_path / "root" / "1")
    for compress in (zlib.compress, bytes):
        (path / name).write_bytes(compress(record_head(max_bytes + 1) + bytes(100)))
        said = readers.read("statistics", tmp_path / "root")
        if compress is zlib.compress or name == on_disk.TABLES:
            assert f"it has {max_bytes + 1} bytes, and a record of this file at most" in said
        assert str(path / name) in said


@pytest.mark.parametrize("field", [2, 9], ids=["items", "signature"])
def test_a_table_of_empty_messages_takes_little_memory(readers, good, tmp_path, field):
    path = shutil.copytree(good, tmp_path / "root" / "1")
    empty = b"\x0a\x00" * (30 * MIB // 2)
    values = b"\x9a\x03" + varint(len(empty)) + empty
    data = b"\x0a\x01t" + (
        b"\x4a" + varint(len(values)) + values if field == 9 else b"\x12\x00" * MIB
    )
    record = record_head(len(data)) + data + struct.pack("<I", native.masked_crc32c(data))
    (path / on_disk.TABLES).write_bytes(zlib.compress(record, 1))
    said = readers.read("statistics", tmp_path / "root")
    assert str(path / on_disk.TABLES) in said
    assert ("signature has more than" if field == 9 else "it has an empty item") in said


# ---- Locks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "socket"])
def test_the_lock_of_a_name_is_a_file(readers, good, tmp_path, kind):
    root = tmp_path / "root"
    root.mkdir()
    ODD[kind](root / ".server-learner", b"")
    said = readers.read("start named", root)
    assert said.startswith("FailedPreconditionError")
    assert str(root / ".server-learner") in said


def test_a_directory_of_checkpoints_that_is_a_pipe_is_refused(readers, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for reader in ("start", "start named"):
        assert str(tmp_path / "pipe") in readers.read(reader, tmp_path / "pipe")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_odd_files_of_older_checkpoints_do_not_prevent_a_save(good, tmp_path, kind):
    """Their checkpoint stays, because it may be another server's."""
    root = tmp_path / "root"
    older = shutil.copytree(good, root / good.name)
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root), keep_latest=1)
    with reverb.Server([testing.table()], checkpointer=checkpointer) as server:
        client = server.localhost_client()
        client.checkpoint()
        shutil.rmtree(older, ignore_errors=True)
        shutil.copytree(good, older)
        replace(older / on_disk.TABLES, kind)
        client.checkpoint()
    assert (older / on_disk.TABLES).exists()


# ---- Groups --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """The checkpoint of a group of one shard."""
    root = tmp_path_factory.mktemp("group")
    path = group_checkpoint.shard_directory(root, 0)
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(path), name="g.0")
    slots = [{"first": 0, "count": 4096, "owner": 0, "former_owners": []}]
    with reverb.Server([testing.table()], checkpointer=checkpointer) as server:
        client = server.localhost_client()
        client.insert([np.int64(1)], {"table": 1.0})
        return group_checkpoint.save(root, "g", {0: client}, epoch=1, slots=slots)


@pytest.fixture(scope="module")
def group_readers(group):
    """A process for the readers of groups."""
    with contextlib.closing(Readers(group.path.name)) as made:
        yield made


GROUP_FILES = ("GROUP", "DONE", *on_disk.FILES)


@pytest.mark.parametrize(
    ("kind", "name"), [it for it in itertools.product(ODD, GROUP_FILES) if it[0] != "bomb"]
)
def test_every_reader_of_a_group_names_the_odd_file(group, group_readers, tmp_path, kind, name):
    root = tmp_path / "root"
    path = shutil.copytree(group.path, root / group.path.name)
    file = path / name if name == "GROUP" else path / group.parts[0].path / name
    replace(file, kind)
    for reader in ("group", "reshard"):
        said = group_readers.read(reader, root)
        # The group is a directory of files, and its manifest a part of the text.
        assert str(file) in said or (name == "GROUP" and f"{path}: the file GROUP" in said), said
        assert said.startswith(("DataLossError", "RuntimeError code 1")), (reader, said)


def test_a_manifest_of_many_values_takes_little_memory(group, group_readers, tmp_path):
    root = tmp_path / "root"
    path = shutil.copytree(group.path, root / group.path.name)
    for value in (b"[],", b"{},", b'"ab",', b"1.5,"):
        (path / "GROUP").write_bytes(b"[" + value * (15 * MIB // len(value)) + b"0]")
        assert "the file GROUP is damaged" in group_readers.read("group", root)


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "socket"])
def test_the_lock_of_a_group_is_a_file(tmp_path, kind):
    ODD[kind](tmp_path / ".group.lock", b"")
    with reverb.Server([testing.table()]) as server:
        shards = {0: server.localhost_client()}
        with pytest.raises(FailedPreconditionError, match=r"\.group\.lock"):
            group_checkpoint.save(tmp_path, "g", shards, epoch=1, slots=[])
