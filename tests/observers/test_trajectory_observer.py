# SPDX-License-Identifier: Apache-2.0
"""Observers that write windows: which windows, of which frames, and what they refuse."""

import collections
import functools
import subprocess
import sys

import numpy as np
import pytest

from reverb import errors
from reverb.adapters.tf_agents import reverb_utils

LAST = 2


@pytest.fixture
def observe(observers):
    """Makes an observer on `table`, and closes it after the test."""
    return functools.partial(observers, reverb_utils.ReverbAddTrajectoryObserver)


def show(observer, frames):
    for frame in frames:
        observer(frame)


class TestWindows:
    # The first rows are what the observer of TF-Agents writes.
    @pytest.mark.parametrize(
        ("length", "stride", "options", "expected"),
        [
            (3, 1, "", [[10, 11, 12], [11, 12, 13], [12, 13, 14]]),
            (3, 2, "", [[10, 11, 12], [12, 13, 14]]),
            (3, 2, "pad", [[10, 11, 12], [12, 13, 14]]),
            (3, 2, "pad tile", [[10, 11, 12], [12, 13, 14], [14, 0, 0]]),
            (
                3,
                1,
                "pad tile",
                [[10, 11, 12], [11, 12, 13], [12, 13, 14], [13, 14, 0], [14, 0, 0]],
            ),
            (8, 1, "pad", [[10, 11, 12, 13, 14, 0, 0, 0]]),
            (8, 1, "", []),
            (2, 4, "pad tile", [[10, 11], [14, 0]]),
            (3, 3, "", [[10, 11, 12]]),
            # A tail that no window holds: theirs loses it unless it tiles.
            (3, 3, "pad", [[10, 11, 12], [13, 14, 0]]),
            (2, 2, "pad", [[10, 11], [12, 13], [14, 0]]),
            (2, 4, "pad", [[10, 11], [14, 0]]),
            # Frames that a stride beyond the length skips are no tail.
            (2, 5, "pad", [[10, 11]]),
            (1, 1, "pad tile", [[10], [11], [12], [13], [14]]),
        ],
    )
    def test_of_an_episode_of_five_frames(
        self, client, observe, episode, items, length, stride, options, expected
    ):
        observer = observe(
            length,
            stride_length=stride,
            pad_end_of_episodes="pad" in options,
            tile_end_of_episodes="tile" in options,
        )
        show(observer, episode(10, 5) + episode(20, 5))
        second = [[value and value + 10 for value in window] for window in expected]
        assert items(client) == expected + second

    def test_a_padding_frame_is_a_boundary_of_zeros(self, client, observe, episode):
        show(observe(3, pad_end_of_episodes=True), episode(10, 1))
        (sample,) = client.sample("table", 1, emit_timesteps=False)
        step_type, observation, action, next_step_type, reward, discount = sample.data
        assert step_type.tolist() == [LAST, LAST, LAST]
        assert next_step_type.tolist() == [0, 0, 0]
        assert observation.tolist() == [[10, -10], [0, 0], [0, 0]]
        assert action.tolist() == [10, 0, 0]
        assert reward.tolist() == discount.tolist() == [1, 0, 0]

    def test_strings_are_padded_with_empty_strings(self, client, observe, frame):
        observer = observe(3, pad_end_of_episodes=True)
        names = np.array([b"a", b"bc"], object)
        observer(frame(1, LAST, observation={"names": names, "text": "d"}))
        (sample,) = client.sample("table", 1, emit_timesteps=False)
        assert sample.data[1].tolist() == [[b"a", b"bc"], [b"", b""], [b"", b""]]
        assert sample.data[2].tolist() == [b"d", b"", b""]

    def test_frames_may_be_numbers_in_any_nest(self, client, observe, items):
        Step = collections.namedtuple("Step", ["action", "nested", "reward", "step_type"])
        observer = observe(2)
        for action in (1, 2):
            observer(Step(np.int64(action), {"b": [1.0, (2,)], "a": True}, action, action))
        (sample,) = client.sample("table", 1, emit_timesteps=False)
        expected = [[1, 2], [True, True], [1, 1], [2, 2], [1, 2], [1, 2]]
        assert [column.tolist() for column in sample.data] == expected

    def test_frames_are_copied(self, client, observe, frame, items):
        observer, action = observe(2), np.array(0)
        for action[...] in (1, 2, 3):
            observer(frame(0, action=action))
        observer.flush()
        assert items(client) == [[1, 2], [2, 3]]

    def test_of_a_table_with_a_signature(self, client, observe, episode, items):
        show(observe(3, "three"), episode(10, 4))
        (sample,) = client.sample("three", 1, unpack_as_table_signature=True, emit_timesteps=False)
        assert sample.data.observation[:, 0].tolist() == [10, 11, 12]
        assert items(client, "three") == [[11, 12, 13]]

    def test_a_single_row_counts_as_a_frame(self, client, observe, frame):
        observer = observe(2)
        for step_type in (1, 2, 1):
            observer(frame(1, step_type=np.array([step_type])))
        assert client.server_info()["table"].current_size == 1


class TestSequenceObserver:
    def test_a_boundary_does_not_block(self, client, episode):
        with reverb_utils.ReverbTrajectorySequenceObserver(client, "queue", 2) as observer:
            show(observer, episode(10, 3))  # One of the two items has to wait for a sample.
            assert [step.data[2] for step in next(client.sample("queue", 1))] == [10, 11]


class TestReset:
    def test_of_an_episode_that_is_too_short_is_an_error(self, client, observe, frame, items):
        observer = observe(3)
        show(observer, [frame(0), frame(1)])
        with pytest.raises(ValueError, match=r"not enough steps remain.*=3, only 2: consider"):
            observer.reset()
        observer(frame(2))  # Nothing was reset.
        observer.reset()
        assert items(client) == [[0, 1, 2]]

    def test_blocks_until_items_are_confirmed(self, client, observe, frame):
        observer = observe(2)
        for number in range(1, 6):
            show(observer, [frame(0), frame(1)])
            observer.reset(False)
            assert client.server_info()["table"].current_size == number


class TestOpenAndClose:
    def test_a_block_closes_it(self, client, frame, items):
        with reverb_utils.ReverbAddTrajectoryObserver(client, "table", 2) as observer:
            show(observer, map(frame, range(3)))
        assert items(client) == [[0, 1], [1, 2]]
        with pytest.raises(reverb_utils.ObserverClosedError):
            observer(frame(3))

    def test_a_block_that_fails_confirms_its_items(self, client, frame, items):
        observer = reverb_utils.ReverbTrajectorySequenceObserver(client, "table", 1)
        show(observer, map(frame, range(3)))
        with pytest.raises(KeyError, match="mistake"), observer:
            raise KeyError("mistake")
        assert items(client) == [[0], [1], [2]]

    def test_a_block_that_fails_does_not_wait_for_long(self, client, frame):
        observer = reverb_utils.ReverbTrajectorySequenceObserver(client, "queue", 1)
        show(observer, map(frame, range(3)))  # The queue takes only one.
        with pytest.raises(KeyError, match="mistake"), observer:
            raise KeyError("mistake")
        with pytest.raises(reverb_utils.ObserverClosedError):
            observer.flush()

    @pytest.mark.parametrize("end", ["", "del observer", "observer.close()"])
    def test_a_program_may_end_without_closing(self, end):
        program = f"""
import collections, sys, reverb
from reverb.adapters.tf_agents import reverb_utils
server = reverb.Server([reverb.Table.queue("queue", 100)])
client = server.localhost_client()
observer = reverb_utils.ReverbAddTrajectoryObserver(client, "queue", 2)
Frame = collections.namedtuple("Frame", ["step_type"])
for step_type in (0, 1, 1): observer(Frame(step_type))
{end}
assert "tensorflow" not in sys.modules and "tf_agents" not in sys.modules
"""
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
        )
        assert done.returncode == 0
        lines = done.stderr.splitlines()
        if end == "observer.close()":
            assert lines == []
        assert all("a writer was left with items of table queue" in line for line in lines), lines


class TestPriority:
    def test_may_depend_on_the_window(self, client, observe, frame, priorities):
        observer = observe(2, priority=lambda window: window.action.sum() + len(window.reward))
        show(observer, map(frame, range(3)))
        observer.flush()
        assert priorities(client) == [3.0, 5.0]


class TestBadArguments:
    @pytest.mark.parametrize("length", [2, 4])
    def test_windows_that_do_not_fit_the_signature(self, client, observe, frame, items, length):
        observer = observe(length, "three")
        with pytest.raises(errors.SignatureMismatchError, match=f"an item of {length} frames does"):
            show(observer, map(frame, range(length)))
        observer.reset(False)
        assert items(client, "three") == []

    def test_fields_that_do_not_fit_the_signature(self, observe, frame):
        observer = observe(3, "three")
        with pytest.raises(ValueError, match=r"column reward must have dtype float"):
            show(observer, [frame(i, reward=np.float64(1)) for i in range(3)])


class TestBadFrames:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"reward": np.float64(1)}, r"wrong dtype provided for column \('reward',\)"),
            ({"action": np.zeros(2, np.int64)}, r"incompatible shape .* \('action',\)"),
            ({"observation": {"x": np.zeros(2, np.float32)}}, "no value for observation/a"),
            (
                {"observation": {"a": np.zeros(2, np.float32), "b": {"c": np.float32(0)}, "d": 0}},
                "new is observation/d",
            ),
            ({"observation": {"a": np.zeros(2, np.float32)}}, "no value for observation/b/c"),
            ({"observation": np.zeros(2)}, "no value for observation/a, observation/b/c"),
            ({"reward": None}, "no value for reward"),
            ({"policy_info": (1,)}, "new is policy_info/0"),
            ({"step_type": np.ones(2, np.int32)}, r"one step of one environment.* \[2\]"),
        ],
    )
    def test_name_the_field_and_change_nothing(
        self, client, observe, frame, items, fields, message
    ):
        observation = {"a": np.zeros(2, np.float32), "b": {"c": np.float32(0)}}
        observer = observe(2)
        observer(frame(0, observation=observation))
        with pytest.raises(ValueError, match=message):
            observer(frame(1, **({"observation": observation} | fields)))
        observer(frame(2, LAST, observation=observation))
        assert client.server_info()["table"].current_size == 1
        (sample,) = client.sample("table", 1, emit_timesteps=False)
        assert sample.data[3].tolist() == [0, 2]

    def test_of_another_type_are_taken_if_the_fields_are_the_same(self, observe, client, frame):
        observer = observe(2)
        observer(frame(0, observation={"a": 1}, policy_info=()))
        observer(frame(0, LAST, observation=collections.OrderedDict(a=1), policy_info={}))
        assert client.server_info()["table"].current_size == 1

    @pytest.mark.parametrize("value", [[np.int32(1)], {"step_type": 1}, 5])
    def test_without_a_step_type(self, observe, value):
        with pytest.raises(ValueError, match=r"must be a Trajectory.* attribute step_type, got"):
            observe(2)(value)

    def test_of_a_batch(self, observe, frame):
        with pytest.raises(ValueError, match=r"shape \[3\]; ReverbBatchedTrajectoryObserver"):
            observe(2)(frame(0, step_type=np.zeros(3, np.int32)))

    def test_a_first_frame_that_cannot_be_stored_leaves_no_trace(self, client, observe, frame):
        observer = observe(1)
        with pytest.raises(TypeError):
            observer(frame(0, policy_info=object()))
        observer(frame(1, LAST))
        assert client.server_info()["table"].current_size == 1
