# SPDX-License-Identifier: Apache-2.0
"""The observer that writes whole episodes."""

import functools
import logging

import pytest

from reverb import errors
from reverb.adapters.tf_agents import reverb_utils

LAST = 2


@pytest.fixture
def observe(observers):
    """Makes an observer on `table`, and closes it after the test."""
    return functools.partial(observers, reverb_utils.ReverbAddEpisodeObserver)


def show(observer, frames):
    for frame in frames:
        observer(frame)


class TestEpisodes:
    def test_each_is_an_item_of_its_length(self, client, observe, episode, items):
        show(observe(5), episode(10, 5) + episode(20, 3) + episode(30, 1))
        assert items(client) == [[10, 11, 12, 13, 14], [20, 21, 22], [30]]

    def test_keep_all_their_frames_whatever_their_number(self, client, observe, episode, items):
        show(observe(400), episode(0, 400) + episode(0, 399))
        assert items(client) == [list(range(400)), list(range(399))]


class TestLongEpisodes:
    def test_are_an_error_and_the_next_is_written(self, client, observe, episode, items):
        observer = observe(5)
        frames = episode(10, 10)
        show(observer, frames[:5])
        with pytest.raises(ValueError, match=r"exceeds `max_sequence_length` = 5.* Consider"):
            observer(frames[5])
        show(observer, frames[6:] + episode(20, 5))
        assert items(client) == [[20, 21, 22, 23, 24]]

    def test_may_be_bypassed(self, client, observe, episode, items, caplog):
        observer = observe(5, bypass_partial_episodes=True)
        show(observer, episode(10, 10) + episode(20, 3) + episode(30, 6))
        assert items(client) == [[20, 21, 22]]
        assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
        assert "exceeds `max_sequence_length` = 5; the episode is not written" in caplog.text


class TestOpenAndClose:
    def test_opening_counts_from_zero(self, client, observe, episode, items):
        observer = observe(3)
        show(observer, episode(10, 3)[:2])
        observer.close()
        observer.open()
        observer.open()
        show(observer, episode(20, 3))
        assert items(client) == [[20, 21, 22]]

    def test_a_block_closes_it_and_drops_the_unfinished_episode(self, client, frame, items):
        with reverb_utils.ReverbAddEpisodeObserver(client, "table", 5) as observer:
            show(observer, [frame(0, LAST), frame(1)])
        assert items(client) == [[0]]


class TestPriority:
    def test_may_depend_on_the_episode(self, client, observe, episode, priorities):
        show(observe(5, priority=lambda steps: len(steps.reward)), episode(0, 2) + episode(0, 4))
        assert priorities(client) == [2.0, 4.0]


class TestErrors:
    @pytest.mark.parametrize("length", [0, -1, 2.5])
    def test_lengths(self, observe, length):
        with pytest.raises(ValueError, match=f"max_sequence_length must be .* got {length}"):
            observe(length)

    def test_episodes_that_do_not_fit_the_signature(self, client, observe, episode, items):
        observer = observe(5, "three")
        with pytest.raises(errors.SignatureMismatchError, match="an item of 2 frames does not fit"):
            show(observer, episode(10, 2))
        show(observer, episode(20, 3))
        assert items(client, "three") == [[20, 21, 22]]

    def test_a_wrong_frame_names_the_field_and_changes_nothing(self, client, observe, frame, items):
        observer = observe(5)
        observer(frame(0))
        with pytest.raises(ValueError, match=r"wrong dtype provided for column \('reward',\)"):
            observer(frame(1, LAST, reward=1))
        with pytest.raises(ValueError, match="new is policy_info/logits"):
            observer(frame(1, LAST, policy_info={"logits": 1}))
        observer(frame(2, LAST))
        assert items(client) == [[0, 2]]
