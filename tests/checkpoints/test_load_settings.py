# SPDX-License-Identifier: Apache-2.0
"""Settings that differ between the code and the checkpoint, and counters."""

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import FailedPreconditionError, ReverbError
from reverb.specs import TensorSpec
from support.checkpoints import on_disk

selectors = reverb.selectors


def stored_prioritized(values=(1, 2, 3), **fields):
    options = {
        "sampler": {"prioritized": {"priority_exponent": 0.5}},
        "remover": "lifo",
        "max_size": 10,
        "max_times_sampled": 7,
        "limiter": (2.0, -5.0, 100.0, 3),
        "counters": (len(values), 0, 0),
    }
    return on_disk.simple(values, **(options | fields))


DIFFERENCES = {
    "sampler": {"sampler": selectors.Fifo},
    "remover": {"remover": selectors.MinHeap},
    "max_size": {"max_size": 11},
    "max_times_sampled": {"max_times_sampled": 8},
    "samples_per_insert": {"limiter": (3.0, 3, -5.0, 100.0)},
    "min_size_to_sample": {"limiter": (2.0, 2, -5.0, 100.0)},
    "min_diff": {"limiter": (2.0, 3, -6.0, 100.0)},
    "max_diff": {"limiter": (2.0, 3, -5.0, 99.0)},
    "signature": {"signature": {"a": TensorSpec([None], np.int64, "a")}},
    "max_bytes": {"max_bytes": 500_000},
    "when_full": {"when_full": "wait"},
}


def made_table(**changes):
    """A table with the settings of `stored_prioritized`, but for `changes`."""
    limiter = reverb.rate_limiters.RateLimiter(*changes.pop("limiter", (2.0, 3, -5.0, 100.0)))
    made = {
        "sampler": lambda: selectors.Prioritized(0.5),
        "remover": selectors.Lifo,
        "max_size": 10,
        "max_times_sampled": 7,
        "rate_limiter": limiter,
    } | changes
    return testing.table(
        "table", **{name: value() if callable(value) else value for name, value in made.items()}
    )


def settings(client):
    info = client.server_info()["table"]
    limiter = info.rate_limiter_info
    memory = client.status().tables["table"]
    return (
        info.sampler_options.SerializeToString(),
        info.remover_options.SerializeToString(),
        info.max_size,
        info.max_times_sampled,
        limiter.samples_per_insert,
        limiter.min_size_to_sample,
        limiter.min_diff,
        limiter.max_diff,
        repr(info.signature),
        memory.max_bytes,
        memory.when_full,
    )


class TestDifferences:
    def test_none_are_silent(self, serve, root, capfd):
        on_disk.write(root / "1", stored_prioritized())
        serve(root, made_table())
        assert capfd.readouterr().err == ""

    @pytest.mark.parametrize("field", DIFFERENCES)
    def test_the_code_wins_and_one_line_says_so(self, serve, root, capfd, field, values):
        on_disk.write(root / "1", stored_prioritized())
        expected = settings(serve(root / "none", made_table(**DIFFERENCES[field])))
        capfd.readouterr()
        client = serve(root, made_table(**DIFFERENCES[field]))
        (line,) = capfd.readouterr().err.splitlines()
        assert field in line
        assert "table" in line
        assert settings(client) == expected
        assert values(client) == [1, 2, 3]

    @pytest.mark.parametrize("field", DIFFERENCES)
    def test_the_checkpoint_wins_if_it_is_told_to(self, serve, root, capfd, field):
        on_disk.write(root / "1", stored_prioritized())
        expected = settings(serve(root / "none", made_table()))
        client = serve(root, made_table(**DIFFERENCES[field]), restore_settings=True)
        assert settings(client) == expected

    def test_a_stored_signature_is_restored(self, serve, root, tmp_path):
        signature = {"a": TensorSpec([None], np.int64, "a")}
        client = serve(root, testing.table(signature=signature))
        client.insert({"a": 1}, {"table": 1.0})
        client.checkpoint()
        client.server.stop()
        client = serve(root, restore_settings=True)
        assert list(client.server_info()["table"].signature) == ["a"]
        with pytest.raises(ValueError, match="dtype"):
            client.insert({"a": np.float32(1)}, {"table": 1.0})

    def test_the_handle_of_a_table_shows_restored_settings(self, serve, root):
        on_disk.write(root / "1", stored_prioritized())
        table = testing.table()
        serve(root, table, restore_settings=True)
        assert (table.info.max_size, table.info.current_size) == (10, 3)
        assert table.info.sampler_options.prioritized.priority_exponent == 0.5
        assert table.replace().info.max_size == 10

    def test_a_table_without_a_record_keeps_its_own(self, serve, root):
        on_disk.write(root / "1", stored_prioritized())
        client = serve(
            root, testing.table(), testing.table("extra", max_size=5), restore_settings=True
        )
        info = client.server_info()
        assert (info["table"].max_size, info["extra"].max_size) == (10, 5)

    @pytest.mark.parametrize("dtype", [0, 20, 21, 99])
    def test_a_stored_dtype_that_no_tensor_has_is_refused(self, serve, root, dtype):
        stored = stored_prioritized()
        stored.table().signature.list_value.values.add().tensor_spec_value.dtype = dtype
        path = on_disk.write(root / "1", stored)
        with pytest.raises(ReverbError) as caught:
            serve(root, restore_settings=True)
        assert str(path) in str(caught.value)


class TestASmallerTable:
    @pytest.mark.parametrize(
        ("remover", "kept"),
        [(selectors.Fifo, [3, 4, 5]), (selectors.Lifo, [1, 2, 3]), (selectors.MinHeap, [1, 3, 5])],
    )
    def test_the_remover_makes_room(self, serve, root, values, counters, remover, kept, capfd):
        stored = on_disk.simple([1, 2, 3, 4, 5])
        for item, priority in zip(stored.items, [9, 1, 8, 2, 7], strict=True):
            item.priority = priority
        on_disk.write(root / "1", stored)
        client = serve(root, testing.table(max_size=3, remover=remover()))
        assert values(client) == kept
        assert "max_size" in capfd.readouterr().err
        inserts, samples, _, episodes, deleted = counters(client)
        assert (inserts, samples, episodes) == (5, 0, 3)
        assert deleted == 2
        record = on_disk.read(client.checkpoint()).table()
        assert record.rate_limiter.delete_count == 2

    def test_a_larger_one_has_room(self, serve, root, values, insert):
        on_disk.write(root / "1", on_disk.simple([1, 2], max_size=2))
        client = serve(root, testing.table(max_size=3))
        insert(client, 3)
        assert values(client) == [1, 2, 3]

    def test_more_items_than_even_the_stored_size(self, serve, root, values, capfd):
        on_disk.write(root / "1", on_disk.simple([1, 2, 3], max_size=2))
        assert values(serve(root, restore_settings=True)) == [2, 3]
        assert "1 item(s) were removed" in capfd.readouterr().err


class TestOtherSelectors:
    def test_they_know_the_items(self, serve, root):
        stored = on_disk.simple([1, 2, 3], sampler="uniform")
        for item in stored.items:
            item.priority = item.key
        on_disk.write(root / "1", stored)
        client = serve(root, testing.table(sampler=selectors.MaxHeap(), max_times_sampled=1))
        assert [int(steps[0].data[0]) for steps in client.sample("table", 3)] == [3, 2, 1]

    @pytest.mark.parametrize("priority", [-1.0, float("inf"), float("nan")])
    def test_a_priority_that_they_refuse_is_a_clear_error(self, serve, root, priority):
        stored = on_disk.simple([1, 2, 3], sampler="fifo")
        stored.items[1].priority = priority
        path = on_disk.write(root / "1", stored)
        with pytest.raises(FailedPreconditionError) as caught:
            serve(root, testing.table(sampler=selectors.Prioritized(0.8)))
        assert str(path) in str(caught.value)
        assert "2" in str(caught.value).replace(str(path), "")

    def test_negative_priorities_stay_where_they_are_allowed(self, serve, root, state):
        stored = on_disk.simple([1, 2])
        stored.items[1].priority = -3.5
        on_disk.write(root / "1", stored)
        client = serve(root, testing.table(sampler=selectors.MinHeap()))
        assert [priority for _, priority, *_ in state(client)] == [1.0, -3.5]
        assert int(next(client.sample("table"))[0].data[0]) == 2


class TestStricterLimits:
    def test_items_that_were_sampled_often_go_with_the_next_sample(self, serve, root, values):
        stored = on_disk.simple([1, 2, 3], counters=(3, 6, 0))
        for item, times in zip(stored.items, [5, 1, 0], strict=True):
            item.times_sampled = times
        on_disk.write(root / "1", stored)
        client = serve(root, testing.table(max_times_sampled=2))
        drained = [int(steps[0].data[0]) for steps in client.sample("table", 3)]
        assert set(drained) <= {1, 2, 3}
        assert 1 not in values(client)

    def test_a_stricter_limiter_counts_what_was_counted(self, serve, root):
        on_disk.write(root / "1", on_disk.simple([1, 2, 3], counters=(3, 2, 0)))
        table = testing.table(rate_limiter=reverb.rate_limiters.RateLimiter(1.0, 1, 0.0, 10.0))
        client = serve(root, table)
        assert len(list(client.sample("table", 1, timeout_ms=2000))) == 1
        with pytest.raises(reverb.DeadlineExceededError):
            next(client.sample("table", 1, timeout_ms=50))


class TestCounters:
    def test_they_go_on_from_where_they_were(self, serve, root, counters, insert):
        client = serve(root, testing.table(max_size=3))
        insert(client, *range(5))
        assert len(list(client.sample("table", 4))) == 4
        before = counters(client)
        assert before == (5, 4, 1, 3, 2)
        client.checkpoint()
        for _ in range(2):
            client.server.stop()
            client = serve(root, testing.table(max_size=3))
            assert counters(client) == before
            client.checkpoint()
        insert(client, 9)
        assert counters(client) == (6, 4, 1, 3, 3)

    def test_episodes_are_counted_anew(self, serve, root, counters):
        client = serve(root)
        with client.trajectory_writer(2) as writer:
            for episode in range(3):
                for step in range(4):
                    writer.append([episode * 10 + step])
                    writer.create_item("table", 1.0, [writer.history[0][-1:]])
                writer.end_episode()
        client.checkpoint()
        client.server.stop()
        client = serve(root)
        assert counters(client) == (12, 0, 0, 3, 0)
        keys = [sample.info.key for sample in client.scan("table")]
        client.mutate_priorities("table", deletes=keys[:4])
        assert counters(client) == (12, 0, 0, 2, 1)

    def test_a_limiter_waits_as_before(self, serve, root, insert):
        client = serve(root, reverb.Table.queue("table", 3))
        insert(client, 1, 2, 3)
        client.checkpoint()
        client.server.stop()
        table = reverb.Table.queue("table", 3)
        client = serve(root, table)
        assert not table.can_insert(1)
        assert table.can_sample(3)
        assert not table.can_sample(4)
        assert [int(steps[0].data[0]) for steps in client.sample("table", 3)] == [1, 2, 3]
        assert table.can_insert(3)
