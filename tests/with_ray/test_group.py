# SPDX-License-Identifier: Apache-2.0
"""A group on a Ray cluster: started, found, killed in parts, saved, changed and stopped."""

import dataclasses
import os
import signal
import time

import numpy as np
import pytest
import ray

import reverb
from reverb.adapters import ray as reverb_ray
from reverb.adapters.ray.shard_facts import Answer
from reverb.cluster import group_checkpoint
from reverb.errors import FailedPreconditionError, InvalidArgumentError

pytestmark = [pytest.mark.alone, pytest.mark.timeout(120)]


def fill(group, counts):
    """Inserts so many items into each shard, by clients of one shard each."""
    for index, count in enumerate(counts):
        client = reverb.Client(group.status().shards[index].address)
        with client.trajectory_writer(1) as writer:
            for number in range(count):
                writer.append([np.int64(number)])
                writer.create_item("table", 1.0, [writer.history[0][-1:]])


def sizes(group):
    return [shard.sizes.get("table") for shard in group.status().shards.values()]


def test_start_connect_by_name_and_stop(start_group):
    group = start_group()
    status = group.status()
    assert status.is_complete
    assert len({shard.node_id for shard in status.shards.values()}) == 3

    @ray.remote
    def insert():
        client = reverb_ray.connect("test")
        for number in range(30):
            client.insert([np.int64(number)], {"table": 1.0})
        return client.server_address

    assert ray.get(insert.remote()) == group.address
    client = reverb_ray.get_group("test").client()
    numbers = {int(it[0].data[0]) for it in client.sample("table", 300)}
    assert numbers <= set(range(30))
    assert len(numbers) > 10
    assert sum(sizes(group)) == 30
    group.stop()
    with pytest.raises(FailedPreconditionError, match="there is no group 'test' on this Ray clu"):
        reverb_ray.connect("test")


def test_a_killed_shard_returns_with_its_own_checkpoint(start_group, kill, root, until):
    group = start_group(checkpoint_directory=root)
    fill(group, [3, 4, 5])
    group.checkpoint()
    fill(group, [1, 1, 1])
    addresses = {it.index: it.address for it in group.status().shards.values()}
    for index in range(3):
        epoch = group.status().epoch
        kill(group, index)
        until(lambda epoch=epoch: group.status().epoch > epoch and group.status().is_complete)
    shards = group.status().shards
    assert [shard.num_starts for shard in shards.values()] == [2, 2, 2]
    # Each has lost what came after its last checkpoint, and nothing else.
    assert sizes(group) == [3, 4, 5]
    # Clients that knew only this shard find it again.
    assert {it.index: it.address for it in shards.values()} == addresses


def test_a_shard_loads_its_own_newer_checkpoint(start_group, kill, root, until):
    group = start_group(checkpoint_directory=root)
    fill(group, [2, 2, 2])
    group.checkpoint()
    fill(group, [2, 2, 2])
    reverb.Client(group.status().shards[1].address).checkpoint()
    epoch = group.status().epoch
    kill(group, 1)
    until(lambda: group.status().epoch > epoch and group.status().is_complete)
    assert sizes(group) == [4, 4, 4]


def test_the_directory_is_killed_and_learns_everything_again(start_group, until, restart_directory):
    group = start_group()
    group.add_shards(1)
    before = group.status()
    restart_directory()
    after = group.status()
    assert after.epoch >= before.epoch
    slots = {it.index: (it.num_slots, it.address) for it in before.shards.values()}
    assert {it.index: (it.num_slots, it.address) for it in after.shards.values()} == slots
    until(lambda: group.status().is_complete)
    assert group.add_shards(1) == [4]


def test_a_shard_that_dies_with_the_directory_has_restarted(start_group, until, restart_directory):
    group = start_group()
    os.kill(group.status().shards[1].pid, signal.SIGKILL)
    restart_directory()
    until(lambda: group.status().is_complete and group.status().shards[1].num_starts == 2)
    os.kill(group.status().shards[1].pid, signal.SIGKILL)
    until(lambda: group.status().is_complete and group.status().shards[1].num_starts == 3)
    assert [group.status().shards[index].num_starts for index in (0, 2)] == [1, 1]
    # The shards tell the next one.
    restart_directory()
    until(lambda: group.status().is_complete)
    assert group.status().shards[1].num_starts == 3


def test_a_directory_that_still_starts_reports_no_empty_group(
    start_group, until, restart_directory
):
    group = start_group()
    pid = group.status().shards[1].pid
    os.kill(pid, signal.SIGSTOP)  # So that it is asked in vain for seconds.
    try:
        restart_directory()
        status = group.status()
        assert sorted(status.shards) == [0, 1, 2]
        assert not status.is_complete
        assert group.add_shards(1) == [3]
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: group.status().is_complete)


def test_a_directory_waits_for_the_only_map(start_group, until, restart_directory):
    """A map that it made meanwhile would be older, and refused for ever."""
    group = start_group(num_shards=1)
    client = group.client()
    epoch, pid = group.status().epoch, group.status().shards[0].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        restart_directory()
        time.sleep(6)  # It is asked in vain for five seconds, and then again.
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: group.status().is_complete)
    assert group.status().epoch >= epoch
    assert group.add_shards(1) == [1]
    client.insert([np.int64(1)], {"table": 1.0})
    assert sum(sizes(group)) == 1


def test_the_whole_group_restarts_from_its_latest_checkpoint(start_group, root):
    group = start_group(checkpoint_directory=root, keep_latest=2)
    fill(group, [1, 2, 3])
    first = group.checkpoint()
    fill(group, [1, 1, 1])
    second = group.checkpoint()
    fill(group, [5, 5, 5])
    # Newer than that of the group, and of one shard only.
    reverb.Client(group.status().shards[1].address).checkpoint()
    epoch = group.status().epoch
    group.stop()
    assert [group_checkpoint.read(path).epoch for path in (first, second)] == [epoch, epoch]

    again = start_group(checkpoint_directory=root)
    assert sizes(again) == [2, 3, 4]
    status = again.status()
    assert status.epoch > epoch
    assert status.latest_checkpoint == second
    for index, shard in status.shards.items():
        assert shard.restored_from == str(group_checkpoint.read(second).path_of(index))


def test_stop_may_save_first_and_saves_come_by_themselves(start_group, root, until):
    group = start_group(checkpoint_directory=root, checkpoint_interval_s=1.0)
    until(lambda: group.status().latest_checkpoint is not None)
    fill(group, [1, 1, 1])
    group.stop(checkpoint=True)
    assert group_checkpoint.latest(root, "test").parts.keys() == {0, 1, 2}
    assert sizes(start_group(checkpoint_directory=root)) == [1, 1, 1]


def test_a_shard_that_dies_during_a_save_is_named(start_group, root, kill):
    group = start_group(checkpoint_directory=root)
    fill(group, [1, 1, 1])
    before = group.checkpoint()
    pid = group.status().shards[2].pid
    # It freezes in the save and is killed then.
    os.kill(pid, signal.SIGSTOP)
    directory = ray.get_actor("reverb:test", namespace="reverb")
    saving = directory.checkpoint.remote()
    ray.wait([saving], timeout=1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Exception, match=r"1 of 3 shards could not save \(shard 2: "):
        ray.get(saving, timeout=30)
    assert str(group_checkpoint.latest(root, "test").path) == before
    assert "shard 2" in group.status().latest_error


def test_new_shards_take_slots_and_a_part_of_the_sizes(start_group):
    group = start_group()
    fill(group, [3, 3, 3])
    assert group.add_shards(2) == [3, 4]
    status = group.status()
    assert status.is_complete
    counts = [shard.num_slots for shard in status.shards.values()]
    assert sum(counts) == 4096
    assert max(counts) - min(counts) <= 3
    assert sizes(group) == [3, 3, 3, 0, 0]
    for shard in status.shards.values():
        info = reverb.Client(shard.address).server_info()["table"]
        assert info.max_size == 600


def items(client):
    """Key, priority and content of all items of the group."""
    return {
        int(it.info.key): (float(it.info.priority), int(it.data[0][0]))
        for it in client.scan("table")
    }


def test_a_drained_shard_gives_its_items_to_the_others(start_group):
    group = start_group()
    client = group.client()
    fill(group, [200, 300, 250])
    before = items(client)
    assert len(before) == 750
    updates = {key: 1.0 + number % 7 for number, key in enumerate(before)}
    client.mutate_priorities("table", updates)
    assert group.drain("shard-1", wait_s=1.0) == 300
    status = group.status()
    assert list(status.shards) == [0, 2]
    assert sum(sizes(group)) == 750
    after = items(client)
    assert after == {key: (updates[key], content) for key, (_, content) in before.items()}
    # They are where updates look for them.
    client.mutate_priorities("table", dict.fromkeys(before, 9.0))
    assert {priority for priority, _ in items(client).values()} == {9.0}


def test_a_drain_that_cannot_be_leaves_the_group_as_it_was(start_group):
    group = start_group(num_shards=1)
    with pytest.raises(FailedPreconditionError, match="no other shard is left to take its slots"):
        group.drain(0)
    with pytest.raises(InvalidArgumentError, match=r"has no shard 7; it has \[0\]"):
        group.drain("shard-7")
    with pytest.raises(InvalidArgumentError, match="a number or 'shard-<number>', got 'first'"):
        group.drain("first")
    assert group.status().is_complete


def test_a_process_of_the_program_becomes_a_shard(start_group, make_tables, until):
    group = start_group()
    with reverb_ray.serve_here("test", make_tables) as shard:
        assert shard.index == 3
        assert shard.client().server_address.startswith("localhost")
        status = group.status().shards[3]
        assert (status.state, status.is_actor, status.pid) == ("serving", False, os.getpid())
        shard.client().insert([np.int64(1)], {"table": 1.0})
        assert shard.client().sample_batch("table", 1).data[0].tolist() == [[1]]
        until(lambda: group.status().is_complete)
    assert list(group.status().shards) == [0, 1, 2]


def test_a_shard_that_was_given_up_returns_with_its_items(start_group, make_tables, until):
    group = start_group(num_shards=2)
    with reverb_ray.serve_here("test", make_tables) as shard:
        for number in range(20):
            shard.client().insert([np.int64(number)], {"table": 1.0})
        directory = ray.get_actor("reverb:test", namespace="reverb")
        ray.get(directory.remove_lost.remote(-1.0))
        until(lambda: len(group.status().shards) == 3 and group.status().is_complete)
        until(lambda: group.status().shards[2].state == "serving")
        client = group.client()
        client.mutate_priorities("table", dict.fromkeys(items(client), 5.0))
        assert [priority for priority, _ in items(client).values()] == [5.0] * 20


def test_a_process_that_ray_has_replaced_is_told_so(start_group):
    group = start_group(num_shards=2)
    actor = ray.get_actor("reverb:test:shard-1", namespace="reverb")
    directory = ray.get_actor("reverb:test", namespace="reverb")
    facts = ray.get(actor.describe.remote())
    epoch = group.status().epoch
    # The message of a process that is back from the other side of a broken network.
    old = dataclasses.replace(facts, server_id=facts.server_id + 1, epoch=1)
    assert ray.get(directory.beat.remote(1, old.server_id, 1)) == Answer(action="register")
    answer = ray.get(directory.register.remote(old))
    assert answer == Answer(action="stop", reason="Ray has started this shard again elsewhere")
    assert group.status().epoch == epoch


def test_a_shard_in_the_program_leaves_its_items_to_others(start_group, make_tables):
    group = start_group(num_shards=2)
    shard = reverb_ray.serve_here("test", make_tables)
    for number in range(50):
        shard.client().insert([np.int64(number)], {"table": 1.0})
    with pytest.raises(FailedPreconditionError, match=r"LocalShard.stop\(move_items=True\)"):
        group.drain(shard.index)
    shard.stop(move_items=True)
    assert list(group.status().shards) == [0, 1]
    assert sorted(content for _, content in items(group.client()).values()) == list(range(50))
