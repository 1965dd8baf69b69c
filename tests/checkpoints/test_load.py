# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint a server loads, and what it holds then."""

import contextlib

import numpy as np
import pytest

import reverb
from reverb import testing
from support.checkpoints import on_disk

SAMPLE_TABLES = ("fifo", "empty", "prio")


def write_numbered(root, name, *values, **options):
    """A checkpoint of a table `table` with an item a value."""
    return on_disk.write(root / name, on_disk.simple(values), **options)


class TestWhichOne:
    @pytest.mark.parametrize(
        ("names", "loaded"),
        [
            ([], None),
            (
                [
                    "2026-11-20T09:47:14.3+00:00",
                    "2026-11-20T09:47:14.378567351+00:00",
                    "2025-12-31T23:59:59+00:00",
                ],
                1,
            ),
            (["10", "9", "Z", "a", "é"], 4),
            (["1", "2 incomplete", "3 incomplete"], 0),
            (["1 incomplete"], None),
            ([".partial-2"], None),
        ],
        ids=[
            "an empty root",
            "the greatest name",
            "compared byte by byte and not parsed",
            "incomplete ones are passed over",
            "only incomplete ones",
            "a partial one, even with a mark",
        ],
    )
    def test_it_is_the_greatest_complete_name(self, serve, root, values, names, loaded):
        root.mkdir()
        for number, name in enumerate(names):
            complete = not name.endswith(" incomplete")
            write_numbered(root, name.split()[0], number, done=b"" if complete else None)
        assert values(serve(root)) == ([] if loaded is None else [loaded])

    def test_without_a_root_the_server_starts_empty(self, serve, root, values):
        assert values(serve(root)) == []

    @pytest.mark.parametrize("done", [b"", b"anything\n\xff"])
    def test_what_the_mark_says_does_not_matter(self, serve, root, values, done):
        write_numbered(root, "1", 7, done=done)
        assert values(serve(root)) == [7]

    def test_other_files_in_the_root_are_passed_over(self, serve, root, values):
        write_numbered(root, "1", 1)
        (root / "zzz").write_text("notes")
        (root / "zzzz").mkdir()
        (root / "zzzz" / "DONE.old").write_text("")
        assert values(serve(root)) == [1]

    def test_a_root_may_be_a_symbolic_link(self, serve, root, tmp_path, values):
        write_numbered(root, "1", 1)
        (tmp_path / "link").symlink_to(root)
        assert values(serve(tmp_path / "link")) == [1]


class TestFallback:
    def test_it_is_the_checkpoint_itself(self, serve, root, tmp_path, values):
        path = write_numbered(tmp_path, "fallback", 7)
        assert values(serve(root, fallback_checkpoint_path=str(path))) == [7]

    def test_a_checkpoint_of_the_root_wins(self, serve, root, tmp_path, values):
        path = write_numbered(tmp_path, "zzz", 7)
        write_numbered(root, "1", 1)
        assert values(serve(root, fallback_checkpoint_path=str(path))) == [1]

    def test_it_is_no_root(self, serve, root, tmp_path, values):
        write_numbered(tmp_path / "other", "1", 7)
        assert values(serve(root, fallback_checkpoint_path=str(tmp_path / "other"))) == []

    def test_an_incomplete_one_is_none(self, serve, root, tmp_path, values):
        path = write_numbered(tmp_path, "fallback", 7, done=None)
        assert values(serve(root, fallback_checkpoint_path=str(path))) == []

    def test_what_is_saved_goes_to_the_root_and_leaves_it_alone(
        self, serve, root, tmp_path, values, insert
    ):
        path = write_numbered(tmp_path, "fallback", 7)
        client = serve(root, fallback_checkpoint_path=str(path))
        insert(client, 8)
        assert client.checkpoint().startswith(str(root))
        client.server.stop()
        assert values(serve(root, fallback_checkpoint_path=str(path))) == [7, 8]
        assert on_disk.read(path) == on_disk.simple([7])


def sample_tables():
    """The tables of the sample, as they were made."""
    selectors, limiters = reverb.selectors, reverb.rate_limiters
    return [
        testing.table("fifo", max_size=4),
        testing.table(
            "empty",
            sampler=selectors.MaxHeap(),
            remover=selectors.Lifo(),
            max_size=4,
            rate_limiter=limiters.Queue(4),
        ),
        testing.table(
            "prio",
            sampler=selectors.Prioritized(0.8),
            max_size=10,
            max_times_sampled=5,
            rate_limiter=limiters.SampleToInsertRatio(2.0, 2, 20.0),
            signature={
                "a": reverb.specs.TensorSpec([None], np.int32, "a"),
                "o": reverb.specs.TensorSpec([None, 2], np.float32, "o"),
            },
        ),
    ]


class TestTheSampleOfDmReverb:
    @pytest.fixture(params=["code", "checkpoint"])
    def client(self, request, serve, sample):
        """A client of a server with the settings of the sample, given or restored."""
        if request.param == "code":
            return serve(sample.parent, *sample_tables())
        tables = [testing.table(name) for name in SAMPLE_TABLES]
        return serve(sample.parent, *tables, restore_settings=True)

    def test_settings(self, client):
        info = client.server_info()
        assert [info[name].max_size for name in SAMPLE_TABLES] == [4, 4, 10]
        assert [info[name].max_times_sampled for name in SAMPLE_TABLES] == [0, 0, 5]
        assert info["fifo"].sampler_options.fifo
        assert info["empty"].sampler_options.WhichOneof("distribution") == "heap"
        assert not info["empty"].sampler_options.heap.min_heap
        assert info["empty"].remover_options.lifo
        assert info["prio"].sampler_options.prioritized.priority_exponent == 0.8
        limiter = info["prio"].rate_limiter_info
        assert (limiter.samples_per_insert, limiter.min_size_to_sample) == (2, 2)
        assert (limiter.min_diff, limiter.max_diff) == (-16, 24)
        assert (info["empty"].rate_limiter_info.max_diff, info["fifo"].signature) == (4, None)
        specs = {
            name: (spec.dtype, list(spec.shape)) for name, spec in info["prio"].signature.items()
        }
        assert specs == {"a": (np.int32, [None]), "o": (np.float32, [None, 2])}

    def test_counters(self, client, counters):
        assert counters(client, "fifo")[:3] == (5, 2, 1)
        assert counters(client, "empty") == (0, 0, 0, 0, 0)
        assert counters(client, "prio")[:3] == (5, 4, 3)
        sizes = [client.server_info()[name].current_size for name in SAMPLE_TABLES]
        assert sizes == [4, 0, 4]

    def test_items(self, client, sample):
        stored = on_disk.read(sample)
        for name in SAMPLE_TABLES:
            scanned = list(client.scan(name))
            expected = stored.items_of(name)
            for one, item in zip(scanned, expected, strict=True):
                assert one.info.key == item.key
                assert one.info.priority == item.priority
                assert one.info.times_sampled == item.times_sampled
                for column, original in zip(one.data, stored.columns(item), strict=True):
                    assert (column.dtype, column.shape) == (original.dtype, original.shape)
                    assert column.tolist() == original.tolist()

    def test_samples_have_the_probability_of_their_priority(self, client):
        # Once: an item leaves when it was sampled five times.
        (sampled,) = client.sample("prio", 1, emit_timesteps=False)
        weights = {priority: priority**0.8 for priority in (1.5, 2.5, 4.5, 5.5)}
        expected = weights[sampled.info.priority] / sum(weights.values())
        assert sampled.info.probability == pytest.approx(expected, rel=1e-12)
        if sampled.info.key == 4274088968018832688:
            assert sampled.info.probability == pytest.approx(0.31111521713050566, rel=1e-12)

    def test_the_uncompressed_layout_holds_the_same(self, client, serve, sample, root, state):
        on_disk.write(root / "1", on_disk.read(sample), compressed=False)
        tables = [testing.table(name) for name in SAMPLE_TABLES]
        other = serve(root, *tables, restore_settings=True)
        for name in SAMPLE_TABLES:
            assert state(other, name) == state(client, name)


class TestTables:
    def test_empty_ones_are_fine(self, serve, root, values):
        on_disk.write(root / "1", on_disk.Stored([on_disk.table_record()]))
        assert (root / "1" / on_disk.ITEMS).stat().st_size == 8
        client = serve(root)
        assert values(client) == []
        client.insert([1], {"table": 1.0})
        assert values(client) == [1]

    def test_no_table_at_all_is_fine(self, serve, root, values):
        on_disk.write(root / "1", on_disk.Stored())
        assert values(serve(root)) == []

    def test_one_that_the_checkpoint_lacks_stays_as_it_was_made(self, serve, root, values):
        write_numbered(root, "1", 1)
        extra = testing.table("extra", max_size=77)
        client = serve(root, testing.table(), extra)
        assert (values(client), values(client, "extra")) == ([1], [])
        assert client.server_info()["extra"].max_size == 77

    def test_the_handle_of_a_table_shows_what_was_restored(self, serve, root):
        write_numbered(root, "1", 1, 2)
        table = testing.table()
        serve(root, table)
        assert table.info.current_size == 2

    def test_items_of_several_tables_may_be_mixed(self, serve, root, values):
        stored = on_disk.simple([1, 3, 5], "a")
        other = on_disk.simple([2, 4, 6], "b")
        mixed = [item for pair in zip(stored.items, other.items, strict=True) for item in pair]
        everything = on_disk.Stored(
            stored.tables + other.tables, mixed, stored.chunks + other.chunks
        )
        on_disk.write(root / "1", everything)
        client = serve(root, testing.table("a"), testing.table("b"))
        assert (values(client, "a"), values(client, "b")) == ([1, 3, 5], [2, 4, 6])

    def test_the_first_chunk_of_a_key_counts(self, serve, root, values):
        stored = on_disk.simple([1])
        (other,) = on_disk.simple([2]).chunks
        other.chunk_key = stored.chunks[0].chunk_key
        stored.chunks.append(other)
        on_disk.write(root / "1", stored)
        assert values(serve(root)) == [1]

    def test_chunks_that_nobody_refers_to_are_passed_over(self, serve, root, values):
        stored = on_disk.simple([1])
        stored.chunks += on_disk.simple([2, 3]).chunks
        on_disk.write(root / "1", stored)
        client = serve(root)
        assert values(client) == [1]
        client.checkpoint()
        assert len(on_disk.read(client.checkpoint()).chunks) == 1


class TestOrder:
    @pytest.mark.parametrize(
        ("selector", "order"),
        [
            ("Fifo", [3, 1, 2]),
            ("Lifo", [2, 1, 3]),
            ("MaxHeap", [3, 1, 2]),
            ("MinHeap", [3, 1, 2]),
        ],
    )
    def test_it_is_that_of_the_file_and_not_of_the_clock(self, serve, root, selector, order):
        stored = on_disk.simple([3, 1, 2])
        for item, seconds in zip(stored.items, [30, 20, 40], strict=True):
            item.inserted_at.seconds = seconds
        on_disk.write(root / "1", stored)
        table = testing.table(sampler=getattr(reverb.selectors, selector)(), max_times_sampled=1)
        client = serve(root, table)
        drained = [int(steps[0].data[0]) for steps in client.sample("table", 3)]
        assert drained == order

    def test_the_remover_takes_the_oldest_first(self, serve, root, values, insert):
        on_disk.write(root / "1", on_disk.simple([5, 3, 4]))
        client = serve(root, testing.table(max_size=3))
        insert(client, 9, 10)
        assert values(client) == [4, 9, 10]

    def test_new_items_come_after_those_of_the_future(self, serve, root, values, insert):
        stored = on_disk.simple([1, 2])
        stored.items[1].inserted_at.seconds = 10**10
        on_disk.write(root / "1", stored)
        client = serve(root)
        insert(client, 3)
        assert values(client) == [1, 2, 3]
        client.checkpoint()
        client.server.stop()
        assert values(serve(root)) == [1, 2, 3]


@pytest.mark.parametrize("writer", ["insert", "insert_batch", "legacy", "trajectory", "sequence"])
def test_a_table_full_by_bytes_keeps_its_items_after_a_load(serve, root, writer):
    """Many shapes take turns, so that what a chunk takes must not depend on those before it."""
    client = serve(root, testing.table(max_size=10**6, max_bytes=30_000))
    rng = np.random.default_rng(0)
    with contextlib.ExitStack() as stack:
        for width in [*range(1, 25), 126, 127, 128, 129, 1000, 1100] * 4:
            step = [rng.integers(0, 256, width, np.uint8), np.float32(width), np.ones(9, np.int64)]
            if writer == "insert":
                client.insert(step, {"table": 1.0})
            elif writer == "insert_batch":
                client.insert_batch([np.stack([leaf] * 9) for leaf in step], {"table": 1.0})
            elif writer == "legacy":
                with client.writer(2, chunk_length=2, delta_encoded=width % 2 == 0) as legacy:
                    for _ in range(4):
                        legacy.append(step)
                    legacy.create_item("table", 2, 1.0)
            elif writer == "trajectory":
                open_writer = stack.enter_context(client.trajectory_writer(3))
                for i in range(9):
                    open_writer.append(step[: 1 + (width + i) % 3], partial_step=False)
                    open_writer.create_item("table", 1.0, [open_writer.history[0][-1 - i % 3 :]])
            else:
                with client.sequence_writer("table", 3) as sequences:
                    for _ in range(9):
                        sequences.append(step)
    before = client.status().tables["table"]
    assert before.bytes > 25_000
    keys = [item.info.key for item in client.scan("table")]
    client.checkpoint()
    client.server.stop()
    again = serve(root, testing.table(max_size=10**6, max_bytes=30_000))
    after = again.status().tables["table"]
    assert (after.items, after.bytes) == (before.items, before.bytes)
    assert [item.info.key for item in again.scan("table")] == keys
