# SPDX-License-Identifier: Apache-2.0
"""Tables with rollouts under calls for all tables: plain ones, delete, reset, pause, drain."""

import numpy as np
import pytest

import reverb
from reverb.errors import DataLossError, DeadlineExceededError, UnavailableError
from support.rollout_tables import info, prompt, ready, removed, rollout, table


def insert_plainly(client):
    """Inserts an item as a client does that knows of no rollouts."""
    with client.trajectory_writer(2) as writer:
        for token in (2, 3):
            writer.append(
                {"prompt": np.int32(1), "tokens": np.int32(token), "score": np.float32(1)}
            )
        steps = writer.history
        trajectory = {
            "prompt": steps["prompt"][:1],
            "tokens": steps["tokens"][:],
            "score": steps["score"][-1],
        }
        writer.create_item("train", 1.0, trajectory)


def test_a_plain_insert_is_a_ready_item_of_one_rollout(served):
    client = served(4)
    insert_plainly(client)
    batch = client.take("train", 1)
    assert (batch.name, batch.rollout.tolist(), batch.length.tolist()) == ([""], [0], [2])
    assert batch.data["tokens"].to_list()[0].tolist() == [2, 3]


def test_a_plain_insert_waits_for_the_backlog_too(two, background):
    client, other = two(1, ahead=0, items_per_version=1)
    ready(client, "a", num_rollouts=1)
    waiting = background(insert_plainly, other)
    client.take("train", 1, ack=True)
    assert waiting.running
    client.set_version("train", 1)
    waiting.result()
    assert info(client).ready == 1


def test_a_plain_sample_trains_a_ready_item(served):
    client = served(2)
    client.insert_item("train", prompt(0), name="open")
    ready(client, "a")
    batch = client.sample_batch("train", 1, ragged="packed", unpack_as_table_signature=True)
    assert batch.data["tokens"].to_list()[0].tolist() == [0, 0, 0, 1, 1, 1]
    assert batch.data["score"].to_list()[0].tolist() == [0, 1]
    assert (client.size("train"), removed(client)) == (1, {"sampled_out": 1})
    assert info(client).taken == 1
    with pytest.raises(DeadlineExceededError):
        client.sample_batch("train", 1, ragged="packed", timeout_ms=0)


def test_a_scan_sees_what_can_be_sampled(served):
    client = served(1)
    client.insert_item("train", prompt(0), name="open")
    ready(client, "a", "b", num_rollouts=1)
    client.take("train", 1)
    assert len(list(client.scan("train"))) == 1


def test_a_new_priority_of_a_held_item_counts_when_it_is_back(start, connect):
    made = table(1).replace(sampler=reverb.selectors.MaxHeap())
    client = connect(start(made))
    ready(client, *"ab", num_rollouts=1)
    batch = client.take("train", 2)
    client.update_priorities("train", batch.info.key, np.where(np.array(batch.name) == "b", 9, 1))
    client.release(batch)
    assert client.take("train", 1).name == ["b"]


def test_a_deleted_item_refuses_what_comes_late(served):
    client = served(1)
    client.insert_item("train", prompt(0), name="a")
    ready(client, "b", num_rollouts=1)
    batch = client.take("train", 1)
    with client.open_item("train") as item:
        client.mutate_priorities("train", deletes=[item.key, int(batch.info.key[0])])
        assert not client.add_rollout(item, rollout())
    with pytest.raises(DataLossError):
        client.fetch_rollouts(batch)
    assert client.ack(batch).tolist() == []
    assert (client.size("train"), removed(client)) == (0, {"deleted": 2})


def test_delete_items_deletes_whatever_is_there(served):
    client = served(1)
    client.insert_item("train", prompt(0), name="open")
    ready(client, *"ab", num_rollouts=1)
    taken = client.take("train", 1).info.key.tolist()
    with client.open_item("train") as item:
        assert client.delete_items("train", [item.key, *taken]) == 2
    assert client.size("train") == 1


def test_after_a_reset_nothing_is_left_but_the_version(served):
    client = served(1, ahead=0, items_per_version=4)
    client.set_version("train", 3)
    client.insert_item("train", prompt(0), name="a")
    ready(client, *"bcd", num_rollouts=1)
    batch = client.take("train", 2)
    with client.open_item("train") as item:
        client.reset("train")
        assert not client.add_rollout(item, rollout())
    assert client.ack(batch).tolist() == []
    found = info(client)
    assert (found.version, found.newest, found.backlog, found.leased) == (3, "", 0, 0)
    assert (client.size("train"), removed(client)) == (0, {"reset": 4})
    ready(client, "a", num_rollouts=1)
    assert client.take("train", 1).name == ["a"]


def test_a_pause_stops_inserts_and_takes_but_no_rollouts(two, background, until):
    client, other = two(1)
    client.insert_item("train", prompt(0), name="a")
    with client.open_item("train") as item:
        client.pause_table("train")
        assert client.add_rollout(item, rollout())
        taking = background(other.take, "train", 1)
        inserting = background(other.insert_item, "train", prompt(0), name="b")
        sides = lambda: client.status().tables["train"]  # noqa: E731
        until(lambda: (sides().inserting.waiting, sides().sampling.waiting) == (1, 1))
        client.resume_table("train")
        assert taking.result().name == ["a"]
        assert inserting.result()


def test_a_take_that_times_out_names_the_pause(served):
    client = served(1)
    ready(client, "a", num_rollouts=1)
    client.pause_table("train")
    with pytest.raises(DeadlineExceededError, match="Samples of table train are paused by "):
        client.take("train", 1, timeout_ms=20)
    client.resume_table("train")
    assert client.take("train", 1).name == ["a"]


def test_acks_go_on_while_a_table_is_paused(served):
    client = served(1)
    ready(client, *"ab", num_rollouts=1)
    batch = client.take("train", 2)
    client.pause_table("train")
    client.ack(batch, batch.info.key[:1])
    client.release(batch)
    assert (client.size("train"), info(client).leased) == (1, 0)


def test_settles_and_versions_are_answered_while_a_server_drains(served):
    client = served(1)
    ready(client, *"ab", num_rollouts=1)
    batch = client.take("train", 1)
    client.drain()
    assert client.ack(batch).tolist() == []
    assert client.set_version("train", 3) == 3


def test_a_take_ends_when_the_server_stops(start, connect, background, until):
    server = start(table(1))
    client = connect(server, connect_timeout_s=0.3)
    waiting = background(client.take, "train", 1)
    watcher = server.localhost_client()
    until(lambda: watcher.status().tables["train"].sampling.waiting == 1)
    server.stop()
    with pytest.raises(UnavailableError):
        waiting.result()


def test_other_tables_go_on_beside_a_full_backlog(serve, background):
    plain = reverb.Table.queue("plain", 10)
    client = serve(table(1, ahead=0, items_per_version=1), plain)
    client.insert_item("train", prompt(0), name="a")
    waiting = background(client.insert_item, "train", prompt(0), name="b")
    client.insert([1.0], {"plain": 1.0})
    assert len(client.sample_batch("plain", 1).data[0]) == 1
    assert waiting.running
    client.reset("train")
    assert waiting.result()


def test_a_group_of_tasks_has_a_table_each(serve):
    client = serve(table(1, name="easy"), table(1, name="hard"))
    for name in ("easy", "hard"):
        client.insert_item(name, prompt(0), [rollout()], name="0")
        client.set_version(name, 2)
    assert [client.take(name, 1).table for name in ("easy", "hard")] == ["easy", "hard"]
