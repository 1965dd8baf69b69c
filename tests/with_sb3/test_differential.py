# SPDX-License-Identifier: Apache-2.0
"""Arguments of `add`, beside the library's own buffers: any dtype, layout, list or number."""

import copy
import pickle

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer

from reverb.adapters.sb3 import ReverbReplayBuffer
from support.examples import fast_and_thorough

STACK = spaces.Box(0, 255, (3, 6, 5), np.uint8)
SPACES = {
    "float32": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "float64": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    "float16": spaces.Box(-9, 9, (3,), np.float16),
    "int16": spaces.Box(-900, 900, (2,), np.int16),
    "bytes": spaces.Box(0, 255, (5,), np.uint8),
    "stack": STACK,
    "image": spaces.Box(0, 255, (6, 7, 3), np.uint8),
    "discrete": spaces.Discrete(100),
    "multi binary": spaces.MultiBinary([2, 3]),
    "multi discrete": spaces.MultiDiscrete([30, 40]),
    "dict": spaces.Dict(
        {
            "vector": spaces.Box(-np.inf, np.inf, (3,), np.float32),
            "stack": STACK,
            "rgb": spaces.Box(0, 255, (7, 6, 3), np.uint8),
            "number": spaces.Discrete(100),
        }
    ),
}
ACTIONS = {
    "float32": spaces.Box(-1, 1, (2,), np.float32),
    "float64": spaces.Box(-1, 1, (2, 2), np.float64),
    "discrete": spaces.Discrete(100),
    "multi discrete": spaces.MultiDiscrete([30, 40]),
    "multi binary": spaces.MultiBinary(3),
}
ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
# In all these dtypes, each value below 100 is the same number.
DTYPES = (np.float64, np.float32, np.int64, np.int32, np.uint16, np.uint8, ">f4", ">i4")


class Program:
    """Gives the same values to two buffers, each time in another form."""

    def __init__(self, space, actions, num_envs, seed, is_exact):
        self.space, self.actions, self.num_envs = space, actions, num_envs
        self.random = np.random.default_rng(seed)
        # With values that no cast changes, an observation that comes again looks the same.
        self.is_exact = is_exact
        self.last = self.observation(space)

    def one_of(self, *values):
        return values[self.random.integers(len(values))]

    def observation(self, space):
        if isinstance(space, spaces.Dict):
            return {name: self.observation(leaf) for name, leaf in space.items()}
        shape = (self.num_envs, *(space.shape or ()))
        values = self.random.integers(0, 100, shape)
        if self.is_exact or self.random.random() < 0.5:
            return values
        if space.dtype.kind != "f":
            # Integers that do not fit wrap around, fractions are cut off.
            return self.one_of(values * 1000 - 50_000, values + 0.75)
        values = values * self.one_of(0.1, 1e-5, 3e9)
        return np.where(self.random.random(shape) < 0.2, self.one_of(np.nan, np.inf, -0.0), values)

    def after(self, space, last):
        """The next observation: mostly a stack that continues the last one."""
        if isinstance(space, spaces.Dict):
            return {name: self.after(leaf, last[name]) for name, leaf in space.items()}
        new = self.observation(space)
        if space is STACK and self.random.random() < 0.8:
            new = np.concatenate([last[:, 1:], new[:, -1:].astype(last.dtype)], axis=1)
        return new

    def formed(self, nest, may_be_list=True):
        """The values in some form that the library takes."""
        if isinstance(nest, dict):
            given = {name: self.formed(value, name != "number") for name, value in nest.items()}
            return {name: given[name] for name in self.random.permutation(list(given)).tolist()}
        values = nest if nest.dtype.kind == "f" else nest.astype(self.one_of(nest.dtype, *DTYPES))
        if not self.is_exact:
            values = nest
        form = self.one_of("plain", "read-only", "strided", "fortran", "list", "row")
        if form == "read-only":
            values = values.copy()
            values.flags.writeable = False
        elif form == "strided":
            values = np.repeat(values[..., None], 2, axis=-1)[..., 0]
        elif form == "fortran":
            values = np.asfortranarray(values)
        elif form == "list" and may_be_list:
            values = values.tolist()
        elif form == "row" and self.num_envs == 1:
            values = values[0]
        return values

    def step(self, follows):
        """Arguments of `add`."""
        num_envs, dtype = self.num_envs, self.actions.dtype
        obs = self.last if follows else self.observation(self.space)
        next_obs = self.after(self.space, obs)
        done = self.random.random(num_envs) < 0.2
        # A limit may be met without an end.
        timeout = self.random.random(num_envs) < np.where(done, 0.5, 0.03)
        ended = done | timeout
        self.last = self.mixed(next_obs, self.observation(self.space), ended)
        is_discrete = isinstance(self.space, spaces.Discrete)
        action = self.random.integers(
            0, 2 if dtype.kind != "f" else 100, (num_envs, *self.actions.shape)
        )
        reward = self.random.integers(-8, 8, num_envs) / 4
        return (
            self.formed(obs, not is_discrete),
            self.formed(next_obs, not is_discrete),
            self.formed(action, may_be_list=False),
            self.one_of(
                reward, reward.astype(np.float32), reward.tolist(), reward.astype(np.int64)
            ),
            self.one_of(done, done.tolist(), done.astype(np.float64), done.astype(np.int64)),
            self.one_of(list, tuple)(
                {"TimeLimit.truncated": self.one_of(bool, np.bool_, int)(it)} if it else {}
                for it in timeout
            ),
        )

    def mixed(self, nest, other, where):
        if isinstance(nest, dict):
            return {name: self.mixed(nest[name], other[name], where) for name in nest}
        return np.where(where.reshape(-1, *[1] * (nest.ndim - 1)), other, nest)


def library_buffer(space, actions, num_envs, n_steps, handles_timeouts):
    kind = DictReplayBuffer if isinstance(space, spaces.Dict) else ReplayBuffer
    options = {"n_envs": num_envs, "handle_timeout_termination": handles_timeouts}
    if n_steps > 1:
        kind, options = NStepReplayBuffer, {**options, "n_steps": n_steps, "gamma": 0.5}
    return kind(40 * num_envs, space, actions, "cpu", **options)


def our_buffer(space, actions, num_envs, n_steps=1, handles_timeouts=True):
    return ReverbReplayBuffer(
        40 * num_envs,
        space,
        actions,
        "cpu",
        num_envs,
        handle_timeout_termination=handles_timeouts,
        n_steps=n_steps,
        gamma=0.5,
    )


def assert_same(ours, theirs, name=""):
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert_same(ours[key], value, f"{name} {key}")
        return
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), name
    np.testing.assert_array_equal(ours, theirs, err_msg=name)


@fast_and_thorough(25, 600)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_the_same_is_stored_whatever_is_given(max_examples):
    @settings(max_examples=max_examples)
    @given(
        st.sampled_from(list(SPACES)),
        st.sampled_from(list(ACTIONS)),
        st.sampled_from([1, 3]),
        st.booleans(),
        st.integers(0, 2**32),
    )
    def run(space, actions, num_envs, handles_timeouts, seed):
        program = Program(SPACES[space], ACTIONS[actions], num_envs, seed, is_exact=False)
        theirs = library_buffer(program.space, program.actions, num_envs, 1, handles_timeouts)
        ours = our_buffer(program.space, program.actions, num_envs, 1, handles_timeouts)
        for _ in range(program.random.integers(1, 60)):
            step = program.step(program.random.random() < 0.9)
            # Theirs writes into dicts that it is given.
            ours.add(*step)
            theirs.add(*copy.deepcopy(step))
        for name in ARRAYS:
            assert_same(np_array(getattr(ours, name)), getattr(theirs, name), name)
        ours.close()

    run()


def np_array(array):
    return array if isinstance(array, dict) else np.asarray(array)


@fast_and_thorough(15, 300)
def test_windows_are_those_of_the_library_whatever_is_given(max_examples):
    @settings(max_examples=max_examples)
    @given(
        st.sampled_from([name for name in SPACES if name != "dict"]),
        st.sampled_from([1, 3]),
        st.sampled_from([2, 3, 5]),
        st.booleans(),
        st.integers(0, 2**32),
    )
    def run(space, num_envs, n_steps, handles_timeouts, seed):
        program = Program(SPACES[space], ACTIONS["float32"], num_envs, seed, is_exact=True)
        theirs = library_buffer(program.space, program.actions, num_envs, n_steps, handles_timeouts)
        ours = our_buffer(program.space, program.actions, num_envs, n_steps, handles_timeouts)
        num_steps = int(program.random.integers(n_steps, 40))
        for added in range(num_steps):
            if added == num_steps // 2:
                ours = resumed(ours, program.one_of("no", "pickle", "deepcopy"))
            step = program.step(follows=True)
            if not handles_timeouts:
                # Nobody is told of time limits, so all episodes end with `done`.
                step = (
                    *step[:4],
                    [any(pair) for pair in zip(np.ravel(step[4]), step[5], strict=True)],
                    (),
                )
            ours.add(*step)
            theirs.add(*copy.deepcopy(step))
        # Theirs makes shorter windows of the newest steps; here they are open.
        rows = np.arange(num_steps - n_steps + 1)
        np.random.seed(0)
        our_batch = ours._get_samples(rows)
        np.random.seed(0)
        for name, theirs_of, ours_of in zip(
            our_batch._fields, theirs._get_samples(rows), our_batch, strict=True
        ):
            assert_same(ours_of.numpy(), theirs_of.numpy(), name)
        ours.close()

    run()


def resumed(buffer, how):
    """The buffer after a round trip in mid-episode."""
    if how == "no":
        return buffer
    other = pickle.loads(pickle.dumps(buffer)) if how == "pickle" else copy.deepcopy(buffer)
    buffer.close()
    return other
