# SPDX-License-Identifier: Apache-2.0
"""A disk that is full, and a directory that cannot be written."""

import re
import sys

import pytest

from support.checkpoints import on_disk
from support.namespaces import NEEDS_UNSHARE, in_a_namespace
from support.programs import Program

# A server that saves when it is told to, and says what came of it.
SERVER = """
    import os
    import pathlib
    import sys

    import numpy as np
    import reverb
    from reverb import testing

    root = pathlib.Path(sys.argv[1])
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
    server = reverb.Server([testing.table(max_size=100_000)], checkpointer=checkpointer)
    client = server.localhost_client()
    rng = np.random.default_rng(0)

    def insert(num_bytes):
        client.insert([rng.integers(0, 256, num_bytes, np.uint8)], {"table": 1.0})

    def save():
        try:
            path = pathlib.Path(client.checkpoint())
            assert sorted(os.listdir(path)) == [
                "DONE", "chunks.tfrecord", "items.tfrecord", "tables.tfrecord"
            ]
            print("saved", path.name)
        except reverb.ReverbError as error:
            print(type(error).__name__, error)

    def look():
        print(sorted(os.listdir(root)))
        print(client.server_info()["table"].current_size)
        print(client.checkpoint_status().latest_error is None)

    def fill(name):
        try:
            with open(name, "wb") as file:
                while True:
                    file.write(bytes(4096))
                    file.flush()
        except OSError:
            pass

    def load():
        # Not from the directory itself, where the checkpoint belongs to the first server.
        path = reverb.checkpointers.read(root).path
        copy = reverb.checkpointers.DefaultCheckpointer(
            str(root) + "-of-another", fallback_checkpoint_path=path
        )
        with reverb.Server([testing.table(max_size=100_000)], checkpointer=copy) as other:
            print(other.localhost_client().server_info()["table"].current_size)
"""

FULL_DISK = """
    insert(100_000)
    save()
    for _ in range(60):
        insert(100_000)
    save()
    look()
    load()
    insert(10)
    # Full to the last byte: not even a directory can be made.
    fill(root.parent / "checkpoints" / "filling")
    save()
    os.unlink(root / "filling")
    info = client.sample_batch("table", 1).info
    keys = [sample.info.key for sample in client.scan("table")]
    client.mutate_priorities("table", deletes=keys[2:])
    save()
    look()
    load()
"""


@NEEDS_UNSHARE
def test_a_full_disk_is_told_and_survived(root):
    with Program(in_a_namespace(SERVER + FULL_DISK), root) as program:
        saved, first = program.line().split()
        assert saved == "saved"
        error = program.line()
        assert error.startswith("ResourceExhaustedError")
        told = r"needs ([\d,]+) bytes, and the file system of (.*) has ([\d,]+) bytes free\. Free"
        needed, directory, free = re.search(told, error).groups()
        assert directory == str(root)
        assert 6_100_000 < int(needed.replace(",", "")) < 6_200_000
        assert 3_000_000 < int(free.replace(",", "")) < 4 * 2**20
        # The one before is intact, nothing is left of the other, and the server goes on.
        assert program.line() == f"['{first}']"
        assert program.line() == "61"
        assert program.line() == "False"
        assert program.line() == "1"
        assert program.line().startswith("ResourceExhaustedError")
        saved, second = program.line().split()
        assert saved == "saved"
        assert second > first
        assert program.line() == f"['{second}']"
        assert program.line() == "2"
        assert program.line() == "True"
        assert program.line() == "2"
        assert program.ended() == 0


COMPRESSIBLE = """
    plain = reverb.Client(f"localhost:{server.port}", compression="none")
    plain.insert_batch({"x": np.zeros((60, 100_000), np.uint8)}, {"table": 1.0})
    save()
    load()
"""


@NEEDS_UNSHARE
def test_a_save_that_fits_once_compressed_is_no_error(root):
    with Program(in_a_namespace(SERVER + COMPRESSIBLE), root) as program:
        assert program.line().startswith("saved ")
        assert program.line() == "60"
        assert program.ended() == 0


LIMITED_FILE = """
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    insert(1000)
    save()
    insert(1_000_000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
    save()
    look()
    load()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    save()
    look()
    load()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is another one elsewhere")
def test_a_file_that_must_not_grow_is_told_and_survived(root):
    with Program(SERVER + LIMITED_FILE, root) as program:
        saved, first = program.line().split()
        assert saved == "saved"
        error = program.line()
        assert error.startswith(("ResourceExhaustedError", "FailedPreconditionError"))
        assert str(root) in error
        assert program.line() == f"['{first}']"
        assert [program.line() for _ in range(3)] == ["2", "False", "1"]
        saved, second = program.line().split()
        assert program.line() == f"['{second}']"
        assert [program.line() for _ in range(3)] == ["2", "True", "2"]
        assert program.ended() == 0


NO_RIGHTS = """
    os.makedirs(root)
    insert(10)
    save()
    print(sorted(os.listdir(root)))
    mode(0o500)
    load()
    save()
    mode(0o700)
    print(sorted(os.listdir(root)))
    save()
"""
# A process of root may write everywhere, so it becomes somebody else.
AS_NOBODY = """
    def mode(bits):
        root.chmod(bits)

    if os.geteuid() == 0:
        root.parent.chmod(0o777)
        for parent in root.parent.parents:
            try:
                parent.chmod(parent.stat().st_mode | 0o011)
            except OSError:
                pass
        os.setegid(65534)
        os.seteuid(65534)
"""


def test_a_directory_that_must_not_be_written_is_named(root):
    """The rights come and go while the server runs."""
    with Program(SERVER + AS_NOBODY + NO_RIGHTS, root) as program:
        saved, first = program.line().split()
        assert saved == "saved"
        assert program.line() == f"['{first}']"
        # It may be read all the same.
        assert program.line() == "1"
        error = program.line()
        assert error.startswith("FailedPreconditionError")
        assert str(root) in error
        assert program.line() == f"['{first}']"
        assert program.line().startswith("saved")


AS_SOMEBODY_ELSE = """
    import os
    import pathlib
    import sys

    import reverb
    from reverb import testing

    root, locked = map(pathlib.Path, sys.argv[1:])
    locked.chmod(0)
    if os.geteuid() == 0:
        os.setegid(65534)
        os.seteuid(65534)
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
    try:
        reverb.Server([testing.table()], checkpointer=checkpointer)
        print("started")
    except reverb.ReverbError as error:
        print(type(error).__name__, error)
    os.seteuid(os.getuid())
    locked.chmod(0o700)
"""


@pytest.mark.parametrize("locked", [".", "2"], ids=["root", "checkpoint"])
def test_what_cannot_be_read_is_an_error(root, locked):
    """Starting empty, or from an older checkpoint, would look like data loss."""
    for number in (1, 2):
        on_disk.write(root / str(number), on_disk.simple([number]))
    for path in (root.parent, root):
        path.chmod(0o755)
    with Program(AS_SOMEBODY_ELSE, root, root / locked) as program:
        line = program.line()
        assert line.startswith("FailedPreconditionError")
        assert str(root / locked) in line
        assert program.ended() == 0
