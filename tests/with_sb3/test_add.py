# SPDX-License-Identifier: Apache-2.0
"""`add` step by step: what is refused, what is compared, what a copy in mid-episode knows."""

import copy
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer

import reverb
from reverb import testing
from reverb.adapters.sb3 import ReverbReplayBuffer
from reverb.errors import InvalidArgumentError, SignatureMismatchError
from support.waiting import wait_until

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
STACK = spaces.Box(0, 255, (4, 6, 6), np.uint8)


def made(space=VECTOR, num_envs=1, size=1000, **options):
    return ReverbReplayBuffer(size, space, spaces.Discrete(5), "cpu", num_envs, **options)


def step(number, num_envs=1, done=False, space=VECTOR):
    """Step `number` of an episode; stacks go on."""
    if space is VECTOR:
        obs, next_obs = (np.full((num_envs, 3), number + i, np.float32) for i in range(2))
    else:
        frames = np.arange(number, number + 5, dtype=np.uint8)
        rows = np.broadcast_to(frames[None, :, None, None], (num_envs, 5, 6, 6)).copy()
        # Environments differ.
        rows[..., 0] = np.arange(num_envs)[:, None, None]
        obs, next_obs = rows[:, :-1], rows[:, 1:]
    actions, rewards = np.full(num_envs, number % 5), np.full(num_envs, float(number))
    return obs, next_obs, actions, rewards, np.full(num_envs, done), [{} for _ in range(num_envs)]


def transitions(buffer):
    batch = buffer.sample(500)
    columns = (
        batch.observations,
        batch.actions,
        batch.next_observations,
        batch.rewards,
        batch.dones,
    )
    rows = zip(*(it.flatten(1).tolist() for it in columns), strict=True)
    return {tuple(map(tuple, row)) for row in rows}


def test_observations_with_nan_go_on():
    library = NStepReplayBuffer(100, VECTOR, spaces.Discrete(5), "cpu", n_steps=3, gamma=0.5)
    buffer = made(n_steps=3, gamma=0.5)
    for number in range(30):
        obs, next_obs, *others = step(number, done=number == 29)
        obs[:, 1] = next_obs[:, 1] = np.nan
        for it in (library, buffer):
            it.add(obs, next_obs, *others)
    rows = np.arange(30)
    ours, theirs = buffer._get_samples(rows), library._get_samples(rows)
    np.testing.assert_array_equal(ours.rewards, theirs.rewards)
    np.testing.assert_array_equal(ours.next_observations, theirs.next_observations)
    buffer.close()


@pytest.mark.parametrize("num_steps", [1, 3])
def test_observations_with_nan_are_stored_once(num_steps):
    stored = {}
    for value in (0.0, np.nan):
        space = spaces.Box(-np.inf, np.inf, (1000,), np.float64)
        buffer = made(space, n_steps=num_steps)
        random = np.random.default_rng(0)
        obs = random.normal(size=(1, 1000))
        for _ in range(50):
            next_obs = random.normal(size=(1, 1000))
            next_obs[0, 0] = value
            buffer.add(obs, next_obs, [0], [0.0], [False], [{}])
            obs = next_obs
        buffer.flush()
        stored[value == 0] = buffer._client.status().tables["replay"].bytes
        buffer.close()
    # If they were stored twice, it would be twice as much.
    assert stored[False] < 1.2 * stored[True]


@pytest.mark.parametrize(
    "change",
    [
        {"obs": np.zeros((1, 4))},
        {"obs": np.zeros((2, 3))},
        {"next_obs": np.zeros((3, 1, 1))},
        {"action": np.zeros(2, np.int64)},
        {"reward": np.zeros(2)},
        {"done": np.zeros((2, 1))},
        {"infos": []},
        {"infos": [{"TimeLimit.truncated": True}, {}]},
    ],
)
def test_a_step_of_another_shape_is_refused_and_changes_nothing(change):
    buffer = made(n_steps=2)
    names = ("obs", "next_obs", "action", "reward", "done", "infos")
    for number in range(4):
        good = dict(zip(names, step(number, done=number == 3), strict=True))
        with pytest.raises(ValueError, match=r"broadcast|reshape"):
            buffer.add(**{**good, **change})
        assert buffer.size() == number
        buffer.add(**good)
    found = sorted(rewards[0] for *_, rewards, _ in transitions(buffer))
    assert found == pytest.approx([0.99, 1 + 0.99 * 2, 3.0, 2 + 0.99 * 3])
    buffer.close()


def test_an_image_with_its_axes_in_another_order_is_refused():
    buffer = made(spaces.Box(0, 255, (3, 6, 5), np.uint8))
    image = np.zeros((1, 6, 5, 3), np.uint8)
    with pytest.raises(ValueError, match="broadcast"):
        buffer.add(image, image, [0], [0.0], [False], [{}])
    buffer.close()


def test_without_time_limits_infos_of_gymnasium_are_unread():
    envs = gymnasium.make_vec("CartPole-v1", num_envs=2)
    options = {"handle_timeout_termination": False}
    buffer = made(envs.single_observation_space, 2, **options)
    refusing = made(envs.single_observation_space, 2)
    obs, _ = envs.reset(seed=1)
    next_obs, rewards, terminations, _, infos = envs.step(np.array([0, 1]))
    infos["final_obs"] = np.array([None, None])
    buffer.add(obs, next_obs, np.array([0, 1]), rewards, terminations, infos)
    assert buffer.sample(4).dones.tolist() == [[0.0]] * 4
    with pytest.raises(InvalidArgumentError, match="infos must be a list with a dict for each"):
        refusing.add(obs, next_obs, np.array([0, 1]), rewards, terminations, infos)
    assert (buffer.size(), refusing.size()) == (1, 0)
    for it in (buffer, refusing):
        it.close()
    envs.close()


def test_a_sample_sees_what_was_added_before():
    buffer = made(size=1)
    for number in range(200):
        buffer.add(*step(number))
        assert buffer.sample(1).observations[0, 0] == number
    buffer.close()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("n_steps", [1, 2, 5])
@pytest.mark.parametrize("space", [VECTOR, STACK], ids=["vector", "stack"])
def test_a_copy_in_mid_episode_goes_on(space, n_steps, num_envs, copied):
    straight, kept = (made(space, num_envs, n_steps=n_steps) for _ in range(2))
    for buffer in (straight, kept):
        for number in range(3):
            buffer.add(*step(number, num_envs, space=space))
        # The episodes have different lengths then.
        *others, done, infos = step(3, num_envs, space=space)
        buffer.add(*others, done | (np.arange(num_envs) == 1), infos)
        for number in (4, 5):
            buffer.add(*step(number, num_envs, space=space))
    other = copied(kept)
    # A copy of a copy, with nothing between, is the same.
    again = copied(other)
    assert (again.size(), again.pos) == (kept.size(), kept.pos) == (6, 6)
    for buffer in (straight, kept, other, again):
        for number in range(6, 12):
            buffer.add(*step(number, num_envs, number == 11, space))
    want = transitions(straight)
    assert len(want) > 10
    for buffer in (kept, other, again):
        assert transitions(buffer) == want
    for buffer in (straight, kept, other, again):
        buffer.close()


def test_a_pickle_of_a_buffer_with_a_server_has_its_open_steps():
    with testing.server([testing.table("replay", max_size=100)]) as client:
        buffer = made(server=client.server_address, n_steps=3)
        for number in range(2):
            buffer.add(*step(number))
        state = pickle.dumps(buffer)
        buffer.close()
        other = pickle.loads(state)
        other.add(*step(2, done=True))
        other.flush()
        assert [float(sample.data[0][0]) for sample in client.scan("replay")] == [0.0, 1.0, 2.0]
        other.close()


def test_a_buffer_that_goes_on_elsewhere_ends_what_was_open():
    buffer = made(n_steps=3)
    for number in range(2):
        buffer.add(*step(number))
    other = pickle.loads(pickle.dumps(buffer))
    # An environment that was reset after loading.
    other.add(*step(100))
    found = {(obs[0], next_obs[0], dones) for obs, _, next_obs, _, dones in transitions(other)}
    assert found == {(0.0, 2.0, (0.0,)), (1.0, 2.0, (0.0,))}
    for it in (buffer, other):
        it.close()


def test_rewards_without_end_stay_in_their_transitions():
    buffer = made(n_steps=3, gamma=0.5)
    for number in range(12):
        obs, next_obs, action, _, _, infos = step(number)
        reward = np.array([np.inf if number == 4 else 1.0])
        buffer.add(obs, next_obs, action, reward, np.array([number in (5, 11)]), infos)
    rewards = {obs[0]: rewards[0] for obs, _, _, rewards, _ in transitions(buffer)}
    assert [rewards[at] for at in range(2)] == [1.75, 1.75]
    assert [rewards[at] for at in range(2, 5)] == [np.inf] * 3
    assert [rewards[at] for at in range(5, 12)] == [1.0, *[1.75] * 4, 1.5, 1.0]
    buffer.close()


def named(columns):
    specs = {
        "obs": reverb.specs.TensorSpec((3,), np.float32),
        "next_obs": reverb.specs.TensorSpec((3,), np.float32),
        "action": reverb.specs.TensorSpec((1,), np.int64),
        "reward": reverb.specs.TensorSpec((1,), np.float32),
        "done": reverb.specs.TensorSpec((), np.float32),
        "discount": reverb.specs.TensorSpec((), np.float32),
        "place": reverb.specs.TensorSpec((), np.int64),
        "end": reverb.specs.TensorSpec((), np.uint8),
    }
    return {columns.get(name, name): spec for name, spec in specs.items()}


def test_a_signature_that_names_the_columns_is_matched_by_names():
    with testing.server([testing.table("replay", max_size=9, signature=named({}))]) as client:
        buffer = made(server=client.server_address)
        buffer.add(*step(1))
        assert transitions(buffer) == {((1.0,) * 3, (1,), (2.0,) * 3, (1.0,), (0.0,))}
        other = pickle.loads(pickle.dumps(buffer))
        other.add(*step(2))
        other.flush()
        found = [it.data for it in client.scan("replay", unpack_as_table_signature=True)]
        assert [it["obs"][0] for it in found] == [1.0, 2.0]
        assert [it["next_obs"][0] for it in found] == [2.0, 3.0]
        for it in (buffer, other):
            it.close()


def test_a_signature_with_other_names_is_an_error():
    columns = named({"next_obs": "state"})
    with testing.server([testing.table("replay", max_size=9, signature=columns)]) as client:
        with pytest.raises(SignatureMismatchError) as raised:
            made(server=client.server_address)
        assert f"has the columns {sorted(columns)}, and the transitions" in str(raised.value)
        assert "of this buffer ['obs', 'next_obs', 'action', 'reward'," in str(raised.value)


def test_others_see_what_was_added_to_a_table_of_a_server():
    with testing.server([testing.table("replay", max_size=100)]) as client:
        buffer = made(server=client.server_address)
        # Nothing is kept back for the next steps.
        for number in range(3):
            buffer.add(*step(number))
        wait_until(lambda: client.server_info()["replay"].current_size == 3)
        buffer.close()
