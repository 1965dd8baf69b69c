# SPDX-License-Identifier: Apache-2.0
"""What happens between a take and the read of what was taken."""

import pytest

from reverb.errors import DataLossError, DeadlineExceededError
from support.rollout_tables import info, prompt, ready, rollout


@pytest.fixture
def before_read(monkeypatch):
    """Calls a function with the keys before a client reads what it has taken, that many times."""

    def before_read(client, function, times=1):
        read, calls = client._fetch_rows, []

        def read_later(table, keys, indices):
            calls.append(keys)
            if len(calls) <= times:
                function(keys)
            return read(table, keys, indices)

        monkeypatch.setattr(client, "_fetch_rows", read_later)

    return before_read


def test_an_open_item_that_was_deleted_is_replaced(two, before_read):
    client, other = two(1)
    for name in "ab":
        client.insert_item("train", prompt(0), name=name)
    before_read(client, lambda keys: other.delete_items("train", keys))
    with client.open_item("train") as item:
        assert item.name == "b"
        assert info(client).open == info(client).leased == 1


def test_a_batch_that_was_deleted_is_replaced(two, before_read):
    client, other = two(1)
    ready(client, *"ab", num_rollouts=1)
    before_read(client, lambda keys: other.delete_items("train", keys))
    assert client.take("train", 1).name == ["b"]
    assert info(client).ready == info(client).leased == 1


def test_a_stage_does_not_get_what_became_stale_unread(two, before_read):
    client, other = two(1, max_staleness=0)
    for name in "ab":
        client.insert_item("train", prompt(0), [{"tokens": [1, 2]}], name=name)
    calls = []

    def become_stale(keys):
        calls.append(keys)
        other.set_version("train", 1)

    before_read(client, become_stale)
    with pytest.raises(DeadlineExceededError):
        client.take("train", 1, lacks="score", timeout_ms=0)
    assert len(calls) == 1
    assert (info(client).open, info(client).leased) == (2, 0)


def open_one(client):
    with client.open_item("train") as item:
        return item


def take_one(client):
    return client.take("train", 1)


def take_settled(client):
    return client.take("train", 1, lacks="score")


@pytest.mark.parametrize("call", [open_one, take_one, take_settled])
def test_a_client_does_not_try_for_ever(two, before_read, call):
    client, other = two(1)

    def replace(keys):
        other.reset("train")
        settled = {"tokens": [1, 2]}
        rollouts = {take_one: [rollout()], take_settled: [settled]}.get(call)
        other.insert_item("train", prompt(0), rollouts, name="b")

    replace(None)
    before_read(client, replace, 1000)
    with pytest.raises(DataLossError, match="left table train"):
        call(client)
