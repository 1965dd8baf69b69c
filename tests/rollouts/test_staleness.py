# SPDX-License-Identifier: Apache-2.0
"""Versions of the policy: how stale an item is, and what happens to one that is too stale."""

import reverb
from support.rollout_tables import SIGNATURE, info, prompt, ready, removed, rollout, table


def test_set_version_ignores_what_is_not_larger(served):
    client = served(1)
    assert [client.set_version("train", it) for it in (3, 2, 3, 4)] == [3, 3, 3, 4]
    assert client.set_version("train", 1, rewind=True) == 1
    assert info(client).version == 1


def test_the_second_rank_that_sets_a_version_frees_no_backlog(two):
    client, other = two(1, ahead=0, items_per_version=2)
    ready(client, "a", "b", num_rollouts=1)
    client.take("train", 2, ack=True)
    client.set_version("train", 1)
    ready(client, "c", num_rollouts=1)
    client.take("train", 1, ack=True)
    assert other.set_version("train", 1) == 1
    assert (info(client).taken, info(client).backlog) == (1, 1)


def test_staleness_counts_from_the_oldest_tokens(served):
    client = served(2)
    client.set_version("train", 10)
    client.insert_item("train", prompt(0), name="a")
    with client.open_item("train") as item:
        client.add_rollout(item, rollout(), version=(7, 9))
        client.add_rollout(item, rollout())  # By default that of the table when it was opened.
    client.set_version("train", 12)
    batch = client.take("train", 1)
    assert (batch.oldest.tolist(), batch.newest.tolist()) == ([7, 10], [9, 10])
    assert batch.staleness.tolist() == [5, 2]


def test_tokens_of_a_later_version_are_not_stale(served):
    client = served(1)
    ready(client, "a", num_rollouts=1, version=5)
    assert client.take("train", 1).staleness.tolist() == [0]


def test_a_stale_item_is_a_bare_prompt_again(served):
    client = served(2, max_staleness=1)
    ready(client, "a")
    client.insert_item("train", prompt(0), [rollout()], name="b")
    client.set_version("train", 1)
    assert (info(client).open, info(client).ready) == (1, 1)
    client.set_version("train", 2)
    assert (info(client).open, info(client).ready) == (2, 0)
    with client.open_item("train") as item:
        assert (item.name, item.missing, item.partial, item.attempts) == ("a", [0, 1], {}, 1)
        assert item.data["prompt"].tolist() == [0, 1]


def test_a_stale_item_that_is_being_made_is_free_for_others(two):
    client, other = two(2, max_staleness=0)
    client.insert_item("train", prompt(0), name="a")
    with client.open_item("train") as item:
        assert client.add_rollout(item, rollout(), partial=True)
        client.set_version("train", 1)
        with other.open_item("train") as again:
            assert (again.key, again.partial, again.attempts) == (item.key, {}, 1)
            assert not client.add_rollout(item, rollout())
            assert other.add_rollout(again, rollout())


def test_a_generator_learns_that_its_item_became_stale(served):
    client = served(2, max_staleness=0)
    client.insert_item("train", prompt(0), name="a")
    with client.open_item("train") as item:
        client.set_version("train", 1)
        assert not client.add_rollout(item, rollout())


def test_a_bare_prompt_is_never_stale(served):
    client = served(1, max_staleness=0)
    client.insert_item("train", prompt(0), name="a")
    with client.open_item("train"):
        pass
    client.set_version("train", 9)
    with client.open_item("train") as item:
        assert item.attempts == 0


def test_an_item_opened_long_ago_is_stale_without_rollouts(served):
    client = served(1, max_staleness=0)
    client.insert_item("train", prompt(0), name="a")
    with client.open_item("train"):
        client.set_version("train", 1)
        assert info(client).leased == 0


def test_what_a_learner_has_is_left_to_it(served):
    client = served(1, max_staleness=0)
    ready(client, "a", num_rollouts=1)
    batch = client.take("train", 1)
    client.set_version("train", 5)
    assert client.ack(batch).tolist() == []
    assert removed(client) == {"sampled_out": 1}


def test_what_a_learner_gives_back_too_late_is_a_prompt_again(served):
    client = served(1, max_staleness=0)
    ready(client, "a", num_rollouts=1)
    batch = client.take("train", 1)
    client.set_version("train", 5)
    client.release(batch)
    assert (info(client).open, info(client).ready) == (1, 0)


def test_an_item_that_is_stale_when_it_becomes_ready_is_a_prompt(served):
    client = served(1, max_staleness=0)
    client.set_version("train", 5)
    client.insert_item("train", prompt(0), [rollout()], name="a", version=4)
    assert (info(client).open, info(client).ready) == (1, 0)


def test_an_item_leaves_when_it_is_stale_too_often(served):
    client = served(1, max_staleness=0, max_attempts=1)
    client.insert_item("train", prompt(0), name="a")
    for version in (1, 2):
        with client.open_item("train") as item:
            client.add_rollout(item, rollout())
        client.set_version("train", version)
    assert client.size("train") == 0


def test_an_item_without_columns_of_its_own_leaves_as_stale(start, connect):
    rest = {name: SIGNATURE[name] for name in ("tokens", "score")}
    client = connect(start(reverb.Table.rollouts("train", 1, rest, item=(), max_staleness=3)))
    for version in range(5):
        client.set_version("train", version)
        assert client.insert_item("train", {}, [rollout(version)], name=str(version))
    assert client.take("train", 4).name == ["1", "2", "3", "4"]
    assert client.size("train") == 4


def test_with_keep_an_item_may_be_as_stale_as_it_is(served):
    client = served(1, max_staleness=0, on_stale="keep")
    ready(client, "a", num_rollouts=1)
    client.set_version("train", 5)
    ready(client, "b", num_rollouts=1, version=1)
    batch = client.take("train", 2, timeout_ms=0)
    assert batch.staleness.tolist() == [5, 4]


def make_without_score(client, *lengths):
    """Makes the only rollout of an item, of sequences without the late column."""
    with client.open_item("train") as item:
        assert client.add_rollout(item, [{"tokens": [7] * it} for it in lengths])


def test_what_a_stage_holds_may_become_stale(two):
    client, stage = two(1, max_staleness=0)
    client.insert_item("train", prompt(0), name="a")
    make_without_score(client, 3, 3)
    batch = stage.take("train", 1, lacks="score")
    client.set_version("train", 1)
    assert (info(client).open, info(client).leased) == (1, 0)
    late = {"score": [5, 5]}
    assert stage.extend(batch, late).tolist() == [False]
    # Scores of sequences that are gone are not those of the ones that were made instead.
    make_without_score(client, 2)
    for overwrite in (False, True):
        assert stage.extend(batch, late, overwrite=overwrite).tolist() == [False]
    stage.release(batch)
    again = stage.take("train", 1, lacks="score", timeout_ms=20_000)
    assert (again.name, again.attempts.tolist(), again.length.tolist()) == (["a"], [1], [2])
    assert stage.extend(again, {"score": [6]}).tolist() == [True]
    assert client.take("train", 1, timeout_ms=0).data["score"].tolist() == [6]
    assert removed(client) == {}


def test_late_columns_of_a_stage_that_was_released_are_accepted(served):
    client = served(1, max_staleness=0)
    client.insert_item("train", prompt(0), name="a")
    make_without_score(client, 3)
    batch = client.take("train", 1, lacks="score")
    client.release(batch)
    assert client.extend(batch, {"score": [5]}).tolist() == [True]


def test_thousands_of_items_become_prompts_at_once(served):
    client = served(1, max_staleness=0)
    for number in range(1200):
        client.insert_item("train", prompt(0), [rollout()], name=str(number))
    client.set_version("train", 1)
    found = info(client)
    assert (found.open, found.ready) == (1200, 0)


def test_a_rewind_lets_older_tokens_count_again(served):
    client = served(1, max_staleness=1)
    client.set_version("train", 9)
    client.set_version("train", 3, rewind=True)
    ready(client, "a", num_rollouts=1, version=3)
    assert client.take("train", 1).staleness.tolist() == [0]


def test_the_settings_can_be_read(served):
    client = served(4, max_staleness=3, ahead=2, items_per_version=8, open_timeout_s=1.5)
    rules = info(client).settings
    assert (
        rules
        == table(
            4, max_staleness=3, ahead=2, items_per_version=8, open_timeout_s=1.5
        ).info.rollouts.settings
    )
    assert (rules.num_rollouts, rules.min_rollouts, rules.on_stale) == (4, 4, "again")
    assert (rules.item, rules.ahead, rules.open_timeout_s) == (("prompt",), 2, 1.5)


def test_what_a_learner_held_is_compared_after_a_restart(start, connect, root):
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
    server = start(table(1, max_staleness=0), checkpointer=checkpointer)
    client = connect(server)
    ready(client, "held", num_rollouts=1)
    client.take("train", 1)
    client.set_version("train", 5)
    client.checkpoint()
    server.stop()
    client = connect(start(table(1, max_staleness=0), checkpointer=checkpointer))
    assert (info(client).open, info(client).ready) == (1, 0)
    with client.open_item("train", timeout_ms=0) as item:
        assert (item.name, item.missing) == ("held", [0])
