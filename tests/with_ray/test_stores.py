# SPDX-License-Identifier: Apache-2.0
"""Groups with stores: what a shard has when it is back, on its node and on another one.

The nodes are processes of this machine. Those of the fixture `nodes` have working directories of
their own, which their shards inherit: `DISK` is another directory on each of them.
"""

import os
import pathlib
import signal
import time

import numpy as np
import pytest
import ray

import reverb
from reverb import command
from reverb.adapters.ray.names import ask_directory
from reverb.cluster.directory import parse_map
from reverb.errors import FailedPreconditionError, InvalidArgumentError
from support.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.alone, pytest.mark.timeout(180)]

DISK = "/proc/self/cwd/stores"


class Nodes:
    """Nodes with disks of their own, and the resource `replay`. The same name is the same disk."""

    def __init__(self, cluster, directory):
        self._cluster, self._directory = cluster, directory
        self.made = {}

    def add(self, name):
        """Returns its id."""
        directory = self._directory / name
        directory.mkdir(exist_ok=True)
        before = pathlib.Path.cwd()
        os.chdir(directory)
        try:
            node = self._cluster.add_node(resources={"replay": 100})
        finally:
            os.chdir(before)
        self.made[node.node_id] = node
        return node.node_id

    def stores(self, name):
        return self._directory / name / "stores"

    def remove(self, node_id):
        self._cluster.remove_node(self.made.pop(node_id), is_told=True)
        wait_until(lambda: node_id not in {it["NodeID"] for it in ray.nodes() if it["Alive"]})


# Before `start_group` among the arguments of a test: groups end before their nodes.
@pytest.fixture
def nodes(cluster, tmp_path):
    nodes = Nodes(cluster, tmp_path)
    yield nodes
    for node_id in list(nodes.made):
        nodes.remove(node_id)


class Model:
    """Inserts numbered items into a shard until it is killed, and knows what was confirmed."""

    def __init__(self, group, index=0, first=0):
        self.group, self.index, self.first = group, index, first
        self.times = []
        self._client = reverb.Client(group.status().shards[index].address)

    def insert_for(self, seconds):
        """Inserts; afterwards nothing is on its way, and the store is not empty."""
        self.insert(1)
        self._client.sync()
        end = time.time() + seconds
        while time.time() < end:
            self.insert(1)
        return self

    def insert(self, count):
        for _ in range(count):
            number = self.first + len(self.times)
            row = {"number": np.array([number]), "noise": noise(number)[None]}
            began = time.time()
            self._client.insert_batch(row, {"table": number + 1.0})
            self.times.append((began, time.time()))
        return self

    def kill(self):
        """Kills the shard; returns when its last commit was made, and waits until it is back."""
        store, shard = self._client.status().store, self.group.status().shards[self.index]
        os.kill(shard.pid, signal.SIGKILL)
        wait_until_back(self.group, self.index, shard.num_starts)
        return store.synced_at

    def check(self, synced_at):
        """The shard has what was confirmed, without the last two seconds at most."""
        found = contents(self.group.status().shards[self.index].address)
        num_found = len(found)
        assert found == expected(range(num_found))
        lost = self.times[max(0, num_found - self.first) :]
        assert all(at > synced_at for _, at in lost)
        # While the oldest insert that is not on disk is older than 2 s, none is accepted.
        assert not lost or self.times[-1][0] - lost[0][1] <= 2.0
        assert num_found >= self.first
        return num_found


def noise(number):
    return np.random.default_rng(number).integers(0, 256, 2000, np.uint8)


def expected(numbers):
    return {number: (number + 1.0, noise(number).tobytes()) for number in numbers}


def contents(address):
    """Priority and bytes of each item, by its number."""
    found = {}
    for item in reverb.Client(address).scan("table"):
        data, (number,) = map(np.asarray, item.data)
        assert int(number) not in found, "twice"
        found[int(number)] = (item.info.priority, data.tobytes())
    return found


def wait_until_back(group, index, num_starts):
    wait_until_complete(group, lambda: group.status().shards[index].num_starts > num_starts)


def wait_until_complete(group, is_back):
    deadline = time.monotonic() + 2 * DEADLINE_S
    while not (is_back() and group.status().is_complete):
        assert time.monotonic() < deadline, str(group.status())
        time.sleep(0.05)


def test_a_killed_shard_is_back_with_its_store(start_group, tmp_path, other_tables):
    tables = other_tables(max_size=lambda: 10**6)
    group = start_group(tables, store_directory=tmp_path / "stores", store_max_bytes="1GiB")
    assert [it.restored_from for it in group.status().shards.values()] == [None] * 3
    others = {index: Model(group, index).insert(20) for index in (0, 2)}
    num_found = 0
    for _ in range(2):
        model = Model(group, 1, num_found).insert_for(1.5)
        num_found = model.check(model.kill())
        shard = group.status().shards[1]
        assert shard.restored_from == str(tmp_path / "stores" / "test-1")
    assert num_found > 0
    for index in others:
        assert contents(group.status().shards[index].address) == expected(range(20))


def test_a_shard_of_a_table_that_has_grown_is_back_with_all(start_group, tmp_path, other_tables):
    """It is filled with the size that the group has, not with that of the program."""
    tables = other_tables(max_size=lambda: 50)
    group = start_group(tables, num_shards=1, store_directory=tmp_path / "stores")
    client = reverb.Client(group.address)
    client.configure_table("table", max_size=500)

    def size_at_the_directory():
        _, shard_map = ask_directory("test", "last_known", 0, timeout_s=DEADLINE_S)
        return parse_map(shard_map).tables[0].max_size

    # A beat tells it.
    wait_until(lambda: size_at_the_directory() == 500)
    model = Model(group).insert(200)
    client.sync()
    assert model.check(model.kill()) == 200
    assert client.server_info()["table"].max_size == 500


def test_a_stop_loses_nothing_and_shards_go_to_their_stores(nodes, start_group, root):
    names = {nodes.add(name): name for name in "ab"}
    options = {"num_shards": 2, "placement": "with:replay", "store_directory": DISK}
    group = start_group(checkpoint_directory=root, **options)
    homes = {index: shard.node_id for index, shard in group.status().shards.items()}
    assert set(homes.values()) == names.keys()
    models = [Model(group, index).insert(50 + index) for index in homes]
    group.checkpoint()
    for model in models:
        model.insert(7)  # Stores are newer.
    group.stop()
    for index, node_id in homes.items():
        (store,) = nodes.stores(names[node_id]).iterdir()
        assert store.name == f"test-{index}"
    options["placement"] = list(homes.values())[::-1]
    group = start_group(checkpoint_directory=root, **options)
    for index, shard in group.status().shards.items():
        assert shard.node_id == homes[index]
        assert contents(shard.address) == expected(range(57 + index))


def test_on_another_node_it_has_its_checkpoint(nodes, start_group, make_tables, root):
    """When it is back on its first node, the store there is older than its checkpoint."""
    first = nodes.add("a")
    group = start_group(
        num_shards=1, placement="with:replay", store_directory=DISK, checkpoint_directory=root
    )
    Model(group).insert(100)
    group.checkpoint()
    Model(group, 0, 100).insert(30)  # Only the store has these.
    second = nodes.add("b")
    for count, (left, node_id) in enumerate([(first, second), (second, None)]):
        node_id = node_id or nodes.add("a")
        nodes.remove(left)
        wait_until_complete(group, lambda at=node_id: group.status().shards[0].node_id == at)
        shard = group.status().shards[0]
        assert shard.restored_from.startswith(str(root / "shard-0"))
        number = 100 + 7 * count
        assert contents(shard.address) == expected(range(number))
        if not count:
            Model(group, 0, number).insert(7)
            group.checkpoint()
            Model(group, 0, number + 7).insert(3)
    # Nothing was deleted, and from now on the store of this node is the newest.
    (aside,) = (nodes.stores("a") / "test-0").glob("stale-*")
    (table,) = make_tables()
    with reverb.Server([table], store=reverb.Store(aside)) as server:
        assert contents(f"localhost:{server.port}") == expected(range(130))
    model = Model(group, 0, 107).insert(200)
    model.check(model.kill())
    assert group.status().shards[0].restored_from == f"{DISK}/test-0"


def test_another_number_of_shards_goes_by_a_checkpoint(start_group, tmp_path, root):
    stores = tmp_path / "stores"
    group = start_group(num_shards=2, store_directory=stores, checkpoint_directory=root)
    for index in (0, 1):
        Model(group, index).insert(30)
    saved = group.checkpoint()
    group.stop()
    with pytest.raises(FailedPreconditionError, match="was saved by 2 shards, and num_shards is 3"):
        start_group(num_shards=3, store_directory=stores, checkpoint_directory=root)
    new = tmp_path / "new"
    assert command.main(["reshard", "--shards", "3", saved, str(new)]) == 0
    stores.rename(tmp_path / "old")
    group = start_group(num_shards=3, store_directory=stores, checkpoint_directory=new)
    assert group.status().sizes == {"table": 60}


def test_stores_of_fewer_shards_are_refused(start_group, tmp_path):
    options = {"store_directory": tmp_path / "stores"}
    group = start_group(num_shards=1, **options)
    Model(group).insert(1)
    group.stop()
    with pytest.raises(FailedPreconditionError, match="belongs to shard 0 of 1, this is one of 2"):
        start_group(num_shards=2, **options)


def test_shards_that_come_and_leave_and_their_stores(start_group, tmp_path):
    stores = tmp_path / "stores"
    options = {"num_shards": 2, "store_directory": stores}
    group = start_group(**options)
    Model(group, 1).insert(40)
    assert group.add_shards(1) == [2]
    assert group.drain(1, wait_s=1.0) == 40
    sizes = {index: shard.sizes for index, shard in group.status().shards.items()}
    # They come back to the group as it is, not as it was when they started first.
    for index in (0, 2):
        client = reverb.Client(group.status().shards[index].address)
        client.sync()
        Model(group, index).kill()
    assert {index: shard.sizes for index, shard in group.status().shards.items()} == sizes
    group.stop()
    # The shard that has left comes not back, and the one that was added stays.
    group = start_group(**options)
    assert {index: shard.sizes for index, shard in group.status().shards.items()} == sizes
    # A new shard does not begin with what another one of its name had.
    old = stores / "test-3" / "log-0000000001.seg"
    old.parent.mkdir()
    old.touch()
    text = r"shard 3 of group 'test' cannot start on node \w+: .*/test-3 has the store of a shard 3"
    with pytest.raises(FailedPreconditionError, match=text):
        group.add_shards(1)
    assert old.exists(), "nothing was deleted"
    assert list(group.status().shards) == [0, 2]


def test_a_store_that_cannot_be_used_names_shard_and_node(start_group, tmp_path):
    file = tmp_path / "file"
    file.touch()
    where = r"shard \d of group 'test' cannot start on node \w+: FailedPreconditionError: "
    with pytest.raises(
        FailedPreconditionError,
        match=where + r"Store\(path\) must be a directory .*, got .*/test-\d: Not a directory",
    ):
        start_group(store_directory=file)
    stores = tmp_path / "stores"
    (stores / "test-0").mkdir(parents=True)
    (stores / "test-1").symlink_to(stores / "test-0")
    with pytest.raises(
        FailedPreconditionError, match=where + r"store .*/test-\d is in use by process \d+"
    ):
        start_group(store_directory=stores)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"store_directory": "here"}, "store_directory must be an absolute path, .*, got 'here'"),
        ({"store_max_bytes": "1GiB"}, "store_max_bytes needs store_directory, got '1GiB' with sto"),
        (
            {"store_directory": "/x", "store_max_bytes": "much"},
            'Store.max_bytes must be a number of bytes or a size .*, got "much"',
        ),
        (
            {"server_options": {"store": reverb.Store("/x")}},
            "server_options must not have 'store', .*: use store_directory",
        ),
    ],
)
def test_arguments_of_stores_are_checked(start_group, options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        start_group(**options)
