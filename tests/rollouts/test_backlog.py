# SPDX-License-Identifier: Apache-2.0
"""How far generators may be ahead: inserts wait for the backlog."""

import pytest

import reverb
from reverb.errors import DeadlineExceededError, InvalidArgumentError
from support.rollout_tables import info, prompt, ready, rollout, table


def insert(client, name, **options):
    return client.insert_item("train", prompt(0), name=name, **options)


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"ahead": 0}, 2),
        ({"ahead": 1}, 4),
        ({"max_staleness": 1}, 4),
        ({"ahead": 0, "max_staleness": 2}, 2),
    ],
)
def test_an_insert_waits_for_the_backlog(two, background, settings, most):
    client, other = two(1, items_per_version=2, **settings)
    for number in range(most):
        insert(client, str(number))
    assert info(client).backlog == most
    waiting = background(insert, other, "waits")
    # What was taken for the present version counts until the next one.
    with client.open_item("train") as item:
        client.add_rollout(item, rollout())
    client.take("train", 1, ack=True)
    assert info(client).backlog == most
    assert waiting.running
    client.set_version("train", 1)
    assert waiting.result()
    assert (info(client).backlog, info(client).newest) == (most, "waits")


def test_without_items_per_version_there_is_no_backlog(served):
    client = served(1, max_staleness=1)
    for number in range(50):
        insert(client, str(number))
    assert info(client).backlog == 50


def test_a_delete_gives_its_backlog_back(two, background):
    client, other = two(1, ahead=0, items_per_version=1)
    ready(client, "a", num_rollouts=1)
    batch = client.take("train", 1)
    waiting = background(insert, other, "waits")
    client.mutate_priorities("train", deletes=batch.info.key.tolist())
    assert waiting.result()


def test_a_release_does_not_change_the_backlog(served):
    client = served(1, ahead=0, items_per_version=2)
    ready(client, "a", "b", num_rollouts=1)
    batch = client.take("train", 2)
    assert (info(client).backlog, info(client).taken) == (2, 2)
    client.release(batch)
    assert (info(client).backlog, info(client).taken) == (2, 0)


def release(client, batch):
    client.release(batch)


def delete(client, batch):
    client.delete_items("train", batch.info.key)


@pytest.mark.parametrize("end", [release, delete])
def test_what_was_taken_for_an_earlier_version_gives_none_back(served, end):
    client = served(1, ahead=1, items_per_version=2)
    ready(client, *"abcd", num_rollouts=1)
    earlier = client.take("train", 2)
    client.set_version("train", 1)
    client.take("train", 2, ack=True)
    end(client, earlier)
    back = 2 if end is release else 0
    assert (info(client).taken, info(client).backlog) == (2, 2 + back)


def test_a_checkpoint_counts_what_was_taken_for_its_version(tmp_path):
    def serve():
        saver = reverb.checkpointers.DefaultCheckpointer(str(tmp_path))
        return reverb.Server([table(1, ahead=3, items_per_version=2)], checkpointer=saver)

    with serve() as server:
        client = server.localhost_client()
        ready(client, *"abcdef", num_rollouts=1)
        client.take("train", 2)
        client.set_version("train", 1)
        client.take("train", 1, ack=True)
        client.take("train", 2)
        assert (info(client).taken, info(client).backlog) == (3, 4)
        client.checkpoint()
    with serve() as server:
        # What clients held is free again.
        client = server.localhost_client()
        assert (info(client).taken, info(client).backlog) == (1, 6)


def test_acks_after_a_restart_leave_room_for_the_version(start, connect, root):
    """Of batches that were held for earlier versions: they do not fill the backlog of this one."""
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
    made = {"ahead": 0, "items_per_version": 2}
    server = start(table(1, **made), checkpointer=checkpointer)
    client, held = connect(server), []
    for version in range(3):
        ready(client, f"{version}a", f"{version}b", num_rollouts=1)
        held.append(client.take("train", 2))
        client.set_version("train", version + 1)
    client.checkpoint()
    server.stop()
    client = connect(start(table(1, **made), checkpointer=checkpointer))
    for batch in held:
        client.ack(batch)
    assert (info(client).taken, info(client).backlog) == (0, 0)
    ready(client, "c", "d", num_rollouts=1)
    assert client.take("train", 2, timeout_ms=0).name == ["c", "d"]


def test_rollouts_never_wait_for_the_backlog(served):
    client = served(2, ahead=0, items_per_version=1)
    insert(client, "a")
    with client.open_item("train") as item:
        assert client.add_rollout(item, rollout())
        assert client.add_rollout(item, rollout())
    assert client.take("train", 1, timeout_ms=0).name == ["a"]


def test_rollouts_do_not_wait_behind_inserts(two, background, until):
    client, other = two(1, max_items=1)
    insert(client, "a")
    waiting = background(insert, other, "waits")
    until(lambda: client.status().tables["train"].inserting.waiting == 1)
    with client.open_item("train") as item:
        adding = background(client.add_rollout, item, rollout())
        until(lambda: not adding.running, 2)
        assert adding.result()
    assert waiting.running
    client.take("train", 1, ack=True)
    assert waiting.result()


def test_an_item_that_is_there_is_told_at_once_also_without_room(served):
    client = served(1, ahead=0, items_per_version=1)
    insert(client, "a")
    assert not insert(client, "a")


def test_an_insert_times_out(served, error_says):
    client = served(1, ahead=0, items_per_version=1)
    insert(client, "a")
    text = (
        "Timeout exceeded: insert_item did not finish within 20 ms. It was waiting for a "
        "place in table train. The backlog is full, 1 of 1 (ahead 0, 1 items a version): 1 open, "
        "0 settled, 0 ready, 0 taken since version 0 was set."
    )
    error_says(lambda: insert(client, "b", timeout_ms=20), DeadlineExceededError, text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_items": 1}, "train. The table has 1 of 1 items (max_size): 1 open, 0 settled"),
        ({}, "train. It is paused by "),
    ],
)
def test_a_time_out_has_the_reason(served, options, words):
    client = served(1, **options)
    insert(client, "a")
    if not options:
        client.pause_table("train", samples=False)
    with pytest.raises(DeadlineExceededError) as raised:
        insert(client, "b", timeout_ms=50)
    assert words in str(raised.value)


def test_an_insert_that_timed_out_is_not_made_later(served, until):
    client = served(1, ahead=0, items_per_version=1)
    ready(client, "a", num_rollouts=1)
    with pytest.raises(DeadlineExceededError):
        insert(client, "b", timeout_ms=20)
    until(lambda: client.status().tables["train"].inserting.waiting == 0, 1)
    client.take("train", 1, ack=True)
    client.set_version("train", 1)
    assert (client.size("train"), info(client).newest) == (0, "a")


def test_a_take_of_more_than_the_backlog_is_an_error_at_once(served):
    client = served(1, ahead=0, items_per_version=64)
    text = "it never has 128 items at once: its backlog is 64 \\(ahead 0, 64 items a version\\)"
    with pytest.raises(InvalidArgumentError, match=text):
        client.take("train", 128)


def test_inserts_wait_at_the_largest_number_of_items(two, background):
    client, other = two(1, max_items=2)
    ready(client, "a", "b", num_rollouts=1)
    batch = client.take("train", 2)  # Those that are taken count, too.
    waiting = background(insert, other, "c")
    client.release(batch)
    assert waiting.running
    client.take("train", 1, ack=True)
    assert waiting.result()


def test_two_learners_share_a_version(two):
    client, other = two(1, ahead=0, items_per_version=4)
    ready(client, *"abcd", num_rollouts=1)
    assert client.take("train", 2).name == ["a", "b"]
    assert other.take("train", 2).name == ["c", "d"]
    assert info(client).taken == 4
