# SPDX-License-Identifier: Apache-2.0
"""What the server reports of rollouts: status, time-outs, commands, metrics, and what has left."""

import json

import pytest

import reverb
from reverb import command
from reverb.errors import DeadlineExceededError
from support.pages import get
from support.rollout_tables import info, prompt, ready, removed, rollout, table


def rollouts_of(client):
    return client.status().tables["train"].rollouts


def test_a_table_without_rollouts_has_no_status_of_them(serve):
    client = serve(reverb.testing.table("plain"))
    assert client.status().tables["plain"].rollouts is None


def test_items_are_counted_by_their_state(two):
    client, generator = two(2, ahead=3, items_per_version=2)
    ready(client, "ready", "taken")
    for name in ("held", "open"):
        client.insert_item("train", prompt(0), name=name)
    batch = client.take("train", 1)
    with generator.open_item("train") as item:
        generator.add_rollout(item, rollout(), version=0)
        found = rollouts_of(client)
        assert (found.open, found.settled, found.ready) == (2, 0, 2)
        assert (found.open_held, found.ready_held) == (1, 1)
        assert (found.backlog, found.max_backlog, found.taken) == (4, 8, 1)
        oldest = found.oldest_open
        assert (oldest.name, oldest.num_final, oldest.num_rollouts) == ("held", 1, 2)
        assert oldest.holder != ""
        assert oldest.age_s >= 0
        assert (found.oldest_lease.num_items, found.oldest_lease.holder != "") == (1, True)
        assert found.num_rollouts == 5
        assert found.last_rollout_age_s >= 0
    client.ack(batch)
    found = rollouts_of(client)
    assert (found.open_held, found.oldest_open.holder, found.oldest_lease) == (0, "", None)


def test_events_are_counted(two, until):
    client, lost = two(1, max_staleness=0, lease_grace_s=0.1)
    for version in range(1, 3):
        ready(client, f"{version}", num_rollouts=1)
        client.set_version("train", version)
    assert rollouts_of(client).num_again == 2
    with client.open_item("train") as item:
        client.fail_rollout(item, 0, "no answer")
    found = rollouts_of(client)
    assert (found.num_failed_rollouts, removed(client)) == (1, {"failed": 1})
    lost.open_item("train").__enter__()
    lost.close()
    assert rollouts_of(client).num_lost_leases in (0, 1)


def test_staleness_is_counted_when_items_are_taken(served):
    client = served(1)
    ready(client, "a", num_rollouts=1)
    client.set_version("train", 3)
    ready(client, "b", "c", num_rollouts=1)
    client.take("train", 2)
    client.sample_batch("train", 1)
    staleness = rollouts_of(client).staleness
    assert (staleness.count, staleness.sum) == (3, 3.0)
    assert staleness.bounds[:4] == (0.5, 1.0, 2.0, 4.0)
    assert staleness.counts[:4] == (2, 0, 0, 1)


def test_generators_that_wait_are_no_sample_requests(two, background, until):
    client, other = two(1)

    def opens():
        with other.open_item("train", timeout_ms=60_000) as item:
            return item.name

    waiting = background(opens)
    until(lambda: rollouts_of(client).waiting_open == 1)
    sampling = client.status().tables["train"].sampling
    assert (sampling.waiting, sampling.oldest_wait_s) == (0, None)
    client.insert_item("train", prompt(0), name="a")
    assert waiting.result() == "a"


def test_a_take_that_times_out_says_what_is_there(served, error_says):
    client = served(2)
    ready(client, "a")
    client.insert_item("train", prompt(0), name="b")
    with client.open_item("train") as item:
        client.add_rollout(item, rollout())
        with pytest.raises(DeadlineExceededError) as raised:
            client.take("train", 2, timeout_ms=0)
    for text in (
        "Table train: 1 of 2 items are ready: 1 open (the oldest for ",
        ": b has 1 of 2 rollouts, held by ",
        "0 settled, 1 ready, 0 held by learners; since version 0 was set 0 were taken, "
        "0 failed and 0 became stale; the last rollout came ",
    ):
        assert text in str(raised.value)


def test_every_view_names_a_missing_version(two, background, until, capsys):
    """A learner that has taken the whole backlog, and asks for more before it sets a version."""
    client, learner = two(1, ahead=0, items_per_version=2)
    ready(client, "a", "b", num_rollouts=1)
    client.take("train", 2)
    waiting = background(learner.take, "train", 1, timeout_ms=120_000)
    words = "2 of the 2 items of the backlog are taken at version 0, and 0 are ready: call"
    until(lambda: client.diagnose("train").state == "stuck")
    assert words in client.diagnose("train").sentence
    address = client.server_address
    assert command.main(["why", address]) == 4
    assert words in capsys.readouterr().out
    assert command.main(["top", "--once", address]) == 0
    assert words in capsys.readouterr().out
    client.set_version("train", 1)
    ready(client, "c", num_rollouts=1)
    assert waiting.result().name == ["c"]


def test_series_say_the_same_as_the_status(start, connect):
    server = start(table(1, ahead=1, items_per_version=4), http_port=0)
    client = connect(server)
    ready(client, "a", "b", num_rollouts=1)
    client.insert_item("train", prompt(0), name="open")
    client.set_version("train", 2)
    client.take("train", 1)
    text = get(server, "/metrics").text
    found = {
        line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if "train" in line
    }
    status = rollouts_of(client)
    for state in ("open", "settled", "ready", "open_held", "settled_held", "ready_held"):
        key = f'reverb_table_rollout_items{{table="train",state="{state}"}}'
        assert found.pop(key) == getattr(status, state), state
    for name, value in (
        ("version", 2),
        ("backlog", 3),
        ("max_backlog", 8),
        ("taken", 1),
        ("again_total", 0),
        ("lost_leases_total", 0),
        ("staleness_count", 1),
        ("staleness_sum", 2),
    ):
        assert found.pop(f'reverb_table_{name}{{table="train"}}') == value, name
    assert found.pop('reverb_table_rollouts_total{table="train",outcome="final"}') == 2
    assert found.pop('reverb_table_oldest_open_seconds{table="train"}') > 0
    assert found.pop('reverb_table_oldest_lease_seconds{table="train"}') > 0


def test_what_left_is_counted_across_restarts(start, connect, root):
    """Inserts are the items that are there and those that left, also after a restart."""

    def conserved(client):
        status = client.status().tables["train"]
        return status.inserts, status.items + sum(info(client).left.values())

    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
    server = start(table(1, max_staleness=0, max_attempts=1), checkpointer=checkpointer)
    client = connect(server)
    ready(client, *"abcdef", num_rollouts=1)
    batch = client.take("train", 4)
    client.ack(batch, batch.info.key[:2])
    client.delete_items("train", batch.info.key[2:3])
    client.set_version("train", 1)  # What nobody holds is a prompt again.
    with client.open_item("train") as item:
        client.add_rollout(item, rollout())
    client.set_version("train", 2)  # The second time it leaves.
    with client.open_item("train") as item:
        client.fail_rollout(item, 0, "no answer")
    expected = {"deleted": 1, "failed": 1, "sampled_out": 2, "stale": 1}
    assert info(client).left == expected
    assert conserved(client) == (6, 6)
    client.checkpoint()
    server.stop()
    client = connect(start(table(1, max_staleness=0, max_attempts=1), checkpointer=checkpointer))
    assert info(client).left == expected
    assert conserved(client) == (6, 6)
    client.reset("train")
    assert conserved(client) == (6, 6)
    assert info(client).left["reset"] > 0


def test_inspect_shows_rollouts(served, capsys):
    client = served(2, max_staleness=1)
    ready(client, "a", "b")
    client.take("train", 1, ack=True)
    address = client.server_address
    assert command.main(["inspect", address, "--no-items", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["tables"]["train"]["rollouts"]
    assert (shown["newest"], shown["ready"], shown["left"]) == ("b", 1, {"sampled_out": 1})
    assert shown["settings"]["num_rollouts"] == 2
    assert command.main(["inspect", address, "--no-items"]) == 0
    text = capsys.readouterr().out
    for words in ("num_rollouts 2", "max_staleness 1", "1 ready", "1 sampled_out"):
        assert words in text
