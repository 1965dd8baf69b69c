# SPDX-License-Identifier: Apache-2.0
"""The part that each shard has of a table, while shards come and go and clients change it."""

import pytest
import ray

import reverb
from reverb.adapters import ray as reverb_ray

pytestmark = [pytest.mark.alone, pytest.mark.timeout(120)]


def max_sizes(group):
    """The `max_size` of the table in each shard."""
    clients = [reverb.Client(shard.address) for shard in group.status().shards.values()]
    return [client.server_info()["table"].max_size for client in clients]


def test_a_change_of_a_table_reaches_restarted_shards(start_group, kill, until):
    group = start_group()
    client = group.client()
    client.configure_table("table", max_size=90)
    until(lambda: client.server_info()["table"].max_size == 90)
    until(lambda: group.status().is_complete)
    kill(group, 1)
    until(lambda: group.status().shards[1].num_starts > 1 and group.status().is_complete)
    until(lambda: max_sizes(group) == [30, 30, 30])
    assert group.client().server_info()["table"].max_size == 90
    group.add_shards(2)
    assert max_sizes(group) == [18] * 5


def test_an_older_map_that_comes_late_changes_no_table(start_group, make_tables, until):
    group = start_group(num_shards=1)
    with reverb_ray.serve_here("test", make_tables) as shard:
        older = shard._life.facts().map
        group.client().configure_table("table", max_size=90)
        until(lambda: group.status().is_complete and max_sizes(group) == [45, 45])
        epoch = shard._life.facts().epoch
        assert shard._life.set_map(older) >= epoch
        assert max_sizes(group) == [45, 45]


def test_a_shard_in_the_program_has_its_part(start_group, make_tables, until):
    group = start_group(num_shards=1)
    with reverb_ray.serve_here("test", make_tables):
        assert max_sizes(group) == [1500, 1500]
        group.add_shards(1)
        until(lambda: max_sizes(group) == [1000] * 3)
        group.drain(0)
        until(lambda: max_sizes(group) == [1500, 1500])
    assert max_sizes(group) == [3000]


def test_the_part_of_a_lost_shard_goes_to_the_others(start_group, make_tables, until):
    group = start_group(num_shards=2)
    shard = reverb_ray.serve_here("test", make_tables)
    assert max_sizes(group) == [1000] * 3
    shard._life.end_beats()
    directory = ray.get_actor("reverb:test", namespace="reverb")
    ray.get(directory.remove_lost.remote(-1.0))
    until(lambda: max_sizes(group) == [1500, 1500])
    shard._life.stop()


def test_a_change_of_tables_that_fails_is_tried_again(
    start_group, make_tables, until, monkeypatch, caplog
):
    caplog.set_level("WARNING", "reverb.ray")
    group = start_group(num_shards=1)
    with reverb_ray.serve_here("test", make_tables) as shard:
        configure = shard.server.configure_tables
        attempts = []

        def fail_twice(changes):
            attempts.append(changes)
            if len(attempts) < 3:
                raise OSError("no memory")
            return configure(changes)

        monkeypatch.setattr(shard.server, "configure_tables", fail_twice)
        group.add_shards(1)
        until(lambda: max_sizes(group) == [1000] * 3)
        assert len(attempts) == 3
        text = "shard 1 of group 'test' tries again each second to follow its group: no memory"
        assert [it for it in caplog.messages if "no memory" in it] == [text]
