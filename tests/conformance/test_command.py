# SPDX-License-Identifier: Apache-2.0
"""The command `reverb` and servers of dm-reverb."""

import json

import pytest

import reverb
from reverb import command


@pytest.fixture
def address(serve):
    """A server of dm-reverb with one item."""
    address = serve("peer", {"name": "table"})
    reverb.Client(address).insert([1.0], {"table": 2.0})
    return address


@pytest.mark.conformance
def test_its_counters_are_inspected(address, capsys):
    assert command.main(["inspect", address, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["tables"]["table"]["size"] == 1
    assert report["tables"]["table"]["rate_limiter"]["num_inserts"] == 1
    assert report["tables"]["table"]["items"] is None
    assert "dm-reverb" in report["items_unread"]


@pytest.mark.conformance
def test_its_items_cannot_be_exported(address, tmp_path, capsys):
    options = ["--table=table", "--format=npz", f"--output={tmp_path / 'out'}"]
    assert command.main(["export", address, *options]) == 1
    assert "it is a server of dm-reverb" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
