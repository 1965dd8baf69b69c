# SPDX-License-Identifier: Apache-2.0
"""Buffers over a group of servers, and over servers that go away."""

import contextlib

import numpy as np
import pytest
import torch

import reverb
from reverb.adapters.torchrl import tables
from reverb.errors import UnavailableError
from support.torchrl_steps import episodes, numbers, steps
from support.waiting import wait_until

# Another batch size than that of the constructor is what some of these ask for.
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")
NUM_SHARDS = 3


@pytest.fixture
def group():
    """Starts the servers of a group; returns them and the address of all."""
    with contextlib.ExitStack() as stack:

        def start(**options):
            servers = [
                stack.enter_context(
                    reverb.Server(
                        tables("replay", **options), shard=reverb.cluster.Shard(index, NUM_SHARDS)
                    )
                )
                for index in range(NUM_SHARDS)
            ]
            places = ",".join(f"localhost:{server.port}" for server in servers)
            return servers, "shards:///" + places

        yield start


def sizes(servers):
    return [server.server_info()["replay"].current_size for server in servers]


def spread(buffer, count):
    """Writes steps; each call writes into one of the shards, and some of many into each."""
    for first in range(0, count, 5):
        buffer.extend(steps(first, 5))


def test_a_group_is_one_table(made, group):
    servers, address = group(max_size=900)
    buffer = made(address, batch_size=64)
    with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
        buffer.sample()
    spread(buffer, 300)
    assert buffer.extend(steps(300, 7)).tolist() == [-1] * 7
    assert buffer.add(steps(307, 1)[0]) == -1
    assert min(sizes(servers)) > 0
    assert len(buffer) == buffer.write_count == 308
    assert buffer.stats()["capacity"] == 900
    assert sorted(numbers(buffer[:])) == list(range(308))
    reader = made(address, batch_size=2000, prefetch=1)
    sample = reader.sample()
    assert (sample["next", "reward"][:, 0] == -sample["number"]).all()
    assert len(set(numbers(sample))) > 250
    buffer.empty(empty_write_count=False)
    assert (len(buffer), buffer.write_count) == (0, 308)
    buffer.extend(steps(0, 3))
    buffer.empty()
    assert (len(buffer), buffer.write_count) == (0, 0)


def test_priorities_reach_the_shards(made, group):
    servers, address = group(alpha=1.0)
    buffer = made(address, batch_size=4000, beta=0.5)
    spread(buffer, 150)
    # The shards tell that they have items a moment later, too.
    wait_until(lambda: len(set(numbers(buffer.sample()))) == 150)
    sample = buffer.sample()
    # 1 for even numbers, 4 for odd ones.
    sample["td_error"] = 1.0 + 3.0 * (sample["number"] % 2)
    buffer.update_tensordict_priority(sample)
    found = {
        number: it.info.priority
        for server in servers
        for it in server.localhost_client().scan("replay")
        for number in [int(np.asarray(it.data[2]).reshape(-1)[0])]
    }
    seen = set(numbers(sample))
    assert found == pytest.approx(
        {number: 4.0 if number % 2 and number in seen else 1.0 for number in range(150)}
    )

    def is_heard():
        """The shards tell what their items weigh a moment later."""
        again = buffer.sample()
        odd, weight = again["number"] % 2 == 1, again["priority_weight"]
        return (
            abs(odd.float().mean() - 0.8) < 0.05
            and torch.allclose(weight[odd], torch.tensor(0.5), atol=1e-3)
            and torch.allclose(weight[~odd], torch.tensor(1.0), atol=1e-3)
        )

    wait_until(is_heard)


@pytest.mark.parametrize("samples", [True, False], ids=["learner", "collector"])
def test_a_new_item_gets_the_largest_priority_of_all_shards(made, group, samples):
    servers, address = group(alpha=1.0)
    learner = made(address, batch_size=500)
    spread(learner, 60)
    sample = learner.sample()
    learner.update_priority(sample["index"][:1], torch.tensor(9.0))
    writer = learner if samples else made(address)

    def priority_of_next():
        before = sizes(servers)
        writer.extend(steps(0, 1))
        (at,) = np.flatnonzero(np.array(sizes(servers)) - before)
        return [it.info.priority for it in servers[at].localhost_client().scan("replay")][-1]

    wait_until(lambda: priority_of_next() == pytest.approx(9.0))
    # Whichever shard they go to.
    assert [priority_of_next() for _ in range(12)] == pytest.approx([9.0] * 12)


def test_sequences_in_a_group(made, group):
    _, address = group(alpha=0.6)
    buffer = made(address, sequence_length=3, batch_size=60)
    assert buffer.extend(episodes([5, 4, 2, 3])).tolist() == [-1] * 14
    found = sorted((it["episode"][0].item(), it["step"].tolist()) for it in buffer.storage)
    every = [(0, [0, 1, 2]), (0, [1, 2, 3]), (0, [2, 3, 4]), (1, [0, 1, 2]), (1, [1, 2, 3])]
    assert found == [*every, (3, [0, 1, 2])]
    sample = buffer.sample()
    step = sample.reshape(-1, 3)["step"]
    assert (step - step[:, :1] == torch.arange(3)).all()
    sample["td_error"] = torch.full((60,), 5.0)
    buffer.update_tensordict_priority(sample)
    assert max(it.info.priority for it in buffer._access.client.scan("replay")) == pytest.approx(5)


def test_items_of_a_group_are_consumed_once(made, group):
    _, address = group(consume_after_n_samples=1)
    buffer = made(address, batch_size=8, consume_after_n_samples=1)
    spread(buffer, 50)
    found = [number for batch in buffer for number in numbers(batch)]
    assert sorted(found) == list(range(50))


def test_training_goes_on_when_a_shard_dies(made, group):
    servers, address = group(alpha=0.6)
    buffer = made(reverb.Client(address, connect_timeout_s=5), batch_size=32)
    spread(buffer, 90)
    sample = buffer.sample()
    servers[0].stop()
    for _ in range(5):
        sample["td_error"] = torch.rand(32)
        buffer.update_tensordict_priority(sample)
        buffer.extend(steps(0, 10))
        sample = buffer.sample()
    for server in servers[1:]:
        server.stop()
    with pytest.raises(UnavailableError, match=f"Table replay is out of reach. .*{address}"):
        buffer.sample()


@pytest.mark.parametrize("prefetch", [None, 2])
def test_a_server_that_goes_away_is_named_with_its_table(made, prefetch):
    with reverb.Server(tables("replay", alpha=0.6)) as server:
        address = f"localhost:{server.port}"
        client = reverb.Client(address, connect_timeout_s=0.2)
        buffer = made(client, batch_size=4, prefetch=prefetch)
        sequences = made(client, batch_size=4, sequence_length=2)
        buffer.extend(steps(0, 10))
        sample = buffer.sample()
        buffer.synchronize()
    for _ in range(prefetch or 0):
        # Batches that were fetched ahead are still there.
        assert buffer.sample().batch_size == torch.Size([4])
    for call in (
        buffer.sample,
        lambda: buffer.extend(steps(0, 3)),
        lambda: buffer.update_tensordict_priority(sample),
        lambda: len(buffer),
        lambda: buffer[:],
        buffer.empty,
        lambda: sequences.extend(steps(0, 3)),
        lambda: made(client),
    ):
        with pytest.raises(UnavailableError, match=f"^Table replay is out of reach. .*{address}"):
            call()
