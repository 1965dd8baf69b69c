# SPDX-License-Identifier: Apache-2.0
"""The store of a server: its arguments, and what is refused before the server starts."""

import pathlib

import pytest

import reverb
from reverb import testing
from reverb.errors import InvalidArgumentError


def store(path="/scratch/replay", **options):
    return reverb.Store(path, journal=False, **options)


@pytest.mark.parametrize(
    ("value", "size"),
    [(None, None), (2**26, 2**26), ("200GiB", 200 * 2**30), ("1.5 GB", 1_500_000_000)],
)
def test_a_size_is_a_number_of_bytes(value, size):
    assert store(max_bytes=value).max_bytes == size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "Store.max_bytes must be at least 1 or None, got 0"),
        (4096, "Store.max_bytes must be at least 64 MiB, got 4,096 bytes"),
        (2**63, f"Store.max_bytes must be below 8 EiB, got {2**63}"),
        ("80%", 'Store.max_bytes must be a number of bytes or a size such as "12GiB", got "80%"'),
    ],
)
def test_a_bad_size_is_named(value, text):
    with pytest.raises(InvalidArgumentError) as error:
        store(max_bytes=value)
    assert str(error.value) == text


def test_a_path_is_one_from_the_root(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert store("a").path == str(tmp_path / "a")
    assert store(pathlib.Path("/a/../b")).path == "/b"
    assert store("~/replay").path == str(pathlib.Path.home() / "replay")
    assert store("a") == store(tmp_path / "a")


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_a_path_that_is_none_is_named(path):
    with pytest.raises(InvalidArgumentError, match=r"Store.path must be the path of a directory"):
        store(path)


def test_wrong_types_are_named():
    with pytest.raises(TypeError, match=r"Store.path must be a path, got int"):
        store(3)
    with pytest.raises(TypeError, match=r"Store.max_bytes must be .*, got 1.5 of type float"):
        store(max_bytes=1.5)
    with pytest.raises(TypeError, match=r"Store.journal must be a bool, got 'no'"):
        reverb.Store("/scratch/replay", journal="no")
    with pytest.raises(TypeError, match=r"store must be a reverb.Store, got str"):
        reverb.Server([testing.table()], max_bytes="1GiB", store="/scratch/replay")


@pytest.mark.parametrize("interval_s", [0, 0.09, 61, float("nan"), float("inf")])
def test_intervals_out_of_range_are_refused(interval_s):
    with pytest.raises(InvalidArgumentError) as error:
        reverb.Store("/data/replay", sync_interval_s=interval_s)
    assert str(error.value) == (f"Store.sync_interval_s must be from 0.1 to 60, got {interval_s:g}")
    with pytest.raises(TypeError, match=r"Store.restore_settings must be a bool, got 1"):
        reverb.Store("/data/replay", restore_settings=1)
    with pytest.raises(TypeError, match=r"Store.sync_interval_s must be a number, got "):
        reverb.Store("/data/replay", sync_interval_s="1")


def test_a_store_without_max_bytes_of_the_server_is_refused(tmp_path):
    table = testing.table()
    with pytest.raises(InvalidArgumentError) as error:
        reverb.Server([table], store=store(tmp_path / "a"))
    assert str(error.value) == (
        "Store(journal=False) needs max_bytes of the Server: without it nothing would go to disk"
    )
    assert not (tmp_path / "a").exists()
    reverb.Server([table]).stop()


def test_a_server_takes_a_store(tmp_path):
    with reverb.Server([testing.table()], max_bytes="64MiB", store=store(tmp_path)) as server:
        client = server.localhost_client()
        client.insert([1], {"table": 1.0})
        assert client.size("table") == 1


def test_a_server_without_a_store_says_so():
    with reverb.Server([testing.table()]) as server:
        assert server.status().store is None
