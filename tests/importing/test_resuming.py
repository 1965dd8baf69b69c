# SPDX-License-Identifier: Apache-2.0
"""Imports that are repeated, cut off and killed: each episode is in the table once."""

import collections
import hashlib

import numpy as np
import pytest

import reverb
from reverb import datasets, errors, testing
from reverb.datasets import writing
from reverb.datasets.present import num_items_of
from support import made_episodes
from support.programs import Program
from support.waiting import wait_until

KINDS = {
    "transitions": datasets.Transitions(n_step=2),
    "sequences": datasets.Sequences(length=4, stride=2, short_episodes="keep"),
    "episodes": datasets.Episodes(max_length=100),
}


def counts_of(client, table="t"):
    found = (it.data[0] for it in client.scan(table, columns=["episode_id"]))
    return collections.Counter(int(np.ravel(it)[0]) for it in found)


def whole(episodes, items):
    return {it.id: num_items_of(items, len(it)) for it in episodes}


def test_the_id_is_made_of_the_source_and_the_number():
    episode = made_episodes.episode(3, 12, source="minari:a/b-v0")
    digest = hashlib.sha256(b"minari:a/b-v0\x0012").digest()
    assert episode.id == int.from_bytes(digest[:8], "big") >> 1
    assert 0 <= episode.id < 2**63


def test_a_key_identifies_an_episode_instead_of_its_number():
    episode = made_episodes.episode(3, 12, source="npz:/a", key="b.npz#3")
    digest = hashlib.sha256(b"npz:/a\x00b.npz#3").digest()
    assert episode.id == int.from_bytes(digest[:8], "big") >> 1
    assert made_episodes.episode(3, 12, source="npz:/a", key="\udcff#0").id > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_import_writes_nothing(kind):
    items = KINDS[kind]
    episodes = made_episodes.episodes()
    with testing.server([made_episodes.table("t", episodes[0], items)]) as client:
        first = datasets.write(client, "t", episodes, items)
        keys = {it.info.key for it in client.scan("t")}
        second = datasets.write(client, "t", episodes, items)
        assert {it.info.key for it in client.scan("t")} == keys
    assert (first.num_episodes, first.num_present) == (len(episodes), 0)
    assert (second.num_items, second.num_present) == (0, len(episodes))


@pytest.mark.parametrize("kind", KINDS)
def test_two_sources_do_not_collide(kind):
    items = KINDS[kind]
    ours, others = (made_episodes.episodes(source=name) for name in ("npz:/data/a", "npz:/data/b"))
    with testing.server([made_episodes.table("t", ours[0], items)]) as client:
        datasets.write(client, "t", ours, items)
        counts = datasets.write(client, "t", others, items)
        assert counts.num_present == 0
        assert counts_of(client) == whole(ours, items) | whole(others, items)


@pytest.mark.parametrize("kind", ["transitions", "sequences"])
def test_an_episode_that_is_there_in_part_is_written_again(kind):
    items = KINDS[kind]
    episodes = made_episodes.episodes([9] * 5)
    with testing.server([made_episodes.table("t", episodes[0], items)]) as client:
        datasets.write(client, "t", episodes, items)
        lost = [it.info.key for it in client.scan("t", columns=["episode_id"])][::4]
        client.delete_items("t", np.array(lost, np.uint64))
        preview = datasets.write(client, "t", episodes, items, dry_run=True)
        assert counts_of(client) != whole(episodes, items)
        counts = datasets.write(client, "t", episodes, items)
        assert counts == preview
        assert counts.num_repaired == counts.num_episodes > 1
        assert counts.num_present == len(episodes) - counts.num_repaired
        assert counts_of(client) == whole(episodes, items)


LENGTHS = [3 + number % 9 for number in range(300)]

# Writes episodes, and never gets the last ones.
WRITER = """
import sys
import reverb
from reverb import datasets
from support import made_episodes

def endless():
    yield from made_episodes.episodes({lengths})
    sys.stdin.readline()

datasets.write(reverb.Client(sys.argv[1]), "t", endless(), datasets.{items!r})
"""


# The slow ones are the same test at more moments.
SHARES = [0.001, 0.4, *(pytest.param(it / 20, marks=pytest.mark.slow) for it in range(1, 16))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", SHARES)
def test_after_a_kill_each_episode_is_there_once(kind, share):
    items = KINDS[kind]
    episodes = made_episodes.episodes(LENGTHS)
    expected = whole(episodes, items)
    with testing.server([made_episodes.table("t", episodes[0], items)]) as client:

        def size():
            return client.server_info()["t"].current_size

        with Program(WRITER.format(lengths=LENGTHS, items=items), client.server_address) as first:
            wait_until(lambda: size() >= share * sum(expected.values()))
            first.kill()
        counts = datasets.write(client, "t", episodes, items)
        assert counts.num_present + counts.num_episodes == len(episodes)
        assert counts_of(client) == expected


def test_a_table_without_ids_takes_an_import_once():
    items = datasets.Transitions()
    episodes = made_episodes.episodes()
    table = made_episodes.table("t", episodes[0], items, episode_ids=False)
    with testing.server([table]) as client:
        datasets.write(client, "t", episodes, items)
        with pytest.raises(errors.FailedPreconditionError) as caught:
            datasets.write(client, "t", episodes, items)
        assert "table t has 55 items, and no column episode_id" in str(caught.value)
        assert client.server_info()["t"].current_size == 55
        datasets.write(client, "t", episodes, items, resume=False)
        assert client.server_info()["t"].current_size == 110


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_without_a_signature_has_ids_if_asked(kind):
    items = KINDS[kind]
    lengths = [9] * 6
    infos = {"a": np.zeros(9), "z/y": np.zeros(9), "f": {"x": np.zeros(9)}}
    episodes = made_episodes.episodes(lengths, infos=infos)
    with testing.server([testing.table("t")]) as client:
        datasets.write(client, "t", episodes, items, episode_ids=True)
        (column,) = {it.data[3].dtype.name for it in client.scan("t")}
        assert column == "int64"  # After a, action and discount.
        keys = [it.info.key for it in client.scan("t")][::4]
        client.delete_items("t", np.array(keys, np.uint64))
        counts = datasets.write(client, "t", episodes, items, episode_ids=True)
        assert counts.num_present + counts.num_episodes == len(episodes)
        assert counts.num_episodes > 0
        found = collections.Counter(int(np.ravel(it.data[3])[0]) for it in client.scan("t"))
        assert found == whole(episodes, items)


def test_items_of_others_in_a_table_without_a_signature():
    items = datasets.Transitions()
    episodes = made_episodes.episodes()
    with testing.server([testing.table("t")]) as client:
        datasets.write(client, "t", episodes, items)
        with pytest.raises(errors.FailedPreconditionError, match=" of table t has no column epis"):
            datasets.write(client, "t", episodes, items, episode_ids=True)


def test_two_imports_at_once_are_refused(monkeypatch):
    monkeypatch.setattr(writing, "HOLD_PATIENCE_S", 0.1)
    items = datasets.Transitions()
    episodes = made_episodes.episodes()
    with testing.server([made_episodes.table("t", episodes[0], items)]) as client:
        other = reverb.Client(client.server_address)
        with (
            other.rate_limiter_off("t"),
            pytest.raises(errors.FailedPreconditionError, match="off"),
        ):
            datasets.write(client, "t", episodes, items)


def test_items_of_others_stay():
    items = datasets.Transitions()
    episodes = made_episodes.episodes()
    with testing.server([made_episodes.table("t", episodes[0], items)]) as client:
        signature = client.server_info()["t"].signature
        specs = {name: reverb.specs.as_spec(it) for name, it in signature.items()}
        zeros = {name: np.zeros((3, *it.shape), it.dtype) for name, it in specs.items()}
        keys = set(client.insert_batch(zeros, {"t": 1.0})["t"].tolist())
        datasets.write(client, "t", episodes, items)
        datasets.write(client, "t", episodes, items)
        assert keys <= {it.info.key for it in client.scan("t")}
        assert client.server_info()["t"].current_size == 58


@pytest.mark.parametrize("kind", KINDS)
def test_an_import_into_a_group_goes_on(kind):
    items = KINDS[kind]
    episodes = made_episodes.episodes([3 + number % 9 for number in range(50)])

    def serve():
        table = made_episodes.table("t", episodes[0], items)
        return reverb.Server([table], host="127.0.0.1")

    with serve() as first, serve() as second:
        client = reverb.Client(f"shards:///127.0.0.1:{first.port},127.0.0.1:{second.port}")
        datasets.write(client, "t", episodes, items)
        lost = [it.info.key for it in client.scan("t", columns=["episode_id"])][::7]
        client.delete_items("t", np.array(lost, np.uint64))
        counts = datasets.write(client, "t", episodes, items)
        assert counts.num_present + counts.num_episodes == 50
        assert counts_of(client) == whole(episodes, items)
