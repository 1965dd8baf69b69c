# SPDX-License-Identifier: Apache-2.0
"""The recorder of one environment."""

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import Autoreset

from reverb import errors
from reverb.adapters.gymnasium import EnvRecorder, Sequences, Transitions, signature
from support import scalar_items
from support.coded_env import DISCOUNT, CodedEnv


def play(recorder, num_steps, before=lambda action: None, resets=True):
    random = np.random.default_rng(0)
    recorder.reset(seed=1)
    for _ in range(num_steps):
        action = int(random.integers(0, 1000))
        before(action)
        _, _, terminated, truncated, _ = recorder.step(action)
        if resets and (terminated or truncated or random.random() < 0.02):
            recorder.reset()
    recorder.close()


@pytest.mark.parametrize("n_step", [1, 4])
@pytest.mark.parametrize("frame_stack", [None, 3])
@pytest.mark.parametrize("below_autoreset", [False, True])
def test_transitions(client, n_step, frame_stack, below_autoreset):
    env = CodedEnv(0)
    items = Transitions(n_step, DISCOUNT)
    wrapped = Autoreset(env) if below_autoreset else env
    recorder = EnvRecorder(wrapped, client, "replay", items, frame_stack)
    play(recorder, 2000, resets=not below_autoreset)
    expected = scalar_items.transitions(env.diary, n_step, DISCOUNT, frame_stack)
    found = scalar_items.multiset(scalar_items.stored(client))
    assert found == scalar_items.multiset(expected)


def test_sequences(client):
    env = CodedEnv(0)
    play(EnvRecorder(env, client, "replay", Sequences(3, 2, 1, DISCOUNT)), 1000)
    expected = scalar_items.sequences(env.diary, 4, 2, DISCOUNT)
    found = scalar_items.multiset(scalar_items.stored(client))
    assert found == scalar_items.multiset(expected)


def test_extras_and_infos(signed):
    env = CodedEnv(0)
    items = Transitions()
    examples = {"extras": {"x": np.float32(0)}, "keep_infos": {"t": np.int64(0)}}
    with signed(signature(env, items, **examples)) as client:
        recorder = EnvRecorder(env, client, "replay", items, keep_infos=("t",))
        play(recorder, 50, lambda action: recorder.extras(x=np.float32(action)))
        found = [
            dict(sample.data) for sample in client.scan("replay", unpack_as_table_signature=True)
        ]
    assert len(found) == 50
    for item in found:
        t = item["next_observation"][2]
        assert item["x"] == item["action"]
        assert item["t"] == (t if t % 3 else 0)


def test_a_step_after_the_end(client):
    recorder = EnvRecorder(CodedEnv(0, p_end=1.0), client, "replay")
    recorder.reset()
    recorder.step(0)
    text = r"the episode has ended; call reset\(\) before step"
    with pytest.raises(errors.FailedPreconditionError, match=text):
        recorder.step(0)
    recorder.close()


def test_one_environment_cannot_reset_in_the_same_step(client):
    with pytest.raises(errors.InvalidArgumentError, match="autoreset_mode must be"):
        EnvRecorder(CodedEnv(0), client, "replay", autoreset_mode="SameStep")


def test_the_recorder_is_a_wrapper(client):
    recorder = EnvRecorder(gymnasium.make("CartPole-v1"), client, "replay")
    assert isinstance(recorder, gymnasium.Wrapper)
    assert recorder.spec is not None
    assert recorder.spec.id == "CartPole-v1"
    recorder.reset(seed=1)
    assert recorder.step(0)[0].shape == (4,)
    recorder.close()


class PlainEnv(gymnasium.Env):
    """Observations are tuples, lists and dicts, as older environments return them."""

    def __init__(self, space, values):
        self.observation_space, self.action_space = space, BOX
        self._values = values

    def reset(self, *, seed=None, options=None):
        return self._values[0], {}

    def step(self, action):
        return self._values[1], 1.0, False, False, {}


BOX = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
PLAIN = {
    "box_as_tuple": (BOX, [(1.0, 2.0), (3.0, 4.0)]),
    "box_as_list": (BOX, [[1.0, 2.0], [3.0, 4.0]]),
    "box_in_tuple": (gymnasium.spaces.Tuple((BOX,)), [((1.0, 2.0),), [(3.0, 4.0)]]),
    "box_in_dict": (gymnasium.spaces.Dict(a=BOX), [{"a": (1.0, 2.0)}, {"a": [3, 4]}]),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("action", [(5.0, 6.0), [5, 6], np.array([5.0, 6.0])], ids=repr)
def test_values_of_a_box_may_be_tuples_and_lists(client, name, action):
    recorder = EnvRecorder(PlainEnv(*PLAIN[name]), client, "replay", Transitions())
    recorder.reset()
    recorder.step(action)
    recorder.close()
    (item,) = client.scan("replay")
    rows = [column for column in item.data if column.shape[-1:] == (2,)]
    assert sorted(np.ravel(rows).tolist()) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("space", "value", "text"),
    [
        (BOX, ((1.0, 2.0), {}), "observation must be numbers of dtype float32, .* got a tuple"),
        (BOX, {"a": 1.0}, "observation has values of dtype object"),
        (gymnasium.spaces.Tuple((BOX,)), (1.0, 2.0), "observation must be a tuple of 1, got tuple"),
        (gymnasium.spaces.Dict(a=BOX), (1.0, 2.0), r"must be a dict with the keys \['a'\]"),
    ],
)
def test_values_of_another_structure_are_refused(client, space, value, text):
    recorder = EnvRecorder(PlainEnv(space, [value]), client, "replay", Transitions())
    with pytest.raises(errors.InvalidArgumentError, match=text):
        recorder.reset()
