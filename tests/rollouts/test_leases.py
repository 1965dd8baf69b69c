# SPDX-License-Identifier: Apache-2.0
"""Who holds an item: takes, acks, releases, and what comes late or twice."""

import pickle
import threading

import pytest

import reverb
from reverb.errors import DeadlineExceededError, InvalidArgumentError
from support.rollout_tables import info, prompt, ready, removed, rollout, table


def test_nobody_else_gets_what_a_client_holds(two):
    client, other = two(1)
    ready(client, "a", "b", num_rollouts=1)
    assert client.take("train", 1).name == ["a"]
    assert other.take("train", 1).name == ["b"]
    with pytest.raises(DeadlineExceededError):
        other.take("train", 1, timeout_ms=0)


def test_a_released_item_is_where_it_was(two):
    client, other = two(1)
    ready(client, *"abc", num_rollouts=1)
    batch = client.take("train", 2)
    client.release(batch, batch.info.key[:1])
    assert other.take("train", 2).name == ["a", "c"]
    client.release(batch)
    again = other.take("train", 1)
    assert (again.name, again.attempts.tolist()) == (["b"], [0])


def test_an_acked_item_has_left(served):
    client = served(1)
    ready(client, *"ab", num_rollouts=1)
    batch = client.take("train", 2)
    assert client.ack(batch, batch.info.key[1]).tolist() == []
    assert (client.size("train"), removed(client)) == (1, {"sampled_out": 1})
    assert client.ack(batch).tolist() == []
    assert (client.size("train"), removed(client)) == (0, {"sampled_out": 2})


def test_an_ack_may_come_again(two):
    client, other = two(1)
    ready(client, "a", num_rollouts=1)
    batch = client.take("train", 1)
    client.ack(batch)
    ready(client, "a", num_rollouts=1)  # The next epoch: the same name, another key.
    for late in (client, other):
        assert late.ack(batch).tolist() == []
    assert (client.size("train"), info(client).ready) == (1, 1)


@pytest.mark.parametrize("gives_keys", [False, True])
def test_an_ack_of_what_nobody_holds_is_good(served, gives_keys):
    client = served(1)
    ready(client, *"ab", num_rollouts=1)
    batch = client.take("train", 2)
    client.release(batch)
    keys = batch.info.key[:1] if gives_keys else None
    assert client.ack(batch, keys).tolist() == []
    assert client.size("train") == (1 if gives_keys else 0)
    assert info(client).taken == 0


def test_an_ack_tells_what_another_client_holds(two):
    client, other = two(1)
    ready(client, *"ab", num_rollouts=1)
    batch = client.take("train", 2)
    client.release(batch)
    others = other.take("train", 1)
    assert client.ack(batch).tolist() == others.info.key.tolist()
    assert client.size("train") == 1
    assert other.ack(others).tolist() == []


def test_take_with_ack_trains_at_once(served):
    client = served(1)
    ready(client, "a", num_rollouts=1)
    assert client.take("train", 1, ack=True).data["score"].tolist() == [0]
    assert client.size("train") == 0


def test_a_take_waits_for_all_its_items(two, background):
    client, other = two(1)
    ready(client, *"ab", num_rollouts=1)
    waiting = background(other.take, "train", 3)
    ready(client, "c", num_rollouts=1)
    assert waiting.result().name == ["a", "b", "c"]


def test_a_partial_take_has_what_is_there(served):
    client = served(1)
    ready(client, *"ab", num_rollouts=1)
    assert client.take("train", 5, partial=True, timeout_ms=10).name == ["a", "b"]
    with pytest.raises(DeadlineExceededError):
        client.take("train", 5, partial=True, timeout_ms=10)


def test_a_take_that_timed_out_takes_nothing_later(two):
    client, other = two(1)
    with pytest.raises(DeadlineExceededError):
        client.take("train", 1, timeout_ms=10)
    ready(client, "a", num_rollouts=1)
    assert other.take("train", 1, timeout_ms=0).name == ["a"]


def test_the_end_of_a_client_frees_its_items(two, until):
    client, other = two(1)
    ready(client, "a", num_rollouts=1)
    client.insert_item("train", prompt(0), name="b")
    client.take("train", 1)
    with client.open_item("train"):
        client.close()
        with other.open_item("train", timeout_ms=10_000) as item:
            assert (item.name, item.attempts) == ("b", 0)
        assert other.take("train", 1, timeout_ms=10_000).attempts.tolist() == [0]
    assert info(other).leased == 1


def test_an_error_in_the_block_frees_the_item(two):
    client, other = two(1)
    client.insert_item("train", prompt(0), name="a")

    def generate():
        with client.open_item("train") as item:
            client.add_rollout(item, rollout(), partial=True)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        generate()
    with other.open_item("train", timeout_ms=10_000) as item:
        assert (list(item.partial), item.attempts) == ([0], 0)


def test_a_block_waits_for_an_open_item(two, background):
    client, other = two(1)

    def name():
        with other.open_item("train") as item:
            return item.name

    waiting = background(name)
    client.insert_item("train", prompt(0), name="a")
    assert waiting.result() == "a"


def test_late_rollouts_of_an_item_that_another_has_are_refused(two):
    client, other = two(2)
    client.insert_item("train", prompt(0), name="a")
    with client.open_item("train") as late:
        client.add_rollout(late, rollout(1))
    with other.open_item("train") as item:
        assert item.missing == [1]
        assert not client.add_rollout(late, rollout(5))
        assert not client.fail_rollout(late, 1, "a test")
        assert other.add_rollout(item, rollout(2))
    assert client.take("train", 1).data["score"].tolist() == [1, 2]


def test_late_rollouts_of_a_free_item_take_it_again(two):
    client, other = two(2)
    client.insert_item("train", prompt(0), name="a")
    with client.open_item("train") as item:
        pass
    assert client.add_rollout(item, rollout())
    with pytest.raises(DeadlineExceededError), other.open_item("train", timeout_ms=0):
        pass
    assert client.add_rollout(item, rollout())
    assert client.take("train", 1).rollout.tolist() == [0, 1]


def test_late_rollouts_do_not_meet_the_next_item_of_the_name(served):
    client = served(1)
    client.insert_item("train", prompt(0), name="a")
    with client.open_item("train") as late:
        client.add_rollout(late, rollout())
    client.take("train", 1, ack=True)
    client.insert_item("train", prompt(0), name="a")
    assert not client.add_rollout(late, rollout(), rollout=0)
    assert not client.fail_rollout(late, 0, "a test")
    assert (info(client).open, info(client).ready) == (1, 0)


def test_a_client_holds_several_items_at_once(served):
    client = served(1)
    names = [str(number) for number in range(20)]
    for name in names:
        client.insert_item("train", prompt(0), name=name)
    met = threading.Barrier(len(names))

    def generate():
        with client.open_item("train") as item:
            met.wait()
            client.add_rollout(item, rollout())

    threads = [threading.Thread(target=generate) for _ in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.take("train", 20).name == names


def test_ranks_fetch_their_part_of_a_batch(two):
    client, other = two(1)
    ready(client, *"abcd", num_rollouts=1)
    batch = client.take("train", 4, with_data=False)
    assert batch.data == {}
    sent = pickle.dumps(batch)
    for rank in range(2):
        part = pickle.loads(sent).select(slice(rank, None, 2))
        fetched = other.fetch_rollouts(part, ["tokens"])
        assert fetched.name == [["a", "c"], ["b", "d"]][rank]
        assert list(fetched.data) == ["tokens"]
        assert len(fetched.data["tokens"]) == 2
    assert client.ack(batch).tolist() == []


def test_a_select_is_acked_by_itself(served):
    client = served(1)
    ready(client, *"abc", num_rollouts=1)
    batch = client.take("train", 3)
    client.ack(batch.select([0, 2]))
    assert client.size("train") == 1
    client.release(batch)
    assert client.take("train", 1).name == ["b"]


def test_an_ack_holds_for_an_item_that_is_open_again(start, connect, root):
    """The server has gone back to a time before its rollouts came."""
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
    server = start(table(1), checkpointer=checkpointer)
    client = connect(server)
    client.insert_item("train", prompt(0), name="a")
    client.checkpoint()
    with client.open_item("train") as item:
        client.add_rollout(item, rollout())
    batch = client.take("train", 1)
    server.stop()
    client = connect(start(table(1), checkpointer=checkpointer))
    assert info(client).open == 1
    assert client.ack(batch).tolist() == []
    assert (client.size("train"), removed(client)) == (0, {"sampled_out": 1})
    assert client.ack(batch).tolist() == []


def test_items_of_a_stage_cannot_be_acked(served):
    client = served(1)
    rows = [{"tokens": rollout()["tokens"]}]
    client.insert_item("train", prompt(0), rows, name="a")
    with pytest.raises(InvalidArgumentError, match="ack=True trains items, and those that lack"):
        client.take("train", 1, lacks="score", ack=True)
    batch = client.take("train", 1, lacks="score")
    with pytest.raises(InvalidArgumentError, match="item a of table train lacked column score"):
        client.ack(batch)
    assert client.extend(batch, {"score": [1.0]}).tolist() == [True]


def test_a_stage_hands_its_items_to_the_next_one(two):
    """A column each, added one after the other, without a release between them."""
    client, other = two(1)
    client.insert_item("train", prompt(0), [{"tokens": rollout()["tokens"]}], name="ready")
    batch = client.take("train", 1, lacks="score")
    assert client.extend(batch, {"score": [1.0]}).tolist() == [True]
    assert other.take("train", 1, timeout_ms=0).name == ["ready"]


def test_two_stages_add_a_column_each(serve):
    spec = reverb.specs.TensorSpec
    signature = {name: spec([], "float32") for name in ("logit", "reference", "score")}
    client = serve(reverb.Table.rollouts("train", 1, signature, item=()))
    client.insert_item("train", {}, [{"logit": 1.0}], name="a")
    first = client.take("train", 1, lacks="score")
    assert client.extend(first, {"score": [1.0]}).tolist() == [True]
    second = client.take("train", 1, lacks="reference", timeout_ms=0)
    assert client.extend(second, {"reference": [2.0]}).tolist() == [True]
    assert client.take("train", 1, timeout_ms=0).data["reference"].tolist() == [2.0]


def test_a_take_that_waits_behind_another_says_so(two, background, until):
    client, other = two(1)
    ready(client, "a", num_rollouts=1)
    waiting = background(other.take, "train", 2)
    until(lambda: client.status().tables["train"].sampling.waiting == 1)
    with pytest.raises(DeadlineExceededError, match="An earlier request for 2 goes first, 1 of 1"):
        client.take("train", 1, timeout_ms=50)
    ready(client, "b", num_rollouts=1)
    assert waiting.result().name == ["a", "b"]
