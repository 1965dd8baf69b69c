# SPDX-License-Identifier: Apache-2.0
"""Vector environments that are not Gymnasium's own: ALE's, which has a `final_obs` of its own."""

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper

from reverb import errors
from reverb.adapters.gymnasium import Recorder, Transitions
from support import scalar_items
from support.coded_env import DISCOUNT, CodedEnv

NUM_ENVS = 4
MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)


class OneFinalArray(VectorWrapper):
    """Gives `final_obs` as ALE does: one array for all environments, without a mask."""

    def step(self, actions):
        observation, *rest, infos = self.env.step(actions)
        if "final_obs" in infos:
            final = observation.copy()
            for row in np.flatnonzero(infos["_final_obs"]):
                final[row] = infos["final_obs"][row]
            infos = {"final_obs": final}
        return observation, *rest, infos


def test_final_observations_in_one_array(client):
    environments = [CodedEnv(number) for number in range(NUM_ENVS)]
    makers = [lambda env=env: env for env in environments]
    envs = OneFinalArray(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP))
    recorder = Recorder(envs, client, "replay", Transitions(2, DISCOUNT))
    recorder.reset(seed=1)
    for step in range(300):
        recorder.step(np.arange(NUM_ENVS) + step)
    recorder.close()
    episodes = [episode for env in environments for episode in env.diary]
    expected = scalar_items.transitions(episodes, 2, DISCOUNT)
    assert scalar_items.multiset(scalar_items.stored(client)) == scalar_items.multiset(expected)


def atari(mode, **options):
    ale_py = pytest.importorskip("ale_py", reason="ALE is not installed; make test-gymnasium")
    options = {"img_height": 42, "img_width": 42, "max_num_frames_per_episode": 400} | options
    return ale_py.AtariVectorEnv("pong", NUM_ENVS, autoreset_mode=mode, **options)


@pytest.mark.parametrize("mode", MODES)
def test_frames_of_ale_follow_each_other(client, mode):
    envs = atari(mode, stack_num=1)
    assert envs.single_observation_space == spaces.Box(0, 255, (1, 42, 42), np.uint8)
    recorder = Recorder(envs, client, "replay", frame_stack=3)
    observations = [recorder.reset(seed=1)[0].copy()]
    for step in range(150):
        observation, *_ = recorder.step(np.full(NUM_ENVS, step % 6))
        observations.append(observation.copy())
    recorder.close()
    seen = {frame.tobytes() for batch in observations for frame in batch}
    num_ends = 0
    for item in scalar_items.stored(client):
        assert item["observation"].shape == item["next_observation"].shape == (3, 1, 42, 42)
        frames = item["observation"], item["next_observation"]
        np.testing.assert_array_equal(frames[0][1:], frames[1][:2])
        assert frames[0][-1].tobytes() in seen
        num_ends += bool(item["terminated"] or item["truncated"])
    assert num_ends >= NUM_ENVS


def test_stacks_of_ale_are_recognised(client):
    envs = atari(AutoresetMode.NEXT_STEP, stack_num=4)
    with pytest.raises(errors.InvalidArgumentError, match="already stacks 4 frames"):
        Recorder(envs, client, "replay", frame_stack=4)
    envs.close()
