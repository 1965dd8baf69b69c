# SPDX-License-Identifier: Apache-2.0
"""Clients whose connection is lost, and that come back; and takes that are sent again."""

import contextlib
import time

import pytest

import reverb
from reverb._client.rollout_items import take_request
from reverb.core import protos
from reverb.errors import DeadlineExceededError, FailedPreconditionError
from support.relay import Relay
from support.rollout_tables import info, ready, table
from support.waiting import DEADLINE_S


@pytest.fixture
def relayed(start):
    """A client behind a relay, and one beside it: `client, relay, other = relayed(grace_s)`."""
    with contextlib.ExitStack() as stack:

        def relayed(lease_grace_s):
            server = start(table(1), lease_grace_s=lease_grace_s)
            relay = stack.enter_context(contextlib.closing(Relay(server.port)))
            client = reverb.Client(relay.address, connect_timeout_s=DEADLINE_S)
            return client, relay, server.localhost_client()

        yield relayed


def takes_nothing(client):
    with pytest.raises(DeadlineExceededError):
        client.take("train", 1, timeout_ms=0)


def test_a_lost_client_keeps_its_items_for_the_grace(relayed):
    client, relay, other = relayed(600)
    ready(other, "a", num_rollouts=1)
    client.take("train", 1)
    relay.close()
    time.sleep(0.3)  # Time for a server that would free them at once.
    takes_nothing(other)
    assert info(other).leased == 1


def test_a_client_that_is_back_keeps_its_items(relayed):
    client, relay, other = relayed(0.5)
    ready(other, *"ab", num_rollouts=1)
    client.take("train", 1)
    for name in "cd":
        relay.lose()
        # Its stream is opened again before it takes something.
        client.take("train", 1, timeout_ms=1000 * int(DEADLINE_S))
        ready(other, name, num_rollouts=1)
    time.sleep(1)  # Time for a server that would count from the loss.
    assert other.take("train", 1).name == ["d"]
    takes_nothing(other)


def test_a_client_comes_back_by_itself(relayed):
    client, relay, other = relayed(1)
    ready(other, "a", num_rollouts=1)
    client.take("train", 1)
    relay.lose()
    time.sleep(1.5)  # Time for the grace of a client that would not.
    takes_nothing(other)


def take(client, lease, num_items=1):
    """Takes with a lease; returns the names."""
    request = take_request(client._rollout_columns("train"), "ready", num_items, None, False, None)
    answer = protos.TakeResponse.FromString(client._client.take(request, lease[1]))
    return [item.name for item in answer.items]


def test_the_same_lease_gives_what_it_has(two):
    client, other = two(1)
    ready(client, *"ab", num_rollouts=1)
    lease = client._client.new_lease()
    assert take(client, lease) == ["a"]
    assert take(client, lease, 2) == ["a"]
    assert info(client).leased == 1
    assert other.take("train", 1).name == ["b"]


def is_waiting(client):
    return client.status().tables["train"].sampling.waiting == 1


@pytest.mark.parametrize("then", ["settled", "taken again"])
def test_a_take_ends_whose_lease_is_given_up(two, background, until, then):
    """A client repeats calls that were cancelled: this one must not be one of them."""
    client, other = two(1)
    lease = client._client.new_lease()
    first = background(take, client, lease)
    until(lambda: is_waiting(other))
    if then == "settled":
        client._client.give_up_lease("train", lease[1])
        with pytest.raises(FailedPreconditionError, match=f"Lease {lease[1]} .* has ended"):
            first.result()
        until(lambda: not is_waiting(other))
        ready(other, "a", num_rollouts=1)
        assert other.take("train", 1).name == ["a"]
    else:
        again = background(take, client, lease)
        with pytest.raises(FailedPreconditionError, match="taken by a later request"):
            first.result()
        ready(other, *"ab", num_rollouts=1)
        assert again.result() == ["a"]
        assert info(other).leased == 1
