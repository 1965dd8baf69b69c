# SPDX-License-Identifier: Apache-2.0
"""Saving as a part of a server's life: status, periods, the end, interruptions."""

import contextlib
import dataclasses
import json
import pathlib
import re
import signal
import time

import grpc
import numpy as np
import pytest

import reverb
from reverb import command, server_status, testing
from reverb.errors import InvalidArgumentError, ReverbError
from support.hosts import REMOTE, on_both_hosts
from support.programs import Program
from support.waiting import PATIENCE
from support.wire.wire_client import SERVICE

MANY = 100_000


def insert_many(client, count=MANY):
    client.insert_batch([np.arange(count)], {"table": 1.0})


# Saves that the interval and a client ask for, and that fail.
FAILING = """
import contextlib
import reverb
from reverb import testing
from support.waiting import wait_until

# Nobody can make a directory there.
checkpointer = reverb.checkpointers.DefaultCheckpointer("/proc/checkpoints")
options = {"checkpointer": checkpointer, "checkpoint_interval_s": 0.1}
with reverb.Server([testing.table()], **options) as server:
    client = server.localhost_client()
    for _ in range(2):
        with contextlib.suppress(reverb.ReverbError):
            client.checkpoint()
    wait_until(lambda: client.checkpoint_status().num_failed >= 4)
print(server.status().checkpoints.num_failed, 2)
"""


def num_items(root):
    return reverb.checkpointers.read(str(root)).statistics()["table"].num_items


def large_table():
    return testing.table(max_size=10 * MANY)


class TestStatus:
    def test_before_anything_was_saved(self, serve, root):
        status = serve(root).checkpoint_status()
        assert isinstance(status, server_status.CheckpointStatus)
        assert not status.is_saving
        assert (status.num_saved, status.num_failed) == (0, 0)
        assert status.latest_path is None
        assert status.latest_saved_at is None
        assert status.latest_error is None
        assert status.restored_from is None
        with pytest.raises(dataclasses.FrozenInstanceError):
            status.num_saved = 1

    def test_after_saving(self, serve, root, insert):
        client = serve(root)
        insert(client, *range(5))
        began = time.time()
        path = client.checkpoint()
        status = client.checkpoint_status()
        assert (status.num_saved, status.num_failed, status.is_saving) == (1, 0, False)
        assert status.latest_path == path
        assert began - 1 <= status.latest_saved_at <= time.time() + 1
        assert 0 < status.latest_duration_s < 30
        assert 0 <= status.latest_pause_ms < 1000 * status.latest_duration_s
        client.checkpoint()
        assert client.checkpoint_status().num_saved == 2

    def test_a_success_ends_the_error(self, serve, root, capsys):
        client = serve(root / "below")
        root.write_text("in the way")
        with pytest.raises(ReverbError):
            client.checkpoint()
        status = client.checkpoint_status()
        assert (status.num_saved, status.num_failed, status.latest_path) == (0, 1, None)
        assert str(root) in status.latest_error
        address = client.server_address
        capsys.readouterr()
        assert command.main(["why", address, "--json"]) == 6
        assert json.loads(capsys.readouterr().out)["failing"] == ["checkpoint"]
        root.unlink()
        path = client.checkpoint()
        assert command.main(["why", address]) == 0
        status = client.checkpoint_status()
        assert (status.num_saved, status.num_failed) == (1, 1)
        assert (status.latest_error, status.latest_path) == (None, path)

    def test_after_a_start_that_loaded_one(self, serve, root, capsys):
        client = serve(root)
        path = client.checkpoint()
        saved_at = client.checkpoint_status().latest_saved_at
        client.server.stop()
        client = serve(root)
        status = client.checkpoint_status()
        assert (status.restored_from, status.restored_saved_at) == (path, saved_at)
        told = f"None was saved yet; the start loaded {path}, which was saved "
        for arguments in (["why"], ["top", "--once"]):
            assert command.main([*arguments, client.server_address]) == 0
            assert re.search(re.escape(told) + r"[\d.]+ m?s ago\.", capsys.readouterr().out)
        assert command.main(["why", "--json", client.server_address]) == 0
        of_why = json.loads(capsys.readouterr().out)
        assert (of_why["loaded_checkpoint"], of_why["last_checkpoint_s"]) == (path, None)
        assert 0 <= of_why["loaded_checkpoint_s"] < 60 * PATIENCE

    def test_while_it_saves(self, serve, root, background):
        client = serve(root, large_table())
        insert_many(client)
        call = background(client.checkpoint)
        seen = []
        while call.running:
            seen.append(client.checkpoint_status())
            time.sleep(0.001)
        call.result()
        saving = [status for status in seen if status.is_saving]
        assert saving
        written = [status.items_written for status in saving]
        assert written == sorted(written)
        assert all(status.items_written <= status.items_total <= MANY for status in saving)
        assert saving[-1].bytes_written > 0
        assert not client.checkpoint_status().is_saving


class TestPeriods:
    def test_it_saves_by_itself(self, serve, root, insert, until, values):
        client = serve(root, checkpoint_interval_s=0.05)
        insert(client, 1)
        until(lambda: client.checkpoint_status().num_saved >= 3)
        insert(client, 2)
        saved = client.checkpoint_status().num_saved
        until(lambda: client.checkpoint_status().num_saved >= saved + 2)
        client.server.stop()
        assert values(serve(root)) == [1, 2]

    def test_a_failure_does_not_end_it(self, serve, root, until):
        good, bad = root.with_name("good"), root.with_name("bad")
        good.mkdir()
        bad.write_text("no directory")
        root.symlink_to(good)

        def point_to(target):
            # At once, so that a save sees either of them.
            root.with_name("link").symlink_to(target)
            root.with_name("link").replace(root)

        client = serve(root, checkpoint_interval_s=0.05)
        until(lambda: client.checkpoint_status().num_saved >= 1)
        point_to(bad)
        until(lambda: client.checkpoint_status().num_failed >= 2)
        assert str(root) in client.checkpoint_status().latest_error
        point_to(good)
        saved = client.checkpoint_status().num_saved
        until(lambda: client.checkpoint_status().num_saved > saved)

    def test_a_failure_is_logged_once(self):
        with Program(FAILING) as program:
            failed, asked = map(int, program.line().split())
            assert program.ended() == 0
            lines = program.errors.splitlines()
        assert sum("cannot create directory" in line for line in lines) == failed
        assert sum("The next attempt is in" in line for line in lines) == failed - asked

    def test_a_call_in_between_is_fine(self, serve, root):
        client = serve(root, checkpoint_interval_s=0.01)
        for _ in range(20):
            assert client.checkpoint()

    @pytest.mark.parametrize("interval", [0, -1, float("nan")])
    def test_an_interval_is_positive(self, serve, root, interval):
        with pytest.raises(InvalidArgumentError, match="checkpoint_interval_s"):
            serve(root, checkpoint_interval_s=interval)

    def test_nothing_is_saved_after_the_stop(self, serve, root, until, names):
        client = serve(root, checkpoint_interval_s=0.01)
        until(lambda: client.checkpoint_status().num_saved >= 1)
        client.server.stop()
        before = names(root)
        time.sleep(0.1)  # Several intervals.
        assert names(root) == before
        assert not [name for name in before if name.startswith(".partial")]


class TestStop:
    def test_it_saves_if_told_to(self, serve, root, insert, values):
        client = serve(root, checkpoint_on_stop=True)
        insert(client, 1, 2)
        client.server.stop()
        client.server.stop()
        assert values(serve(root)) == [1, 2]
        assert len(list(root.iterdir())) == 1

    def test_otherwise_it_does_not(self, serve, root, insert):
        client = serve(root)
        insert(client, 1)
        client.server.stop()
        assert not root.exists() or not list(root.iterdir())

    def test_a_server_that_is_only_dropped_says_that_it_does_not(self, root, caplog):
        checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
        server = reverb.Server(
            [testing.table()], checkpointer=checkpointer, checkpoint_on_stop=True
        )
        del server
        (record,) = caplog.records
        assert "dropped without stop(): it does not save" in record.getMessage()
        assert not root.exists()

    def test_a_failure_is_raised_when_it_has_stopped(self, root):
        checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root), group="mine")
        server = reverb.Server(
            [testing.table()], checkpointer=checkpointer, checkpoint_on_stop=True
        )
        client = reverb.Client(f"{REMOTE}:{server.port}", connect_timeout_s=0.2)
        with pytest.raises(InvalidArgumentError, match="mine"):
            server.stop()
        with pytest.raises(ReverbError):
            client.server_info()

    def test_stopping_in_the_middle_of_a_save_leaves_no_parts(
        self, serve, root, background, until, names
    ):
        client = serve(root, large_table())
        insert_many(client)
        first = client.checkpoint()
        call = background(client.checkpoint)
        until(lambda: client.checkpoint_status().is_saving or not call.running)
        client.server.stop()
        with contextlib.suppress(ReverbError):
            assert call.result() != first
        # It was aborted, or it was finished while the client was being disconnected.
        assert len(names(root)) == 1
        assert num_items(root) == MANY


def is_saving_or_has(client, count):
    status = client.checkpoint_status()
    return status.is_saving or status.num_saved >= count


def test_a_client_that_goes_away_in_the_middle_does_no_harm(serve, root, until, names):
    client = serve(root, large_table())
    insert_many(client)
    for number in range(3):
        before = client.checkpoint_status().num_saved
        channel = grpc.insecure_channel(f"127.0.0.1:{client.server.port}")
        call = channel.unary_unary(SERVICE + "Checkpoint").future(b"")
        until(lambda before=before: is_saving_or_has(client, before + 1))
        if number:
            call.cancel()
        channel.close()
        until(lambda: not client.checkpoint_status().is_saving)
    path = client.checkpoint()
    assert names(root) == [pathlib.Path(path).name]
    assert num_items(root) == MANY


INTERRUPTED = """
    import sys
    import numpy as np
    import reverb
    from reverb import testing

    def repeat(call):
        try:
            print("calling")
            while True:
                call()
        except KeyboardInterrupt:
            print("interrupted")

    host, root = sys.argv[1:]
    checkpointer = reverb.checkpointers.DefaultCheckpointer(root)

    def serve():
        tables = [testing.table(max_size=10**7)]
        return reverb.Server(tables, checkpointer=checkpointer)

    server = serve()
    client = reverb.Client(f"{host}:{server.port}")
    client.insert_batch([np.arange(200_000)], {"table": 1.0})
    repeat(client.checkpoint)
    print(client.checkpoint())
    server.stop()
    repeat(serve)
    server = serve()
    print(server.localhost_client().server_info()["table"].current_size)
"""


@on_both_hosts
def test_ctrl_c_ends_a_save_and_a_restore(root, host, names):
    def interrupt(program):
        assert program.line() == "calling"
        time.sleep(0.15)  # In the middle of the first call, or of the next.
        program.signal(signal.SIGINT)
        began = time.monotonic()
        assert program.line() == "interrupted"
        assert time.monotonic() - began < 5 * PATIENCE

    with Program(INTERRUPTED, host, root) as program:
        interrupt(program)
        path = program.line()
        assert names(root) == [pathlib.Path(path).name]
        interrupt(program)
        assert program.line() == "200000"
        assert program.ended() == 0


CYCLES = """
    import pathlib
    import shutil
    import sys
    import time

    import reverb
    from reverb import testing
    from support.programs import open_files, threads

    root = pathlib.Path(sys.argv[1])

    def cycle():
        shutil.rmtree(root, ignore_errors=True)
        for _ in range(2):
            checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
            with reverb.Server(
                [testing.table()], checkpointer=checkpointer, checkpoint_interval_s=0.01
            ) as server:
                client = server.localhost_client()
                client.insert([1], {"table": 1.0})
                client.checkpoint()
        (next(root.iterdir()) / "items.tfrecord").write_bytes(b"")
        try:
            reverb.Server([testing.table()], checkpointer=checkpointer)
        except reverb.errors.DataLossError:
            pass
        bad = reverb.checkpointers.DefaultCheckpointer(str(root), group="mine")
        shutil.rmtree(root)
        with reverb.Server([testing.table()], checkpointer=bad) as server:
            try:
                server.localhost_client().checkpoint()
            except reverb.errors.InvalidArgumentError:
                pass

    for _ in range(5):
        cycle()
    before = open_files(), threads()
    for _ in range(20):
        cycle()
    deadline = time.monotonic() + 10
    more = (open_files() - before[0], threads() - before[1])
    while max(more) > 2 and time.monotonic() < deadline:
        time.sleep(0.01)
        more = (open_files() - before[0], threads() - before[1])
    print(*more)
"""


def test_no_thread_and_no_file_is_left_behind(root):
    with Program(CYCLES, root) as program:
        files, threads = map(int, program.line().split())
        assert files <= 2
        assert threads <= 2
