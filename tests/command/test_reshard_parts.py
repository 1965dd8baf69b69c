# SPDX-License-Identifier: Apache-2.0
"""`reverb reshard` of a group that nobody saves together: its shards save by themselves."""

import contextlib
import pathlib
import re
import shutil

import numpy as np
import pytest

import reverb
from reverb import command, testing
from reverb.cluster import Shard, group_checkpoint
from reverb.core import protos
from support.reverb_server import QUEUE
from support.wire.messages import chunk, insert, item
from support.wire.wire_client import WireClient

CONFIG = (
    """
tables: {
  table_name: "table"
  sampler: { prioritized: { priority_exponent: 0.5 } }
  remover: { fifo: true }
  max_size: %d
  rate_limiter: { min_size_to_sample: 1 samples_per_insert: 1 min_diff: -1e300 max_diff: 1e300 }
}
"""
    + QUEUE
)


def make_tables(max_size=1000, exponent=0.5, when_full="remove"):
    return [
        testing.table(
            sampler=reverb.selectors.Prioritized(exponent), max_size=max_size, when_full=when_full
        ),
        reverb.Table.queue("queue", 100),
    ]


@contextlib.contextmanager
def running(root, num_shards, group="replay", tables=make_tables, names=None, wanted=None):
    """A group whose shards save below `root`: its client, and the servers."""
    with contextlib.ExitStack() as stack:
        servers = []
        for index in range(num_shards) if wanted is None else wanted:
            checkpointer = reverb.checkpointers.DefaultCheckpointer(
                str(root / f"shard-{index}"), name=names and names[index]
            )
            shard = Shard(index, num_shards, group)
            server = reverb.Server(tables(), checkpointer=checkpointer, shard=shard)
            servers.append(stack.enter_context(server))
        places = ",".join(f"localhost:{server.port}" for server in servers)
        yield reverb.Client(f"shards:///{places}"), servers


def fill(client, num_items, table="table"):
    for number in range(num_items):
        client.insert([np.int64(number), np.ones(3, np.float32)], {table: 1.0 + number})


@pytest.fixture
def root(tmp_path):
    """Three shards with 60 items, some of which were sampled; each has saved."""
    root = tmp_path / "old"
    with running(root, 3) as (client, _):
        fill(client, 60)
        fill(client, 5, "queue")
        client.sample_batch("table", 64)
        client.checkpoint()
    return root


def part(path):
    return reverb.checkpointers.read(path)


def items(root, num_shards):
    """All that an item has, by table and key; and in which shard it is."""
    found, place = {}, {}
    for index in range(num_shards):
        stored = part(root / f"shard-{index}")
        for table in stored.tables:
            for inserted_at, sample in stored.scan(table, with_inserted_at=True):
                key = (table, int(sample.info.key))
                assert key not in found
                data = [np.asarray(column).tolist() for column in sample.data]
                found[key] = (
                    inserted_at,
                    sample.info.priority,
                    int(sample.info.times_sampled),
                    data,
                )
                place[key] = index
    return found, place


def reshard(*arguments):
    return command.main(["reshard", "--no-progress", *map(str, arguments)])


def numbers(root, num_shards, table):
    infos = [part(root / f"shard-{index}").tables[table] for index in range(num_shards)]
    return [(info.max_size, info.rate_limiter_info.max_diff) for info in infos]


def test_a_group_goes_from_three_to_one_to_six_shards(root, tmp_path, capsys):
    before, _ = items(root, 3)
    assert len(before) == 65
    for old, new in ((3, 1), (1, 6), (6, 6), (6, 4)):
        out = tmp_path / f"new-{old}-{new}"
        assert reshard("--shards", new, root, out) == 0
        shards = ["shard" if count == 1 else "shards" for count in (old, new)]
        shown = capsys.readouterr()
        assert shown.out == f"65 items of {old} {shards[0]} in {out}, for {new} {shards[1]}\n"
        assert sorted(path.name for path in out.iterdir()) == [f"shard-{i}" for i in range(new)]
        after, place = items(out, new)
        assert after == before
        for index in range(new):
            assert part(out / f"shard-{index}").place == ("replay", index, new)
        # The owner of a slot is the one that servers with these numbers make of themselves.
        servers_map = protos.ShardMap.FromString(Shard(0, new).place(make_tables()).map)
        owners = [it.owner for it in servers_map.slots for _ in range(it.count)]
        assert all(owners[key >> 52] == index for (_, key), index in place.items())
        root = out
    with running(root, 4) as (client, _):
        assert client.server_info()["table"].current_size == 60
        keys = np.array([key for table, key in before if table == "table"], np.uint64)
        client.update_priorities("table", keys, np.full(60, 9.0))
        assert client.updates_missed == 0
        drawn = client.sample_batch("queue", 5).data[0]
        assert sorted(np.asarray(drawn).ravel().tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_directories_may_be_named_one_by_one(root, tmp_path, capsys, order):
    # The checkpoints say which shard they are of; names and order do not.
    paths = [shutil.copytree(root / f"shard-{i}", tmp_path / f"copy {i}") for i in order]
    assert reshard("--shards", 2, *paths, tmp_path / "new") == 0
    assert items(tmp_path / "new", 2)[0] == items(root, 3)[0]
    shown = capsys.readouterr().err
    assert re.search(r"reverb: warning: the shards saved at moments that are [\d.]+ s apart", shown)


def test_the_latest_complete_checkpoint_of_each_is_taken(root, tmp_path):
    with running(root, 3) as (client, _):
        client.reset("table")
        fill(client, 4)
        client.checkpoint()
    (root / "shard-1" / "2999-01-01T00:00:00.5+00:00").mkdir()
    assert reshard("--shards", 2, root, tmp_path / "new") == 0
    assert len(items(tmp_path / "new", 2)[0]) == 9


def test_numbers_are_added_up_from_the_parts(root, tmp_path):
    out = tmp_path / "new"
    assert [size for size, _ in numbers(root, 3, "table")] == [334, 334, 334]
    assert reshard("--shards", 2, root, out) == 0
    assert [size for size, _ in numbers(out, 2, "table")] == [501, 501]
    # A queue has its room in every shard, and the bounds of its parts add up.
    assert sorted(numbers(root, 3, "queue")) == [(100, 33), (100, 33), (100, 34)]
    assert numbers(out, 2, "queue") == [(100, 50), (100, 50)]


def test_the_limiters_allow_as_many_samples_as_before(tmp_path):
    def tables():
        limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 6, 60.0)
        return [
            reverb.Table("table", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 300, limiter)
        ]

    def allowed(servers):
        status = [server.status().tables["table"] for server in servers]
        return sum(it.cursor - it.limiter.min_diff for it in status)

    root, out = tmp_path / "old", tmp_path / "new"
    with running(root, 3, tables=tables) as (client, servers):
        fill(client, 30)
        client.sample_batch("table", 40)
        before = allowed(servers)
        # The lower bound of the group is 2 * 6 - 60.
        assert before == 2 * 30 - 40 + 48
        client.checkpoint()
    assert reshard("--shards", 2, root, out) == 0
    with running(out, 2, tables=tables) as (client, servers):
        assert allowed(servers) == before
        assert client.server_info()["table"].current_size == 30


@pytest.mark.parametrize("num_shards", [1, 2, 4])
def test_the_totals_go_on(tmp_path, num_shards):
    def totals(client):
        tables = client.status().tables
        return {name: (it.items, it.inserts, it.samples) for name, it in tables.items()}

    root, out = tmp_path / "old", tmp_path / "new"
    with running(root, 3) as (client, _):
        fill(client, 30)
        client.reset("table")
        fill(client, 30)
        fill(client, 5, "queue")
        client.sample_batch("table", 64)
        client.sample_batch("queue", 2)
        client.delete_items("table", where=reverb.Where(priority=(None, 10)))
        before = totals(client)
        assert before == {"table": (20, 60, 64), "queue": (3, 5, 2)}
        client.checkpoint()
    assert reshard("--shards", num_shards, root, out) == 0
    with running(out, num_shards) as (client, _):
        assert totals(client) == before
        fill(client, 6)
        client.sample_batch("table", 8)
        assert totals(client)["table"] == (26, 66, 72)
        client.checkpoint()
    # From there on they are those of any checkpoint.
    with running(out, num_shards) as (client, _):
        assert totals(client)["table"] == (26, 66, 72)


def test_numbers_are_those_of_the_config_if_there_is_one(root, tmp_path):
    config = tmp_path / "tables.textproto"
    config.write_text(CONFIG % 900)
    out = tmp_path / "new"
    assert reshard("--shards", 2, "--config-file", config, root, out) == 0
    assert [size for size, _ in numbers(out, 2, "table")] == [450, 450]


def test_a_bad_config_is_shown_with_its_lines(root, tmp_path, capsys):
    config = tmp_path / "tables.textproto"
    config.write_text(CONFIG % 0)
    assert reshard("--shards", 2, "--config-file", config, root, tmp_path / "new") == 2
    assert "line 6: tables[0].max_size must be from 1" in capsys.readouterr().err
    config.write_text((CONFIG % 9).replace('"queue"', '"other"'))
    assert reshard("--shards", 2, "--config-file", config, root, tmp_path / "new") == 2
    assert "the config has no table queue, which the checkpoints have" in capsys.readouterr().err


def put(server, *keys_and_numbers):
    """Inserts items with these keys."""
    with WireClient(f"127.0.0.1:{server.port}") as wire:
        stream = wire.insert_stream()
        for key, number in keys_and_numbers:
            stream.send(insert([chunk(key, [number])], [item(key, "table", (key, 0, 1, 0))]))
        stream.half_close()
        confirmed = [key for answer in stream.receive_all() for key in answer.keys]
        assert confirmed == [key for key, _ in keys_and_numbers]


def test_a_full_group_is_warned_what_it_has_no_room_for(tmp_path, capsys):
    def tables():
        return make_tables(max_size=30)

    root, out = tmp_path / "old", tmp_path / "new"
    with running(root, 3, tables=tables) as (client, servers):
        # Two thirds of the items have slots of the first half.
        for server, slot in zip(servers, (0, 1400, 4000), strict=True):
            put(server, *[(slot << 52 | number, number) for number in range(10)])
        client.checkpoint()
    assert reshard("--shards", 2, root, out) == 0
    shown = capsys.readouterr().err
    assert "table table: the new servers drop 5 items when they load" in shown
    assert "With a max_size of 39 in their config (now 30) they keep all" in shown
    assert [part(out / f"shard-{i}").tables["table"].current_size for i in range(2)] == [20, 10]
    with running(out, 2, tables=tables) as (client, _):
        assert client.server_info()["table"].current_size == 25
    with running(out, 2, tables=lambda: make_tables(max_size=39)) as (client, _):
        assert client.server_info()["table"].current_size == 30


def test_a_full_group_whose_items_fit_hears_nothing(tmp_path, capsys):
    root, out = tmp_path / "old", tmp_path / "new"
    with running(root, 2, tables=lambda: make_tables(max_size=20)) as (client, servers):
        for server, slot in zip(servers, (0, 4000), strict=True):
            put(server, *[(slot << 52 | number, number) for number in range(10)])
        client.checkpoint()
    assert reshard("--shards", 2, root, out) == 0
    assert "drop" not in capsys.readouterr().err


def test_bytes_beyond_the_room_of_the_new_servers_are_reported(root, tmp_path, capsys):
    config, out = tmp_path / "tables.textproto", tmp_path / "new"
    config.write_text((CONFIG % 900).replace("max_size: 900", "max_size: 900 max_bytes: 4000"))
    assert reshard("--shards", 2, "--config-file", config, root, out) == 0
    shown = capsys.readouterr().err
    for index in range(2):
        assert re.search(
            rf"table table of shard {index} takes [\d.]+ KiB, and its part of max_bytes is "
            r"[\d.]+ KiB: the new server drops what is too much when it loads",
            shown,
        ), shown
    assert len(items(out, 2)[0]) == 65


def test_of_an_item_in_two_parts_the_newer_one_stays(tmp_path, capsys):
    root, out = tmp_path / "old", tmp_path / "new"
    with running(root, 2) as (client, servers):
        # The key 5 comes to shard 0 first, the key 6 to shard 1; then both to the other one.
        for number, (shard, key) in enumerate([(0, 5), (1, 6), (0, 6), (1, 5), (1, 7)]):
            put(servers[shard], (key, number))
        client.checkpoint()
    assert reshard("--shards", 3, root, out) == 0
    assert "3 items of 2 shards" in capsys.readouterr().out
    found, _ = items(out, 3)
    assert {key: row[3] for (_, key), row in found.items()} == {5: [[3]], 6: [[2]], 7: [[4]]}


class TestRefusals:
    """Checkpoints that are not all the parts of one group are refused, with the exit code 2."""

    @pytest.fixture
    def refused(self, tmp_path, capsys):
        def refused(*paths):
            assert reshard("--shards", 2, *paths, tmp_path / "new") == 2
            assert not (tmp_path / "new").exists()
            return capsys.readouterr().err

        return refused

    @pytest.mark.parametrize("missing", [0, 1, 2])
    def test_a_missing_shard(self, root, refused, missing):
        shutil.rmtree(root / f"shard-{missing}")
        shown = refused(root)
        assert f"has 3 shards, and there is no checkpoint of shard {missing}" in shown
        assert shown == refused(*sorted(root.iterdir()))

    def test_a_missing_shard_of_an_earlier_release(self, root, refused, without_place):
        without_place(root)
        shutil.rmtree(root / "shard-1")
        assert "there is no checkpoint of shard 1" in refused(root)

    def test_a_shard_without_a_checkpoint(self, root, refused):
        shutil.rmtree(root / "shard-1")
        (root / "shard-1").mkdir()
        assert "shard 1 is missing: There is no complete checkpoint at" in refused(root)

    def test_a_shard_twice(self, root, refused):
        shown = refused(root / "shard-0", root / "shard-1", root / "shard-1")
        assert "shard 1 is given twice" in shown

    def test_two_groups(self, root, refused, tmp_path):
        with running(tmp_path / "other", 3, "other") as (client, _):
            fill(client, 10)
            client.checkpoint()
        shown = refused(root / "shard-0", tmp_path / "other" / "shard-1", root / "shard-2")
        assert "different groups" in shown
        assert "is of the group 'replay'" in shown
        assert "is of the group 'other'" in shown

    def test_groups_of_other_sizes(self, root, refused, tmp_path):
        with running(tmp_path / "other", 2) as (client, _):
            client.checkpoint()
        shown = refused(tmp_path / "other" / "shard-0", root / "shard-1", root / "shard-2")
        assert "is of a group of 2" in shown

    @pytest.mark.parametrize(
        ("option", "field"), [({"exponent": 0.7}, "sampler"), ({"when_full": "wait"}, "when_full")]
    )
    def test_two_groups_of_an_earlier_release(
        self, root, refused, tmp_path, without_place, option, field
    ):
        other = tmp_path / "other"
        with running(other, 3, tables=lambda: make_tables(**option)) as (client, _):
            client.checkpoint()
        without_place(root)
        without_place(other)
        shown = refused(root / "shard-0", other / "shard-1", root / "shard-2")
        assert f"not of one group: table table has another {field} in shard 1" in shown

    def test_a_directory_that_has_both_kinds(self, root, refused):
        with running(root, 3) as (_, servers):
            shards = {i: server.localhost_client() for i, server in enumerate(servers)}
            group_checkpoint.save(root, "replay", shards, epoch=1, slots=[])
        assert "beside those that its shards saved by themselves" in refused(root)

    @pytest.fixture
    def without_place(self):
        """Makes checkpoints like those of releases that did not write which shard they are of."""

        def without_place(root):
            for done in root.glob("shard-*/*/DONE"):
                # Then no checksum says what the file should be, as in dm-reverb's.
                done.write_bytes(b"")
            assert part(root / "shard-0").place is None

        return without_place


def test_a_directory_with_shards_is_not_written_into(root, capsys):
    assert reshard("--shards", 2, root, root) == 1
    assert "exists: name a directory without shards" in capsys.readouterr().err
    assert len(items(root, 3)[0]) == 65


def test_what_fails_leaves_nothing_behind(root, tmp_path, capsys):
    chunks = next((root / "shard-2").glob("*/chunks.tfrecord"))
    content = bytearray(chunks.read_bytes())
    content[len(content) // 2] ^= 255
    chunks.write_bytes(content)
    assert reshard("--shards", 2, root, tmp_path / "new") == 1
    assert str(chunks) in capsys.readouterr().err
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["replay-0", "replay-1"], ["replay-0", "replay-1", "replay-2"]), (["b", "a"], [None] * 3)],
)
def test_servers_find_their_checkpoints_by_name(tmp_path, capsys, names, expected):
    with running(tmp_path / "old", 2, names=names) as (client, _):
        client.checkpoint()
    out = tmp_path / "new"
    assert reshard("--shards", 3, tmp_path / "old", out) == 0
    assert [part(out / f"shard-{i}").server_name for i in range(3)] == expected
    assert ("the new checkpoints have no names" in capsys.readouterr().err) == (None in expected)


def test_shards_may_have_saved_to_one_directory(tmp_path, capsys):
    path, out = tmp_path / "all", tmp_path / "new"
    with contextlib.ExitStack() as stack:
        servers = []
        for index in range(2):
            checkpointer = reverb.checkpointers.DefaultCheckpointer(
                str(path), name=f"replay-{index}", keep_latest=5
            )
            server = reverb.Server(make_tables(), checkpointer=checkpointer, shard=Shard(index, 2))
            servers.append(stack.enter_context(server))
        places = ",".join(f"localhost:{server.port}" for server in servers)
        client = reverb.Client(f"shards:///{places}")
        for _ in range(2):
            fill(client, 10)
            client.checkpoint()
    assert reshard("--shards", 3, path, out) == 0
    assert capsys.readouterr().out == f"20 items of 2 shards in {out}, for 3 shards\n"
    assert [part(out / f"shard-{i}").server_name for i in range(3)] == [
        "replay-0",
        "replay-1",
        "replay-2",
    ]


def test_one_server_becomes_a_group(tmp_path, capsys):
    path = tmp_path / "one"
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(path))
    with reverb.Server(make_tables(), checkpointer=checkpointer) as server:
        client = server.localhost_client()
        fill(client, 30)
        client.checkpoint()
    assert reshard("--shards", 3, path, tmp_path / "new") == 0
    assert len(items(tmp_path / "new", 3)[0]) == 30
    assert "warning" not in capsys.readouterr().err
    assert pathlib.Path(part(path).path).exists()
