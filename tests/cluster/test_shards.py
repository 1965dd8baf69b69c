# SPDX-License-Identifier: Apache-2.0
"""A group of shards is sampled, updated and described as if it were one server."""

import collections
import math
import re

import numpy as np
import pytest

import reverb
from reverb import testing
from support.hosts import HOSTS
from support.waiting import Background
from support.writer_kinds import EVERY_WRITER

SIZES = (100, 200, 300, 1000)
MAX_Z = 4.0


def z_of(counts, expected):
    """How far counts are from what they should be, in standard deviations (chi-square)."""
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    small = expected < 5
    if small.any():
        counts = np.append(counts[~small], counts[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
        if expected[-1] == 0:
            assert counts[-1] == 0
            counts, expected = counts[:-1], expected[:-1]
    degrees = len(counts) - 1
    chi = ((counts - expected) ** 2 / expected).sum()
    # Wilson and Hilferty: the cube root of chi2 / n is nearly normal.
    return ((chi / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))


def table(sampler=None):
    sampler = sampler or reverb.selectors.Prioritized(0.6)
    return testing.table("t", sampler=sampler, max_size=100_000)


@pytest.fixture(params=HOSTS)
def host(request):
    return HOSTS[request.param].removeprefix("shards:///")


class Group:
    """Servers, a client of each, and a client of all."""

    def __init__(self, servers, host, options=""):
        places = [f"{host}:{server.port}" for server in servers]
        self.servers = servers
        self.each = [reverb.Client(place, connect_timeout_s=20) for place in places]
        self.address = "shards:///" + ",".join(places) + options
        self.client = reverb.Client(self.address, connect_timeout_s=20)

    def sizes(self):
        return [client.server_info()["t"].current_size for client in self.each]


@pytest.fixture
def group(start, host):
    """Makes a group: `group(lambda: table(...), 4)`."""

    def group(make_table=table, num_shards=4, options="", **server_options):
        servers = [start(make_table(), **server_options) for _ in range(num_shards)]
        return Group(servers, host, options)

    return group


def fill(group, exponent, seed):
    """Items of known weights on shards of different sizes; returns the weights by priority."""
    rng = np.random.default_rng(seed)
    weights = {}
    for shard, (client, size) in enumerate(zip(group.each, SIZES, strict=True)):
        # Every priority is unique, so it stands for its item.
        priorities = rng.uniform(0.1, 3.0, size) * (1 + shard)
        priorities[rng.random(size) < 0.1] = 0.0
        client.insert_batch([np.zeros(size, np.int32)], {"t": priorities})
        weights.update({p: p**exponent for p in priorities.tolist() if p > 0})
    return weights


def check_draws(weights, priorities, probabilities):
    total = sum(weights.values())
    exact = np.array([weights[p] for p in priorities.tolist()]) / total
    np.testing.assert_allclose(probabilities, exact, rtol=1e-12)
    counts = collections.Counter(priorities.tolist())
    expected = np.array(list(weights.values())) / total * len(priorities)
    assert z_of([counts[p] for p in weights], expected) < MAX_Z


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_batches_are_drawn_by_the_weights_of_all_shards(group, exponent, seed):
    made = group(lambda: table(reverb.selectors.Prioritized(exponent)))
    weights = fill(made, exponent, seed)
    priorities, probabilities = [], []
    for _ in range(400):
        info = made.client.sample_batch("t", 256).info
        priorities.append(info.priority)
        probabilities.append(info.probability)
        assert (info.table_size == sum(SIZES)).all()
    check_draws(weights, np.concatenate(priorities), np.concatenate(probabilities))


def test_single_samples_are_drawn_by_the_weights_of_all_shards(group):
    made = group()
    weights = fill(made, 0.6, 5)
    infos = [sample[0].info for sample in made.client.sample("t", 30_000)]
    check_draws(
        weights,
        np.array([info.priority for info in infos]),
        np.array([info.probability for info in infos]),
    )


def test_equal_shares_would_be_seen(group):
    """A client of several servers in turn shows that the test above is not blind."""
    made = group()
    weights = fill(made, 0.6, 5)
    several = reverb.Client(made.address.removeprefix("shards:///"))
    priorities = np.concatenate([several.sample_batch("t", 256).info.priority for _ in range(200)])
    counts = collections.Counter(priorities.tolist())
    expected = np.array(list(weights.values())) / sum(weights.values()) * len(priorities)
    assert z_of([counts[p] for p in weights], expected) > 20


@pytest.mark.parametrize(
    ("make_sampler", "priority"),
    [(reverb.selectors.Uniform, 2.0), (lambda: reverb.selectors.Prioritized(0.6), 0.0)],
    ids=["uniform", "all weights are zero"],
)
def test_items_without_weights_are_alike(group, make_sampler, priority):
    made = group(lambda: table(make_sampler()))
    for client, size in zip(made.each, SIZES, strict=True):
        client.insert_batch([np.arange(size)], {"t": priority})
    info = made.client.sample_batch("t", 4_000).info
    np.testing.assert_allclose(info.probability, 1 / sum(SIZES), rtol=1e-12)


def test_every_key_is_updated_where_it_is(group):
    made = group()
    made.client.insert_batch([np.arange(20_000)], {"t": 1.0})
    keys = np.array([sample.info.key for sample in made.client.scan("t")], np.uint64)
    assert len(set(keys.tolist())) == 20_000
    new = np.arange(20_000) + 2.0
    for part in np.array_split(np.arange(20_000), 40):
        made.client.update_priorities("t", keys[part], new[part])
    assert made.client.updates_missed == 0
    found = {s.info.key: s.info.priority for s in made.client.scan("t")}
    assert found == dict(zip(keys.tolist(), new.tolist(), strict=True))
    # Today's other way to reach several servers loses most of them.
    several = reverb.Client(made.address.removeprefix("shards:///"))
    for part in np.array_split(np.arange(20_000), 40):
        several.update_priorities("t", keys[part], np.full(len(part), 0.5))
    left = sum(s.info.priority != 0.5 for s in made.client.scan("t"))
    assert 13_000 < left < 17_000


def test_keys_of_writers_that_know_no_slots_are_found(group):
    made = group()
    for shard, client in enumerate(made.each):
        client.insert_batch([np.arange(500)], {"t": 1.0 + shard})
    keys = np.array([sample.info.key for sample in made.client.scan("t")], np.uint64)
    made.client.update_priorities("t", keys, np.arange(2_000) + 10.0)
    assert made.client.updates_missed == 0
    assert all(s.info.priority >= 10 for s in made.client.scan("t"))
    sampled = made.client.sample_batch("t", 64).info.key
    made.client.update_priorities("t", sampled, np.full(64, 3.0))
    assert made.client.updates_missed == 0
    made.client.mutate_priorities("t", deletes=keys.tolist())
    assert made.sizes() == [0, 0, 0, 0]
    made.client.mutate_priorities("t", updates={int(keys[0]): 1.0}, deletes=[int(keys[1])])
    assert made.client.updates_missed == 2


def test_single_inserts_take_turns(group):
    made = group()
    for i in range(101):
        made.client.insert([np.int64(i)], {"t": 1.0})
    sizes = made.sizes()
    assert sum(sizes) == 101
    assert max(sizes) - min(sizes) <= 2
    made.client.insert_batch([np.arange(10_000)], {"t": 1.0})
    sizes = made.sizes()
    assert sum(sizes) == 10_101
    assert max(sizes) - min(sizes) <= 110


def test_items_of_a_writer_are_on_one_shard(group):
    made = group()
    for _ in range(8):
        with made.client.trajectory_writer(3) as writer:
            for step in range(6):
                writer.append({"x": np.int64(step)})
                if step >= 2:
                    writer.create_item("t", 1.0, {"x": writer.history["x"][-3:]})
            writer.end_episode()
    assert made.sizes() == [8, 8, 8, 8]
    batch = made.client.sample_batch("t", 100)
    x = batch.data["x"] if isinstance(batch.data, dict) else batch.data[0]
    assert x.shape == (100, 3)
    np.testing.assert_array_equal(np.diff(x, axis=1), 1)


@pytest.mark.parametrize("write", EVERY_WRITER.values(), ids=EVERY_WRITER)
def test_all_writers_reach_the_group(group, write):
    made = group()
    write(made.client, "t", 50)
    assert sum(made.sizes()) == 50
    assert len(list(made.client.scan("t"))) == 50


def test_the_info_of_a_group_is_the_sum(group):
    made = group()
    made.client.insert_batch([np.arange(1_000)], {"t": 1.0})
    info = made.client.server_info()["t"]
    assert info.current_size == 1_000
    assert info.max_size == 400_000
    shards = made.client.shard_info()
    assert [shard.index for shard in shards] == [0, 1, 2, 3]
    assert sum(shard.num_slots for shard in shards) == 4_096
    assert {shard.state for shard in shards} == {"up"}
    assert sum(shard.tables["t"].size for shard in shards) == 1_000
    assert sum(shard.tables["t"].mass for shard in shards) == pytest.approx(1_000)
    assert len({shard.server_id for shard in shards}) == 4
    status = made.client.status()
    assert status.tables["t"].items == 1_000


def test_reset_empties_all_shards(group):
    made = group()
    made.client.insert_batch([np.arange(1_000)], {"t": 1.0})
    made.client.reset("t")
    assert made.sizes() == [0, 0, 0, 0]


def test_a_queue_gives_every_item_once(group):
    made = group(lambda: reverb.Table.queue("t", 1_000))
    made.client.insert_batch([np.arange(1_000)], {"t": 1.0})
    made.client.insert([np.int64(1_000)], {"t": 1.0})
    values = [int(sample[0].data[0]) for sample in made.client.sample("t", 1_001)]
    assert sorted(values) == list(range(1_001))
    assert made.sizes() == [0, 0, 0, 0]
    with pytest.raises(reverb.errors.DeadlineExceededError) as caught:
        made.client.sample_batch("t", 1, timeout_ms=200)
    told = "The sample timed out. Table t is empty in all 4 shards of shards:///"
    assert str(caught.value).startswith(told)


def test_a_sample_that_times_out_says_so_first(group):
    made = group(lambda: testing.table("t", rate_limiter=reverb.rate_limiters.MinSize(100)))
    for client in made.each:
        client.insert([np.int64(0)], {"t": 1.0})
    with pytest.raises(reverb.errors.DeadlineExceededError) as caught:
        made.client.sample_batch("t", 1, timeout_ms=200)
    told = str(caught.value)
    assert re.match(r"The sample timed out\. Table t: \d+ more inserts allow the next ", told)
    assert "(Rate Limiter: Timeout exceeded.)" in told
    assert re.search(r"These are the numbers of shard \d \(.*\), one of 4 shards\.$", told), told


def test_a_reader_waits_for_the_first_item_of_any_shard(group):
    made = group(lambda: reverb.Table.queue("t", 10))
    reader = Background(lambda: [int(s[0].data[0]) for s in made.client.sample("t", 3)])
    made.each[2].insert([np.int64(7)], {"t": 1.0})
    made.each[0].insert([np.int64(8)], {"t": 1.0})
    made.each[2].insert([np.int64(9)], {"t": 1.0})
    assert sorted(reader.result()) == [7, 8, 9]


def test_others_go_on_when_a_shard_dies_and_it_comes_back(group, start, host, until):
    made = group()
    for _ in range(4):
        made.client.insert_batch([np.arange(1_000)], {"t": 1.0})
    assert made.sizes() == [1_000] * 4
    made.client.sample_batch("t", 256)
    port = made.servers[1].port
    made.servers[1].stop()
    info = made.client.sample_batch("t", 256).info
    until(lambda: made.client.sample_batch("t", 64).info.table_size[0] == 3_000)
    assert len(info.key) == 256
    assert made.client.shard_info()[1].state == "down"
    assert made.client.server_info()["t"].current_size == 3_000
    for i in range(8):
        made.client.insert([np.int64(i)], {"t": 1.0})
    start(table(), port=port)
    until(lambda: made.client.shard_info()[1].state == "up")
    made.client.insert_batch([np.arange(1_000)], {"t": 1.0})
    until(lambda: made.client.sample_batch("t", 64).info.table_size[0] == 4_008)


@pytest.mark.parametrize("seed", range(3))
def test_importance_weights_have_no_bias_when_masses_lie(group, seed):
    """Masses that are out of date change what comes, and the probabilities say so."""
    made = group()
    rng = np.random.default_rng(seed)
    values = []
    for client, size, scale in zip(made.each, SIZES, (1, 2, 3, 10), strict=True):
        column = rng.normal(scale, 1, size)
        values.append(column)
        client.insert_batch([column], {"t": np.abs(column) + 0.1})
    mean = np.concatenate(values).mean()
    keys = [[s.info.key for s in client.scan("t")] for client in made.each]
    estimates = []
    for _ in range(200):
        # All priorities of two shards change behind the client's back before each batch.
        for shard in (0, 3):
            factor = rng.choice([1 / 3, 3.0])
            made.each[shard].update_priorities(
                "t", keys[shard], (np.abs(values[shard]) + 0.1) * factor
            )
        batch = made.client.sample_batch("t", 256)
        weights = 1 / (batch.info.table_size * batch.info.probability)
        column = np.asarray(batch.data[0]).reshape(256)
        estimates.append(float((weights * column).mean()))
    error = np.std(estimates) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - mean) < 4 * error


def test_a_shard_that_was_emptied_keeps_nobody_waiting(group):
    made = group()
    for client in made.each:
        client.insert_batch([np.arange(500)], {"t": 1.0})
    made.client.sample_batch("t", 512)
    for client in made.each[:3]:
        client.reset("t")
    # Whatever was known of the others.
    for _ in range(5):
        info = made.client.sample_batch("t", 512).info
    assert len(info.key) == 512
    assert (info.table_size == 500).all()
