# SPDX-License-Identifier: Apache-2.0
"""Whichever way a server with a journal stops, nothing is lost and the directory is free."""

import signal

import numpy as np
import pytest

import reverb
from reverb import testing
from support.programs import Program
from support.reverb_server import running
from support.waiting import wait_until

# An interval that never ends, so that only the last commit has the items.
START = """
import os
import signal
import sys

import numpy as np

import reverb
from reverb import testing

server = reverb.Server([testing.table("t")], store=reverb.Store(sys.argv[1], sync_interval_s=60))
client = reverb.Client(f"localhost:{server.port}")
client.sync()
insert = lambda: client.insert_batch({"x": np.ones((10, 500))}, {"t": 1.0})
insert()
"""
# What the program does then, its exit code, and how many items there are.
WAYS = {
    "stop": ("server.stop()", 0, 10),
    "exit of the interpreter": ("pass", 0, 10),
    "sys.exit": ("sys.exit(3)", 3, 10),
    "an exception": ("raise KeyError('x')", 1, 10),
    "a block that raises": ("with server: raise KeyError('x')", 1, 10),
    "a deleted server": ("del server, client, insert", 0, 10),
    "ctrl-c": ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT, 10),
    "ctrl-c in a call": (
        "signal.setitimer(signal.ITIMER_REAL, 0.1)\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "server.wait()",
        -signal.SIGINT,
        10,
    ),
    # A child that was forked does not write, and keeps nothing from the parent.
    "a child stops first": (
        "if not os.fork(): server.stop(); os._exit(0)\nos.wait()\ninsert()\nserver.stop()",
        0,
        20,
    ),
    "a child lives on": (
        "child = os.fork()\n"
        "if not child: signal.pause()\n"
        "insert()\n"
        "server.stop()\n"
        "again = reverb.Server([testing.table('t')], store=reverb.Store(sys.argv[1]))\n"
        "again.stop()\n"
        "os.kill(child, signal.SIGKILL)",
        0,
        20,
    ),
}


def check(directory, expected):
    """Starts a server with the directory: it comes back from its store, with all of its items."""
    with reverb.Server([testing.table("t")], store=reverb.Store(directory)) as server:
        recovered = server.status().store.recovered
        assert (recovered.items, recovered.dropped_bytes) == (expected, 0)
        items = list(server.localhost_client().scan("t"))
        assert len(items) == expected
        assert all((np.asarray(item.data[0]) == 1.0).all() for item in items)


@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_ends_loses_nothing(tmp_path, way):
    then, code, expected = WAYS[way]
    with Program(START + then, tmp_path / "store") as program:
        assert program.ended() == code, program.errors
    check(tmp_path / "store", expected)


def test_the_command_fails_if_its_disk_does(tmp_path):
    store = tmp_path / "store"
    with running(f"--store={store}") as (program, client):
        client.sync()
        store.rename(tmp_path / "away")
        client.insert_batch({"x": np.ones((10, 500))}, {"t": 1.0})
        program.signal(signal.SIGTERM)
        assert program.ended() == 1
        assert "stopped, but: The store cannot use" in "".join(program.errors)


@pytest.mark.parametrize("saves", [False, True], ids=["", "with a checkpoint"])
def test_sigterm_ends_the_command_without_a_loss(tmp_path, saves):
    root, store = tmp_path / "root", tmp_path / "store"
    options = [f"--store={store}", "--store-sync-interval=60"]
    if saves:
        options += [f"--checkpoint-dir={root}", "--checkpoint-on-stop"]
    for expected in (10, 20):
        with running(*options) as (program, client):
            if expected > 10:
                status = client.status()
                assert status.store.recovered.items == 10
                assert status.checkpoints.restored_from is None
            client.insert_batch({"x": np.ones((10, 500))}, {"t": 1.0})
            program.signal(signal.SIGTERM)
            assert program.ended() == 0, program.errors
    assert len(list(root.glob("*/DONE"))) == (1 if saves else 0)
    with running(*options) as (program, client):
        assert client.status().store.recovered.items == 20
        wait_until(lambda: client.server_info()["t"].current_size == 20)
        program.signal(signal.SIGTERM)
        assert program.ended() == 0, program.errors
