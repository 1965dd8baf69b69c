# SPDX-License-Identifier: Apache-2.0
"""Scans of some items or columns: `where=` and `columns=` on both paths."""

import datetime
import pickle

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import InvalidArgumentError
from reverb.specs import TensorSpec

SIGNATURE = {"a": TensorSpec([None], np.int64), "b": (TensorSpec([None, 2], np.float32),)}


def values(samples):
    return [int(sample.data[0].ravel()[0]) for sample in samples]


@pytest.fixture
def client(serve):
    """A client of a table with the items 0 to 99, whose priorities are their numbers."""
    client = serve(testing.table())
    client.insert_batch([np.arange(100), np.arange(100) * 0.5], {"table": np.arange(100.0)})
    return client


class TestWhere:
    def test_both_ends_of_priorities_are_included(self, client):
        assert values(client.scan("table", where=reverb.Where(priority=(3, 5)))) == [3, 4, 5]
        assert values(client.scan("table", where=reverb.Where(priority=(None, 1)))) == [0, 1]
        assert values(client.scan("table", where=reverb.Where(priority=(98.0, None)))) == [98, 99]

    def test_items_are_found_by_how_often_they_were_sampled(self, serve):
        client = serve(testing.table(sampler=reverb.selectors.Fifo()))
        client.insert_batch([np.arange(3)], {"table": 1.0})
        list(client.sample("table", 4))
        assert values(client.scan("table", where=reverb.Where(times_sampled=(4, 4)))) == [0]
        assert values(client.scan("table", where=reverb.Where(times_sampled=(None, 3)))) == [1, 2]
        assert values(client.scan("table", where=reverb.Where(times_sampled=(1, None)))) == [0]

    def test_times_split_a_table_without_loss(self, client):
        scanned = list(client.scan("table", with_inserted_at=True))
        times = [at for at, _ in scanned]
        for middle in (times[0], times[40], times[99], np.nextafter(times[99], np.inf)):
            before = values(client.scan("table", where=reverb.Where(inserted_at=(None, middle))))
            after = values(client.scan("table", where=reverb.Where(inserted_at=(middle, None))))
            assert before == [i for i, at in enumerate(times) if at < middle]
            assert after == [i for i, at in enumerate(times) if at >= middle]
            assert before + after == list(range(100))

    def test_times_may_be_datetimes(self, client):
        now = datetime.datetime.now(datetime.UTC)
        hour = datetime.timedelta(hours=1)
        recent = reverb.Where(inserted_at=(now - hour, now + hour))
        assert len(list(client.scan("table", where=recent))) == 100
        # Without a time zone it is local time.
        later = reverb.Where(inserted_at=(datetime.datetime.now() + hour, None))
        assert list(client.scan("table", where=later)) == []
        earlier = reverb.Where(inserted_at=(None, now - hour))
        assert list(client.scan("table", where=earlier)) == []

    def test_it_is_a_frozen_value(self):
        where = reverb.Where(priority=(1, None))
        assert where == reverb.Where(priority=(1, None)) != reverb.Where()
        assert {where: 1}[pickle.loads(pickle.dumps(where))] == 1
        with pytest.raises(AttributeError):
            where.priority = None


class TestWrongConditions:
    @pytest.mark.parametrize(
        ("bounds", "text"),
        [
            ({"priority": 3}, r"priority must be a pair \(lowest, highest\), got 3"),
            ({"priority": (1, 2, 3)}, r"priority must be a pair \(lowest, highest\), got \(1, 2"),
            ({"priority": (2, 1)}, "whose first number is not greater than the second, got"),
            ({"priority": (float("nan"), 1)}, "nan is not a number"),
            ({"priority": ("1", None)}, "'1' is not a number"),
            ({"times_sampled": (1.5, None)}, "a number of samples must be an integer, got float"),
            ({"times_sampled": (-1, None)}, r"-1 is not a number from 0 to 2\*\*31 - 1"),
            ({"times_sampled": (None, 2**31)}, r"2147483648 is not a number from 0 to"),
            ({"inserted_at": (2.0, 1.0)}, r"inserted_at must be a pair \(start, end\) whose first"),
            ({"inserted_at": ("yesterday", None)}, "'yesterday' is not a number"),
        ],
    )
    def test_a_wrong_bound_is_named(self, bounds, text):
        with pytest.raises(InvalidArgumentError, match=text):
            reverb.Where(**bounds)

    def test_something_else_is_no_condition(self, client):
        with pytest.raises(TypeError, match=r"where must be a reverb.Where, got \(1, 2\)"):
            next(client.scan("table", where=(1, 2)))


class TestColumns:
    def test_only_the_chosen_ones_are_there(self, client):
        assert [len(sample.data) for sample in client.scan("table")] == [2] * 100
        chosen = list(client.scan("table", columns=[1]))
        assert [float(column[0]) for sample in chosen for column in sample.data] == [
            i * 0.5 for i in range(100)
        ]

    def test_names_are_those_of_the_signature(self, serve):
        client = serve(testing.table(signature=SIGNATURE))
        client.insert({"a": np.int64(1), "b": (np.ones(2, np.float32),)}, {"table": 1.0})
        (flat,) = client.scan("table", columns="b")
        assert [column.tolist() for column in flat.data] == [[[1.0, 1.0]]]
        nested = client.scan("table", columns=["a"], unpack_as_table_signature=True)
        assert {name: it.tolist() for name, it in next(nested).data.items()} == {"a": [1]}
        both = client.scan("table", columns=["b"], where=reverb.Where(priority=(2, None)))
        assert list(both) == []

    def test_a_missing_column_is_named(self, serve):
        client = serve(testing.table(signature=SIGNATURE))
        with pytest.raises(InvalidArgumentError, match="columns has 'c', which is no column of"):
            next(client.scan("table", columns="c"))

    def test_a_position_that_no_item_has_is_an_error(self, client):
        with pytest.raises(InvalidArgumentError, match="column"):
            next(client.scan("table", columns=[7]))
