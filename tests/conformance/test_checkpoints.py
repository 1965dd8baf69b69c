# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of either package, loaded by the other."""

from __future__ import annotations

import contextlib
import pathlib
from typing import Any

import numpy as np
import pytest

import reverb
from conformance.peer_programs.arrays import encode
from conformance.peer_programs.scenarios import SCENARIOS, TABLE
from reverb import testing
from reverb.cluster import group_checkpoint
from support.checkpoints import on_disk
from support.package_workers import WorkerError
from support.wire import messages
from support.wire.wire_client import WireClient

pytestmark = pytest.mark.conformance

SAMPLE = pathlib.Path(__file__).parents[1] / "checkpoints" / "sample" / "dm_reverb_0.14.0"

PACKAGES = ["ours", "peer"]

both_ways = pytest.mark.parametrize(
    ("saver", "loader"), [("peer", "ours"), ("ours", "peer")], ids=["load theirs", "they load ours"]
)


@pytest.fixture
def start_at(worker_of):
    """`worker, address = start_at(package, root, tables)`; a package has one server at a time.

    This package takes the settings of the checkpoint, as dm-reverb does, unless `checkpoints` says
    otherwise.
    """
    used = []

    def start(package, root, tables, **checkpoints):
        worker = worker_of(package, "server")
        used.append(worker)
        if package == "ours":
            checkpoints = {"restore_settings": True} | checkpoints
        checkpoints["path"] = str(root)
        port = worker.call("start_server", tables=tables, checkpoints=checkpoints)
        return worker, f"localhost:{port}"

    yield start
    for worker in used:
        if worker.alive:
            worker.call("stop_server")


def bare(tables):
    """Tables of the same names, with the settings of nobody."""
    return [{"name": table["name"]} for table in tables]


def written():
    """Scenarios, and the package that writes them."""
    left_out = {
        # Too large to be tried so often; `one_big_chunk` is large too.
        *((name, writer) for name in ("over_40_mib", "legacy_over_40_mib") for writer in PACKAGES),
        # The peer's writer stores a contiguous run instead (D-04 of its defects).
        ("strided_in_one_chunk", "peer"),
    }
    every = [(scenario, writer) for scenario in SCENARIOS for writer in PACKAGES]
    return [pair for pair in every if pair not in left_out]


@both_ways
@pytest.mark.parametrize(("scenario", "writer"), written())
def test_items_come_back_as_written(saver, loader, writer, scenario, start_at, worker_of, tmp_path):
    _, address = start_at(saver, tmp_path, [{}])
    client = worker_of(writer, "client")
    client.call("write", address=address, scenario=scenario)
    client.call("checkpoint", address=address)
    _, address = start_at(loader, tmp_path, [{}])
    expected = [[encode(column) for column in item] for item in SCENARIOS[scenario].items()]
    drained = client.call("drain", address=address, table=TABLE)
    assert [sample["columns"] for sample in drained] == expected


def test_they_load_every_part_of_a_group(start_at, worker_of, tmp_path):
    with contextlib.ExitStack() as stack:
        shards = {}
        for index in range(3):
            path = str(group_checkpoint.shard_directory(tmp_path, index))
            server = reverb.Server(
                [testing.table(TABLE)],
                checkpointer=reverb.checkpointers.DefaultCheckpointer(path, name=f"g.{index}"),
                shard=reverb.cluster.Shard(index, 3, "g"),
            )
            shards[index] = stack.enter_context(server).localhost_client()
        for value in range(30):
            shards[value % 3].insert([np.int64(value)], {TABLE: 1.0 + value})
        saved = group_checkpoint.save(tmp_path, "g", shards, epoch=1, slots=[])
    client = worker_of("peer", "client")
    for index in range(3):
        stored = on_disk.read(saved.path_of(index))
        items = {item.key: item for item in stored.items_of(TABLE)}
        assert len(items) == 10
        _, there = start_at("peer", saved.path_of(index).parent, [{"name": TABLE}])
        drained = client.call("drain", address=there, table=TABLE)
        assert {sample["info"]["key"] for sample in drained} == set(items)
        for sample in drained:
            item = items[sample["info"]["key"]]
            assert sample["info"]["priority"] == item.priority
            assert sample["columns"] == [encode(column) for column in stored.columns(item)]


_SIGNATURE = {
    "dict": {
        "b": {"spec": [[None, 3], "int32", "bb"]},
        "a": {"spec": [[], "float32", "aa", -1.0, 1.0]},
        "nested": {
            "tuple": [
                {"list": [{"spec": [None, "float64"]}, {"spec": [[2, 2], "uint8"]}]},
                {"named": {"z": {"spec": [[1], "bool"]}, "y": {"spec": [[1], "object"]}}},
            ]
        },
    }
}
_INT64 = {"list": [{"spec": [[None], "int64", "value"]}]}

TABLES: list[dict[str, Any]] = [
    {"name": "fifo", "max_size": 5},
    {"name": "lifo", "sampler": "Lifo", "remover": "Lifo", "max_size": 5},
    {"name": "max heap", "sampler": "MaxHeap", "remover": "MinHeap", "max_size": 5},
    {"name": "min heap", "sampler": "MinHeap", "remover": "MaxHeap", "max_times_sampled": 50},
    {"name": "uniform", "sampler": "Uniform", "remover": "Uniform", "max_size": 100},
    {"name": "prioritized", "sampler": "Prioritized 0.8", "signature": _INT64},
    {"name": "flat", "sampler": "Prioritized 0", "remover": "Prioritized 1.5", "max_size": 6},
    {"name": "queue", "limiter": ["Queue", 100], "max_times_sampled": 1, "max_size": 100},
    {"name": "stack", "sampler": "Lifo", "remover": "Lifo", "limiter": ["Stack", 100]},
    {"name": "ratio", "limiter": ["SampleToInsertRatio", 2.0, 1, 400.0]},
    {"name": "signed", "signature": _SIGNATURE},
    {"name": "empty", "limiter": ["MinSize", 7], "max_size": 2**31 - 1},
]
FILLED = [table["name"] for table in TABLES if table["name"] not in ("signed", "empty")]


def fill(client, address, first=0):
    """Items, samples, new priorities, deletes: so that no counter is zero."""
    for value in range(first, first + 8):
        priorities = {name: 1.0 + (value * 7 % 5) / 4 for name in FILLED}
        client.call("insert", address=address, values=[value], priorities=priorities)
    for name in FILLED:
        if name in ("queue", "stack"):
            continue  # Their limiters count; the samples are left for a test.
        samples = client.call("peek", address=address, table=name, count=4)
        keys = sorted({sample["info"]["key"] for sample in samples})
        client.call("mutate", address=address, table=name, updates=[[keys[0], 3.25]], deletes=[])
        client.call("mutate", address=address, table=name, updates=[], deletes=keys[1:2])


@both_ways
def test_tables_of_every_kind(saver, loader, start_at, worker_of, tmp_path):
    client = worker_of("peer", "client")
    _, address = start_at(saver, tmp_path, TABLES)
    fill(client, address)
    path = client.call("checkpoint", address=address)
    before = client.call("server_info", address=address)
    stored = on_disk.read(path)
    _, there = start_at(loader, tmp_path, bare(TABLES))
    assert client.call("server_info", address=there) == before
    for name in FILLED:
        items = {item.key: item for item in stored.items_of(name)}
        drained = client.call("drain", address=there, table=name)
        assert {sample["info"]["key"] for sample in drained} == set(items)
        for sample in drained:
            item = items[sample["info"]["key"]]
            assert sample["info"]["priority"] == item.priority
            assert sample["info"]["times_sampled"] == item.times_sampled + 1
            assert sample["columns"] == [encode(column) for column in stored.columns(item)]


ORDERED = ["fifo", "lifo", "max heap", "min heap", "queue", "stack", "ratio"]


@both_ways
@pytest.mark.parametrize("name", ORDERED)
def test_the_order_of_sampling_stays(saver, loader, name, start_at, worker_of, tmp_path):
    client = worker_of("peer", "client")
    _, address = start_at(saver, tmp_path, TABLES)
    fill(client, address)
    client.call("checkpoint", address=address)
    orders = []
    # The result of the saver itself after loading: a heap forgets the order of equal items.
    for package in (saver, loader):
        _, there = start_at(package, tmp_path, bare(TABLES))
        orders.append(client.call("drain", address=there, table=name))
    assert orders[0] == orders[1]
    assert len(orders[0]) >= 3


@both_ways
@pytest.mark.parametrize("name", ["prioritized", "flat", "uniform"])
def test_probabilities_stay(saver, loader, name, start_at, worker_of, tmp_path):
    client = worker_of("peer", "client")
    _, address = start_at(saver, tmp_path, TABLES)
    fill(client, address)
    client.call("checkpoint", address=address)
    _, there = start_at(loader, tmp_path, bare(TABLES))
    seen = []
    for where in (address, there):
        samples = client.call("peek", address=where, table=name, count=300)
        seen.append({s["info"]["key"]: s["info"]["probability"] for s in samples})
    assert seen[0].keys() == seen[1].keys()
    for key, probability in seen[0].items():
        assert seen[1][key] == pytest.approx(probability, rel=1e-12)


def test_different_chunks_of_one_key_stay_apart(start_at, worker_of, tmp_path):
    """Two writers drew the same key; the original would load the first chunk for both items."""
    _, address = start_at("ours", tmp_path, [{}])
    with WireClient(address) as wire:
        for key in (1, 2, 3):
            stream = wire.insert_stream()
            chunk = messages.numbers(77, first=10 * key)
            stream.send(messages.insert([chunk], [messages.item(key, TABLE, (77, 0, 3, 0))]))
            assert stream.confirmed(1) == [key]
            stream.cancel()
    client = worker_of("peer", "client")
    client.call("checkpoint", address=address)
    _, there = start_at("peer", tmp_path, [{}])
    drained = client.call("drain", address=there, table=TABLE)
    expected = [np.arange(first, first + 3, dtype=np.int32) for first in (10, 20, 30)]
    assert [sample["columns"] for sample in drained] == [[encode(column)] for column in expected]


def test_a_client_of_the_other_kind_saves_and_hears_errors(start_at, worker_of, tmp_path):
    for saver, caller in [("ours", "peer"), ("peer", "ours")]:
        client = worker_of(caller, "client")
        root = tmp_path / saver
        _, address = start_at(saver, root, [{}])
        client.call("insert", address=address, values=[1], priorities={TABLE: 1.0})
        path = client.call("checkpoint", address=address)
        assert pathlib.Path(path).parent == root
        assert len(on_disk.read(path).items) == 1
        _, address = start_at(saver, root, [{}], group="mine")
        with pytest.raises(WorkerError) as caught:
            client.call("checkpoint", address=address)
        assert "ValueError" in caught.value.types


def test_the_peer_cannot_tell_how_saving_goes(start_at, tmp_path):
    _, address = start_at("peer", tmp_path, [{}])
    with pytest.raises(reverb.errors.UnimplementedError):
        reverb.Client(address).checkpoint_status()


def test_there_and_back_again(start_at, worker_of, tmp_path):
    """Each package takes over from the other, goes on, and saves in the same directory."""
    client = worker_of("peer", "client")
    expected = None
    for turn, package in enumerate(["peer", "ours", "peer", "ours"]):
        tables = TABLES if turn == 0 else bare(TABLES)
        _, address = start_at(package, tmp_path, tables)
        if expected is not None:
            assert client.call("server_info", address=address) == expected
        fill(client, address, first=10 * turn)
        path = client.call("checkpoint", address=address)
        expected = client.call("server_info", address=address)
        assert len(on_disk.read(path).tables) == len(TABLES)
    counts = on_disk.read(path).table("fifo").rate_limiter
    assert (counts.insert_count, counts.sample_count) == (32, 16)


def test_the_sample_holds_the_same_in_both(start_at, worker_of, tmp_path):
    names = ["fifo", "empty", "prio"]
    on_disk.write(tmp_path / "1", on_disk.read(SAMPLE))
    client = worker_of("peer", "client")
    infos, items = [], []
    for package in ("peer", "ours"):
        _, address = start_at(package, tmp_path, [{"name": name} for name in names])
        infos.append(client.call("server_info", address=address))
        items.append(client.call("drain", address=address, table="fifo"))
    assert infos[0] == infos[1]
    assert items[0] == items[1]
    assert len(items[0]) == 4


def old_layouts():
    """Checkpoints of all layouts that were ever written, and whether they are compressed."""
    new = on_disk.simple([5, 6, 7, 8])
    for at, item in enumerate(new.items):
        item.times_sampled = at
        item.priority = 0.5 + at
    listed = on_disk.Stored(
        [on_disk.table_record(counters=(3, 0, 0))],
        [
            on_disk.old_item(1, [5, 6], 0, 2),
            on_disk.old_item(2, [6, 7, 8], 0, 3),
            on_disk.old_item(3, [8], 0, 1),
        ],
        new.chunks,
    )
    items_in_tables = on_disk.with_items_in_tables(new)
    oldest = on_disk.with_items_in_tables(on_disk.with_old_chunks(listed))
    layouts = {
        "new": new,
        "items in tables": items_in_tables,
        "old data": on_disk.with_old_chunks(new),
        "lists of chunks": listed,
        "all of it": oldest,
    }
    return {
        f"{name}, {kind}": (stored, kind == "compressed")
        for name, stored in layouts.items()
        for kind in ("compressed", "uncompressed")
    }


@pytest.mark.parametrize("layout", old_layouts())
def test_old_layouts_hold_the_same_in_both(layout, start_at, worker_of, tmp_path):
    stored, compressed = old_layouts()[layout]
    on_disk.write(tmp_path / "1", stored, compressed=compressed)
    client = worker_of("peer", "client")
    results = []
    for package in ("peer", "ours"):
        _, address = start_at(package, tmp_path, [{}])
        info = client.call("server_info", address=address)
        results.append([info, client.call("drain", address=address, table=TABLE)])
    assert results[0] == results[1]
    assert len(results[0][1]) >= 3


@pytest.mark.parametrize(
    ("case", "parent"),
    [("unknown table", "ValueError"), ("duplicate key", "RuntimeError")],
)
def test_both_refuse_the_same(case, parent, start_at, worker_of, tmp_path):
    stored = on_disk.simple([1, 2], "nope" if case == "unknown table" else "table")
    if case == "duplicate key":
        stored.items[1].key = stored.items[0].key
    on_disk.write(tmp_path / "1", stored)
    for package in ("peer", "ours"):
        with pytest.raises(WorkerError) as caught:
            start_at(package, tmp_path, [{}])
        assert parent in caught.value.types


def test_checkpoints_of_a_server_with_a_name(start_at, worker_of, tmp_path):
    """dm-reverb loads them; what it saves has no name, so it is loaded without one or as asked."""
    client = worker_of("ours", "client")

    def num_items(address):
        return len(client.call("drain", address=address, table=TABLE))

    _, address = start_at("ours", tmp_path, [{}], name="a")
    client.call("insert", address=address, values=[1], priorities={TABLE: 1.0})
    client.call("checkpoint", address=address)
    peer, address = start_at("peer", tmp_path, [{}])
    client.call("insert", address=address, values=[2], priorities={TABLE: 1.0})
    path = client.call("checkpoint", address=address)
    assert num_items(address) == 2
    peer.call("stop_server")
    _, address = start_at("ours", tmp_path, [{}], name="a")
    assert num_items(address) == 0
    _, address = start_at("ours", tmp_path, [{}], name="a", fallback_checkpoint_path=path)
    assert num_items(address) == 2
    _, address = start_at("ours", tmp_path, [{}])
    assert num_items(address) == 2
