# SPDX-License-Identifier: Apache-2.0
"""Stores of the shards of a group: to which place one belongs, and items that move.

Items are moved between servers that are killed: none is lost, and none is in a shard twice.
"""

import json

import numpy as np
import pytest

import reverb
from reverb import command
from reverb.cluster import Shard
from reverb.cluster.directory import Directory
from reverb.cluster.shard_calls import move_items, set_map
from reverb.errors import FailedPreconditionError, UnavailableError
from support.programs import Program
from support.waiting import Background, wait_until

# It prints a line when it serves, and when its disk takes nothing any more.
_SERVER = """
    import resource, sys
    from cluster.test_stores_of_shards import serve
    server = serve(sys.argv[1], sync_interval_s=60)
    print(server.port, flush=True)
    for line in sys.stdin:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        print("full", flush=True)
"""


def serve(directory, shard=None, checkpoints=None, **options):
    limiter = reverb.rate_limiters.MinSize(1)
    selectors = reverb.selectors
    table = reverb.Table("t", selectors.Uniform(), selectors.Fifo(), 10_000, limiter)
    store = reverb.Store(directory, **options)
    checkpointer = checkpoints and reverb.checkpointers.DefaultCheckpointer(str(checkpoints))
    return reverb.Server([table], checkpointer=checkpointer, shard=shard, store=store)


def fill(client, count):
    """Inserts items of which some are large; returns their keys."""
    numbers = np.arange(count)
    noise = np.random.default_rng(count).integers(0, 256, (count, 3000), np.uint8)
    return set(map(int, client.insert_batch({"noise": noise, "n": numbers}, {"t": 1.0})["t"]))


def keys_of(client):
    keys = [int(item.info.key) for item in client.scan("t")]
    assert len(keys) == len(set(keys)) == client.server_info()["t"].current_size
    return set(keys)


def map_of(group, num_shards):
    directory = Directory(group)
    directory.lay_out(range(num_shards))
    return directory.to_proto().SerializeToString()


# ---- Places --------------------------------------------------------------------------------------


@pytest.fixture
def left(tmp_path):
    """The store of a shard that was stopped."""
    with serve(tmp_path / "g-2", Shard(2, 4, "g")) as server:
        fill(server.localhost_client(), 10)
    return tmp_path / "g-2"


OTHERS = "give each shard the directory that it had, or a new one"
PLACES = [
    (Shard(2, 4, "g"), None),
    (None, None),
    (Shard(2, 6, "g", rejoins=True), None),
    (
        Shard(2, 6, "g"),
        "this is one of 6: start the group as it was, save a checkpoint, then: reverb reshard "
        "--shards 6",
    ),
    (Shard(1, 4, "g"), f"this is shard 1 of 4: {OTHERS}"),
    (Shard(2, 4, "h"), f'of group "g", this is shard 2 of 4 of group "h": {OTHERS}'),
]


@pytest.mark.parametrize(("shard", "text"), PLACES)
def test_a_store_starts_in_the_place_that_it_had(left, shard, text):
    if text is not None:
        with pytest.raises(FailedPreconditionError) as refused:
            serve(left, shard)
        assert str(refused.value).startswith(f"store {left} belongs to shard 2 of 4")
        assert text in str(refused.value)
    # Nothing was lost by it, and a shard without items belongs to no place any more.
    with serve(left, None if text else shard) as server:
        client = server.localhost_client()
        assert len(keys_of(client)) == 10
        client.reset("t")
    serve(left, shard).stop()


def test_a_newer_checkpoint_makes_no_place_right(left, tmp_path, root):
    """Else a shard would move the store of its neighbour away, and serve."""
    with serve(tmp_path / "g-1", Shard(1, 4, "g"), root) as server:
        fill(server.localhost_client(), 5)
        server.localhost_client().checkpoint()
    with pytest.raises(FailedPreconditionError, match="belongs to shard 2 of 4, this is shard 1"):
        serve(left, Shard(1, 4, "g"), root)
    assert not [*left.glob("stale-*")]
    # After a reshard, by a checkpoint, there is another number of them.
    with serve(left, Shard(2, 6, "g"), root) as server:
        assert len(keys_of(server.localhost_client())) == 5


@pytest.mark.parametrize("shard", [None, Shard(0, 3, "g", rejoins=True)])
def test_a_map_that_arrives_later_is_compared_too(left, capfd, shard):
    with serve(left, shard) as server:
        fill(server.localhost_client(), 5)
    assert command.main(["store", "check", str(left)]) == 0
    assert "\n  shard 2 of 4 of group 'g'\n" in capfd.readouterr().out
    with serve(left, shard) as server:
        client = server.localhost_client()
        for group, index in (("g", 1), ("h", 2)):
            with pytest.raises(FailedPreconditionError, match=r"g-2 belongs to shard 2 of 4.*: gi"):
                set_map(client, map_of(group, 6), index)
        set_map(client, map_of("g", 6), 2)
    assert command.main(["store", "check", str(left)]) == 0
    assert "\n  shard 2 of 6 of group 'g'\n" in capfd.readouterr().out
    assert command.main(["store", "check", str(left), "--json"]) == 0
    shard = json.loads(capfd.readouterr().out)["shard"]
    assert shard == {"index": 2, "num_shards": 6, "group": "g"}


def test_the_way_to_another_number_of_shards_leads_there(tmp_path):
    keys = set()
    for index in range(2):
        directory, old = tmp_path / f"g-{index}", tmp_path / "old" / f"shard-{index}"
        with serve(directory, Shard(index, 2, "g"), old) as server:
            client = server.localhost_client()
            keys |= fill(client, 10 + index)
            client.checkpoint()
    with pytest.raises(FailedPreconditionError, match="reverb reshard --shards 3"):
        serve(tmp_path / "g-0", Shard(0, 3, "g"))
    old, new = tmp_path / "old", tmp_path / "new"
    assert command.main(["reshard", "--shards", "3", str(old), str(new)]) == 0
    found = set()
    for index in range(3):
        shard = Shard(index, 3, "g")
        with serve(tmp_path / f"g-{index}", shard, new / f"shard-{index}") as server:
            found |= keys_of(server.localhost_client())
    assert found == keys


# ---- Items that move -----------------------------------------------------------------------------


class Process:
    """A server with a store, in a process of its own."""

    def __init__(self, directory):
        self.program = Program(_SERVER, directory)
        self.client = reverb.Client(f"localhost:{self.program.line()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()
        self.program.__exit__()


def test_a_receiver_that_is_killed_before_it_answers(tmp_path):
    with Process(tmp_path / "a") as source:
        keys = fill(source.client, 100)
        with Process(tmp_path / "b") as target:
            target.program.tell()
            assert target.program.line() == "full"
            moving = Background(move_items, source.client, target.client, "t", [])
            wait_until(lambda: target.client.status().store.state == "failing")
            # It has all of them, and does not say so.
            assert keys_of(target.client) == keys
            assert moving.running
            target.program.kill()
            with pytest.raises(UnavailableError):
                moving.result()
        with Process(tmp_path / "b") as target:
            assert keys_of(target.client) == set()
            assert move_items(source.client, target.client, "t", []) == (100, 0)
            assert keys_of(target.client) == keys


def test_a_source_that_is_killed_before_it_deletes(tmp_path):
    with Process(tmp_path / "b") as target, Process(tmp_path / "a") as source:
        keys = fill(source.client, 100)
        source.client.sync()
        assert move_items(source.client, target.client, "t", []) == (100, 0)
        # Both are killed. What was answered is on the disk of the receiver.
        source.program.kill()
        target.program.kill()
    with Process(tmp_path / "a") as source, Process(tmp_path / "b") as target:
        assert keys_of(target.client) == keys
        assert move_items(source.client, target.client, "t", []) == (0, 100)
        source.client.reset("t")
        source.client.sync()
        source.program.kill()
        target.program.kill()
    with Process(tmp_path / "a") as source, Process(tmp_path / "b") as target:
        assert (keys_of(source.client), keys_of(target.client)) == (set(), keys)


def test_a_shard_that_leaves_empties_its_store(tmp_path):
    with serve(tmp_path / "a") as source, serve(tmp_path / "b") as target:
        client = source.localhost_client()
        keys = fill(client, 100)
        client.sync()
        move_items(client, target.localhost_client(), "t", [])
        client.reset("t")
    with serve(tmp_path / "a") as source, serve(tmp_path / "b") as target:
        assert keys_of(source.localhost_client()) == set()
        assert keys_of(target.localhost_client()) == keys
