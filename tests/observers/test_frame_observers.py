# SPDX-License-Identifier: Apache-2.0
"""What both observers of one environment do: opening and closing, priorities, tables, frames."""

import functools

import numpy as np
import pytest

import reverb
from reverb import errors
from reverb.adapters.tf_agents import reverb_utils
from reverb.adapters.tf_agents.frame_layout import LAST


@pytest.fixture(
    params=[reverb_utils.ReverbAddTrajectoryObserver, reverb_utils.ReverbAddEpisodeObserver]
)
def observe(request, observers):
    """Makes an observer on `table`, and closes it after the test."""
    return functools.partial(observers, request.param)


def show(observer, frames):
    for frame in frames:
        observer(frame)


class TestOpenAndClose:
    def test_a_closed_observer_says_so(self, observe, frame):
        observer = observe(2)
        observer.close()
        observer.close()
        for call in (lambda: observer(frame(0)), observer.flush):
            with pytest.raises(reverb_utils.ObserverClosedError, match=r"is closed: call open\(\)"):
                call()
        with pytest.raises(ValueError, match="is closed"):
            observer.flush()

    def test_opening_starts_afresh(self, client, observe, frame, items):
        observer = observe(2)
        observer(frame(0))
        observer.close()
        observer.open()
        observer.open()
        show(observer, [frame(1, reward=()), frame(2, LAST, reward=())])
        assert items(client) == [[1, 2]]

    def test_a_reset_opens_a_closed_observer(self, client, observe, frame, items):
        observer = observe(2)
        observer(frame(0))
        observer.close()
        observer.reset()
        show(observer, [frame(1), frame(2, LAST)])
        assert items(client) == [[1, 2]]

    def test_the_client_and_the_signature(self, client, observe):
        observer = observe(3, ["three", "table"])
        assert observer.py_client is client
        assert observer.get_table_signature().observation.shape == (3, 2)
        assert observe(3).get_table_signature() is None
        observer.close()
        assert observer.get_table_signature().action.dtype == np.int64


class TestTables:
    def test_all_of_them_get_the_items(self, client, observe, episode, items):
        show(observe(2, ["table", "other"]), episode(10, 2))
        assert items(client, "table") == items(client, "other") == [[10, 11]]

    def test_have_the_items_when_the_boundary_returns(self, client, observe, episode):
        observer = observe(2)
        for number in range(1, 6):
            show(observer, episode(10, 2))
            assert client.server_info()["table"].current_size == number
            assert client.server_info()["table"].num_episodes == number

    def test_there_must_be_one(self, observe):
        with pytest.raises(ValueError, match="table_name must name at least one table"):
            observe(2, [])

    @pytest.mark.parametrize("names", ["unknown", ["table", "unknown"]])
    def test_an_unknown_one_is_an_error(self, observe, names):
        message = "no table named unknown; its tables are: any, other, queue, table, three"
        for kind in (
            reverb_utils.UnknownTableError,
            errors.TableNotFoundError,
            KeyError,
            ValueError,
        ):
            with pytest.raises(kind, match=f"^table_name: .* {message}$"):
                observe(2, names)


class TestPriority:
    def test_changes_for_later_items(self, client, observe, frame, priorities):
        observer = observe(1, priority=2)
        observer(frame(0, LAST))
        observer.update_priority(np.float32(0.5))
        observer(frame(1, LAST))
        assert priorities(client) == [2.0, 0.5]

    def test_the_largest_of_the_table(self, client, observe, frame, priorities):
        observer = observe(1, priority=2)
        observer(frame(0, LAST))
        observer.update_priority(reverb.MAX_PRIORITY)
        observer(frame(1, LAST))
        assert priorities(client) == [2.0, 2.0]

    @pytest.mark.parametrize("priority", ["high", None, [1.0], np.ones(1), True, float("nan"), 1j])
    def test_must_be_a_number(self, observe, priority):
        with pytest.raises(ValueError, match="priority must be a number, got"):
            observe(2, priority=priority)
        with pytest.raises(errors.InvalidArgumentError, match="priority must be a number, got"):
            observe(2).update_priority(priority)

    def test_of_an_item_must_be_a_number(self, observe, frame):
        observer = observe(1, priority=lambda steps: "high")
        with pytest.raises(ValueError, match="priority must be a number, got 'high'"):
            observer(frame(0, LAST))
