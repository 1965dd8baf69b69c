# SPDX-License-Identifier: Apache-2.0
"""The items of an import are those of a loop over single steps."""

import threading

import numpy as np
import pytest

import reverb
from reverb import datasets, errors, testing
from support import made_episodes, scalar_items
from support.waiting import wait_until

DISCOUNT = 0.5
KINDS = {
    "transitions": (datasets.Transitions(discount=DISCOUNT), {}),
    "3-step": (datasets.Transitions(n_step=3, discount=DISCOUNT), {}),
    "sequences": (datasets.Sequences(length=6, stride=4, burn_in=2, discount=DISCOUNT), {}),
    "short sequences": (
        datasets.Sequences(length=8, discount=DISCOUNT, short_episodes="keep"),
        {},
    ),
    "episodes": (datasets.Episodes(max_length=100, discount=DISCOUNT), {}),
}


def expected(items, episodes):
    episodes = [made_episodes.Scalar(it) for it in episodes]
    if isinstance(items, datasets.Transitions):
        return scalar_items.transitions(episodes, items.n_step, DISCOUNT)
    if isinstance(items, datasets.Sequences):
        stride = items.stride or items.length
        keeps = items.short_episodes == "keep"
        return scalar_items.sequences(episodes, items.num_steps, stride, DISCOUNT, keeps)
    return (scalar_items.window(it, 0, len(it), DISCOUNT) for it in episodes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [made_episodes.LENGTHS, [1 + i % 17 for i in range(150)]])
def test_items_are_those_of_single_steps(kind, lengths):
    items, _ = KINDS[kind]
    episodes = made_episodes.episodes(lengths)
    table = made_episodes.table("replay", episodes[0], items, episode_ids=False)
    with testing.server([table]) as client:
        counts = datasets.write(client, "replay", episodes, items)
        found = scalar_items.multiset(scalar_items.stored(client))
        assert found == scalar_items.multiset(expected(items, episodes))
        assert counts.num_items == sum(found.values())
        dropped = sum(len(it) < 8 for it in episodes) if kind == "sequences" else 0
        assert counts.num_dropped == dropped
        assert counts.num_episodes == len(episodes) - dropped


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_without_a_signature_takes_the_same_items(kind):
    items, _ = KINDS[kind]
    episodes = made_episodes.episodes()
    with testing.server([testing.table("replay")]) as client:
        datasets.write(client, "replay", episodes, items)
        found = scalar_items.multiset(scalar_items.stored(client))
    assert found == scalar_items.multiset(expected(items, episodes))


def test_nests_and_infos_are_columns():
    def made(length, number):
        infos = {
            "value": np.arange(length + 1, dtype=np.float32) + number,  # With a row for the reset.
            "state": {"position": np.arange(2 * length).reshape(length, 2)},
        }
        return made_episodes.nested(length, number, infos=infos)

    episodes = [made(5, 0), made(3, 1)]
    items = datasets.Transitions(n_step=2, discount=DISCOUNT)
    with testing.server([made_episodes.table("t", episodes[0], items)]) as client:
        datasets.write(client, "t", episodes, items)
        samples = [it.data for it in client.scan("t", unpack_as_table_signature=True)]
    assert len(samples) == 8
    for episode in episodes:
        mine = [it for it in samples if it["episode_id"] == episode.id]
        assert len(mine) == len(episode)
        starts = [int(it["observation"]["numbers"][0] * 0 + i) for i, it in enumerate(mine)]
        assert starts == list(range(len(episode)))
        by_start = {it["observation"]["numbers"].tobytes(): it for it in mine}
        for start in range(len(episode)):
            item = by_start[episode.observations["numbers"][start].tobytes()]
            end = min(start + 2, len(episode))
            after = item["next_observation"]
            assert np.array_equal(after["numbers"], episode.observations["numbers"][end])
            image, flag = after["pair"]
            assert np.array_equal(image, episode.observations["pair"][0][end])
            assert flag == episode.observations["pair"][1][end]
            assert item["value"] == episode.infos["value"][end]
            position = episode.infos["state"]["position"]
            assert np.array_equal(item["state/position"], position[end - 1])


def test_whole_episodes_keep_their_order_and_come_back():
    episodes = made_episodes.episodes(infos=None)
    items = datasets.Episodes(max_length=30)
    with testing.server([made_episodes.table("t", episodes[0], items)]) as client:
        datasets.write(client, "t", episodes, items)
        made_episodes.assert_equal(datasets.stored(client, "t"), episodes)


@pytest.mark.parametrize("items", [datasets.Transitions(n_step=3), datasets.Episodes(100)])
def test_rewards_keep_the_dtype_of_the_signature(items):
    rewards = np.array([0.1, 0.2, 0.3])
    episode = made_episodes.episode(3, rewards=rewards)
    table = made_episodes.table("t", episode, items, reward_dtype=np.float64)
    with testing.server([table]) as client:
        datasets.write(client, "t", [episode], items)
        samples = [it.data for it in client.scan("t", unpack_as_table_signature=True)]
    assert samples[0]["reward"].dtype == np.float64
    if isinstance(items, datasets.Episodes):
        assert samples[0]["reward"].tobytes() == rewards.tobytes()
    else:
        sums = sorted(float(it["reward"]) for it in samples)
        assert sums[-1] == pytest.approx(0.1 + 0.99 * 0.2 + 0.99**2 * 0.3, rel=1e-15)


def test_the_limiter_is_off_meanwhile_and_does_not_count():
    items = datasets.Transitions()
    episodes = made_episodes.episodes()
    limiter = reverb.rate_limiters.SampleToInsertRatio(1.0, 2, 2.0)
    options = {"rate_limiter": limiter}
    with testing.server([made_episodes.table("t", episodes[0], items, options=options)]) as client:
        datasets.write(client, "t", episodes, items)
        assert client.server_info()["t"].current_size == sum(made_episodes.LENGTHS)
        # The ratio is as if nothing had been inserted.
        client.insert_batch(
            {name: spec_zeros(spec) for name, spec in client.server_info()["t"].signature.items()},
            {"t": 1.0},
        )


def test_the_limiter_stays_on_if_asked():
    items = datasets.Transitions()
    episodes = made_episodes.episodes()
    limiter = reverb.rate_limiters.SampleToInsertRatio(1.0, 2, 4.0)
    options = {"rate_limiter": limiter}
    table = made_episodes.table("t", episodes[0], items, options=options)
    with testing.server([table]) as client:
        write = threading.Thread(
            target=lambda: datasets.write(client, "t", episodes, items, keep_limiter=True)
        )
        write.start()
        try:
            wait_until(lambda: client.status().tables["t"].inserting.waiting)
            assert client.server_info()["t"].current_size < sum(made_episodes.LENGTHS)
        finally:
            with client.rate_limiter_off("t"):
                write.join()
        assert client.server_info()["t"].current_size == sum(made_episodes.LENGTHS)


def spec_zeros(leaf):
    spec = reverb.specs.as_spec(leaf)
    return np.zeros((2, *spec.shape), spec.dtype)


def test_priority_is_that_of_all_items():
    items = datasets.Episodes(max_length=30)
    episodes = made_episodes.episodes()
    tables = [
        made_episodes.table(name, episodes[0], kind)
        for name, kind in (("e", items), ("t", datasets.Transitions()))
    ]
    with testing.server(tables) as client:
        datasets.write(client, "e", episodes, items, priority=2.5)
        datasets.write(client, "t", episodes, datasets.Transitions(), priority=0.5)
        assert {it.info.priority for it in client.scan("e")} == {2.5}
        assert {it.info.priority for it in client.scan("t")} == {0.5}
        with pytest.raises(errors.InvalidArgumentError, match='priority must be a number or "max"'):
            datasets.write(client, "t", episodes, datasets.Transitions(), priority="much")


def test_one_large_episode_after_small_ones():
    episodes = made_episodes.episodes([3, 4, 2000, 5])
    items = datasets.Transitions()
    with testing.server([made_episodes.table("t", episodes[0], items)]) as client:
        counts = datasets.write(client, "t", episodes, items)
        assert counts.num_items == client.server_info()["t"].current_size == 2012
