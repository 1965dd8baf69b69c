# SPDX-License-Identifier: Apache-2.0
"""The content of a saved checkpoint, read by this package and by the independent reader."""

import operator
import pathlib
import re
import time

import numpy as np
import pytest

import reverb
from conformance.peer_programs import scenarios
from reverb import testing
from reverb.core import protos
from reverb.errors import FailedPreconditionError, InvalidArgumentError
from reverb.specs import TensorSpec
from support.checkpoints import on_disk
from support.hosts import REMOTE
from support.wire.wire_client import WireClient

NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?[+-]\d\d:\d\d")


def plain(columns):
    """Columns as something that `==` knows."""
    return [(column.dtype, column.shape, column.tolist()) for column in columns]


def check(client, stored, tables=("table",)):
    """Compares what the independent reader sees with what the server holds."""
    for name in tables:
        info = client.server_info()[name]
        record = stored.table(name)
        assert record.sampler == format_of(info.sampler_options)
        assert record.remover == format_of(info.remover_options)
        assert (record.max_size, record.max_times_sampled) == (
            info.max_size,
            info.max_times_sampled,
        )
        assert record.num_deleted_episodes == info.num_deleted_episodes
        assert record.num_unique_samples == info.num_unique_samples
        limiter, shown = record.rate_limiter, info.rate_limiter_info
        for field in ("samples_per_insert", "min_diff", "max_diff", "min_size_to_sample"):
            assert getattr(limiter, field) == getattr(shown, field)
        assert limiter.insert_count == shown.insert_stats.completed
        assert limiter.sample_count == shown.sample_stats.completed
        assert limiter.insert_count - limiter.delete_count == info.current_size
        assert not record.deprecated_items
        scanned = list(client.scan(name))
        for sample, item in zip(scanned, stored.items_of(name), strict=True):
            assert sample.info.key == item.key
            assert sample.info.priority == item.priority
            assert sample.info.times_sampled == item.times_sampled
            assert plain(sample.data) == plain(stored.columns(item))


def format_of(options):
    """A message of this package as one of the module that old programs import."""
    return type(on_disk.options("fifo")).FromString(options.SerializeToString())


class TestContent:
    @pytest.mark.parametrize(
        "scenario",
        [
            "insert_every_dtype",
            "trajectory_every_dtype",
            "legacy_every_dtype",
            "legacy_delta",
            "trajectory_chunks",
            "trajectory_auto",
            "strided_in_one_chunk",
            "structured",
            "compressible",
            "many_items",
        ],
    )
    def test_what_writers_write(self, serve, root, scenario, state):
        client = serve(root, testing.table(max_size=10_000))
        scenarios.SCENARIOS[scenario].write(client)
        stored = on_disk.read(client.checkpoint(), verify=scenario != "compressible")
        expected = scenarios.SCENARIOS[scenario].items()
        assert [plain(stored.columns(item)) for item in stored.items] == list(map(plain, expected))
        before = state(client)
        client.server.stop()
        assert state(serve(root, testing.table(max_size=10_000))) == before

    def test_several_tables(self, serve, root, insert):
        tables = [
            testing.table("fifo", max_size=3),
            testing.table("heap", sampler=reverb.selectors.MaxHeap(), max_times_sampled=9),
            testing.table("empty", remover=reverb.selectors.Uniform()),
            testing.table(
                "prioritized",
                sampler=reverb.selectors.Prioritized(0.7),
                rate_limiter=reverb.rate_limiters.SampleToInsertRatio(2.0, 2, 20.0),
                signature={"b": TensorSpec([None], np.int64), "a": (TensorSpec([1]),)},
            ),
            reverb.Table.queue("queue", 10),
        ]
        client = serve(root, *tables)
        insert(client, *range(5), table="fifo")
        for value in range(4):
            client.insert([value], {"heap": value - 2.0, "queue": 1.0})
            data = {"b": value, "a": (np.float32(value),)}
            client.insert(data, {"prioritized": value + 0.5})
        list(client.sample("heap", 3))
        list(client.sample("prioritized", 2))
        stored = on_disk.read(client.checkpoint())
        names = [table.name for table in tables]
        assert sorted(table.table_name for table in stored.tables) == sorted(names)
        check(client, stored, names)
        assert [len(stored.items_of(name)) for name in names] == [3, 4, 0, 4, 4]
        fields = stored.table("prioritized").signature.dict_value.fields
        assert fields["b"].tensor_spec_value.dtype == 9
        assert not stored.table("fifo").HasField("signature")

    def test_items_stand_in_the_order_of_their_insertion(self, serve, root, insert):
        client = serve(root, testing.table(max_size=8))
        insert(client, *range(12))
        keys = [sample.info.key for sample in client.scan("table")]
        client.mutate_priorities("table", updates={keys[3]: 9.0}, deletes=keys[4:6])
        insert(client, 20, 21)
        stored = on_disk.read(client.checkpoint())
        values = [int(stored.columns(item)[0][0]) for item in stored.items]
        assert values == [4, 5, 6, 7, 10, 11, 20, 21]
        times = [(item.inserted_at.seconds, item.inserted_at.nanos) for item in stored.items]
        assert times == sorted(set(times))
        assert abs(times[-1][0] - time.time()) < 60
        assert all(0 <= nanos < 10**9 for _, nanos in times)

    def test_a_chunk_of_many_items_is_stored_once(self, serve, root):
        client = serve(root, testing.table("a"), testing.table("b"))
        with client.trajectory_writer(10) as writer:
            writer.configure((0,), num_keep_alive_refs=10, max_chunk_length=10)
            for step in range(10):
                writer.append([np.full(1000, step, np.float64)])
            for table in "ab":
                for start in range(10):
                    writer.create_item(table, 1.0, [writer.history[0][start:]])
        stored = on_disk.read(client.checkpoint())
        assert (len(stored.items), len(stored.chunks)) == (20, 1)
        check(client, stored, "ab")

    def test_a_squeezed_column_stays_one(self, serve, root):
        client = serve(root)
        with client.trajectory_writer(2) as writer:
            writer.append([np.arange(3)])
            writer.create_item("table", 1.0, [writer.history[0][-1], writer.history[0][-1:]])
        stored = on_disk.read(client.checkpoint())
        check(client, stored)
        (item,) = stored.items
        assert [column.squeeze for column in item.flat_trajectory.columns] == [True, False]
        client.server.stop()
        (sample,) = serve(root).scan("table")
        assert [column.shape for column in sample.data] == [(3,), (1, 3)]

    def test_fields_that_only_newer_programs_know_are_kept(self, serve, root):
        # The tensors of a chunk are not decoded, so nothing of them can be lost.
        stored = on_disk.simple([1])
        stored.chunks[0].data_uncompressed_size = 8
        tensor = stored.chunks[0].data.tensors[0]
        tensor.MergeFromString(b"\xf2\x3f\x03new")
        on_disk.write(root / "1", stored)
        saved = on_disk.read(serve(root).checkpoint())
        assert saved.chunks[0].data.tensors[0] == tensor
        assert saved.chunks[0].data_uncompressed_size == 8
        assert saved.chunks[0].sequence_range == stored.chunks[0].sequence_range

    def test_saving_what_was_loaded_changes_nothing(self, serve, root, sample):
        tables = [testing.table(name) for name in ("fifo", "empty", "prio")]
        client = serve(sample.parent, *tables, restore_settings=True, keep_latest=1)
        client.server.stop()
        stored = on_disk.read(sample)
        on_disk.write(root / "1", stored)
        tables = [testing.table(name) for name in ("fifo", "empty", "prio")]
        saved = on_disk.read(serve(root, *tables, restore_settings=True).checkpoint())
        for name in ("fifo", "empty", "prio"):
            assert saved.table(name) == stored.table(name)
            assert saved.items_of(name) == stored.items_of(name)
        by_key = operator.attrgetter("chunk_key")
        assert sorted(saved.chunks, key=by_key) == sorted(stored.chunks, key=by_key)


class TestLayout:
    def test_files_names_and_mark(self, serve, root, names, insert):
        client = serve(root)
        insert(client, 1)
        path = pathlib.Path(client.checkpoint())
        assert path.parent == root
        assert NAME.fullmatch(path.name)
        assert names(root) == [path.name]
        assert names(path) == sorted([*on_disk.FILES, on_disk.DONE])
        assert (path / on_disk.DONE).read_text().startswith("reverb-replay")
        for name in on_disk.FILES:
            assert (path / name).read_bytes()[:2] == b"\x78\x9c"

    def test_without_a_checkpointer_it_saves_to_a_new_directory(self, start):
        server = start()
        path = pathlib.Path(server.localhost_client().checkpoint())
        assert (path / on_disk.DONE).exists()
        # Only for its owner: it stands where everybody can look.
        assert path.parent.stat().st_mode & 0o077 == 0

    def test_calls_at_once_all_get_a_checkpoint(self, serve, root, insert, background):
        client = serve(root, keep_latest=100)
        insert(client, *range(5))
        calls = [background(client.checkpoint) for _ in range(8)]
        for path in {call.result() for call in calls}:
            assert len(on_disk.read(path).items) == 5


class TestErrors:
    def test_a_root_that_is_a_file(self, serve, root):
        root.write_text("mine")
        with pytest.raises(FailedPreconditionError) as caught:
            serve(root)
        assert str(root) in str(caught.value)
        assert root.read_text() == "mine"

    @pytest.mark.parametrize("keep_latest", [0, -1])
    def test_at_least_one_is_kept(self, root, keep_latest):
        with pytest.raises(InvalidArgumentError, match=f"keep_latest.*{keep_latest}"):
            reverb.checkpointers.DefaultCheckpointer(str(root), keep_latest=keep_latest)

    def test_the_error_comes_over_the_network_too(self, serve, root):
        client = serve(root, group="mine")
        remote = reverb.Client(f"{REMOTE}:{client.server.port}")
        with pytest.raises(InvalidArgumentError, match="mine"):
            remote.checkpoint()

    def test_the_answer_over_the_network_is_the_path(self, serve, root):
        client = serve(root)
        with WireClient(f"127.0.0.1:{client.server.port}") as wire:
            answer = wire.unary("Checkpoint", b"", protos.CheckpointResponse)
        assert (pathlib.Path(answer.checkpoint_path) / on_disk.DONE).exists()
