# SPDX-License-Identifier: Apache-2.0
"""The observer of environments that are stepped together."""

import logging
import threading

import numpy as np
import pytest

import reverb
from reverb import errors
from reverb.adapters.tf_agents import reverb_utils
from support.waiting import DEADLINE_S

MID, LAST = 1, 2


@pytest.fixture
def observe(observers):
    """Makes an observer of three environments on `table`, and closes it after the test."""
    kind = reverb_utils.ReverbBatchedTrajectoryObserver

    def observe(sequence_length, table="table", batch_size=3, **options):
        return observers(kind, sequence_length, table, batch_size=batch_size, **options)

    return observe


def batch(frame, values, step_types=None):
    """A frame of all environments."""
    values = np.asarray(values)
    step_types = np.full(len(values), MID) if step_types is None else np.asarray(step_types)
    return frame(0)._replace(
        step_type=step_types.astype(np.int32),
        observation=np.stack([values, -values], axis=1).astype(np.float32),
        action=values,
        next_step_type=np.where(step_types == LAST, 0, MID).astype(np.int32),
        reward=np.ones(len(values), np.float32),
        discount=np.ones(len(values), np.float32),
    )


class TestItems:
    def test_windows_of_rows_whose_episodes_end_at_different_times(
        self, client, observe, frame, items
    ):
        observer = observe(2)
        for step, step_types in enumerate([[1, 1, 1], [1, 2, 1], [2, 1, 1], [1, 2, 2]]):
            observer(batch(frame, [step, 10 + step, 20 + step], step_types))
        observer.flush()
        assert items(client) == [
            *([0, 1], [10, 11], [20, 21]),
            *([1, 2], [21, 22]),
            *([12, 13], [22, 23]),
        ]

    def test_with_a_stride_in_two_tables(self, client, observe, frame, items):
        observer = observe(2, ["table", "other"], stride_length=2)
        for step in range(5):
            observer(batch(frame, [step, 10 + step, 20 + step]))
        observer.flush()
        expected = [[0, 1], [10, 11], [20, 21], [2, 3], [12, 13], [22, 23]]
        assert items(client, "table") == items(client, "other") == expected

    def test_run_across_boundaries_if_asked_to(self, client, observe, frame, items):
        observer = observe(3, cuts_at_boundaries=False)
        for step in range(4):
            observer(batch(frame, [step, 10 + step, 20 + step], [LAST, MID, MID]))
        observer.flush()
        assert items(client)[::3] == [[0, 1, 2], [1, 2, 3]]

    def test_episodes(self, client, observe, frame, items):
        observer = observe(None, "any", max_sequence_length=4)
        for step, step_types in enumerate([[1, 2, 1], [1, 1, 1], [2, 2, 1], [2, 1, 2]]):
            observer(batch(frame, [step, 10 + step, 20 + step], step_types))
        observer.flush()
        assert items(client, "any") == [[10], [0, 1, 2], [11, 12], [3], [20, 21, 22, 23]]

    @pytest.mark.parametrize("length", [1, 2, 5])
    @pytest.mark.parametrize("stride", [1, 3])
    def test_are_those_of_single_observers(self, client, observe, frame, items, length, stride):
        num_rows = 4
        rng = np.random.default_rng(length + 10 * stride)
        batched = observe(length, batch_size=num_rows, stride_length=stride)
        singles = [
            reverb_utils.ReverbAddTrajectoryObserver(client, "other", length, stride)
            for _ in range(num_rows)
        ]
        for step in range(40):
            values = step + 100 * np.arange(num_rows)
            step_types = np.where(rng.random(num_rows) < 0.2, LAST, MID)
            batched(batch(frame, values, step_types))
            for row, single in enumerate(singles):
                single(frame(values[row], step_types[row]))
        batched.flush()
        for single in singles:
            single.close()
        assert sorted(items(client)) == sorted(items(client, "other"))


class TestLongEpisodes:
    def test_are_an_error_and_the_others_go_on(self, client, observe, frame, items):
        observer = observe(None, max_sequence_length=2)
        observer(batch(frame, [0, 10, 20]))
        observer(batch(frame, [1, 11, 21], [MID, LAST, LAST]))
        with pytest.raises(ValueError, match="max_sequence_length"):
            observer(batch(frame, [2, 12, 22], [MID, MID, LAST]))
        observer(batch(frame, [3, 13, 23], [LAST, LAST, LAST]))
        observer(batch(frame, [4, 14, 24], [LAST, LAST, LAST]))
        observer.flush()
        expected = [[10, 11], [20, 21], [22], [12, 13], [23], [4], [14], [24]]
        assert items(client) == expected

    def test_may_be_bypassed(self, client, observe, frame, items, caplog):
        observer = observe(None, max_sequence_length=1, bypass_partial_episodes=True)
        observer(batch(frame, [0, 10, 20], [MID, MID, LAST]))
        observer(batch(frame, [1, 11, 21], [LAST, LAST, LAST]))
        observer(batch(frame, [2, 12, 22], [LAST, LAST, LAST]))
        observer.flush()
        assert items(client) == [[20], [21], [2], [12], [22]]
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        assert "longer than max_sequence_length = 1 were not written: 2" in caplog.text


class TestReset:
    def test_begins_new_episodes(self, client, observe, frame, items):
        observer = observe(2)
        observer(batch(frame, [0, 10, 20]))
        observer.reset()
        observer(batch(frame, [1, 11, 21]))
        observer(batch(frame, [2, 12, 22]))
        observer.reset(write_cached_steps=True)
        assert items(client) == [[1, 2], [11, 12], [21, 22]]

    def test_says_where_frames_would_be_lost(self, client, observe, frame, items):
        observer = observe(2, stride_length=2)
        observer(batch(frame, [0, 10, 20], [LAST, MID, MID]))
        observer(batch(frame, [1, 11, 21], [MID, LAST, MID]))
        with pytest.raises(ValueError, match=r"newest frames of environments \[0\] are in no item"):
            observer.reset(write_cached_steps=True)
        observer(batch(frame, [2, 12, 22]))
        with pytest.raises(ValueError, match=r"environments \[1, 2\] are"):
            observer.reset(write_cached_steps=True)
        observer.reset(write_cached_steps=False)
        assert items(client) == [[10, 11], [20, 21], [1, 2]]

    def test_what_a_stride_leaves_out_is_not_lost(self, observe, frame):
        observer = observe(2, stride_length=4)
        for step in range(4):
            observer(batch(frame, [step, step, step]))
        observer.reset(write_cached_steps=True)
        for step in range(5):
            observer(batch(frame, [step, step, step]))
        with pytest.raises(ValueError, match=r"\[0, 1, 2\]"):
            observer.reset(write_cached_steps=True)

    def test_of_unfinished_episodes(self, client, observe, frame, items):
        observer = observe(None, max_sequence_length=5)
        observer(batch(frame, [0, 10, 20], [MID, LAST, MID]))
        with pytest.raises(ValueError, match=r"environments \[0, 2\] are in no item"):
            observer.reset(write_cached_steps=True)
        observer.reset()
        observer(batch(frame, [1, 11, 21], [LAST, MID, MID]))
        observer.reset()
        assert items(client) == [[10], [1]]

    def test_blocks_until_items_are_confirmed(self, client, observe, frame):
        observer = observe(1)
        for number in range(1, 6):
            observer(batch(frame, [0, 1, 2]))
            observer.reset()
            assert client.server_info()["table"].current_size == 3 * number


class TestOpenAndClose:
    def test_a_closed_observer_says_so_and_may_be_opened(self, client, observe, frame, items):
        observer = observe(2)
        observer(batch(frame, [0, 10, 20]))
        observer.close()
        observer.close()
        for call in (lambda: observer(batch(frame, [0, 0, 0])), observer.flush):
            with pytest.raises(reverb_utils.ObserverClosedError, match=r"is closed: call open\(\)"):
                call()
        observer.open()
        for step in (1, 2):
            observer(batch(frame, [step, 10 + step, 20 + step]))
        observer.close()
        observer.reset()
        assert items(client) == [[1, 2], [11, 12], [21, 22]]

    def test_a_block_closes_it(self, client, frame, items):
        with reverb_utils.ReverbBatchedTrajectoryObserver(client, "table", 1, 2) as observer:
            observer(batch(frame, [0, 1]))
        assert items(client) == [[0], [1]]
        with pytest.raises(reverb_utils.ObserverClosedError):
            observer.flush()

    def test_the_client_and_the_signature(self, client, observe):
        observer = observe(3, "three")
        assert observer.py_client is client
        assert observer.batch_size == 3
        assert observer.get_table_signature().observation.shape == (3, 2)


class TestRateLimiter:
    def test_slows_the_driver_down(self, client, observe, frame):
        observer = observe(1, "queue", max_in_flight_items=4)
        observer(batch(frame, [0, 1, 2]))  # The queue takes one.
        thread = threading.Thread(target=observer, args=(batch(frame, [3, 4, 5]),))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        taken = [steps[0].data[2] for steps in client.sample("queue", 4)]
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        taken += [steps[0].data[2] for steps in client.sample("queue", 2)]
        assert sorted(taken) == [0, 1, 2, 3, 4, 5]


class TestPriority:
    def test_may_differ_by_environment(self, client, observe, frame, priorities):
        observer = observe(1, priority=[1, 2, 3])
        observer(batch(frame, [0, 0, 0]))
        observer.update_priority(np.float32(0.5))
        observer(batch(frame, [0, 0, 0]))
        observer.update_priority(lambda frames: frames.action * 2)
        observer(batch(frame, [4, 5, 6]))
        observer.flush()
        assert priorities(client) == [1, 2, 3, 0.5, 0.5, 0.5, 8, 10, 12]

    def test_the_largest_of_the_table(self, client, observe, frame, priorities):
        observer = observe(1, priority=[1, 2, 3])
        observer(batch(frame, [0, 0, 0]))
        observer.update_priority(reverb.MAX_PRIORITY)
        observer(batch(frame, [0, 0, 0]))
        observer.flush()
        assert priorities(client) == [1, 2, 3, 3, 3, 3]

    @pytest.mark.parametrize("priority", ["high", None, [1, 2], [[1, 2, 3]], [1, float("nan"), 2]])
    def test_must_be_numbers(self, observe, frame, priority):
        for call in (
            lambda: observe(1, priority=priority),
            lambda: observe(1).update_priority(priority),
            lambda: observe(1, priority=lambda frames: priority)(batch(frame, [0, 0, 0])),
        ):
            with pytest.raises(ValueError, match="priority must"):
                call()


class TestErrors:
    @pytest.mark.parametrize("value", [0, -1, 1.5, "2"])
    @pytest.mark.parametrize(
        "argument", ["sequence_length", "batch_size", "stride_length", "max_in_flight_items"]
    )
    def test_numbers(self, client, argument, value):
        arguments = {"sequence_length": 2, "batch_size": 3} | {argument: value}
        with pytest.raises(ValueError, match=rf"{argument} must be .* got {value!r}"):
            reverb_utils.ReverbBatchedTrajectoryObserver(client, "table", **arguments)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"sequence_length": None}, "max_sequence_length must be given"),
            ({"sequence_length": 2, "max_sequence_length": 3}, "max_sequence_length"),
            (
                {"sequence_length": None, "max_sequence_length": 3, "stride_length": 2},
                "stride_length must be 1",
            ),
            (
                {"sequence_length": None, "max_sequence_length": 3, "cuts_at_boundaries": False},
                "cuts_at_boundaries must be True",
            ),
        ],
    )
    def test_arguments_that_contradict_each_other(self, observe, arguments, message):
        with pytest.raises(ValueError, match=message):
            observe(**arguments)

    def test_unknown_table(self, observe):
        with pytest.raises(
            reverb_utils.UnknownTableError, match="no table named unknown; its tables are: any"
        ):
            observe(2, ["table", "unknown"])

    @pytest.mark.parametrize("num_rows", [1, 2, 4])
    def test_a_frame_of_another_batch_size(self, client, observe, frame, items, num_rows):
        observer = observe(1)
        message = rf"shape \[3\], one for each of batch_size environments, got shape \[{num_rows}\]"
        with pytest.raises(ValueError, match=message):
            observer(batch(frame, range(num_rows)))
        rewards = np.ones(num_rows, np.float32)
        with pytest.raises(ValueError, match="reward"):
            observer(batch(frame, range(3))._replace(reward=rewards))
        observer.flush()
        assert items(client) == []

    def test_a_frame_without_a_batch(self, observe, frame):
        with pytest.raises(ValueError, match=r"must have shape \[3\].* got shape \[\]"):
            observe(1)(frame(0))
        with pytest.raises(ValueError, match=r"a Trajectory.* attribute step_type, got dict"):
            observe(1)({"step_type": np.ones(3)})

    def test_wrong_frames_name_the_field_and_change_nothing(self, client, observe, frame, items):
        observer = observe(2)
        good = batch(frame, range(3))
        observer(good)
        for fields, message in [
            ({"reward": np.ones(3)}, "reward"),
            ({"observation": np.ones((3, 3), np.float32)}, "observation"),
            ({"observation": {"a": np.ones((3, 2), np.float32)}}, "observation"),
            ({"policy_info": (np.ones(3),)}, "policy_info"),
            ({"policy_info": {"logits": np.ones(3)}}, "policy_info"),
        ]:
            with pytest.raises(ValueError, match=message):
                observer(good._replace(**fields))
        observer(good)
        observer.flush()
        assert items(client) == [[0, 0], [1, 1], [2, 2]]

    def test_windows_that_do_not_fit_the_signature(self, client, observe, frame, items):
        observer = observe(2, "three")
        with pytest.raises(errors.SignatureMismatchError, match="three"):
            observer(batch(frame, range(3)))
        observer.reset()
        assert items(client, "three") == []
