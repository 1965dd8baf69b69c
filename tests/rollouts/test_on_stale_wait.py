# SPDX-License-Identifier: Apache-2.0
"""`on_stale="wait"`: learners wait for old items, so nothing is lost and nothing gets too stale."""

import contextlib
import random
import re

import numpy as np
import pytest

import reverb
from reverb import command
from reverb.errors import DeadlineExceededError
from support.rollout_tables import info, prompt, ready, removed, rollout, table
from support.waiting import DEADLINE_S

# Two items a version; an item of version 0 may be taken at version 1 at the latest.
WAITS = {
    "on_stale": "wait",
    "items_per_version": 2,
    "max_staleness": 1,
    "open_timeout_s": 600,
}


def takes(client, num_items, **options):
    """Names of the items that are taken and acked, without a wait."""
    return client.take("train", num_items, ack=True, timeout_ms=0, **options).name


def times_out(client, num_items):
    with pytest.raises(DeadlineExceededError) as caught:
        takes(client, num_items)
    return str(caught.value)


def make_straggler(client, stack, name="slow"):
    """An item of version 0 that lacks one of its rollouts, at version 1."""
    client.insert_item("train", prompt(0), [rollout()], name=name)
    item = stack.enter_context(client.open_item("train", timeout_ms=0))
    client.set_version("train", 1)
    return item


@pytest.fixture
def held_up(two, background, until):
    """A learner that waits for a straggler: `client, item, waiting = held_up()`."""
    with contextlib.ExitStack() as stack:

        def held_up(**options):
            client, learner = two(2, **(WAITS | options))
            item = make_straggler(client, stack)
            ready(client, "a", "b")
            assert takes(client, 1) == ["a"]
            waiting = background(
                learner.take, "train", 1, ack=True, timeout_ms=round(1000 * DEADLINE_S)
            )
            until(lambda: client.status().tables["train"].sampling.waiting == 1)
            return client, item, waiting

        yield held_up


def test_a_take_waits_for_an_item_that_gets_too_stale(held_up):
    client, item, waiting = held_up()
    assert waiting.running
    assert client.add_rollout(item, rollout())
    assert waiting.result().name == ["slow"]
    client.set_version("train", 2)
    assert takes(client, 1) == ["b"]
    assert removed(client) == {"sampled_out": 3}


def test_a_take_does_not_wait_while_there_is_time(two):
    client, other = two(2, **(WAITS | {"max_staleness": 2, "ahead": 1}))
    with contextlib.ExitStack() as stack:
        make_straggler(other, stack)
        ready(client, "a", "b", "c")
        assert takes(client, 2) == ["a", "b"]
        client.set_version("train", 2)
        assert takes(client, 1) == ["c"]
        ready(client, "d")
        assert "1 of 1 items are ready, but" in times_out(client, 1)


def test_as_many_may_be_missing_as_are_taken_in_time(served):
    client = served(1, **(WAITS | {"items_per_version": 4}))
    for name in "abc":
        client.insert_item("train", prompt(0), name=name)
    with contextlib.ExitStack() as stack:
        items = [stack.enter_context(client.open_item("train")) for _ in "abc"]
        client.set_version("train", 1)
        ready(client, "x", "y", num_rollouts=1)
        # Three of version 0 are left, and four are taken for version 1.
        assert takes(client, 1) == ["x"]
        times_out(client, 1)
        client.add_rollout(items[1], rollout())
        assert takes(client, 1) == ["b"]
        times_out(client, 1)
        for item in items[::2]:
            client.add_rollout(item, rollout())
        assert takes(client, 2) == ["a", "c"]
        client.set_version("train", 2)
        assert takes(client, 1) == ["y"]


def test_the_oldest_tokens_are_taken_first(served):
    client = served(1, **(WAITS | {"max_staleness": 4}))
    client.set_version("train", 3)
    for name, version in ("a", 3), ("b", 1), ("c", 2), ("d", 1):
        ready(client, name, num_rollouts=1, version=version)
    batch = client.take("train", 3)
    assert (batch.name, batch.info.probability.tolist()) == (["b", "d", "c"], [1.0, 1.0, 1.0])
    client.release(batch)
    assert takes(client, 2) == ["b", "d"]
    assert takes(client, 2) == ["c", "a"]


@pytest.mark.parametrize(
    "way",
    ["failed", "deleted", "version", "max_staleness", "on_stale", "items_per_version", "reset"],
)
def test_what_lets_a_take_go_on(held_up, way):
    client, item, waiting = held_up(min_rollouts=2)
    changes = {
        "max_staleness": {"max_staleness": 2},
        "on_stale": {"on_stale": "keep"},
        "items_per_version": {"items_per_version": 3},
    }
    if way == "failed":
        client.fail_rollout(item, 1, "no answer")
    elif way == "deleted":
        client.delete_items("train", [item.key])
    elif way == "version":
        client.set_version("train", 2)  # The straggler is too stale then, and begins again.
    elif way == "reset":
        client.reset("train")
        ready(client, "b")
    else:
        old = {name: WAITS[name] for name in WAITS} | {"min_rollouts": 2} | changes[way]
        client.configure_table("train", rollouts=reverb.Rollouts(2, item=("prompt",), **old))
    assert waiting.result().name == ["b"]


def test_an_item_that_nobody_has_begun_holds_up_nobody(two):
    client, other = two(1, **WAITS)
    client.insert_item("train", prompt(0), name="bare")
    with other.open_item("train"):
        client.set_version("train", 1)
        ready(client, "a", "b", num_rollouts=1)
        assert takes(client, 1) == ["a"]
        times_out(client, 1)
    assert client.take("train", 1, timeout_ms=round(1000 * DEADLINE_S)).name == ["b"]


def test_a_partial_take_has_what_it_may_have(served):
    client = served(2, **WAITS)
    with contextlib.ExitStack() as stack:
        make_straggler(client, stack)
        ready(client, "a", "b")
        assert takes(client, 2, partial=True) == ["a"]
        with pytest.raises(DeadlineExceededError):
            takes(client, 2, partial=True)


def test_the_error_names_the_item_and_its_holder(served):
    client = served(2, **WAITS)
    with contextlib.ExitStack() as stack:
        make_straggler(client, stack)
        ready(client, "a", "b")
        takes(client, 1)
        text = times_out(client, 1)
    expected = (
        r"Table train: 1 of 1 items are ready, but 1 item that is not ready would then get staler "
        r"than max_staleness \(1\), the first of them slow of version 0: it has 1 of 2 rollouts, "
        r"held by \S+ for [0-9.]+ m?s: 1 open \(the oldest for "
    )
    assert re.search(expected, text), text
    # Nobody holds it now.
    assert "it has 1 of 2 rollouts, held by no client: " in times_out(client, 1)


def test_the_diagnosis_names_what_a_learner_waits_for(held_up, until, capsys):
    client, _, _ = held_up()
    words = "would then get staler than max_staleness (1), the first of them slow of version 0"
    until(lambda: words in client.diagnose("train").sentence)
    command.main(["why", client.server_address])
    assert words in capsys.readouterr().out


def test_an_item_of_a_hung_generator_goes_to_another(held_up):
    client, _, waiting = held_up(open_timeout_s=0.3)
    with client.open_item("train", timeout_ms=round(1000 * DEADLINE_S)) as again:
        assert (again.name, again.missing, again.attempts) == ("slow", [1], 1)
        assert client.add_rollout(again, rollout())
    assert waiting.result().name == ["slow"]


def test_an_item_of_a_hung_stage_goes_to_another(two):
    client, hung = two(1, **(WAITS | {"open_timeout_s": 0.3}))
    client.insert_item("train", prompt(0), name="slow")
    with client.open_item("train") as item:
        client.add_rollout(item, {"tokens": np.array([1], np.int32)})
    late = hung.take("train", 1, lacks="score")
    client.set_version("train", 1)
    ready(client, "a", "b", num_rollouts=1)
    assert takes(client, 1) == ["a"]
    assert "it lacks columns, held by " in times_out(client, 1)
    again = client.take("train", 1, lacks="score", timeout_ms=round(1000 * DEADLINE_S))
    score = {"score": np.array([1], np.float32)}
    # What the first one sends now belongs to an earlier attempt.
    assert hung.extend(late, score).tolist() == [False]
    assert client.extend(again, score).tolist() == [True]
    assert takes(client, 1) == ["slow"]


def test_what_is_too_stale_after_a_leap_is_made_again(served):
    client = served(2, **WAITS)
    with contextlib.ExitStack() as stack:
        item = make_straggler(client, stack)
        ready(client, "a")
        client.set_version("train", 5)
        assert (info(client).open, info(client).ready) == (2, 0)
        assert not client.add_rollout(item, rollout())


def test_items_of_a_lost_learner_come_first(two):
    client, learner = two(1, **WAITS)
    ready(client, "a", "b", num_rollouts=1)
    learner.take("train", 2)
    client.set_version("train", 1)
    ready(client, "c", "d", num_rollouts=1)
    learner.close()
    batch = client.take("train", 4, timeout_ms=round(1000 * DEADLINE_S))
    assert batch.name == ["a", "b", "c", "d"]


def test_a_restart_changes_nothing_of_it(start, connect, root):
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
    server = start(table(2, **WAITS), checkpointer=checkpointer)
    client = connect(server)
    with contextlib.ExitStack() as stack:
        make_straggler(client, stack)
        ready(client, "a", "b")
        takes(client, 1)
        client.checkpoint()
    server.stop()
    client = connect(start(table(2, **WAITS), checkpointer=checkpointer))
    assert "the first of them slow of version 0" in times_out(client, 1)
    with client.open_item("train", timeout_ms=0) as item:
        assert client.add_rollout(item, rollout())
    assert takes(client, 1) == ["slow"]


@pytest.mark.parametrize("seed", range(4))
def test_a_run_with_stragglers_is_never_too_stale(served, seed):
    """Six generators, of whose items each third waits until nothing else goes on."""
    chance = random.Random(seed)
    settings = {"max_staleness": 2, "ahead": 1, "items_per_version": 4}
    client = served(1, **(WAITS | settings))
    version = num_taken = num_inserts = 0
    blocks, slow = [], []
    with contextlib.ExitStack() as stack:
        while version < 15:
            while info(client).backlog < 8:
                client.insert_item("train", prompt(0), name=str(num_inserts := num_inserts + 1))
            while len(blocks) + len(slow) < 6 and info(client).open > len(blocks) + len(slow):
                item = stack.enter_context(client.open_item("train", timeout_ms=0))
                (slow if chance.random() < 0.3 else blocks).append(item)
            num = chance.choice([1, 2, 4][: 1 + (num_taken < 3) + (num_taken == 0)])
            try:
                batch = client.take("train", num, ack=True, timeout_ms=0)
            except DeadlineExceededError:
                item = (blocks or slow).pop(0)
                assert client.add_rollout(item, rollout())
                continue
            assert batch.staleness.max() <= 2
            num_taken += num
            if num_taken == 4:
                num_taken, version = 0, version + 1
                client.set_version("train", version)
    assert client.status().tables["train"].rollouts.num_again == 0
    assert removed(client) == {"sampled_out": 60}
