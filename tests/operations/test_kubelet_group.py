# SPDX-License-Identifier: Apache-2.0
"""A local group of servers is run as the overlay for Kubernetes says: one pod for each shard."""

import contextlib

import numpy as np
import pytest

import reverb
from support.deployment import DEPLOY
from support.rolling_restart import free_ports
from support.waiting import DEADLINE_S

pytest.importorskip("yaml", reason="PyYAML, which reads the manifest, is missing")

from support.kubelet import Kubelet, Pod, shard

BASE = DEPLOY / "kubernetes" / "base"
GROUP = DEPLOY / "kubernetes" / "overlays" / "group"
NUM_SHARDS = 2


class Group:
    """The pods of a group.

    Attributes:
      address: The address of the group, with this machine's ports.
      kubelets: One for each shard.
    """

    def __init__(self, directory, config):
        workload = shard(BASE, GROUP)
        ports = [dict(zip(("grpc", "http"), free_ports(2), strict=True)) for _ in range(NUM_SHARDS)]
        names = {
            f"reverb-{i}.reverb:8000": f"127.0.0.1:{of_pod['grpc']}"
            for i, of_pod in enumerate(ports)
        }
        self.address = f"shards:///{','.join(names.values())}"
        self.kubelets = []
        for index, of_pod in enumerate(ports):
            paths = {
                "/etc/reverb/server.textproto": config,
                # The claim of the pod.
                "/var/lib/reverb": directory / f"checkpoints-{index}",
            }
            pod = Pod.of(workload, index).hurried(10)
            self.kubelets.append(Kubelet(pod, of_pod, paths, names))

    def close(self):
        for kubelet in self.kubelets:
            kubelet.close()

    def client(self):
        return reverb.Client(self.address, connect_timeout_s=DEADLINE_S)


@pytest.fixture
def group(tmp_path):
    config = tmp_path / "server.textproto"
    text = (BASE / "server.textproto").read_text(encoding="utf-8")
    assert "min_size: 1000" in text
    config.write_text(text.replace("min_size: 1000", "min_size: 1"))
    with contextlib.closing(Group(tmp_path, config)) as group:
        for kubelet in group.kubelets:
            kubelet.wait_until_ready()
        yield group


def values(client):
    return sorted(int(sample.data[0][0]) for sample in client.scan("replay"))


def insert(client, count):
    """In several calls, because each goes to one shard."""
    for part in np.array_split(np.arange(count), 10):
        client.insert_batch([part], {"replay": 1.0})


def sizes(client):
    return {it.index: it.tables["replay"].size for it in client.shard_info()}


def test_the_shards_are_one_table(group):
    client = group.client()
    insert(client, 100)
    assert values(client) == list(range(100))
    assert set(sizes(client)) == {0, 1}
    assert all(sizes(client).values()), sizes(client)
    table = client.server_info()["replay"]
    assert (table.current_size, table.max_size) == (100, 1_000_000)
    sample = client.sample_batch("replay", 50)
    client.update_priorities("replay", sample.info.key, np.full(50, 7.0))
    assert client.updates_missed == 0
    for kubelet in group.kubelets:
        alone = reverb.Client(kubelet.address).server_info()["replay"]
        assert alone.max_size == 500_000, "each serves its part"


def test_each_shard_comes_back_with_its_own_checkpoint(group):
    client = group.client()
    insert(client, 100)
    before = sizes(client)
    for kubelet in group.kubelets:
        code, _ = kubelet.stop()
        assert code == 0, kubelet.log
    for kubelet in reversed(group.kubelets):
        kubelet.start_again()
    for kubelet in group.kubelets:
        kubelet.wait_until_ready()
    again = group.client()
    assert values(again) == list(range(100))
    assert sizes(again) == before
