# SPDX-License-Identifier: Apache-2.0
"""From a prompt to a trained item: open, settled, ready, and how it leaves otherwise."""

import numpy as np
import pytest

import reverb
from reverb.errors import DeadlineExceededError, FailedPreconditionError
from support.programs import Program
from support.rollout_tables import SIGNATURE, info, prompt, ready, removed, rollout


def insert(client, *names, **options):
    return [client.insert_item("train", prompt(3), name=name, **options) for name in names]


def stages(client):
    found = info(client)
    return found.open, found.settled, found.ready


def test_an_item_is_ready_when_all_its_rollouts_are_final(served):
    client = served(2)
    insert(client, "a")
    with client.open_item("train") as item:
        assert (item.name, item.table, item.missing) == ("a", "train", [0, 1])
        assert item.data["prompt"].tolist() == [3, 4]
        assert client.add_rollout(item, rollout(1))
        assert stages(client) == (1, 0, 0)
        assert client.add_rollout(item, rollout(2))
    assert stages(client) == (0, 0, 1)


def test_a_taken_batch_has_the_bytes_that_were_added(served):
    client = served(2)
    ready(client, "a", "b")
    insert(client, "c")
    with client.open_item("train") as item:
        client.add_rollout(item, [rollout(7, 2), rollout(8, 1)], rollout=1)
        client.add_rollout(item, rollout(6, 4), rollout=0)
    batch = client.take("train", 3)
    assert (batch.name, len(batch), batch.table) == (["a", "b", "c"], 3, "train")
    assert batch.item.tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert batch.rollout.tolist() == [0, 1, 0, 1, 0, 1, 1]
    assert batch.length.tolist() == [3, 3, 3, 3, 4, 2, 1]
    tokens = [row.tolist() for row in batch.data["tokens"].to_list()]
    assert tokens == [[0] * 3, [1] * 3, [0] * 3, [1] * 3, [6] * 4, [7] * 2, [8]]
    assert batch.data["score"].tolist() == [0, 1, 0, 1, 6, 7, 8]
    assert [row.tolist() for row in batch.data["prompt"].to_list()] == [[0, 1], [0, 1], [3, 4]]
    types = {name: getattr(it, "values", it).dtype for name, it in batch.data.items()}
    assert types == {"prompt": np.int32, "score": np.float32, "tokens": np.int32}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 1, 2, 2, 0, 0)])
def test_rollouts_in_any_order_and_again_give_the_same_item(served, order):
    client = served(3)
    insert(client, "a")
    with client.open_item("train") as item:
        assert all(client.add_rollout(item, rollout(it), rollout=it) for it in order)
        # Also when the item has gone on: a final rollout that is there counts as added.
        assert client.add_rollout(item, rollout(9), rollout=1)
    batch = client.take("train", 1)
    assert (batch.rollout.tolist(), batch.data["score"].tolist()) == ([0, 1, 2], [0, 1, 2])


def test_a_partial_rollout_is_replaced_by_the_next_of_its_number(served):
    client = served(1)
    insert(client, "a")
    for length in (1, 2):
        with client.open_item("train") as item:
            assert [len(it[0]["tokens"]) for it in item.partial.values()] == [1] * (length - 1)
            assert item.missing == [0]
            assert client.add_rollout(item, rollout(5, length), partial=True)
    assert stages(client) == (1, 0, 0)
    with client.open_item("train") as item:
        assert item.partial[0][0]["tokens"].tolist() == [5, 5]
        client.add_rollout(item, rollout(6, 3))
    assert client.take("train", 1).length.tolist() == [3]


def test_an_item_is_trained_without_rollouts_that_failed(served):
    client = served(3, min_rollouts=2)
    insert(client, "a")
    with client.open_item("train") as item:
        client.add_rollout(item, rollout(5), rollout=0)
        assert client.fail_rollout(item, 1, "the tool broke")
        client.add_rollout(item, rollout(7), rollout=2)
    assert client.take("train", 1).rollout.tolist() == [0, 2]


def test_an_item_leaves_with_too_few_final_rollouts(served):
    client = served(2)
    insert(client, "a")
    with client.open_item("train") as item:
        client.add_rollout(item, rollout())
        assert client.fail_rollout(item, 1, "the tool broke")
        assert not client.fail_rollout(item, 1, "the tool broke")
    assert (client.size("train"), stages(client)) == (0, (0, 0, 0))


def test_the_server_logs_why_a_rollout_failed():
    source = """
        import reverb
        from support.rollout_tables import prompt, table
        with reverb.Server([table(2)]) as server:
            client = server.localhost_client()
            client.insert_item("train", prompt(3))
            with client.open_item("train") as item:
                client.fail_rollout(item, 1, "the tool broke")
                print(item.key)
    """
    with Program(source, REVERB_LOG="info") as program:
        key = program.line()
        program.wait_for_error(f"rollout 1 of item {key} has failed: the tool broke")


def test_a_stage_adds_a_column_that_rollouts_lack(served):
    client = served(2)
    insert(client, "a")
    with client.open_item("train") as item:
        client.add_rollout(item, {"tokens": np.int32([1, 2])})
        client.add_rollout(item, {"tokens": np.int32([1, 2, 3])})
    assert stages(client) == (0, 1, 0)
    batch = client.take("train", 1, lacks="score")
    assert sorted(batch.data) == ["prompt", "tokens"]
    with pytest.raises(DeadlineExceededError):
        client.take("train", 1, lacks="score", timeout_ms=0)
    assert client.extend(batch, {"score": np.float32([4, 5])}).tolist() == [True]
    assert client.take("train", 1).data["score"].tolist() == [4, 5]


def test_a_late_column_that_is_there_stays_unless_overwritten(serve):
    spec = reverb.specs.TensorSpec
    names = ("prompt", "tokens", "score", "reward")
    table = reverb.Table.rollouts("train", 1, {name: spec([], np.float32) for name in names})
    client = serve(table)
    value = {"prompt": np.float32(0)}
    for name, overwrites in (("a", False), ("b", True)):
        client.insert_item("train", value, [{"tokens": np.float32(0)}], name=name)
        batch = client.take("train", 1, lacks="score")
        one, two = np.float32([1]), np.float32([2])
        assert client.extend(batch, {"score": one}).all()
        assert client.extend(batch, {"score": two, "reward": two}, overwrite=overwrites).all()
        taken = client.take("train", 1, ack=True)
        assert taken.data["score"].tolist() == [2 if overwrites else 1]


def test_a_prompt_that_is_there_is_not_inserted_again(served):
    client = served(1)
    assert insert(client, "a", "b", "a") == [True, True, False]
    assert (client.size("train"), info(client).newest) == (2, "b")


def test_a_feeder_goes_on_after_the_newest_item(served):
    client = served(1)
    assert insert(client, "0", after="") == [True]
    assert insert(client, "1", after="0") == [True]
    client.reset("train")
    text = (
        "The newest item of table train is (none), not 1: the server has gone back to a "
        "checkpoint, the table was reset, or another program inserts into it, too. Continue after "
        "none."
    )
    with pytest.raises(FailedPreconditionError) as caught:
        insert(client, "2", after="1")
    assert str(caught.value) == text


def test_the_newest_name_is_known_after_its_item_has_left(served):
    client = served(1)
    ready(client, "a", num_rollouts=1)
    client.take("train", 1, ack=True)
    assert (client.size("train"), info(client).newest) == (0, "a")
    assert insert(client, "b", after="a") == [True]


def test_items_are_opened_and_taken_in_the_order_of_insert(two):
    client, other = two(1)
    insert(client, "a", "b", "c")
    with client.open_item("train") as first, other.open_item("train") as second:
        assert (first.name, second.name) == ("a", "b")
        other.add_rollout(second, rollout(), rollout=0)
        client.add_rollout(first, rollout(), rollout=0)
    ready(client, "d", num_rollouts=1)
    # `c` is older than `d` although it is ready later.
    with client.open_item("train") as item:
        client.add_rollout(item, rollout())
    assert client.take("train", 4).name == ["a", "b", "c", "d"]


def test_inserts_are_what_is_there_and_what_has_left(served):
    client = served(1)
    ready(client, *"abcd", num_rollouts=1)
    client.take("train", 2, ack=True)
    client.mutate_priorities("train", deletes=client.take("train", 1).info.key.tolist())
    assert (client.size("train"), removed(client)) == (1, {"sampled_out": 2, "deleted": 1})
    assert client.status().tables["train"].inserts == 4


def test_an_item_may_have_no_name(served):
    client = served(1)
    assert [client.insert_item("train", prompt(0)) for _ in range(2)] == [True, True]
    assert client.size("train") == 2


def test_groups_are_replayed_by_priority_until_they_are_used_up(start, connect):
    table = reverb.Table(
        "train",
        reverb.selectors.MaxHeap(),
        reverb.selectors.Fifo(),
        10,
        reverb.rate_limiters.MinSize(1),
        max_times_sampled=2,
        signature=SIGNATURE,
        rollouts=reverb.Rollouts(1, item=("prompt",)),
    )
    client = connect(start(table))
    for name, priority in (("a", 1.0), ("b", 3.0)):
        ready(client, name, num_rollouts=1, priority=priority)
    names, counts = [], []
    for _ in range(4):
        batch = client.take("train", 1, ack=True)
        names += batch.name
        counts += batch.info.times_sampled.tolist()
    assert names == ["b", "b", "a", "a"]
    assert client.size("train") == 0
