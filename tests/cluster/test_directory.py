# SPDX-License-Identifier: Apache-2.0
"""The map of a group: every slot has one owner, through all changes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reverb
from reverb import testing
from reverb.cluster.directory import NUM_SLOTS, Directory
from reverb.cluster.shard_tables import serialize_tables, tables_as_values, tables_in_map
from reverb.core import protos
from reverb.errors import FailedPreconditionError, InvalidArgumentError


@pytest.fixture
def directory():
    directory = Directory("replay", "/mnt/replay")
    directory.lay_out(range(4))
    for index in range(4):
        directory.register(index, f"10.0.0.{index}:8000", server_id=100 + index)
    return directory


def owners(directory):
    """The owner of each slot, from the message; fails if a slot has none or two."""
    found = [None] * NUM_SLOTS
    for entry in directory.to_proto().slots:
        for slot in range(entry.first, entry.first + entry.count):
            assert found[slot] is None
            found[slot] = entry.owner
    assert None not in found
    return found


def test_the_first_map_has_equal_ranges_in_order(directory):
    assert owners(directory) == [slot * 4 // NUM_SLOTS for slot in range(NUM_SLOTS)]
    assert len(directory.to_proto().slots) == 4


def test_the_message_has_all_that_clients_need(directory):
    proto = directory.to_proto()
    assert (proto.epoch, proto.group) == (directory.epoch, "replay")
    assert [shard.address for shard in proto.shards] == [f"10.0.0.{i}:8000" for i in range(4)]
    assert proto.checkpoint_directory == "/mnt/replay"


def test_a_registration_changes_the_map_only_if_it_is_news(directory):
    epoch = directory.epoch
    assert not directory.register(1, "10.0.0.1:8000", server_id=101)
    assert directory.epoch == epoch
    assert directory.register(1, "10.0.0.9:8000", server_id=102)
    assert directory.epoch == epoch + 1
    assert directory.shard(1).server_id == 102


def test_a_new_shard_takes_an_equal_part_of_the_slots(directory):
    before = owners(directory)
    assert directory.add(address="10.0.0.4:8000", server_id=104) == 4
    after = owners(directory)
    assert sorted(after.count(index) for index in range(5)) == [819, 819, 819, 819, 820]
    assert after.count(4) == 819
    formers = {
        slot: list(entry.former_owners)
        for entry in directory.to_proto().slots
        for slot in range(entry.first, entry.first + entry.count)
    }
    for slot in range(NUM_SLOTS):
        assert formers[slot] == ([before[slot]] if after[slot] == 4 else [])


def test_a_drained_shard_gives_its_slots_to_the_others(directory):
    directory.begin_drain(3)
    assert directory.to_proto().shards[3].is_draining
    assert directory.num_slots(3) == 1024
    heirs, slots = directory.heirs(3), directory.slots_without(3)
    directory.remove(3)
    after = owners(directory)
    assert sorted(after.count(index) for index in range(3)) == [1365, 1365, 1366]
    assert all(after[slot] == heir for heir, its in heirs.items() for slot in its)
    assert slots == {it: [slot for slot in range(NUM_SLOTS) if after[slot] == it] for it in slots}
    assert [shard.index for shard in directory.to_proto().shards] == [0, 1, 2]


def test_a_drain_that_fails_is_taken_back(directory):
    directory.begin_drain(3)
    directory.end_drain(3)
    assert not directory.to_proto().shards[3].is_draining


def test_a_reserved_number_is_added_when_the_shard_runs(directory):
    assert (directory.reserve(), directory.reserve()) == (4, 5)
    assert directory.add(5, "h:5") == 5
    assert directory.indices == [0, 1, 2, 3, 5]
    for index in (5, -1):
        with pytest.raises(InvalidArgumentError, match=f"that no shard has, .*, got {index};"):
            directory.add(index)
    # A directory that was started again does not know which numbers it had reserved.
    assert directory.add(9) == 9
    assert directory.reserve() == 10


def test_a_shard_that_returns_with_items_gets_its_old_slots(directory):
    slots = [slot for slot, owner in enumerate(owners(directory)) if owner == 3]
    directory.remove(3)
    directory.add(3, "h:3", former_slots=slots)
    knows = {
        slot: {entry.owner, *entry.former_owners}
        for entry in directory.to_proto().slots
        for slot in range(entry.first, entry.first + entry.count)
    }
    assert all(3 in knows[slot] for slot in slots)


def test_the_last_shard_cannot_leave(directory):
    for index in (0, 1, 2):
        directory.begin_drain(index)
    with pytest.raises(FailedPreconditionError) as caught:
        directory.begin_drain(3)
    assert str(caught.value) == (
        "shard 3 cannot leave group 'replay', because no other shard is left to take its slots; "
        "add one first"
    )


def test_unknown_shards_are_named(directory):
    for call in (directory.begin_drain, directory.remove, directory.shard):
        with pytest.raises(InvalidArgumentError, match=r"no shard 9; it has \[0, 1, 2, 3\]"):
            call(9)


def test_a_directory_learns_the_map_again_from_a_shard(directory):
    directory.add(address="10.0.0.4:8000", server_id=104)
    directory.begin_drain(2)
    other = Directory("replay", "/mnt/replay")
    assert other.learn(directory.to_proto())
    assert other.to_proto() == directory.to_proto()
    assert not other.learn(directory.to_proto())
    assert other.add() == 5


def test_maps_of_other_groups_are_refused(directory):
    with pytest.raises(FailedPreconditionError, match="is of the group 'replay', not of 'other'"):
        Directory("other").learn(directory.to_proto())


def test_slots_of_a_checkpoint_are_checked(directory):
    slots = directory.slots()
    directory.set_slots(slots)
    for broken, text in [
        (slots[:-1], "slot 3072 has no owner"),
        ([*slots, slots[0]], "slot 0 has two owners"),
        ([{**slots[0], "owner": 9}, *slots[1:]], "slots from 0 to 1023 of shard 9 do not fit"),
        ([{**slots[0], "count": 9999}], "do not fit into a group of the shards"),
    ]:
        with pytest.raises(InvalidArgumentError, match=text):
            directory.set_slots(broken)
    assert owners(directory) == [slot * 4 // NUM_SLOTS for slot in range(NUM_SLOTS)]


def infos(*tables):
    return serialize_tables(tables)


def prioritized(name="table", exponent=0.6, **options):
    options = {"sampler": reverb.selectors.Prioritized(exponent), "max_size": 100} | options
    return testing.table(name, **options)


def test_tables_are_those_of_the_program_without_counters(directory):
    table = prioritized(signature={"x": np.zeros([3], np.float32)})
    directory.set_tables(0, infos(table))
    (proto,) = directory.to_proto().tables
    assert (proto.name, proto.max_size) == ("table", 100)
    assert proto.HasField("signature")
    assert tables_as_values(directory.to_proto())[0]["maxSize"] == "100"
    directory.set_tables(1, infos(prioritized(signature={"x": np.zeros([3], np.float32)})))


def test_every_shard_may_hold_its_part_of_a_table(directory):
    directory.set_tables(0, infos(prioritized(max_size=10), reverb.Table.queue("queue", 10)))
    parts = tables_in_map(directory.to_proto(), 3).parts()
    # A queue is bounded by its limiter, and that is shared by a coordinator.
    assert {name: part.others.max_size for name, part in parts.items()} == {"table": 3, "queue": 10}
    assert parts["queue"].limits == (1.0, 1, 0.0, 10.0)


def part_of_table(directory):
    return tables_in_map(directory.to_proto(), 0).parts()["table"]


def test_shards_that_leave_keep_their_parts_of_tables(directory):
    directory.set_tables(0, infos(prioritized(max_size=100, max_bytes=1200)))
    directory.begin_drain(1)
    shares = {index: tables_in_map(directory.to_proto(), index) for index in range(5)}
    assert shares.pop(1) is shares.pop(4) is None
    assert [(it.index, it.num_shards) for it in shares.values()] == [(0, 3), (1, 3), (2, 3)]
    parts = [it.parts()["table"].others for it in shares.values()]
    assert [(it.max_size, it.max_bytes) for it in parts] == [(34, 400)] * 3
    # They stay as they are until the tables or the number of shards change.
    directory.register(3, "10.0.0.9:8000", server_id=7)
    assert tables_in_map(directory.to_proto(), 0) == shares[0]
    directory.remove(1)
    assert tables_in_map(directory.to_proto(), 0) == shares[0]
    directory.add()
    assert tables_in_map(directory.to_proto(), 4).parts()["table"].others.max_size == 25


def test_a_map_of_a_client_gets_a_successor_in_any_case(directory):
    directory.set_tables(0, infos(prioritized()))
    proto = directory.to_proto()
    proto.epoch += 1
    later = directory.to_proto()
    later.epoch += 3
    assert directory.learn_tables(proto)
    assert directory.epoch == proto.epoch + 1
    assert directory.learn_tables(later)
    assert directory.epoch == later.epoch + 1
    # A shard that is late tells of a change that another one has undone.
    proto.tables[0].max_size = 50
    assert not directory.learn_tables(proto)
    assert directory.to_proto().tables[0].max_size == 100


def test_a_change_by_a_client_makes_no_tables_differ(directory):
    directory.set_tables(0, infos(prioritized()))
    proto = directory.to_proto()
    assert not directory.learn_tables(proto)
    proto.tables[0].max_size = 50
    proto.tables[0].max_bytes = 1000
    proto.tables[0].max_times_sampled = 9
    proto.tables[0].sampler_options.prioritized.priority_exponent = 0.25
    limits = part_of_table(directory).limits
    proto.epoch += 1
    assert directory.learn_tables(proto)
    assert directory.epoch == proto.epoch + 1
    # Every shard tells of it.
    assert not directory.learn_tables(proto)
    # So a shard that starts again has what was set meanwhile.
    part = part_of_table(directory)
    assert part.change_from(limits) == reverb.TableChange(
        max_size=13, max_bytes=250, max_times_sampled=9, priority_exponent=0.25
    )
    assert part.change_from(()).rate_limiter is part.rate_limiter
    proto = directory.to_proto()
    proto.tables[0].sampler_options.extension.draw = 1
    proto.epoch += 1
    assert directory.learn_tables(proto)
    change = part_of_table(directory).others
    options = change.to_proto("table").sampler
    assert options.extension.draw == options.extension.STRATIFIED
    # A shard that starts again makes the tables of the program.
    directory.set_tables(1, infos(prioritized()))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (lambda: prioritized("other"), r"shard 2 has the tables \['other'\], and the other shards"),
        (lambda: prioritized(exponent=0.7), "shard 2, table table: sampler is .*0.7.*0.6"),
        (lambda: prioritized(max_size=7), "shard 2, table table: max_size is 7, and 100 in the"),
        (lambda: prioritized(max_bytes=70), "shard 2, table table: max_bytes is 70, and 0 in the"),
        (
            lambda: prioritized(remover=reverb.selectors.Lifo()),
            "shard 2, table table: remover is",
        ),
        (
            lambda: prioritized(rate_limiter=reverb.rate_limiters.MinSize(5)),
            "shard 2, table table: min_size_to_sample is 5, and 1 in the other shards",
        ),
        (
            lambda: prioritized(signature=np.zeros([3])),
            "shard 2, table table: signature is .*, and none in the other shards",
        ),
    ],
)
def test_tables_that_differ_name_shard_table_and_field(directory, other, text):
    directory.set_tables(0, infos(prioritized()))
    with pytest.raises(InvalidArgumentError, match=text):
        directory.set_tables(2, infos(other()))


def test_sizes_of_groups_are_checked():
    with pytest.raises(InvalidArgumentError, match="from 1 to 4096 shards, got 0"):
        Directory("g").lay_out([])
    with pytest.raises(InvalidArgumentError, match="from 1 to 4096 shards, got 4097"):
        Directory("g").lay_out(range(4097))


def test_a_map_of_a_thousand_shards_is_small():
    directory = Directory("g")
    directory.lay_out(range(1000))
    for index in range(1000):
        directory.register(index, f"10.0.{index // 250}.{index % 250}:50000", server_id=2**60)
    assert len(directory.to_proto().SerializeToString()) <= 64 * 1024


@settings(max_examples=40)
@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50)), max_size=12))
def test_any_changes_keep_one_owner_for_each_slot(count, steps):
    directory = Directory("g")
    directory.lay_out(range(count))
    epochs, given_out = [directory.epoch], set(range(count))
    for kind, choice in steps:
        index = directory.indices[choice % len(directory.indices)]
        try:
            if kind == 0:
                new = directory.add(address=f"h:{choice}")
                assert new not in given_out
                given_out.add(new)
            elif kind == 1:
                directory.begin_drain(index)
            elif kind == 2:
                directory.end_drain(index)
            elif kind == 3:
                directory.remove(index)
            else:
                directory.register(index, f"h:{choice}", server_id=choice)
        except FailedPreconditionError:
            assert len(directory.indices) >= 1
        epochs.append(directory.epoch)
        found = owners(directory)
        assert set(found) <= set(directory.indices)
        proto = directory.to_proto()
        for entry in proto.slots:
            assert set(entry.former_owners) <= set(directory.indices) - {entry.owner}
        again = Directory("g")
        again.learn(protos.ShardMap.FromString(proto.SerializeToString()))
        assert again.to_proto() == proto
    assert all(before <= after for before, after in itertools.pairwise(epochs))


@settings(max_examples=30)
@given(st.integers(1, 12), st.integers(0, 6), st.integers(0, 6))
def test_shards_own_equal_parts_after_adding_and_removing(count, added, removed):
    directory = Directory("g")
    directory.lay_out(range(count))
    for _ in range(added):
        directory.add()
    for _ in range(min(removed, len(directory.indices) - 1)):
        directory.remove(directory.indices[0])
    counts = [directory.num_slots(index) for index in directory.indices]
    assert sum(counts) == NUM_SLOTS
    assert max(counts) - min(counts) <= 1 + added


def test_tables_of_a_server_are_tables_of_a_directory(start):
    server = start(testing.table())
    directory = Directory("g")
    directory.lay_out([0])
    directory.set_tables(0, serialize_tables(server._tables))
    assert directory.to_proto().tables[0].name == "table"
