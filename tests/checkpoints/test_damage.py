# SPDX-License-Identifier: Apache-2.0
"""Files that were cut or changed: an error that names the file and the place, never less data."""

import pathlib
import re
import shutil
import struct
import sys
import zlib

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.cc.checkpointing import checkpoint_pb2
from reverb.errors import DataLossError
from support.checkpoints import on_disk, tfrecords
from support.programs import Program


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """A checkpoint that this package wrote, with several records in every file."""
    root = tmp_path_factory.mktemp("ours")
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
    tables = [testing.table("a"), testing.table("b"), testing.table("c")]
    with reverb.Server(tables, checkpointer=checkpointer, host="127.0.0.1") as server:
        client = server.localhost_client()
        for value in range(4):
            client.insert([value, np.arange(value, value + 6, dtype=np.float32)], {"a": 1.0})
            client.insert([f"text {value}"], {"b": 2.0 + value})
        return pathlib.Path(client.checkpoint())


@pytest.fixture(params=["ours", "sample"])
def whole(request):
    """A good checkpoint."""
    return request.getfixturevalue(request.param)


class Victim:
    """A checkpoint that is damaged again and again."""

    def __init__(self, path, serve, state):
        self.path = path
        self._serve = serve
        self._state = state
        data = (path / on_disk.TABLES).read_bytes()
        stream = tfrecords.unzip(data) if data[0] == 0x78 else data
        kind = checkpoint_pb2.PriorityTableCheckpoint
        self._names = [kind.FromString(r.data).table_name for r in tfrecords.decode(stream)]
        self.expected = self.held()

    def held(self):
        """The items of a server that loads it."""
        tables = [testing.table(name) for name in self._names]
        client = self._serve(self.path.parent, *tables, restore_settings=True)
        with client.server:
            return {name: self._state(client, name) for name in self._names}

    def replace(self, name, data):
        """Exchanges a file for another, and says so in the list of files if there is one."""
        (self.path / name).unlink()
        (self.path / name).write_bytes(data)
        if done := (self.path / on_disk.DONE).read_text():
            head, _, _ = done.rpartition("crc32c=")
            size = rf"(?m)^({name} records=\d+) bytes=\d+$"
            head = re.sub(size, rf"\1 bytes={len(data)}", head)
            checksum = tfrecords.crc32c(head.encode())
            (self.path / on_disk.DONE).write_text(f"{head}crc32c={checksum:08x}\n")

    def is_refused(self, name, data):
        """Checks that a server does not start with `data` in the place of file `name`."""
        good = (self.path / name).read_bytes()
        self.replace(name, data)
        with pytest.raises(DataLossError) as caught:
            self.held()
        text = str(caught.value)
        assert str(self.path / name) in text, text
        assert re.search(r"offset\D*\d+|\d+ bytes|byte \d+|at \d+", text), text
        self.replace(name, good)
        return text


@pytest.fixture
def victim(whole, root, serve, state):
    """The checkpoint to damage."""
    return Victim(shutil.copytree(whole, root / "checkpoint"), serve, state)


@pytest.fixture
def plain_victim(whole, root, serve, state):
    """The same, of files that are not compressed."""
    path = on_disk.write(root / "checkpoint", on_disk.read(whole), compressed=False)
    return Victim(path, serve, state)


@pytest.mark.parametrize("name", on_disk.FILES)
def test_a_changed_bit_is_noticed(victim, name):
    good = (victim.path / name).read_bytes()
    stream = tfrecords.unzip(good)
    rng = np.random.default_rng(0)
    unnoticed = 0
    for at in range(len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 1 << int(rng.integers(8))
        try:
            # Where blocks of bits end there are a few that carry no information.
            harmless = zlib.decompress(bytes(damaged)) == stream
        except zlib.error:
            harmless = False
        if harmless:
            victim.replace(name, bytes(damaged))
            assert victim.held() == victim.expected
            unnoticed += 1
        else:
            victim.is_refused(name, bytes(damaged))
    assert unnoticed <= len(good) // 50
    victim.replace(name, good)
    assert victim.held() == victim.expected


@pytest.mark.parametrize("name", on_disk.FILES)
def test_a_cut_file_is_noticed(victim, name):
    good = (victim.path / name).read_bytes()
    for end in [*range(0, len(good), 3), len(good) - 1]:
        victim.is_refused(name, good[:end])


def test_a_changed_list_of_files_is_noticed(ours, root, serve):
    path = shutil.copytree(ours, root / "checkpoint")
    good = (path / on_disk.DONE).read_bytes()
    tables = [testing.table(name) for name in "abc"]
    for at in range(len(b"reverb-replay"), len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 2
        (path / on_disk.DONE).write_bytes(damaged)
        with pytest.raises(DataLossError) as caught:
            serve(root, *tables)
        assert str(path / on_disk.DONE) in str(caught.value)


@pytest.mark.parametrize("name", on_disk.FILES)
def test_bytes_behind_the_end_are_noticed(victim, name):
    good = (victim.path / name).read_bytes()
    for more in (b"\0", b"more", good):
        victim.is_refused(name, good + more)


@pytest.mark.parametrize("name", on_disk.FILES)
def test_a_zipped_file_that_ends_inside_a_record_is_noticed(victim, name):
    stream = tfrecords.unzip((victim.path / name).read_bytes())
    boundaries = {0} | {record.end for record in tfrecords.decode(stream)}
    for end in {max(0, b + d) for b in boundaries for d in (-5, -1, 1, 5, 13)} - boundaries:
        if end < len(stream):
            victim.is_refused(name, zlib.compress(stream[:end]))


@pytest.mark.parametrize("name", [on_disk.ITEMS, on_disk.CHUNKS])
def test_records_that_are_not_there_are_noticed(victim, name):
    """A stream that was cut between two records, and zipped anew, so that no checksum tells."""
    good = (victim.path / name).read_bytes()
    stream = tfrecords.unzip(good)
    for record in tfrecords.decode(stream):
        victim.replace(name, zlib.compress(stream[: record.start]))
        with pytest.raises(reverb.ReverbError) as caught:
            victim.held()
        assert str(victim.path) in str(caught.value)
        victim.replace(name, good)


@pytest.mark.parametrize("name", on_disk.FILES)
def test_a_changed_record_is_noticed(victim, name):
    """One bit of every field of every record, zipped anew."""
    stream = tfrecords.unzip((victim.path / name).read_bytes())
    for record in tfrecords.decode(stream):
        middle = (record.start + record.end) // 2
        for at in (record.start, record.start + 7, record.start + 8, middle, record.end - 1):
            damaged = bytearray(stream)
            damaged[at] ^= 0x10
            text = victim.is_refused(name, zlib.compress(bytes(damaged)))
            assert re.search(rf"\b{record.start}\b", text), text


@pytest.mark.parametrize("name", on_disk.FILES)
def test_an_uncompressed_file_is_checked_too(plain_victim, name):
    good = (plain_victim.path / name).read_bytes()
    rng = np.random.default_rng(0)
    for at in range(0, len(good), 3):
        damaged = bytearray(good)
        damaged[at] ^= 1 << int(rng.integers(8))
        plain_victim.is_refused(name, bytes(damaged))
    boundaries = {0} | {record.end for record in tfrecords.decode(good)}
    for end in set(range(0, len(good), 11)) - boundaries:
        plain_victim.is_refused(name, good[:end])


def test_the_bad_one_out_of_the_way_the_one_before_is_loaded(serve, root, ours, values):
    on_disk.write(root / "0", on_disk.simple([7]))
    shutil.copytree(ours, root / "1")
    path = root / "1" / on_disk.CHUNKS
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    tables = [testing.table("a"), testing.table("b"), testing.table("c")]
    with pytest.raises(DataLossError) as caught:
        serve(root, *tables)
    # Which directory to take away, in so many words.
    assert str(root / "1") in str(caught.value)
    assert re.search(r"move|delete|remove|away", str(caught.value))
    shutil.rmtree(root / "1")
    assert values(serve(root)) == [7]


def test_a_table_is_not_touched_by_a_load_that_failed(serve, root, ours):
    shutil.copytree(ours, root / "1")
    path = root / "1" / on_disk.ITEMS
    path.write_bytes(path.read_bytes()[:-1])
    tables = [testing.table("a"), testing.table("b"), testing.table("c")]
    with pytest.raises(DataLossError):
        serve(root, *tables)
    assert [table.info.current_size for table in tables] == [0, 0, 0]
    # They can still be given to a server.
    client = serve(root.parent / "other", *tables)
    client.insert([1], {"a": 1.0})


def test_a_server_that_cannot_load_does_not_listen(root, ours, serve, unused_port_of_test):
    shutil.copytree(ours, root / "1")
    (root / "1" / on_disk.ITEMS).unlink()
    with pytest.raises(reverb.ReverbError):
        serve(root, *map(testing.table, "abc"), port=unused_port_of_test)
    serve(root.parent / "other", port=unused_port_of_test)


@pytest.fixture
def unused_port_of_test():
    """A port where nobody listens."""
    with reverb.Server([testing.table()], host="127.0.0.1") as server:
        return server.port


# Tries checkpoints while it may take one GiB more than it has.
CHILD = """
    import pathlib
    import resource
    import sys

    import reverb
    from reverb import testing

    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for line in sys.stdin:
        checkpointer = reverb.checkpointers.DefaultCheckpointer(
            "no root", fallback_checkpoint_path=line.rstrip("\\n")
        )
        try:
            with reverb.Server([testing.table()], checkpointer=checkpointer):
                print("started")
        except reverb.ReverbError as error:
            print(type(error).__name__)
"""
on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="limits of memory are kept on Linux only"
)


def length_record(length):
    """The head of a record of some length, with a good checksum, and a few bytes."""
    head = struct.pack("<Q", length)
    checksum = tfrecords.masked(tfrecords.crc32c(head))
    return head + struct.pack("<I", checksum) + bytes(100)


HOSTILE = {
    f"{name}, {length:#x}": (name, length)
    for name in on_disk.FILES
    for length in (2**33, 2**40, 2**63 - 1, 2**64 - 1, 2**64 - 16)
}


@pytest.fixture(scope="module")
def limited():
    """A process with little memory."""
    with Program(CHILD) as program:
        yield program


@on_linux
@pytest.mark.parametrize("compressed", [True, False], ids=["compressed", "uncompressed"])
def test_lengths_that_are_claimed_cost_no_memory(tmp_path, limited, compressed):
    for case, (name, length) in HOSTILE.items():
        path = on_disk.write(tmp_path / re.sub(r"\W+", "_", case), on_disk.simple([1]))
        data = length_record(length)
        (path / name).write_bytes(zlib.compress(data) if compressed else data)
        limited.tell(path)
        assert limited.line() == "DataLossError", case


@on_linux
def test_rows_that_are_claimed_cost_no_memory(tmp_path, limited):
    stored = on_disk.simple([1])
    stored.chunks[0].data.tensors[0].tensor_shape.dim[0].size = 2**40
    stored.items[0].flat_trajectory.columns[0].chunk_slices[0].length = 2**30
    limited.tell(on_disk.write(tmp_path / "long", stored))
    # The content of a chunk is not checked before it is sampled.
    assert limited.line() in ("DataLossError", "started")
    limited.tell(on_disk.write(tmp_path / "good", on_disk.simple([1])))
    assert limited.line() == "started"
