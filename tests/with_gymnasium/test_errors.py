# SPDX-License-Identifier: Apache-2.0
"""Problems between an environment and its recorder, and the texts of their errors."""

import gc

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation

import reverb
from reverb import errors, testing
from reverb._recording import waiting
from reverb.adapters.gymnasium import (
    EnvRecorder,
    Episodes,
    Recorder,
    Sequences,
    Transitions,
)
from support.coded_env import CodedEnv
from support.waiting import Background, wait_until

NUM_ENVS = 3


class CustomVecEnv(SyncVectorEnv):
    """Says of itself what a test wants it to say."""

    def __init__(self, **metadata):
        super().__init__([lambda number=number: CodedEnv(number) for number in range(NUM_ENVS)])
        del self.metadata["autoreset_mode"]
        self.metadata |= metadata


def environments(mode=AutoresetMode.NEXT_STEP, p_end=0.15):
    makers = [lambda number=number: CodedEnv(number, p_end=p_end) for number in range(NUM_ENVS)]
    return SyncVectorEnv(makers, autoreset_mode=mode)


def actions():
    return np.zeros(NUM_ENVS, np.int64)


def raises(text):
    return pytest.raises(errors.InvalidArgumentError, match=text)


@pytest.mark.parametrize("metadata", [{}, {"autoreseet-mode": AutoresetMode.NEXT_STEP}])
def test_an_environment_that_does_not_say_how_it_resets(client, error_says, metadata):
    envs = CustomVecEnv(**metadata)
    error_says(
        lambda: Recorder(envs, client, "replay"),
        errors.InvalidArgumentError,
        'CustomVecEnv does not declare how it resets (metadata["autoreset_mode"]); pass '
        'autoreset_mode="NextStep", "SameStep" or "Disabled"',
    )
    for mode in ("NextStep", AutoresetMode.NEXT_STEP):
        Recorder(envs, client, "replay", autoreset_mode=mode)
    envs.close()


@pytest.mark.parametrize("options", [{"autoreset_mode": "Sometimes"}, {"tables": "other"}])
def test_a_failed_recorder_leaves_the_environment_open(client, options):
    envs = environments()

    class CollectedRecorder(Recorder):
        def __del__(self):  # As in Gymnasium 1.0.
            if not self.closed:
                self.close()

    def is_refused():
        # `pytest.raises` would keep the recorder alive.
        try:
            CollectedRecorder(envs, client, **({"tables": "replay"} | options))
        except errors.ReverbError:
            return True
        return False

    assert is_refused()
    gc.collect()
    assert not envs.closed
    envs.close()


def test_a_mode_that_there_is_not(client):
    envs = environments()
    with raises('autoreset_mode must be "NextStep" or "SameStep" or "Disabled", got \'Sometimes\''):
        Recorder(envs, client, "replay", autoreset_mode="Sometimes")
    envs.close()


def test_a_step_after_the_end(client, error_says):
    envs = environments(AutoresetMode.DISABLED)
    recorder = Recorder(envs, client, "replay")
    recorder.reset(seed=1)
    ended = np.zeros(NUM_ENVS, np.bool_)
    while not ended.any() or ended[0]:
        recorder.reset()
        _, _, terminated, truncated, _ = recorder.step(actions())
        ended = terminated | truncated
    lengths = [len(env.diary[-1]) for env in envs.envs]
    error_says(
        lambda: recorder.step(actions()),
        errors.FailedPreconditionError,
        f"environment {np.flatnonzero(ended)[0]} has ended and does not reset by itself; call "
        "reset(options={'reset_mask': terminated | truncated}) before step()",
    )
    assert [len(env.diary[-1]) for env in envs.envs] == lengths, "no environment made a step"
    recorder.reset(options={"reset_mask": ended})
    recorder.step(actions())
    recorder.close()


def test_a_step_before_the_reset(client):
    envs = environments()
    recorder = Recorder(envs, client, "replay")
    with pytest.raises(errors.FailedPreconditionError, match="environment 0 has no episode"):
        recorder.step(actions())
    recorder.close()


def test_an_environment_that_resets_otherwise_than_it_says(client):
    envs = environments(AutoresetMode.NEXT_STEP)
    recorder = Recorder(envs, client, "replay", autoreset_mode="SameStep")
    recorder.reset(seed=1)

    def step_until_an_end():
        for _ in range(100):
            recorder.step(actions())

    text = r"environment \d ended, and infos has no final_obs"
    with pytest.raises(errors.FailedPreconditionError, match=text):
        step_until_an_end()
    recorder.close()


def stacked_environment():
    env = gymnasium.make("CartPole-v1")
    return FrameStackObservation(env, 4)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_a_stacked_environment(client, error_says, kind):
    envs = kind([stacked_environment] * 2)
    error_says(
        lambda: Recorder(envs, client, "replay", frame_stack=4),
        errors.InvalidArgumentError,
        "the environment already stacks 4 frames; record below the wrapper, or leave frame_stack "
        "out",
    )
    recorder = Recorder(envs, client, "replay")
    recorder.reset(seed=1)
    recorder.step(np.zeros(2, np.int64))
    recorder.close()


def test_one_stacked_environment(client):
    env = stacked_environment()
    with raises("the environment already stacks 4 frames"):
        EnvRecorder(env, client, "replay", frame_stack=2)
    env.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_environments_of_other_processes_that_are_not_stacked(client):
    envs = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="async")
    recorder = Recorder(envs, client, "replay", frame_stack=2)
    recorder.reset(seed=1)
    recorder.step(np.zeros(2, np.int64))
    recorder.close()


def test_numbers_out_of_their_range(client):
    with raises("n_step must be at least 1, got 0"):
        Transitions(0)
    with raises(r"discount must be in \[0, 1\], got 1.5"):
        Sequences(2, discount=1.5)
    with raises("burn_in must be at least 0, got -1"):
        Sequences(2, burn_in=-1)
    with raises('short_episodes must be "drop" or "keep", got \'pad\''):
        Sequences(2, short_episodes="pad")
    with raises("max_length must be at least 1, got 0"):
        Episodes(0)
    envs = environments()
    with raises("frame_stack must be at least 1, got 0"):
        Recorder(envs, client, "replay", frame_stack=0)
    with raises("frame_stack must be None for Episodes, got 2"):
        Recorder(envs, client, "replay", Episodes(5), frame_stack=2)
    envs.close()


@pytest.mark.parametrize("action", [{"a": np.zeros(1)}, np.zeros(1)])
def test_actions_of_another_structure(client, action):
    class TwoActions(CodedEnv):
        def __init__(self):
            super().__init__(0)
            spaces = gymnasium.spaces
            self.action_space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2))

    class Lenient(SyncVectorEnv):
        def step(self, actions):
            return super().step({"a": np.zeros(1, np.int64), "b": np.zeros(1, np.int64)})

    recorder = Recorder(Lenient([TwoActions]), client, "replay")
    recorder.reset(seed=1)
    with raises(r"action must be a dict with the keys \['a', 'b'\], got"):
        recorder.step(action)
    recorder.close()


def test_an_episode_that_is_too_long(client, error_says):
    envs = environments(p_end=0.0)
    recorder = Recorder(envs, client, "replay", Episodes(3))
    recorder.reset(seed=1)
    for _ in range(3):
        recorder.step(actions())
    for _ in range(2):
        error_says(
            lambda: recorder.step(actions()),
            errors.InvalidArgumentError,
            "the episode of environment 0 has max_length = 3 steps and has not ended. No step was "
            'made; pass a larger max_length, or long_episodes="drop"',
        )
    assert len(envs.envs[0].diary[-1]) == 3
    recorder.reset()
    recorder.step(actions())
    recorder.close()
    assert recorder.num_dropped_episodes == 6


def closed_table():
    limiter = reverb.rate_limiters.RateLimiter(1.0, 1, -100.0, 2.0)
    return testing.table("replay", rate_limiter=limiter)


def test_pressure_is_waited_for_and_said(caplog, reported_waits):
    with testing.server([closed_table()]) as client:
        envs = environments(p_end=0.0)
        recorder = Recorder(envs, client, "replay", max_unconfirmed_items=4)
        recorder.reset(seed=1)

        def learn():
            wait_until(lambda: "1 call waits for inserts into table replay at " in caplog.text)
            client.sample_batch("replay", 12)

        learner = Background(learn)
        for _ in range(4):
            recorder.step(actions())
        learner.result()
        recorder.close()


def test_close_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(waiting, "CLOSE_TIMEOUT_MS", 200)
    with testing.server([closed_table()]) as client:
        envs = environments(p_end=0.0)
        recorder = Recorder(envs, client, "replay")
        recorder.reset(seed=1)
        for _ in range(4):
            recorder.step(actions())
        with pytest.raises(
            errors.DeadlineExceededError, match=r"close did not finish within 0.2 s.*rate limiter"
        ):
            recorder.close()
        assert envs.closed
