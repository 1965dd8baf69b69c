# SPDX-License-Identifier: Apache-2.0
"""The buffer beside a loop over single steps, and beside Stable-Baselines3's own ones."""

import copy
import pickle

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import reverb
from reverb import testing
from reverb.adapters.sb3 import ReverbReplayBuffer
from reverb.errors import InvalidArgumentError, UnimplementedError

FRAMES = spaces.Box(0, 255, (4, 6, 5), np.uint8)
LAST_FRAMES = spaces.Box(0, 255, (8, 7, 3), np.uint8)
SPACES = {
    "vector": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "discrete": spaces.Discrete(1000),
    "frames": FRAMES,
    "frames last": LAST_FRAMES,
    "dict": spaces.Dict({"image": FRAMES, "vector": spaces.Box(-9, 9, (2,), np.float32)}),
}
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)


class Environments:
    """Observations that are never the same twice, with stacks of frames that mostly go on."""

    def __init__(self, space, num_envs, seed):
        self.space, self.num_envs = space, num_envs
        self.random = np.random.default_rng(seed)
        self.last = [self.first(space) for _ in range(num_envs)]

    def first(self, space):
        if isinstance(space, spaces.Dict):
            return {name: self.first(leaf) for name, leaf in space.items()}
        if isinstance(space, spaces.Discrete):
            return self.random.integers(space.n)
        if space.dtype == np.uint8:
            return self.random.integers(0, 256, space.shape, np.uint8)
        return self.random.normal(size=space.shape).astype(np.float32)

    def after(self, space, last):
        if isinstance(space, spaces.Dict):
            return {name: self.after(leaf, last[name]) for name, leaf in space.items()}
        new = self.first(space)
        if isinstance(space, spaces.Box) and space.dtype == np.uint8 and self.random.random() < 0.8:
            axis = 0 if space.shape[0] == min(space.shape) else 2
            new = np.moveaxis(new, axis, 0)
            new[:-1] = np.moveaxis(last, axis, 0)[1:]
            new = np.moveaxis(new, 0, axis)
        return new

    def together(self, rows):
        if isinstance(self.space, spaces.Dict):
            return {name: np.stack([row[name] for row in rows]) for name in self.space}
        return np.stack(rows)

    def step(self):
        """The arguments of `add`."""
        obs = self.last
        next_obs = [self.after(self.space, last) for last in obs]
        done = self.random.random(self.num_envs) < 0.2
        timeouts = done & (self.random.random(self.num_envs) < 0.5)
        self.last = [
            self.first(self.space) if ends else row
            for row, ends in zip(next_obs, done, strict=True)
        ]
        return (
            self.together(obs),
            self.together(next_obs),
            self.random.uniform(-1, 1, (self.num_envs, 2)).astype(np.float32),
            self.random.normal(size=self.num_envs),
            done,
            [{"TimeLimit.truncated": True} if it else {} for it in timeouts],
        )


def leaves(observation):
    if isinstance(observation, dict):
        return tuple(leaves(observation[name]) for name in sorted(observation))
    return np.asarray(observation).tobytes()


class Reference:
    """A list of transitions of `n_steps` steps, made one by one."""

    def __init__(self, n_steps, gamma):
        self.n_steps, self.gamma = n_steps, gamma
        self.open, self.items = {}, []

    def add(self, obs, next_obs, action, reward, done, infos):
        for env in range(len(reward)):

            def row(nest, env=env):
                if isinstance(nest, dict):
                    return {name: value[env] for name, value in nest.items()}
                return nest[env]

            steps = self.open.setdefault(env, [])
            steps.append((leaves(row(obs)), action[env].tobytes(), np.float32(reward[env])))
            ends = bool(done[env])
            is_last = ends and not infos[env].get("TimeLimit.truncated", False)
            while steps and (ends or len(steps) == self.n_steps):
                value = sum(self.gamma**i * float(step[2]) for i, step in enumerate(steps))
                item = (*steps[0][:2], round(value, 4), leaves(row(next_obs)), float(is_last))
                self.items.append((*item, round(self.gamma ** len(steps), 4)))
                steps.pop(0)
                if not ends:
                    break


def items_of(buffer):
    """The content of the table, in the form of the reference."""
    buffer.flush()
    found = []
    for sample in buffer._client.scan("replay"):
        num_leaves = len(buffer._leaves)
        obs, next_obs, rest = (
            sample.data[:num_leaves],
            sample.data[num_leaves : 2 * num_leaves],
            sample.data[2 * num_leaves :],
        )

        def nest(columns, buffer=buffer):
            rows = [
                leaf.restored(np.asarray(it)[None])[0]
                for leaf, it in zip(buffer._leaves, columns, strict=True)
            ]
            if buffer._is_dict:
                return tuple(leaves(np.ascontiguousarray(row)) for row in rows)
            if isinstance(buffer.observation_space, spaces.Discrete):
                return leaves(rows[0].reshape(()))
            return leaves(np.ascontiguousarray(rows[0]))

        action, reward, done, discount, *_ = rest
        value = float((reward * buffer.gamma ** np.arange(len(reward))).sum())
        item = (nest(obs), action.tobytes(), round(value, 4), nest(next_obs), float(done))
        found.append((*item, round(float(discount), 4)))
    return found


def made(space, num_envs=1, size=10_000, **options):
    return ReverbReplayBuffer(size, space, ACTIONS, "cpu", num_envs, **options)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("name", SPACES)
def test_the_items_are_those_of_a_loop_over_single_steps(name, n_steps, num_envs):
    envs = Environments(SPACES[name], num_envs, seed=n_steps + num_envs)
    buffer = made(SPACES[name], num_envs, n_steps=n_steps, gamma=0.9)
    reference = Reference(n_steps, 0.9)
    for _ in range(200):
        step = envs.step()
        buffer.add(*step)
        reference.add(*step)
    assert len(reference.items) > 180 * num_envs
    assert sorted(items_of(buffer)) == sorted(reference.items)
    buffer.close()


@pytest.mark.parametrize("name", SPACES)
def test_samples_look_like_those_of_the_library(name):
    space = SPACES[name]
    is_dict = isinstance(space, spaces.Dict)
    other = (DictReplayBuffer if is_dict else ReplayBuffer)(100, space, ACTIONS, "cpu", 2)
    buffer = made(space, 2)
    envs = Environments(space, 2, seed=1)
    for _ in range(20):
        step = envs.step()
        buffer.add(*step)
        other.add(*step)
    buffer.flush()
    ours, theirs = buffer.sample(16), other.sample(16)
    assert (
        type(ours) is type(theirs) is (DictReplayBufferSamples if is_dict else ReplayBufferSamples)
    )
    for field in ours._fields:
        mine, wanted = getattr(ours, field), getattr(theirs, field)
        if wanted is None:
            assert mine is None
            continue
        pairs = (
            [(mine[key], wanted[key]) for key in wanted]
            if isinstance(wanted, dict)
            else [(mine, wanted)]
        )
        for a, b in pairs:
            assert (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device), field
    assert (buffer.size(), buffer.pos, buffer.full) == (other.size(), other.pos, other.full)
    buffer.close()


def test_an_unexpected_observation_begins_another_episode():
    buffer = made(SPACES["vector"])
    zeros, ones, twos = (np.full((1, 3), value, np.float32) for value in range(3))
    action, nothing = np.zeros((1, 2), np.float32), np.zeros(1)
    buffer.add(zeros, ones, action, nothing, np.array([False]), [{}])
    buffer.add(twos, zeros, action, nothing, np.array([False]), [{}])
    found = [(obs, following) for obs, _, _, following, _, _ in items_of(buffer)]
    assert found == [(zeros.tobytes(), ones.tobytes()), (twos.tobytes(), zeros.tobytes())]
    buffer.close()


@pytest.mark.parametrize("n_steps", [1, 3])
def test_observations_and_rewards_are_normalized_alike(n_steps):
    envs = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]), clip_reward=0.5)
    envs.reset()
    for _ in range(50):
        envs.step(envs.action_space.sample()[None])
    envs.training = False
    buffer = made(envs.observation_space, n_steps=n_steps, gamma=0.5)
    raw = np.arange(3, dtype=np.float32)[None]
    for step in range(4):
        action = np.zeros((1, 2), np.float32)
        buffer.add(
            raw + step, raw + step + 1, action, np.array([-5.0]), np.array([step == 3]), [{}]
        )
    buffer.flush()
    batch = buffer.sample(64, env=envs)
    known = {
        tuple(row) for row in np.round(envs.normalize_obs(raw + np.arange(4)[:, None]), 4).tolist()
    }
    assert {tuple(row) for row in np.round(batch.observations.numpy(), 4).tolist()} <= known
    reward = float(envs.normalize_reward(np.array([-5.0]))[0])
    sums = {round(sum(0.5**i for i in range(k)) * reward, 4) for k in range(1, n_steps + 1)}
    assert {round(it, 4) for it in batch.rewards[:, 0].tolist()} <= sums
    buffer.close()


def test_frames_are_stored_once():
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    buffer = made(space)
    random = np.random.default_rng(0)
    stack = random.integers(0, 256, (1, 4, 84, 84), np.uint8)
    for _ in range(300):
        frame = random.integers(0, 256, (1, 1, 84, 84), np.uint8)
        following = np.concatenate([stack[:, 1:], frame], axis=1)
        action = np.zeros((1, 2), np.float32)
        buffer.add(stack, following, action, np.zeros(1), np.array([False]), [{}])
        stack = following
    buffer.flush()
    stored = buffer._client.status().tables["replay"].bytes / 300
    # Bytes for noise, which cannot be compressed; Stable-Baselines3 needs 56,448.
    assert stored < 56_448 / 6
    buffer.close()


def test_several_buffers_write_into_one_table():
    replay = testing.table("replay", sampler=reverb.selectors.Uniform())
    with reverb.Server([replay]) as server:
        address = f"localhost:{server.port}"
        buffers = [made(SPACES["vector"], server=address) for _ in range(2)]
        for seed, buffer in enumerate(buffers):
            envs = Environments(SPACES["vector"], 1, seed)
            for _ in range(10):
                buffer.add(*envs.step())
            buffer.flush()
        assert server.server_info()["replay"].current_size == 20
        again = pickle.loads(pickle.dumps(buffers[0]))
        assert again.sample(4).rewards.shape == (4, 1)
        for buffer in [*buffers, again]:
            buffer.close()
        with pytest.raises(InvalidArgumentError, match=r"has no table other; it has \['replay'\]"):
            made(SPACES["vector"], server=address, table="other")


def test_priorities():
    buffer = made(SPACES["vector"], priority_exponent=1.0)
    envs = Environments(SPACES["vector"], 1, seed=2)
    for _ in range(10):
        buffer.add(*envs.step())
    buffer.flush()
    keys = [sample.info.key for sample in buffer._client.scan("replay")]
    buffer.update_priorities(np.array(keys, np.uint64), np.array([1.0] + [0.0] * 9))
    buffer.sample(20)
    assert set(buffer.info.key.tolist()) == {keys[0]}
    assert (buffer.info.probability == 1.0).all()
    buffer.update_priorities(np.array(keys, np.uint64), np.array([4.0] + [1.0] * 9))
    buffer.sample(50)
    weights = buffer.importance_weights(0.5)
    assert tuple(weights.shape) == (50, 1)
    expected = np.where(buffer.info.key == keys[0], 0.5, 1.0)
    np.testing.assert_allclose(weights.numpy().ravel(), expected, rtol=1e-6)
    buffer.add(*envs.step())
    buffer.flush()
    assert [sample.info.priority for sample in buffer._client.scan("replay")][-1] == 4.0
    buffer.close()


def test_reset():
    buffer = made(SPACES["vector"])
    envs = Environments(SPACES["vector"], 1, seed=2)
    for _ in range(10):
        buffer.add(*envs.step())
    buffer.reset()
    assert (buffer.size(), items_of(buffer)) == (0, [])
    buffer.add(*envs.step())
    assert len(items_of(buffer)) == 1
    buffer.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"n_steps": 0}, "n_steps must be at least 1, got 0"),
        ({"gamma": 1.5}, "gamma must be from 0 to 1, got 1.5"),
        ({"server": "localhost:1", "priority_exponent": 0.6}, "is a setting of the table"),
    ],
)
def test_wrong_arguments(options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        made(SPACES["vector"], **options)


@pytest.mark.parametrize("n_steps", [1, 3])
def test_an_empty_buffer_does_not_wait_for_ever(n_steps):
    buffer = made(SPACES["vector"], n_steps=n_steps)
    with pytest.raises(InvalidArgumentError, match="no transition yet, after 0 steps"):
        buffer.sample(4)
    nowhere = np.zeros((1, 3), np.float32)
    for _ in range(n_steps):
        step = (nowhere, nowhere, np.zeros((1, 2), np.float32), np.zeros(1), np.array([False]))
        with pytest.raises(InvalidArgumentError, match="larger learning_starts"):
            buffer.sample(4)
        buffer.add(*step, [{}])
    assert buffer.sample(4).rewards.shape == (4, 1)
    again = pickle.loads(pickle.dumps(buffer))
    assert again.sample(4).rewards.shape == (4, 1)
    again.close()
    buffer.reset()
    with pytest.raises(InvalidArgumentError, match="no transition yet"):
        buffer.sample(4)
    buffer.close()


@pytest.mark.parametrize("name", SPACES)
def test_rows_that_were_never_written_are_zeros(name):
    # A program may say that a buffer is full.
    buffer = made(SPACES[name])
    buffer.full = True
    theirs = library_buffer(SPACES[name], 1, 5)
    theirs.full = True
    ours, other = buffer.sample(4), theirs.sample(4)
    for one, two in zip(ours, other, strict=True):
        pairs = (
            zip(one.values(), two.values(), strict=True)
            if name == "dict" and isinstance(one, dict)
            else [(one, two)]
        )
        assert all(a is b is None or torch.equal(a, b) for a, b in pairs)
    buffer.close()


def library_buffer(space, num_envs, size):
    kind = DictReplayBuffer if isinstance(space, spaces.Dict) else ReplayBuffer
    return kind(size, space, ACTIONS, "cpu", num_envs)


def assert_same_arrays(buffer, theirs):
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        ours, other = getattr(buffer, name), getattr(theirs, name)
        if not isinstance(other, dict):
            ours, other = {"": ours}, {"": other}
        assert ours.keys() == other.keys()
        for leaf, array in other.items():
            assert (ours[leaf].shape, ours[leaf].dtype) == (array.shape, array.dtype), name
            np.testing.assert_array_equal(ours[leaf], array, err_msg=f"{name} {leaf}")


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("name", SPACES)
def test_arrays_are_those_of_the_library(name, num_envs):
    envs = Environments(SPACES[name], num_envs, seed=4)
    buffer = made(SPACES[name], num_envs, 20 * num_envs)
    theirs = library_buffer(SPACES[name], num_envs, 20 * num_envs)
    assert_same_arrays(buffer, theirs)
    for added in range(1, 50):
        step = envs.step()
        buffer.add(*step)
        theirs.add(*step)
        if added in (1, 19, 20, 21, 49):
            assert_same_arrays(buffer, theirs)
    assert_same_arrays(pickle.loads(pickle.dumps(buffer)), theirs)
    # By position, as subclasses of theirs do.
    rows = np.arange(20)
    np.random.seed(0)
    ours = buffer._get_samples(rows)
    np.random.seed(0)
    other = theirs._get_samples(rows)
    for field in ("actions", "dones", "rewards"):
        assert torch.equal(getattr(ours, field), getattr(other, field))
    with pytest.raises(ValueError, match="read-only"):
        buffer.rewards[0] = 1
    # Rows are added as they are read.
    again = made(SPACES[name], num_envs, 20 * num_envs)
    infos = [[{"TimeLimit.truncated": it} for it in row] for row in theirs.timeouts]
    again.extend(
        *(
            [{leaf: it[row] for leaf, it in array.items()} for row in rows]
            if name == "dict"
            else array
            for array in (theirs.observations, theirs.next_observations)
        ),
        theirs.actions,
        theirs.rewards,
        theirs.dones,
        infos,
    )
    assert_same_arrays(again, theirs)
    for made_here in (buffer, again):
        made_here.close()


def test_a_row_that_comes_again_has_no_older_transition():
    buffer = made(SPACES["vector"], size=10, n_steps=3)
    nothing = np.zeros((1, 3), np.float32)
    for step in range(12):
        more = [np.array([1.0 * step]), np.array([False]), [{}]]
        buffer.add(nothing + step, nothing + step + 1, np.zeros((1, 2)), *more)
    assert buffer._get_samples(np.array([9])).observations[0, 0] == 9
    for row in (0, 1):
        with pytest.raises(IndexError, match=f"no transition in row {row} "):
            buffer._get_samples(np.array([row]))
    buffer.close()


def test_dones_are_an_array():
    buffer = made(SPACES["vector"], size=4)
    nothing = np.zeros((1, 3), np.float32)
    for step in range(3):
        done = [np.zeros(1), np.array([step == 1]), [{}]]
        buffer.add(nothing + step, nothing + step + 1, np.zeros((1, 2)), *done)
    assert (buffer.dones == 1).ravel().tolist() == [False, True, False, False]
    assert (1 - buffer.dones).sum() == 3.0
    assert np.logical_not(buffer.dones).shape == (4, 1)
    assert copy.copy(buffer.dones)[1, 0] == 1.0
    buffer.close()


def test_what_is_not_there_says_what_is():
    buffer = made(SPACES["vector"], n_steps=3)
    for name in ("observations", "next_observations", "actions", "rewards", "timeouts"):
        with pytest.raises(AttributeError, match=rf"no array {name}: .* n_steps=3, not of single"):
            getattr(buffer, name)
    for call in (lambda: buffer.dones[0], lambda: buffer.dones.shape):
        with pytest.raises(AttributeError, match=r"no array dones: .* Call sample\(\) for some"):
            call()
    with pytest.raises(AttributeError, match=r"has no attribute observation$"):
        _ = buffer.observation
    buffer.close()
    replay = testing.table("replay", max_size=10)
    with testing.server([replay]) as client:
        shared = made(SPACES["vector"], server=client.server_address)
        with pytest.raises(AttributeError, match="no array rewards: other programs may also write"):
            _ = shared.rewards
        with pytest.raises(UnimplementedError, match="several programs have no positions"):
            shared._get_samples(np.array([0]))
        shared.close()


def test_setting_the_last_done_ends_the_episodes():
    buffer = made(SPACES["vector"], num_envs=2, n_steps=3)
    envs = Environments(SPACES["vector"], 2, seed=3)
    observation, following, *others = envs.step()
    no_end = [*others[:2], np.zeros(2, np.bool_), [{}, {}]]
    buffer.add(observation, following, *no_end)
    assert items_of(buffer) == []
    buffer.dones[0] = True
    buffer.flush()
    # Not terminal, and the next step is of another episode though it looks as if it went on.
    assert [item[-2] for item in items_of(buffer)] == [False, False]
    buffer.add(following, observation, *no_end)
    assert len(items_of(buffer)) == 2
    buffer.close()


def test_a_seed_makes_training_reproducible():
    torch.set_num_threads(1)
    ends = []
    for _ in range(2):
        options = {"replay_buffer_class": ReverbReplayBuffer, "buffer_size": 500, "seed": 7}
        model = SAC("MlpPolicy", "Pendulum-v1", learning_starts=50, train_freq=4, **options)
        model.learn(200)
        ends.append(torch.cat([it.flatten() for it in model.policy.parameters()]))
        model.replay_buffer.close()
    assert torch.equal(*ends)


def test_learning_twice_with_little_memory():
    torch.set_num_threads(1)
    options = {"replay_buffer_class": ReverbReplayBuffer, "buffer_size": 500, "seed": 7}
    model = DQN(
        "MlpPolicy",
        "CartPole-v1",
        learning_starts=20,
        optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False},
        **options,
    )
    model.learn(60)
    with pytest.warns(UserWarning, match="last trajectory in the replay buffer will be truncated"):
        model.learn(60)
    assert model.replay_buffer.size() == 120
    model.replay_buffer.close()


def test_algorithms_work_unchanged(tmp_path):
    torch.set_num_threads(1)
    options = {"replay_buffer_class": ReverbReplayBuffer, "buffer_size": 2000, "seed": 1}
    model = DQN("MlpPolicy", "CartPole-v1", learning_starts=100, **options)
    model.learn(600)
    assert model.replay_buffer.size() == 600
    model.save_replay_buffer(tmp_path / "buffer")
    model.load_replay_buffer(tmp_path / "buffer")
    model.learn(100, reset_num_timesteps=False)
    assert model.replay_buffer.size() == 700
    steps = {"n_steps": 3, "gamma": 0.99}
    SAC(
        "MlpPolicy", "Pendulum-v1", learning_starts=50, replay_buffer_kwargs=steps, **options
    ).learn(120)
