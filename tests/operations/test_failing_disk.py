# SPDX-License-Identifier: Apache-2.0
"""A journal whose disk fails: who waits and who does not, what is told, and when it ends."""

import contextlib
import html

import numpy as np
import pytest

import reverb
from reverb import command, testing
from reverb.errors import DataLossError, DeadlineExceededError, UnavailableError
from support.pages import get
from support.waiting import Background, wait_until

LARGE = np.zeros((1, 5000))


class Failing:
    """A server whose journal cannot create files, and cannot do without a new one.

    `insert` of this client has confirmed one item that is in memory alone.
    """

    def __init__(self, stack, directory):
        self.directory = directory
        # A small item, so that there is a log, and no file for payloads.
        self.server = stack.enter_context(
            reverb.Server(
                [testing.table("t")],
                store=reverb.Store(directory, sync_interval_s=0.1),
                host="127.0.0.1",
                http_port=0,
            )
        )
        self.client = reverb.Client(f"127.1:{self.server.port}")
        self.client.insert_batch({"x": np.zeros((1, 4))}, {"t": 1.0})
        self.client.sync(b"before")
        self.away = directory.rename(directory.with_suffix(".away"))
        stack.callback(self.mend)
        self.client.insert_batch({"x": LARGE}, {"t": 1.0})
        wait_until(lambda: self.server.status().store.state == "failing")

    def mend(self):
        if self.away.exists():
            self.away.rename(self.directory)

    def insert_until_it_waits(self):
        def insert():
            while self.away.exists():
                self.client.insert_batch({"x": LARGE}, {"t": 1.0})

        waiting = Background(insert)
        wait_until(lambda: self.client.diagnose("t").state == "full")
        return waiting


def test_a_disk_that_fails_holds_inserts_back_and_says_so(tmp_path, capsys):
    with contextlib.ExitStack() as stack:
        failing = Failing(stack, tmp_path / "store")
        waiting = failing.insert_until_it_waits()
        sentence = failing.client.diagnose("t").sentence
        assert f"An insert waits for the disk: the journal in {failing.directory} is " in sentence
        assert "its files were moved or deleted" in sentence
        assert html.escape(sentence) in html.escape(html.unescape(get(failing.server, "/").text))
        address = f"127.0.0.1:{failing.server.port}"
        for arguments in (["why"], ["top", "--once"]):
            command.main([*arguments, address])
            out = " ".join(capsys.readouterr().out.split())
            assert "failing (cannot use" in out, out
            assert " behind, log " in out, out
        with pytest.raises(DeadlineExceededError, match=r"is .* behind"):
            failing.client.sync(timeout_ms=50)
        # All else goes on.
        sample = next(failing.client.sample("t"))[0]
        failing.client.mutate_priorities("t", {sample.info.key: 2.0})
        failing.mend()
        waiting.result()
        items = failing.client.server_info()["t"].current_size
    with reverb.Server([testing.table("t")], store=reverb.Store(tmp_path / "store")) as server:
        assert server.localhost_client().server_info()["t"].current_size == items


def test_a_sync_whose_server_stops_without_its_disk_fails(tmp_path):
    with contextlib.ExitStack() as stack:
        failing = Failing(stack, tmp_path / "store")
        call = Background(failing.client.sync)
        with pytest.raises(DataLossError, match=r"what happened in the last .* is lost"):
            failing.server.stop()
        with pytest.raises(UnavailableError):
            call.result()


def test_a_group_names_the_shard_whose_disk_fails(tmp_path, capsys):
    with contextlib.ExitStack() as stack:
        failing = Failing(stack, tmp_path / "store")
        well = stack.enter_context(
            reverb.Server(
                [testing.table("t")], store=reverb.Store(tmp_path / "b"), host="127.0.0.1"
            )
        )
        address = f"shards:///127.1:{well.port},127.1:{failing.server.port}"
        client = reverb.Client(address)
        store = client.status().store
        assert (store.state, store.commit, store.is_journal) == ("failing", 0, True)
        assert command.main(["why", address]) == 6
        out = capsys.readouterr().out
        assert f"disk: shard 1 at 127.1:{failing.server.port} failing (cannot use" in out
        failing.mend()
        result = client.sync(b"both")
        assert len(result.shards) == 2
        wait_until(lambda: client.status().store.state == "ok")
