# SPDX-License-Identifier: Apache-2.0
"""`delete_items`: by keys, by a condition, or by both."""

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb._client import chosen_items
from reverb.errors import InvalidArgumentError, TableNotFoundError


@pytest.fixture
def table():
    return testing.table(max_size=30_000)


@pytest.fixture
def client(table, serve):
    """A client of a table with the items 0 to 99, whose priorities are their numbers."""
    client = serve(table)
    client.keys = client.insert_batch([np.arange(100)], {"table": np.arange(100.0)})["table"]
    return client


def values(client):
    return [int(sample.data[0].ravel()[0]) for sample in client.scan("table")]


class TestKeys:
    def test_the_items_that_are_there_are_counted(self, client):
        keys = [int(client.keys[1]), int(client.keys[2]), 12345, int(client.keys[1])]
        assert client.delete_items("table", keys) == 2
        assert values(client) == [0, *range(3, 100)]
        assert client.delete_items("table", keys) == 0

    def test_keys_may_be_arrays(self, client):
        assert client.delete_items("table", client.keys[:40]) == 40
        assert client.delete_items("table", client.keys[:60].view(np.int64)) == 20
        assert values(client) == list(range(60, 100))

    def test_no_keys_delete_nothing(self, client):
        assert client.delete_items("table", []) == 0
        assert len(values(client)) == 100

    def test_many_keys_go_in_several_messages(self, client, monkeypatch):
        monkeypatch.setattr(chosen_items, "KEYS_A_REQUEST", 30)
        assert client.delete_items("table", client.keys) == 100
        assert values(client) == []


class TestConditions:
    def test_items_that_fulfil_it_are_deleted(self, client):
        assert client.delete_items("table", where=reverb.Where(priority=(10, 19))) == 10
        assert values(client) == [*range(10), *range(20, 100)]
        assert client.delete_items("table", where=reverb.Where(times_sampled=(1, None))) == 0

    def test_keys_and_condition_must_both_hold(self, client):
        where = reverb.Where(priority=(None, 4.5))
        assert client.delete_items("table", client.keys[3:8], where=where) == 2
        assert values(client) == [0, 1, 2, *range(5, 100)]

    def test_keys_with_an_empty_condition_are_deleted(self, client):
        assert client.delete_items("table", client.keys[:3], where=reverb.Where()) == 3

    def test_old_items_are_deleted_by_their_time(self, client):
        times = [at for at, _ in client.scan("table", with_inserted_at=True)]
        # Items of one call may have the same time.
        older = sum(at < times[60] for at in times)
        where = reverb.Where(inserted_at=(None, times[60]))
        assert client.delete_items("table", where=where) == older
        assert values(client) == list(range(older, 100))


class TestErrors:
    @pytest.mark.parametrize("where", [None, reverb.Where(), reverb.Where(priority=(None, None))])
    def test_everything_is_for_reset(self, client, where):
        with pytest.raises(InvalidArgumentError, match="Call reset to remove all items"):
            client.delete_items("table", where=where)
        assert len(values(client)) == 100

    def test_an_unknown_table_is_named(self, client):
        for arguments in ({"keys": []}, {"where": reverb.Where(priority=(1, None))}):
            with pytest.raises(TableNotFoundError, match="nothing"):
                client.delete_items("nothing", **arguments)

    def test_something_else_is_no_condition(self, client):
        with pytest.raises(TypeError, match=r"where must be a reverb.Where, got 3"):
            client.delete_items("table", [1], where=3)
        with pytest.raises(TypeError, match=r"where must be a reverb.Where, got 3"):
            client.delete_items("table", where=3)
        with pytest.raises(TypeError, match="keys must be integers"):
            client.delete_items("table", [1.5])


DELETES = {
    "keys": lambda client, keys: client.delete_items("q", keys),
    "where": lambda client, keys: client.delete_items("q", where=reverb.Where(priority=(1, 1))),
}


class TestRateLimiters:
    """The limiter expects no samples of items that were deleted before they were sampled."""

    @pytest.mark.parametrize("delete", DELETES.values(), ids=DELETES)
    @pytest.mark.parametrize("make", [reverb.Table.queue, reverb.Table.stack])
    def test_a_queue_has_room_for_others(self, serve, background, make, delete):
        client = serve(make("q", 10))
        for _ in range(3):
            keys = client.insert_batch([np.arange(10)], {"q": 1.0})["q"]
            assert delete(client, keys) == 10
        filling = background(client.insert_batch, [np.arange(10)], {"q": 1.0})
        filling.result()
        assert client.server_info()["q"].current_size == 10
        assert client.sample_batch("q", 10, timeout_ms=0).data[0].shape == (10, 1)

    def test_items_of_several_samples(self, serve, background):
        """As many samples are taken as the rest of the items allows."""
        limiter = reverb.rate_limiters.RateLimiter(3.0, 1, 0.0, 12.0)
        client = serve(testing.table("q", max_times_sampled=3, rate_limiter=limiter))
        keys = client.insert_batch([np.arange(4)], {"q": 1.0})["q"]
        client.sample_batch("q", 3)
        client.delete_items("q", keys[:2])
        items = client.fetch("q", keys).info
        left = int((3 - items.times_sampled).sum())
        info = client.server_info()["q"].rate_limiter_info
        inserts, samples = info.insert_stats.completed, info.sample_stats.completed
        assert 3 * inserts - samples == left
        assert client.sample_batch("q", left, timeout_ms=0).info.key.shape == (left,)
        background(client.insert_batch, [np.arange(4)], {"q": 1.0}).result()

    def test_other_tables_count_as_before(self, client, table):
        assert client.delete_items("table", client.keys[:40]) == 40
        assert table.info.rate_limiter_info.sample_stats.completed == 0
