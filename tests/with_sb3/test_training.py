# SPDX-License-Identifier: Apache-2.0
"""Trainings: algorithm x environment x number of environments x steps x a file in the middle.

All that a training gives to our buffer is given to one of the library's, too, and compared.
"""

import copy

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.envs import FakeImageEnv, IdentityEnv, SimpleMultiObsEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from reverb.adapters.sb3 import ReverbReplayBuffer

# Steps of each environment; with these the table is full, and evicts.
STEPS, ROWS = 150, 100

SMALL = {"net_arch": [8]}
CNN = {"net_arch": [8], "features_extractor_kwargs": {"features_dim": 8}}


def stacks(makers):
    return VecFrameStack(DummyVecEnv(makers), 4)


def normalized(makers):
    return VecNormalize(DummyVecEnv(makers))


def image():
    return FakeImageEnv(screen_height=36, screen_width=36, n_channels=1, discrete=True)


def colours():
    return FakeImageEnv(screen_height=36, screen_width=36, n_channels=3, discrete=True)


def bounded(env, steps):
    return lambda: gymnasium.wrappers.TimeLimit(env(), steps)


# Algorithm, policy, environment, how several are made to one.
TRAININGS = {
    "dqn, cartpole": (DQN, "MlpPolicy", lambda: gymnasium.make("CartPole-v1"), DummyVecEnv),
    "dqn, numbers": (DQN, "MlpPolicy", lambda: IdentityEnv(5, ep_length=13), DummyVecEnv),
    "dqn, stacks": (DQN, "CnnPolicy", bounded(image, 11), stacks),
    "dqn, colours": (DQN, "CnnPolicy", bounded(colours, 11), DummyVecEnv),
    "dqn, dict": (DQN, "MultiInputPolicy", SimpleMultiObsEnv, DummyVecEnv),
    "sac, pendulum": (SAC, "MlpPolicy", lambda: gymnasium.make("Pendulum-v1"), normalized),
    "sac, dict": (
        SAC,
        "MultiInputPolicy",
        lambda: SimpleMultiObsEnv(discrete_actions=False),
        DummyVecEnv,
    ),
    "td3, pendulum": (
        TD3,
        "MlpPolicy",
        lambda: gymnasium.make("Pendulum-v1", max_episode_steps=17),
        DummyVecEnv,
    ),
    "ddpg, pendulum": (
        DDPG,
        "MlpPolicy",
        lambda: gymnasium.make("Pendulum-v1", max_episode_steps=17),
        DummyVecEnv,
    ),
}


class Twin(ReverbReplayBuffer):
    """Gives everything to a buffer of the library, too."""

    def __init__(self, *args, n_steps=1, optimize_memory_usage=False, **options):
        super().__init__(*args, n_steps=n_steps, **options)
        options.pop("gamma", None)
        is_dict = isinstance(self.observation_space, spaces.Dict)
        self.other = (DictReplayBuffer if is_dict else ReplayBuffer)(*args, **options)
        if n_steps > 1 and not is_dict:
            self.other = NStepReplayBuffer(*args, n_steps=n_steps, gamma=self.gamma, **options)

    def add(self, *step):
        self.other.add(*copy.deepcopy(step))
        super().add(*step)


def check(buffer, goes_on):
    """Compares the transitions of both buffers."""
    other = buffer.other
    assert (buffer.size(), buffer.pos, buffer.full) == (other.size(), other.pos, other.full)
    if buffer.n_steps == 1:
        for name in ("observations", "next_observations", "actions", "rewards", "dones"):
            ours, theirs = getattr(buffer, name), getattr(other, name)
            pairs = [(ours, theirs)]
            if isinstance(theirs, dict):
                pairs = [(ours[leaf], theirs[leaf]) for leaf in theirs]
            for one, two in pairs:
                assert one.dtype == two.dtype
                np.testing.assert_array_equal(np.asarray(one), two, err_msg=name)
    elif goes_on and isinstance(other, NStepReplayBuffer):
        # The newest windows are still open here, and shorter there.
        newest = (buffer.pos - np.arange(1, buffer.n_steps)) % buffer.buffer_size
        rows = np.setdiff1d(np.arange(buffer.size()), newest)
        for seed in range(3):
            batches = []
            for it in (buffer, other):
                np.random.seed(seed)
                batches.append(it._get_samples(rows))
            for field, one, two in zip(batches[0]._fields, *batches, strict=True):
                torch.testing.assert_close(one, two, msg=field)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("file", ["no file", "goes on", "begins again"])
@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("training", TRAININGS)
def test_a_training(training, num_envs, n_steps, file, tmp_path):
    train(training, num_envs, n_steps, file, tmp_path)


@pytest.mark.parametrize(
    ("training", "num_envs", "n_steps"), [("dqn, cartpole", 1, 3), ("sac, dict", 3, 1)]
)
def test_a_short_training(training, num_envs, n_steps, tmp_path):
    # Two of the trainings above.
    train(training, num_envs, n_steps, "goes on", tmp_path)


def train(training, num_envs, n_steps, file, tmp_path):
    torch.set_num_threads(1)
    algorithm, policy, make, together = TRAININGS[training]
    envs = together([make] * num_envs)
    model = algorithm(
        policy,
        envs,
        buffer_size=ROWS * num_envs,
        learning_starts=20,
        train_freq=4,
        batch_size=16,
        seed=1,
        device="cpu",
        # The library writes into it.
        policy_kwargs=dict(CNN if policy == "CnnPolicy" else SMALL),
        replay_buffer_class=Twin,
        replay_buffer_kwargs={"n_steps": n_steps, "gamma": 0.97},
    )
    goes_on = file != "begins again"
    # In the middle of an episode, and before the table is full.
    for rounds in range(3):
        model.learn(STEPS // 3 * num_envs, reset_num_timesteps=not (rounds and goes_on))
        check(model.replay_buffer, goes_on)
        if file != "no file":
            model.save_replay_buffer(tmp_path / "buffer.pkl")
            model.replay_buffer.close()
            model.load_replay_buffer(tmp_path / "buffer.pkl")
            check(model.replay_buffer, goes_on)
    assert model.replay_buffer.full
    for tensor in model.policy.parameters():
        assert torch.isfinite(tensor).all()
    model.replay_buffer.close()
    envs.close()
