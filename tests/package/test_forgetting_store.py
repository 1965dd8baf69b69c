# SPDX-License-Identifier: Apache-2.0
"""The plugin of `make test-store`: what is sampled was on a disk, and few tests are left out."""

import pathlib
import re

import numpy as np
import pytest

import reverb
from reverb import testing
from support import forgetting_store
from support.programs import run
from support.waiting import wait_until

TESTS = pathlib.Path(__file__).parents[1]
LEFT_OUT = forgetting_store.LEFT_OUT | forgetting_store.LEFT_OUT_OF_JOURNALS


def test_what_is_left_out_exists_and_has_a_reason():
    for name, reason in LEFT_OUT.items():
        file, _, test = name.partition("::")
        source = (TESTS / file).read_text(encoding="utf-8")
        assert re.search(rf"^ *(async )?def {test}\(", source, re.MULTILINE), name
        assert len(reason.split()) > 4, name


@pytest.fixture
def stores(monkeypatch, tmp_path):
    """Servers of this process get stores below this directory."""
    monkeypatch.setattr(reverb.Server, "__init__", reverb.Server.__init__)
    forgetting_store.give_stores(str(tmp_path))
    return tmp_path


def read_bytes(client, values):
    """Samples the only item, of these values; returns how many bytes it has read from the disk."""
    before = client.status().store.read_bytes
    (column,) = client.sample_batch("table", 1).data
    np.testing.assert_array_equal(column.reshape(values.shape), values)
    return client.status().store.read_bytes - before


def test_samples_are_read_from_the_disk_at_once(stores):
    values = np.random.default_rng(0).random(9000)
    with testing.server() as client:
        client.insert([values], {"table": 1.0})
        wait_until(lambda: client.status().store.live_bytes > values.nbytes)
        # The sweep forgets a moment after it has written.
        wait_until(lambda: read_bytes(client, values) >= values.nbytes)
        assert client.status().memory.limit == 1 << 30


def test_a_store_of_its_own_is_kept(stores, tmp_path):
    store = reverb.Store(tmp_path / "own", journal=False)
    with reverb.Server([testing.table()], max_bytes="20MiB", store=store) as server:
        assert server.status().store.path == str(tmp_path / "own")
        assert server.status().memory.limit == 20 << 20


def test_servers_of_programs_have_stores(stores, monkeypatch):
    source = """
        import sys
        import reverb

        with reverb.testing.server() as client:
            print(client.status().store.path.startswith(sys.argv[1]))
    """
    monkeypatch.setattr("support.programs.PROLOGUE", forgetting_store.prologue(str(stores)))
    assert run(source, stores) == ["True"]
