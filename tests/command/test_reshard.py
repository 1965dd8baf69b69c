# SPDX-License-Identifier: Apache-2.0
"""`reverb reshard`: the same items, in another number of shards."""

import contextlib

import numpy as np
import pytest

import reverb
from reverb import command, testing
from reverb.cluster import group_checkpoint
from reverb.cluster.directory import Directory
from reverb.cluster.shard_tables import serialize_tables, tables_as_values
from reverb.command import group_parts
from support.reverb_server import QUEUE

CONFIG = (
    """
tables: {
  table_name: "table"
  sampler: { uniform: true }
  remover: { fifo: true }
  max_size: 700
  rate_limiter: { min_size_to_sample: 1 samples_per_insert: 1 min_diff: -1e300 max_diff: 1e300 }
}
"""
    + QUEUE
)
SIGNATURE = {"number": np.zeros([1], np.int64), "data": np.zeros([1, 3], np.float32)}


def make_tables():
    return [
        testing.table(
            sampler=reverb.selectors.Prioritized(0.5),
            rate_limiter=reverb.rate_limiters.SampleToInsertRatio(4.0, 10, 400.0),
            signature=SIGNATURE,
        ),
        reverb.Table.queue("queue", 100),
    ]


def serve(stack, tables, **options):
    return stack.enter_context(reverb.Server(tables, **options)).localhost_client()


@pytest.fixture
def saved(root):
    """A checkpoint of a group of three shards with 60 items, some of which were sampled."""
    directory = Directory("replay")
    directory.lay_out(range(3))
    directory.set_tables(0, serialize_tables(make_tables()))
    with contextlib.ExitStack() as stack:
        shards = {}
        for index in range(3):
            path = str(group_checkpoint.shard_directory(root, index))
            checkpointer = reverb.checkpointers.DefaultCheckpointer(path, name=f"r.{index}")
            shards[index] = serve(stack, make_tables(), checkpointer=checkpointer)
            for number in range(20):
                row = {"number": np.full([1], number), "data": np.full([1, 3], index, np.float32)}
                with shards[index].trajectory_writer(1) as writer:
                    writer.append({"number": row["number"][0], "data": row["data"][0]})
                    last = {name: writer.history[name][-1:] for name in row}
                    writer.create_item("table", 1.0 + number, last)
            shards[index].insert(np.int64(index), {"queue": 1.0})
            shards[index].sample_batch("table", 16)
        yield group_checkpoint.save(
            root,
            "replay",
            shards,
            epoch=7,
            slots=directory.slots(),
            tables=tables_as_values(directory.to_proto()),
        )


def totals(checkpoint):
    parts = {i: reverb.checkpointers.read(checkpoint.path_of(i)) for i in checkpoint.parts}
    return group_parts.totals_of(parts)


def items(checkpoint):
    """All that an item has, by table and key; and in which shard it is."""
    found, place = {}, {}
    for index in checkpoint.parts:
        stored = reverb.checkpointers.read(checkpoint.path_of(index))
        for table in stored.tables:
            for inserted_at, sample in stored.scan(table, with_inserted_at=True):
                key = (table, int(sample.info.key))
                assert key not in found
                data = [np.asarray(column).tolist() for column in sample.data]
                info = sample.info
                found[key] = (inserted_at, info.priority, int(info.times_sampled), data)
                place[key] = index
    return found, place


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_all_items_are_there_with_all_that_they_have(saved, tmp_path, capsys, count):
    out = tmp_path / "out"
    arguments = ["reshard", "--shards", str(count), str(saved.path), str(out), "--no-progress"]
    assert command.main(arguments) == 0
    made = group_checkpoint.latest(out, "replay")
    shards = "shard" if count == 1 else "shards"
    assert capsys.readouterr().out == (
        f"63 items of 3 shards in {made.path}, for {count} {shards}\n"
    )
    assert sorted(made.parts) == list(range(count))
    assert (made.epoch, made.tables) == (8, saved.tables)
    before, _ = items(saved)
    after, place = items(made)
    assert len(before) == 63
    assert after == before
    assert totals(made) == totals(saved) == {"table": (60, 48), "queue": (3, 0)}
    owner = {
        slot: entry["owner"]
        for entry in made.slots
        for slot in range(entry["first"], entry["first"] + entry["count"])
    }
    assert all(owner[key >> 52] == index for (_, key), index in place.items())
    # The checkpoint that was read is as it was.
    saved.check()


def test_settings_are_those_of_a_shard_of_the_group(saved, tmp_path):
    out = tmp_path / "out"
    assert command.main(["reshard", "--shards", "2", str(saved.path), str(out)]) == 0
    made = group_checkpoint.latest(out)
    table = reverb.checkpointers.read(made.path_of(0)).tables["table"]
    assert table.max_size == 500
    assert table.sampler_options.prioritized.priority_exponent == 0.5
    assert table.rate_limiter_info.samples_per_insert == 4.0


def test_a_config_gives_other_settings(saved, tmp_path):
    config, out = tmp_path / "tables.textproto", tmp_path / "out"
    config.write_text(CONFIG)
    arguments = ["--shards", "2", "--config-file", str(config), str(saved.path), str(out)]
    assert command.main(["reshard", *arguments]) == 0
    made = group_checkpoint.latest(out)
    assert [it["maxSize"] for it in made.tables] == ["700", "100"]
    # The signature is no part of a config, and stays.
    assert made.tables[0]["signature"] == saved.tables[0]["signature"]
    assert reverb.checkpointers.read(made.path_of(1)).tables["table"].max_size == 350


def test_a_directory_with_a_checkpoint_is_refused(saved, root, capsys):
    assert command.main(["reshard", "--shards", "2", str(saved.path), str(root)]) == 1
    assert "has a checkpoint of a group already: name a directory" in capsys.readouterr().err


def test_no_checkpoint_of_a_group_is_refused(tmp_path, capsys):
    path = tmp_path / "group-2026-11-22T03:57:00.123456789Z"
    path.mkdir()
    assert command.main(["reshard", "--shards", "2", str(path), str(tmp_path / "out")]) == 1
    assert "has no file GROUP: it is no complete checkpoint of a group" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "message"),
    [("0", "must be at least 1, got 0"), ("two", "invalid size value: 'two'")],
    ids=["below one", "no number"],
)
def test_no_number_of_shards_is_refused(number, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.main(["reshard", "--shards", number, str(tmp_path), str(tmp_path)])
    assert message in capsys.readouterr().err


def test_too_many_shards_are_refused(saved, tmp_path, capsys):
    arguments = ["reshard", "--shards", "5000", str(saved.path), str(tmp_path / "out")]
    assert command.main(arguments) == 1
    assert "from 1 to 4096 shards, got 5000" in capsys.readouterr().err
