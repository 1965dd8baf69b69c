# SPDX-License-Identifier: Apache-2.0
"""Where checkpoints go, by what a program typed; and saves that fail."""

import os
import pathlib

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.checkpointers import DefaultCheckpointer
from reverb.errors import ReverbError
from support.hosts import on_both_hosts
from support.programs import Program


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


def save(checkpointer, value):
    """The items of a server at its start, and the path of its save."""
    with reverb.Server([testing.table("t")], checkpointer=checkpointer) as server:
        client = server.localhost_client()
        found = [int(sample.data[0][0]) for sample in client.scan("t")]
        client.insert([np.int64(value)], {"t": 1.0})
        return found, pathlib.Path(client.checkpoint())


PATHS = ["~/saved", "saved", "./saved/", "a/../saved", "with space/ü 表#?%20", b"bytes"]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_that_of_when_it_was_given(home, path):
    made = DefaultCheckpointer(path)
    assert pathlib.Path(made.path).is_absolute()
    assert ("home" in pathlib.Path(made.path).parts) == (path == "~/saved")
    elsewhere = home.parent / "elsewhere"
    elsewhere.mkdir()
    os.chdir(elsewhere)
    found, saved = save(made, 1)
    assert (found, saved.parent) == ([], pathlib.Path(made.path))
    os.chdir(home.parent / "work")
    assert save(DefaultCheckpointer(path), 2)[0] == [1]
    assert len(list(reverb.checkpointers.read(path).scan("t"))) == 2
    assert not list(elsewhere.iterdir())
    assert not (home.parent / "work" / "~").exists()


def test_the_fallback_is_a_path_too(home):
    _, saved = save(DefaultCheckpointer("~/first"), 1)
    fallback = f"~/first/{saved.name}"
    assert save(DefaultCheckpointer("~/second", fallback_checkpoint_path=fallback), 2)[0] == [1]


@on_both_hosts
def test_a_save_that_failed_is_told_by_the_server_too(tmp_path, host):
    source = """
import sys
import reverb
from reverb import testing

checkpointer = reverb.checkpointers.DefaultCheckpointer(sys.argv[1])
with reverb.Server([testing.table()], checkpointer=checkpointer) as server:
    open(sys.argv[1], "w").close()
    try:
        reverb.Client(f"{sys.argv[2]}:{server.port}").checkpoint()
    except reverb.ReverbError as error:
        print("raised", bool(server.localhost_client().checkpoint_status().latest_error))
"""
    path = tmp_path / "saved"
    with Program(source, path, host) as program:
        assert program.line() == "raised True"
        program.wait_for_error(str(path))


def test_an_empty_path_is_refused():
    with pytest.raises(ReverbError, match="path must not be empty"):
        DefaultCheckpointer("")
