# SPDX-License-Identifier: Apache-2.0
"""Several servers on one directory: what each loads, what is refused, and what is deleted."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess

import numpy as np
import pytest

import reverb
import reverb.command
from reverb import testing
from reverb.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from support.checkpoints import on_disk
from support.checkpoints.server_process import process, refused


def refused_here(serve, root, **options):
    with pytest.raises(FailedPreconditionError) as caught:
        serve(root, **options)
    return str(caught.value)


class TestNames:
    def test_a_server_goes_on_from_what_its_name_saved(self, serve, root, insert, values):
        servers = {name: serve(root, name=name) for name in ("a", "b")}
        for number, client in enumerate(servers.values()):
            insert(client, number)
        for client in servers.values():
            client.checkpoint()
        for client in servers.values():
            client.server.stop()
        assert values(serve(root, name="a")) == [0]
        assert values(serve(root, name="b")) == [1]

    def test_one_that_has_nothing_of_its_own_starts_empty_and_tells(
        self, serve, root, insert, values, capfd
    ):
        client = serve(root)
        insert(client, 1)
        path = client.checkpoint()
        client.server.stop()
        capfd.readouterr()
        client = serve(root, name="new")
        assert values(client) == []
        told = capfd.readouterr().err
        assert "no checkpoint of a server named 'new'" in told
        assert f"{path}, is of a server that has no name" in told
        assert "fallback_checkpoint_path" in told
        client.server.stop()
        client = serve(root, name="new", fallback_checkpoint_path=path)
        assert values(client) == [1]
        assert capfd.readouterr().err == ""
        client.checkpoint()
        assert (pathlib.Path(path) / on_disk.DONE).exists()
        client.server.stop()
        # By now there is one of its own, so the fallback is none any more.
        client = serve(root, name="new", fallback_checkpoint_path=root / "nowhere")
        assert values(client) == [1]

    def test_without_a_name_the_last_is_loaded_whoever_saved_it(
        self, serve, root, insert, values, capfd
    ):
        for name in (None, "a"):
            client = serve(root, name=name)
            insert(client, 1)
            path = client.checkpoint()
            client.server.stop()
        capfd.readouterr()
        assert values(serve(root)) == [1]
        told = capfd.readouterr().err
        assert f"checkpoint {path}: it was saved by a server named 'a'" in told

    def test_a_checkpoint_of_dm_reverb_has_no_name(self, serve, sample, tmp_path, insert):
        root = tmp_path / "root"
        shutil.copytree(sample, root / "2020-01-01T00:00:00+00:00")
        names = list(reverb.checkpointers.read(root).tables)
        tables = [testing.table(name) for name in names]
        assert serve(root, *tables, name="a").checkpoint_status().restored_from is None
        tables = [testing.table(name) for name in names]
        assert serve(root, *tables).checkpoint_status().restored_from is not None

    def test_whose_a_damaged_one_is_nobody_knows(self, serve, root):
        """Passing over it might load an older one."""
        client = serve(root, name="a", keep_latest=2)
        client.checkpoint()
        done = pathlib.Path(client.checkpoint()) / on_disk.DONE
        client.server.stop()
        done.write_bytes(done.read_bytes().replace(b"name=a", b"name=b"))
        with pytest.raises(DataLossError) as caught:
            serve(root, name="a")
        assert str(done) in str(caught.value)

    def test_readers_without_a_server_see_it(self, serve, root, insert, capsys):
        for name in (None, "a", "b"):
            serve(root, name=name).checkpoint()
        read = reverb.checkpointers.read
        assert read(root).server_name == "b"
        assert read(min(root.glob("*/DONE")).parent).server_name is None
        assert [read(root, server_name=name).server_name for name in "ab"] == ["a", "b"]
        with pytest.raises(FailedPreconditionError, match="of a server named 'c'"):
            read(root, server_name="c")
        with pytest.raises(InvalidArgumentError, match="name must have"):
            read(root, server_name="a/b")
        assert reverb.command.main(["inspect", read(root, server_name="b").path]) == 0
        assert " of server b, 1 table" in capsys.readouterr().out

    @pytest.mark.parametrize("name", ["", "a/b", "a\\b", "..\n", "a b", "é", "x" * 65])
    def test_one_that_no_file_can_have_is_refused(self, root, name):
        expected = "name must have 1 to 64 characters, each of A-Z, a-z, 0-9, '_', '-' or '.', got"
        with pytest.raises(InvalidArgumentError, match=expected):
            reverb.checkpointers.DefaultCheckpointer(str(root), name=name)

    def test_one_that_is_no_text_is_refused(self, root):
        with pytest.raises(TypeError):
            reverb.checkpointers.DefaultCheckpointer(str(root), name=1)

    def test_a_name_is_an_attribute_and_shown(self):
        named = reverb.checkpointers.DefaultCheckpointer("/x", name="a")
        assert named.name == named.internal_checkpointer().name == "a"
        assert repr(named) == "DefaultCheckpointer(path='/x', name='a')"
        assert reverb.checkpointers.DefaultCheckpointer("/x").name is None


class TestRefusals:
    def test_a_checkpoint_of_a_server_that_runs(self, root):
        with process(root) as first, process(root) as second:
            first.ask("start")
            first.tell("insert 1")
            path = first.ask("save")
            text = refused(second, path, root, f"process {first.pid} on {socket.gethostname()}")
            assert "DefaultCheckpointer(..., name=...)" in text
            first.kill()
            assert second.ask("start") == "1"

    def test_a_checkpoint_that_a_server_has_only_loaded(self, root, insert, serve):
        """If two servers restart, the second one would hold the same data."""
        client = serve(root)
        insert(client, 1)
        path = client.checkpoint()
        client.server.stop()
        with process(root) as first, process(root) as second:
            assert first.ask("start") == "1"
            refused(second, path, f"process {first.pid} on ")
            # As long as it runs, not only until it has saved.
            first.ask("save")
            refused(second, f"process {first.pid} on ")
            assert first.ask("stop") == "stopped"
            assert second.ask("start") == "1"

    def test_a_server_of_the_same_name_even_before_it_has_saved(self, root):
        with process(root, "a") as first, process(root, "a") as second:
            assert first.ask("start") == ""
            text = refused(second, root, "the name 'a'", f"process {first.pid} on ")
            assert "give this server another name or another directory" in text
            first.tell("insert 1")
            first.ask("save")
            refused(second, f"process {first.pid} on ")
            first.kill()
            assert second.ask("start") == "1"

    def test_a_server_in_the_same_process(self, serve, root, values):
        client = serve(root)
        path = client.checkpoint()
        text = refused_here(serve, root)
        assert f"Checkpoint {path} belongs to another server that is running (this process)" in text
        named = serve(root, name="a")
        assert "(this process) has the name 'a'" in refused_here(serve, root, name="a")
        named.server.stop()
        assert values(serve(root, name="a")) == []

    def test_what_is_refused_changes_nothing(self, serve, root, insert, values):
        first = serve(root)
        insert(first, 1)
        first.checkpoint()
        before = sorted(root.rglob("*"))
        table = testing.table()
        with pytest.raises(FailedPreconditionError):
            serve(root, table)
        assert sorted(root.rglob("*")) == before
        first.server.stop()
        # The table may be given to a server that starts.
        assert values(serve(root, table)) == [1]

    def test_a_child_that_a_killed_server_has_forked_is_no_server(self, root):
        with process(root, "a") as first, process(root, "a") as second:
            first.ask("start")
            first.tell("insert 1")
            first.ask("save")
            child = int(first.ask("fork"))
            try:
                refused(second, f"process {first.pid} on ")
                first.kill()
                assert second.ask("start") == "1"
            finally:
                os.kill(child, signal.SIGKILL)

    def test_a_server_that_is_stopping_is_waited_for(self, serve, root, insert, background):
        """It may save once more, and that is what the next one has to load."""
        first = serve(root, checkpoint_on_stop=True)
        first.checkpoint()
        insert(first, *range(1000))
        stopping = background(first.server.stop)
        second = serve(root)
        assert second.server_info()["table"].current_size == 1000
        stopping.result()

    def test_a_start_in_the_middle_of_saves(self, root, serve, background):
        client = serve(root, testing.table(max_size=10**6), name="a")
        client.insert_batch([np.arange(5000)], {"table": 1.0})
        path = client.checkpoint()
        saves = background(lambda: [client.checkpoint() for _ in range(30)])
        refusals = 0
        while saves.running or refusals == 0:
            assert "belongs to another server named 'a'" in refused_here(serve, root)
            refusals += 1
        path = saves.result()[-1]
        client.server.stop()
        assert serve(root, testing.table(max_size=10**6)).checkpoint_status().restored_from == path


class TestWarnings:
    def test_saving_beside_a_server_without_a_name_is_told_once(self, serve, root, capfd):
        first, second = serve(root), serve(root)
        first.checkpoint()
        assert capfd.readouterr().err == ""
        second.checkpoint()
        told = capfd.readouterr().err
        assert f"checkpoint directory {root}: another server that is running (this process)" in told
        assert "name=" in told
        second.checkpoint()
        assert capfd.readouterr().err == ""
        first.checkpoint()
        assert str(root) in capfd.readouterr().err

    def test_servers_with_names_of_their_own_are_quiet(self, serve, root, capfd):
        clients = [serve(root, name=name) for name in "ab"]
        for _ in range(2):
            for client in clients:
                client.checkpoint()
        assert capfd.readouterr().err == ""

    def test_only_the_one_without_a_name_is_told(self, serve, root, capfd):
        named, other = serve(root, name="a"), serve(root)
        for _ in range(2):
            named.checkpoint()
            assert capfd.readouterr().err == ""
            other.checkpoint()
            named.checkpoint()
            told = capfd.readouterr().err
        assert told == ""


NO_LOCKS = r"""
#include <errno.h>
int flock(int fd, int operation) { errno = ENOLCK; return -1; }
"""


@pytest.fixture
def no_locks(tmp_path):
    """The environment of a program whose file systems have no locks."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    library = tmp_path / "no_locks.so"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
    subprocess.run(command, input=NO_LOCKS, text=True, check=True)
    return {"LD_PRELOAD": str(library), "REVERB_LOG": "info"}


def test_a_file_system_without_locks_is_told_and_used(root, no_locks):
    with (
        process(root, "a", **no_locks) as first,
        process(root, "a", **no_locks) as second,
    ):
        assert first.ask("start") == ""
        first.wait_for_error("cannot be locked, so that a second server of the name 'a'")
        first.tell("insert 1")
        path = first.ask("save")
        assert second.ask("start") == "1"
        second.wait_for_error(f"{path}/tables.tfrecord cannot be locked")
