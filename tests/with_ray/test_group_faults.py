# SPDX-License-Identifier: Apache-2.0
"""Errors of a group."""

import pathlib
import shutil

import numpy as np
import pytest
import ray

import reverb
from reverb.adapters import ray as reverb_ray
from reverb.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from support.programs import run

pytestmark = [pytest.mark.alone, pytest.mark.timeout(120)]


def test_two_groups_of_one_name(start_group):
    start_group(num_shards=1)
    with pytest.raises(FailedPreconditionError) as caught:
        start_group(num_shards=1)
    assert str(caught.value) == (
        "there is a group 'test' on this Ray cluster already: connect('test') makes a client of "
        "it, get_group('test').stop() ends it; another group needs another name"
    )
    start_group(num_shards=1, name="other")


def test_no_such_group_names_those_that_there_are(start_group):
    start_group(num_shards=1)
    with pytest.raises(FailedPreconditionError, match=r"no group 'x' .*; groups: \['test'\]"):
        reverb_ray.get_group("x")


def test_without_ray_init():
    lines = run(
        """
        import reverb
        from reverb.adapters import ray as reverb_ray
        for call in (lambda: reverb_ray.connect("x"), lambda: reverb_ray.start(list)):
            try:
                call()
            except reverb.errors.FailedPreconditionError as error:
                print(error)
        """
    )
    text = "this process is not connected to a Ray cluster: call ray.init() first"
    assert lines == [text, text]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "a/b"}, "name must have 1 to 32 characters of .*, got 'a/b'"),
        ({"num_shards": 0}, "num_shards must be at least 1, got 0"),
        ({"num_shards": None}, "num_shards must be given with placement='spread'"),
        ({"keep_latest": 0}, "keep_latest must be at least 1, got 0"),
        ({"placement": "here"}, "placement must be 'spread', 'per_node', .*, got 'here'"),
        ({"placement": []}, r"placement must be 'spread', 'per_node', .*, got \[\]"),
        ({"placement": ["x"]}, r"placement names nodes that are not alive: \['x'\]"),
        ({"placement": "per_node", "num_shards": 4}, "there are 3 nodes for 4 shards"),
        ({"base_port": 65535}, "base_port must be from 1 to 65533 with 3 shards, got 65535"),
        ({"checkpoint_directory": "here"}, "must be an absolute path, .*, got 'here'"),
        ({"checkpoint_interval_s": 5}, "checkpoint_interval_s needs checkpoint_directory"),
        (
            {"checkpoint_interval_s": 0, "checkpoint_directory": "/x"},
            "checkpoint_interval_s must be above 0, got 0",
        ),
    ],
)
def test_arguments_are_checked(start_group, options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        start_group(**options)


def test_nodes_without_room_are_told_what_a_shard_takes(start_group):
    with pytest.raises(ResourceExhaustedError, match=r"0 of 3 shards .* takes 100 CPU"):
        start_group(resources_per_shard={"num_cpus": 100})
    with pytest.raises(ResourceExhaustedError, match="no node has the resource 'replay'"):
        start_group(placement="with:replay")


def test_tables_that_differ_name_shard_table_and_field(start_group):
    def make_tables():
        import os

        return [reverb.Table.queue("queue", 10 + os.getpid())]

    with pytest.raises(
        FailedPreconditionError,
        match=r"shard \d of group 'test' cannot start .*: shard \d, table queue: max_size is \d+, ",
    ):
        start_group(make_tables)
    # Nothing is left of it.
    start_group(num_shards=1)


def test_a_shard_that_cannot_start_is_named_with_the_reason(start_group):
    def make_tables():
        raise OSError("no such environment")

    with pytest.raises(FailedPreconditionError) as caught:
        start_group(make_tables, num_shards=1)
    assert "shard 0 of group 'test' cannot start on node" in str(caught.value)
    assert "OSError: no such environment" in str(caught.value)


def test_another_number_of_shards_than_the_checkpoint_has(start_group, root):
    group = start_group(num_shards=2, checkpoint_directory=root)
    saved = group.checkpoint()
    group.stop()
    with pytest.raises(FailedPreconditionError) as caught:
        start_group(num_shards=3, checkpoint_directory=root)
    assert str(caught.value) == (
        f"{saved} was saved by 2 shards, and num_shards is 3: start as many, or make a checkpoint "
        f"for 3 shards with `reverb reshard --shards 3 {saved} OUT`"
    )


def test_a_missing_part_of_the_checkpoint_names_shard_and_path(start_group, root):
    group = start_group(num_shards=2, checkpoint_directory=root)
    saved = group.checkpoint()
    group.stop()
    part = next(root.glob("group-*/shard-1/*"))
    shutil.rmtree(part)
    with pytest.raises(DataLossError) as caught:
        start_group(num_shards=2, checkpoint_directory=root)
    assert f"group checkpoint {saved}: shard 1: its checkpoint {part} is missing" in str(
        caught.value
    )


def test_the_checkpoint_of_another_group_is_refused(start_group, root):
    group = start_group(num_shards=1, checkpoint_directory=root)
    group.checkpoint()
    with pytest.raises(FailedPreconditionError, match="of the group 'test', not of 'other'"):
        start_group(num_shards=1, name="other", checkpoint_directory=root)


def test_saving_without_a_directory(start_group):
    group = start_group(num_shards=1)
    with pytest.raises(FailedPreconditionError, match="was started without checkpoint_directory"):
        group.checkpoint()


def test_a_disk_that_is_not_shared_shows_in_the_status(start_group, root, kill, until):
    group = start_group(num_shards=2, checkpoint_directory=root)
    assert all(shard.sees_directory for shard in group.status().shards.values())
    # The restarted shard does not see the files that the directory wrote there.
    for marker in root.glob(".reverb-group-*"):
        marker.unlink()
    epoch = group.status().epoch
    kill(group, 1)
    until(lambda: group.status().epoch > epoch and group.status().is_complete)
    assert not group.status().shards[1].sees_directory


def test_more_shards_than_there_is_room(start_group):
    group = start_group(num_shards=1, resources_per_shard={"num_cpus": 5})
    assert group.add_shards(2) == [1, 2]
    with pytest.raises(ResourceExhaustedError, match=r"0 of 1 shards can .* has 3 of 8 CPU"):
        group.add_shards(1)
    with pytest.raises(InvalidArgumentError, match="count must be at least 1, got 0"):
        group.add_shards(0)
    assert group.status().is_complete


def test_tables_of_a_shard_in_this_process_are_checked(start_group, other_tables):
    group = start_group(num_shards=1)
    with pytest.raises(InvalidArgumentError, match="shard 1, table table: max_size is 7, and 3000"):
        reverb_ray.serve_here("test", other_tables(max_size=lambda: 7))
    assert list(group.status().shards) == [0]


def test_nothing_is_left_in_the_process_table(start_group, until):
    group = start_group(num_shards=2)
    pids = [shard.pid for shard in group.status().shards.values()]
    client = group.client()
    client.insert([np.int64(1)], {"table": 1.0})
    group.stop()
    until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids))
    assert ray.is_initialized()
