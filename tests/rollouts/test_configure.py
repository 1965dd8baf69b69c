# SPDX-License-Identifier: Apache-2.0
"""Settings of rollouts that change while the table runs."""

import dataclasses

import pytest

import reverb
from reverb.errors import DeadlineExceededError, InvalidArgumentError
from support.rollout_tables import info, prompt, ready, removed, rollout, table

OF_ITEMS = {"item": ("prompt",)}


def configure(client, **settings):
    """Changes some settings of the table; the others stay."""
    new = dataclasses.replace(info(client).settings, **settings)
    changed = client.configure_table("train", rollouts=new).rollouts
    told = dataclasses.replace(new, min_rollouts=new.min_rollouts or new.num_rollouts)
    assert changed.settings == info(client).settings == told
    return changed


@pytest.mark.parametrize(
    "settings",
    [
        {"min_rollouts": 1},
        {"ahead": 0, "items_per_version": 3},
        {"max_staleness": 4},
        {"on_stale": "keep"},
        {"open_timeout_s": 2.5},
        {"max_attempts": 1},
    ],
)
def test_every_setting_but_two_changes(served, settings):
    client = served(2)
    ready(client, "a")
    assert configure(client, **settings).ready == 1
    assert configure(client, **dataclasses.asdict(reverb.Rollouts(2, **OF_ITEMS))).ready == 1


def test_a_larger_backlog_lets_inserts_continue(two, background):
    client, other = two(1, ahead=0, items_per_version=1)
    ready(client, "a", num_rollouts=1)
    waiting = background(other.insert_item, "train", prompt(0), name="b")
    configure(client, items_per_version=2)
    assert waiting.result()
    configure(client, items_per_version=None, ahead=None)
    ready(client, *"cde", num_rollouts=1)


def test_a_smaller_backlog_holds_inserts(two, background):
    client, other = two(1, ahead=1, items_per_version=4)
    ready(client, *"abcd", num_rollouts=1)
    configure(client, ahead=0)
    waiting = background(other.insert_item, "train", prompt(0), name="e")
    client.take("train", 4, ack=True)
    assert (waiting.running, info(client).backlog) == (True, 4)
    with pytest.raises(DeadlineExceededError, match=r"4 of 4 \(ahead 0, 4 items a version\)"):
        client.insert_item("train", prompt(0), name="f", timeout_ms=50)
    client.set_version("train", 1)
    assert waiting.result()


def test_a_take_of_more_than_the_new_backlog_fails(two, background, until):
    client, other = two(1, ahead=0, items_per_version=8)
    ready(client, *"ab", num_rollouts=1)
    waits = background(other.take, "train", 8)
    stays = background(other.take, "train", 3)
    until(lambda: client.status().tables["train"].sampling.waiting == 2)
    configure(client, items_per_version=4)
    text = r"it never has 8 items at once: its backlog is 4 \(ahead 0, 4 items a version\)"
    with pytest.raises(InvalidArgumentError, match=text):
        waits.result()
    assert stays.running
    ready(client, "c", num_rollouts=1)
    assert stays.result().name == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"max_staleness": 3}, {"max_staleness": 1}),
        ({"max_staleness": None}, {"max_staleness": 1}),
        ({"max_staleness": 1, "on_stale": "keep"}, {"on_stale": "again"}),
    ],
)
def test_items_that_are_too_stale_by_it_are_made_again(served, before, after):
    client = served(1, **before)
    ready(client, *"ab", num_rollouts=1)
    batch = client.take("train", 1)
    client.set_version("train", 2)
    ready(client, "c", num_rollouts=1)
    changed = configure(client, **after)
    # What a learner has is left to it.
    assert (changed.open, changed.ready, changed.leased) == (1, 2, 1)
    with client.open_item("train") as item:
        assert (item.name, item.attempts) == ("b", 1)
    client.release(batch)
    assert (info(client).open, info(client).ready) == (2, 1)


def test_many_items_are_checked_before_the_call_returns(served):
    client = served(1)
    names = [str(number) for number in range(1100)]
    ready(client, *names, num_rollouts=1)
    client.set_version("train", 1)
    changed = configure(client, max_staleness=0)
    assert (changed.open, changed.ready) == (1100, 0)


def test_a_larger_max_staleness_makes_nothing_again(served):
    client = served(1, max_staleness=1)
    ready(client, "a", num_rollouts=1)
    configure(client, max_staleness=4)
    client.set_version("train", 4)
    assert client.take("train", 1).staleness.tolist() == [4]


def test_fewer_rollouts_may_be_enough_from_now_on(served):
    client = served(3)
    client.insert_item("train", prompt(0), [rollout(1)], name="a")
    with client.open_item("train") as item:
        client.fail_rollout(item, 1, "a test")
    configure(client, min_rollouts=1)
    assert info(client).open == 1  # One is neither final nor failed.
    with client.open_item("train") as item:
        assert client.fail_rollout(item, 2, "a test")
    assert client.take("train", 1).rollout.tolist() == [0]


def test_the_next_loss_has_the_new_number_of_attempts(served):
    client = served(1, max_staleness=0)
    ready(client, *"ab", num_rollouts=1)
    configure(client, max_attempts=1)
    client.set_version("train", 1)
    assert (info(client).open, removed(client)) == (2, {})
    for name in "ab":
        with client.open_item("train") as item:
            assert (item.name, client.add_rollout(item, rollout())) == (name, True)
    client.set_version("train", 2)
    assert client.size("train") == 0


def test_what_a_client_holds_may_time_out_now(two):
    client, other = two(1)
    client.insert_item("train", prompt(0), name="a")
    with client.open_item("train") as item:
        configure(client, open_timeout_s=0.1)
        with other.open_item("train", timeout_ms=20_000) as again:
            assert (again.key, again.attempts) == (item.key, 1)


def test_several_tables_change_or_none(start):
    server = start(table(2), table(2, name="other"))
    client = server.localhost_client()
    good = reverb.TableChange(rollouts=reverb.Rollouts(2, **OF_ITEMS, max_staleness=1))
    bad = reverb.TableChange(rollouts=reverb.Rollouts(3, **OF_ITEMS))
    with pytest.raises(InvalidArgumentError):
        client.configure_tables({"train": good, "other": bad})
    assert info(client).settings.max_staleness is None
    (changed,) = client.configure_tables({"train": good}, dry_run=True)
    assert str(changed) == "max_staleness of table train is 1 now, not none"
    assert info(client).settings.max_staleness is None


def test_what_cannot_change_is_refused(served, error_says):
    client = served(2)

    def change(*args, **settings):
        rollouts = reverb.Rollouts(*args, **{**OF_ITEMS, **settings})
        client.configure_table("train", rollouts=rollouts)

    made = "the items that are there are made for it. Give"
    for call, text in (
        (
            lambda: change(4),
            "num_rollouts of the rollouts of table train is 2 and cannot become 4: "
            f"{made} 2, or make a new table.",
        ),
        (
            lambda: change(2, item=("prompt", "score")),
            "item of the rollouts of table train is (prompt) and cannot become (prompt, score): "
            f"{made} (prompt), or make a new table.",
        ),
        (
            lambda: change(2, min_rollouts=3),
            "Table train: min_rollouts must be at least 1 and at most num_rollouts (2), got 3.",
        ),
        (
            lambda: change(2, ahead=3, items_per_version=1, max_staleness=2),
            "Table train: max_staleness (2) must be at least ahead (3).",
        ),
    ):
        error_says(call, InvalidArgumentError, text)
    with pytest.raises(TypeError, match=r"rollouts must be reverb\.Rollouts, got 8"):
        client.configure_table("train", rollouts=8)


def test_a_table_of_whole_items_gets_no_rollouts(serve, error_says):
    client = serve(reverb.Table.queue("train", 5))
    text = (
        "Table train has no rollouts and cannot get some: its items are whole. Make a table with "
        "rollouts."
    )
    rollouts = reverb.Rollouts(2, **OF_ITEMS)
    error_says(
        lambda: client.configure_table("train", rollouts=rollouts), InvalidArgumentError, text
    )


def test_a_group_of_one_server_changes_them(start):
    server = start(table(1, ahead=0, items_per_version=1))
    client = reverb.Client(f"shards:///127.0.0.1:{server.port}")
    ready(client, "a", num_rollouts=1)
    with pytest.raises(DeadlineExceededError, match=r"1 of 1 \(ahead 0, 1 items a version\)"):
        client.insert_item("train", prompt(0), name="b", timeout_ms=50)
    configure(client, items_per_version=2)
    assert client.insert_item("train", prompt(0), name="b")
    with pytest.raises(InvalidArgumentError, match="is 1 and cannot become 2"):
        client.configure_table("train", rollouts=reverb.Rollouts(2, **OF_ITEMS))


def test_a_checkpoint_has_the_new_settings(tmp_path):
    def serve():
        saver = reverb.checkpointers.DefaultCheckpointer(str(tmp_path), restore_settings=True)
        return reverb.Server([table(1, max_staleness=3)], checkpointer=saver)

    with serve() as server:
        client = server.localhost_client()
        ready(client, *"ab", num_rollouts=1)
        new = configure(client, max_staleness=1, ahead=0, items_per_version=2, open_timeout_s=1.5)
        client.checkpoint()
    with serve() as server:
        client = server.localhost_client()
        assert info(client).settings == new.settings
        with pytest.raises(DeadlineExceededError):
            client.insert_item("train", prompt(0), name="c", timeout_ms=0)


async def test_the_awaited_client_has_it(start):
    server = start(table(1))
    async with reverb.aio.Client(f"127.0.0.1:{server.port}") as client:
        rollouts = reverb.Rollouts(1, **OF_ITEMS, max_staleness=1)
        changed = await client.configure_table("train", rollouts=rollouts)
        assert changed.rollouts.settings == (await client.server_info())["train"].rollouts.settings
        assert changed.rollouts.settings.max_staleness == 1
