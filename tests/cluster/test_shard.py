# SPDX-License-Identifier: Apache-2.0
"""Servers that are shards of a group: their parts of the tables, and the map that they tell."""

import contextlib

import pytest

import reverb
from reverb import testing
from reverb.cluster import Shard
from reverb.errors import InvalidArgumentError
from support.wire.shard_calls import ShardCalls


def tables():
    return [
        reverb.Table.queue("queue", 10),
        testing.table(
            "ratio",
            max_size=100,
            rate_limiter=reverb.rate_limiters.SampleToInsertRatio(2.0, 20, 40.0),
            signature=reverb.specs.TensorSpec([None, 2], "float32", "x"),
        ),
    ]


@contextlib.contextmanager
def serving(given=None, shard=None):
    with (
        reverb.Server(tables() if given is None else given, shard=shard) as server,
        ShardCalls(server.port) as calls,
    ):
        yield server, calls


def test_a_shard_serves_its_part_and_tells_the_map_of_the_group():
    whole = tables()
    with serving(whole, Shard(2, 3, group="replay")) as (server, calls):
        info = server.server_info()
        assert (info["queue"].max_size, info["ratio"].max_size) == (10, 34)
        assert info["queue"].rate_limiter_info.max_diff == 4
        told = calls.directory()
        assert (told.index, told.map.epoch, told.map.group) == (2, 1, "replay")
        assert [(it.index, it.address, it.unix_path) for it in told.map.shards] == [
            (0, "", ""),
            (1, "", ""),
            (2, "", ""),
        ]
        assert [it.server_id for it in told.map.shards] == [0, 0, told.server_id]
        assert [(it.first, it.count, it.owner) for it in told.map.slots] == [
            (0, 1365, 0),
            (1365, 1365, 1),
            (2730, 1366, 2),
        ]
        # The tables as the program gave them.
        assert [it.name for it in told.map.tables] == ["queue", "ratio"]
        of_queue, of_ratio = told.map.tables
        assert (of_queue.max_size, of_queue.rate_limiter_info.max_diff) == (10, 10)
        assert (of_ratio.max_size, of_ratio.rate_limiter_info.min_size_to_sample) == (100, 20)
        assert of_ratio.signature.tensor_spec_value.name == "x"
    # They are not served, and can be split for other shards.
    with serving(whole, Shard(0, 3)) as (server, _):
        assert server.server_info()["queue"].rate_limiter_info.max_diff == 3


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("shards:///a:1,b.example:2", ["a:1", "b.example:2"]),
        ("shards+grpcs:///a:1, [::1]:2 ?writers=local", ["a:1", "[::1]:2"]),
        ("SHARDS://a:1,b:2", ["a:1", "b:2"]),
        # A seed, behind which all of them are.
        ("shards:///all:1", ["", ""]),
        ("shards:///a:1,b:2,c:3", ["", ""]),
    ],
)
def test_one_address_for_each_shard_is_told(address, expected):
    with serving(shard=Shard(1, 2, address=address)) as (_, calls):
        assert [shard.address for shard in calls.directory().map.shards] == expected


def test_without_a_coordinator_a_shard_begins_at_once():
    with serving(shard=Shard(0, 2)) as (server, calls):
        client = server.localhost_client()
        for value in range(5):
            client.insert(value, {"queue": 1.0})
        [told] = next(calls.watch("queue")).tables
        assert (told.size, told.min_diff, told.max_diff) == (5, 0, 5)
        assert not server.status().tables["queue"].diagnosis.sentence.count("window")


def test_with_a_coordinator_it_waits_for_its_window():
    given = [
        *tables(),
        testing.table("free", max_size=10, rate_limiter=reverb.rate_limiters.MinSize(4)),
    ]
    with serving(given, Shard(0, 2, is_coordinated=True)) as (server, calls):
        client = server.localhost_client()
        changes = calls.watch()
        first = {table.name: table for table in next(changes).tables}
        assert (first["queue"].min_diff, first["queue"].max_diff) == (0, 0)
        assert (first["ratio"].min_diff, first["ratio"].max_diff) == (0, 0)
        # A table without bounds needs no windows.
        client.insert(1, {"free": 1.0})
        with client.trajectory_writer(1) as writer:
            writer.append([1])
            writer.create_item("queue", 1.0, [writer.history[0][-1:]])
            waits = (
                table
                for answer in changes
                for table in answer.tables
                if table.name == "queue" and table.insert_waits
            )
            assert next(waits).size == 0
            told = calls.set_rate_limiter("queue", min_diff=0, max_diff=7, min_size_to_sample=1)
            assert (told.size, told.max_diff, told.insert_waits) == (1, 7, False)
            writer.flush()
        limiter = client.server_info()["queue"].rate_limiter_info
        assert limiter.max_diff == 5, "its part, as the settings have it"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"index": 2}, "index must be from 0 to 1, which is num_shards - 1, got 2"),
        ({"num_shards": 0}, "num_shards must be from 1 to 4096, got 0"),
        ({"group": "a" * 65}, "group must have at most 64 printable characters, got 'aaa"),
        ({"group": "a\n"}, "group must have at most 64 printable characters, got 'a\\n'"),
        ({"address": "a:1,b:2"}, "address must be that of a group, for example shards:///a:8000"),
        ({"address": "shards:///"}, "address must be that of a group"),
        ({"address": "shards:///a:1,b"}, "address must be that of a group"),
    ],
)
def test_a_place_that_is_none_is_refused(arguments, text):
    with pytest.raises(InvalidArgumentError) as caught:
        Shard(**{"index": 0, "num_shards": 2} | arguments)
    assert str(caught.value).startswith(text)


def test_values_of_other_types_are_refused():
    for arguments in ({"index": "0"}, {"num_shards": 2.0}, {"group": 1}, {"address": 1}):
        with pytest.raises(TypeError):
            Shard(**{"index": 0, "num_shards": 2} | arguments)
    with pytest.raises(TypeError, match=r"shard must be a reverb\.cluster\.Shard, got 0"):
        reverb.Server(tables(), shard=0)


def test_a_server_with_a_limiter_that_is_too_fine_fails():
    with pytest.raises(InvalidArgumentError, match=r"table queue is too fine for 11 shards: "):
        reverb.Server(tables(), shard=Shard(0, 11))


def test_a_shard_is_loaded_from_its_own_checkpoint(tmp_path):
    def started():
        checkpointer = reverb.checkpointers.DefaultCheckpointer(tmp_path)
        return reverb.Server(tables(), checkpointer=checkpointer, shard=Shard(0, 2))

    with started() as server:
        client = server.localhost_client()
        client.insert(7, {"queue": 1.0})
        client.checkpoint()
    with started() as server, ShardCalls(server.port) as calls:
        info = server.server_info()["queue"]
        assert (info.current_size, info.rate_limiter_info.max_diff) == (1, 5)
        # The writer of that item knew no slots.
        [told] = next(calls.watch("queue")).tables
        assert (told.size, told.cursor) == (1, 1)
