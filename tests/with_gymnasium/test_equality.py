# SPDX-License-Identifier: Apache-2.0
"""A recorder writes the same as a loop over the steps of each environment.

Also that this comparison finds faults: each rule about resets is broken, and the items differ.
"""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from reverb import errors
from reverb._recording import item_makers
from reverb.adapters.gymnasium import (
    Episodes,
    Recorder,
    Sequences,
    Transitions,
    autoreset,
)
from support import scalar_items
from support.coded_env import DISCOUNT, CodedEnv

MODES = tuple(AutoresetMode)
NUM_ENVS = 8
FEW_STEPS = 1_200


class Run:
    """Random steps of environments under a recorder."""

    def __init__(self, client, mode, items, steps=FEW_STEPS, seed=0, copy=True, **options):
        self.environments = [CodedEnv(number, seed) for number in range(NUM_ENVS)]
        makers = [lambda env=env: env for env in self.environments]
        vector = SyncVectorEnv(makers, autoreset_mode=mode, copy=copy)
        self.recorder = Recorder(vector, client, "replay", items, **options)
        self._mode = mode
        self._random = np.random.default_rng(seed)
        self._play(steps // NUM_ENVS)
        self.recorder.close()

    @property
    def episodes(self):
        return [episode for env in self.environments for episode in env.diary]

    def _play(self, num_steps):
        ended = np.zeros(NUM_ENVS, np.bool_)
        self.recorder.reset(seed=1)
        for _ in range(num_steps):
            ended = self._reset_some(ended)
            actions = self._random.integers(0, 1000, NUM_ENVS)
            # The ignored action of a reset must not be in an item.
            _, _, terminated, truncated, _ = self.recorder.step(actions)
            ended = terminated | truncated

    def _reset_some(self, ended):
        """Actions of a program between steps: now and then it resets some environments, or all."""
        dice = self._random.random()
        if dice < 0.01:
            self.recorder.reset()
            return np.zeros_like(ended)
        mask = self._random.random(NUM_ENVS) < 0.3 if dice < 0.05 else np.zeros_like(ended)
        if self._mode == AutoresetMode.DISABLED:
            mask = mask | ended
        if mask.any():
            self.recorder.reset(options={"reset_mask": mask})
        return ended & ~mask


def num_across_episodes(items):
    """Number of items with observations of two episodes or environments."""
    rows = np.array([(item["observation"], item["next_observation"]) for item in items])
    origins = rows.reshape(len(items), -1, 3)[..., :2]
    return np.count_nonzero((origins != origins[:, :1]).any(axis=(1, 2)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n_step", [1, 4])
@pytest.mark.parametrize("steps", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_transitions_of_many_steps(client, mode, n_step, steps):
    run = Run(client, mode, Transitions(n_step, DISCOUNT), steps)
    items = list(scalar_items.stored(client))
    assert num_across_episodes(items) == 0
    expected = scalar_items.transitions(run.episodes, n_step, DISCOUNT)
    assert scalar_items.multiset(items) == scalar_items.multiset(expected)
    # Every kind of end was there, and episodes shorter than the window.
    ends = {(episode.terminated, episode.truncated) for episode in run.episodes}
    assert len(ends) == 4
    assert min(len(episode) for episode in run.episodes if len(episode)) == 1
    assert len(items) > steps / 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("frame_stack", [1, 4])
@pytest.mark.parametrize("n_step", [1, 3])
def test_frames_are_stacked(client, mode, frame_stack, n_step):
    run = Run(client, mode, Transitions(n_step, DISCOUNT), frame_stack=frame_stack)
    items = list(scalar_items.stored(client))
    assert num_across_episodes(items) == 0
    expected = scalar_items.transitions(run.episodes, n_step, DISCOUNT, frame_stack)
    assert scalar_items.multiset(items) == scalar_items.multiset(expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("short_episodes", ["drop", "keep"])
@pytest.mark.parametrize(
    ("length", "stride", "burn_in"), [(4, None, 0), (3, 2, 2), (2, 1, 1), (1, None, 0), (2, 5, 0)]
)
@pytest.mark.parametrize("frame_stack", [None, 3])
def test_sequences(client, mode, short_episodes, length, stride, burn_in, frame_stack):
    items = Sequences(length, stride, burn_in, DISCOUNT, short_episodes)
    run = Run(client, mode, items, frame_stack=frame_stack)
    expected = scalar_items.sequences(
        run.episodes,
        burn_in + length,
        stride or length,
        DISCOUNT,
        short_episodes == "keep",
        frame_stack,
    )
    found = scalar_items.multiset(scalar_items.stored(client))
    assert found == scalar_items.multiset(expected)
    short = sum(0 < len(episode) < items.num_steps for episode in run.episodes)
    assert run.recorder.num_dropped_episodes == (0 if short_episodes == "keep" else short)


@pytest.mark.parametrize("mode", MODES)
def test_episodes(client, mode):
    run = Run(client, mode, Episodes(12, DISCOUNT, long_episodes="drop"))
    whole = [
        episode
        for episode in run.episodes
        if (episode.terminated or episode.truncated) and len(episode) <= 12
    ]
    expected = [scalar_items.window(episode, 0, len(episode), DISCOUNT) for episode in whole]
    found = scalar_items.multiset(scalar_items.stored(client))
    assert found == scalar_items.multiset(expected)
    begun = sum(len(episode) > 0 for episode in run.episodes)
    assert run.recorder.num_dropped_episodes == begun - len(whole)


@pytest.mark.parametrize("mode", MODES)
def test_buffers_that_are_used_again(client, mode):
    run = Run(client, mode, Transitions(2, DISCOUNT), copy=False)
    expected = scalar_items.transitions(run.episodes, 2, DISCOUNT)
    assert scalar_items.multiset(scalar_items.stored(client)) == scalar_items.multiset(expected)


def steps_at_resets(_mode, ended):
    return np.zeros_like(ended)


def resets_at_steps(_mode, ended):
    return np.ones_like(ended)


def no_final_observations(observation, _infos, _ended):
    return observation


def final_observations_of_all(observation, infos, ended):
    final = infos["final_obs"]
    known = next(value for value in final if value is not None)
    return np.stack([known if value is None else value for value in final])


def all_reset(num_envs, _options):
    return np.ones(num_envs, np.bool_)


def none_reset_after_the_first(num_envs, options):
    return np.full(num_envs, options is None)


def zero_after_truncation_too(_power, terminated):
    return np.zeros(len(terminated), np.float32)


def never_zero(power, terminated):
    return np.full(len(terminated), power, np.float32)


class NoShrinking(item_makers.TransitionMaker):
    def at_end(self, *_):
        pass


MUTATIONS = [
    (AutoresetMode.NEXT_STEP, autoreset, "rows_that_begin", steps_at_resets),
    (AutoresetMode.NEXT_STEP, autoreset, "rows_that_begin", resets_at_steps),
    (AutoresetMode.NEXT_STEP, autoreset, "rows_to_reset", none_reset_after_the_first),
    (AutoresetMode.SAME_STEP, autoreset, "with_final_observations", no_final_observations),
    (AutoresetMode.SAME_STEP, autoreset, "with_final_observations", final_observations_of_all),
    (AutoresetMode.SAME_STEP, autoreset, "SAME_STEP", "no mode"),
    (AutoresetMode.DISABLED, autoreset, "rows_to_reset", all_reset),
    (AutoresetMode.DISABLED, autoreset, "rows_to_reset", none_reset_after_the_first),
    (AutoresetMode.DISABLED, autoreset, "rows_that_begin", resets_at_steps),
    *(
        (mode, item_makers, name, mutant)
        for mode in MODES
        for name, mutant in [
            ("TransitionMaker", NoShrinking),
            ("factor", zero_after_truncation_too),
            ("factor", never_zero),
        ]
    ),
]


@pytest.mark.parametrize(
    ("mode", "module", "rule", "mutant"),
    MUTATIONS,
    ids=[f"{mode.value}-{rule}-{number}" for number, (mode, _, rule, _) in enumerate(MUTATIONS)],
)
def test_a_broken_rule_is_found(client, monkeypatch, mode, module, rule, mutant):
    monkeypatch.setattr(module, rule, mutant)
    try:
        run = Run(client, mode, Transitions(3, DISCOUNT))
    except errors.ReverbError:  # A rule may be so broken that items cannot be made.
        return
    expected = scalar_items.transitions(run.episodes, 3, DISCOUNT)
    assert scalar_items.multiset(scalar_items.stored(client)) != scalar_items.multiset(expected)


def test_the_modes_are_those_of_gymnasium():
    modes = {autoreset.NEXT_STEP, autoreset.SAME_STEP, autoreset.DISABLED}
    assert modes == {mode.value for mode in gymnasium.vector.AutoresetMode}
