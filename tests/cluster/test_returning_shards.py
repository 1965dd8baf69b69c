# SPDX-License-Identifier: Apache-2.0
"""Settings of a group that were changed, and a shard that ends and comes back."""

import contextlib

import numpy as np
import pytest

import reverb
from reverb import command
from support.programs import Program
from support.rolling_restart import free_ports
from support.waiting import wait_until

NUM_SHARDS = 3
# What a shard of the group does; it is told how to end.
SHARD = """
import sys
import reverb
from reverb.cluster import Shard
index, port, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
table = reverb.Table(
    "t",
    reverb.selectors.Prioritized(0.6),
    reverb.selectors.Fifo(),
    3000,
    reverb.rate_limiters.MinSize(1),
)
server = reverb.Server([table], port=port, shard=Shard(index, 3, "g", address=address))
print(server.port, flush=True)
sys.stdin.readline()
server.stop()
"""


class Group:
    """Shards in processes of their own, which know the address of their group."""

    def __init__(self, stack):
        self.stack = stack
        self.ports = free_ports(NUM_SHARDS)
        self.programs = [None] * NUM_SHARDS
        for index in range(NUM_SHARDS):
            self.start(index)

    @property
    def address(self):
        return "shards:///" + ",".join(f"localhost:{port}" for port in self.ports)

    def start(self, index):
        arguments = (index, self.ports[index], self.address)
        self.programs[index] = self.stack.enter_context(Program(SHARD, *arguments))
        self.programs[index].line()

    def end(self, index, *, kill):
        if kill:
            self.programs[index].kill()
        else:
            self.programs[index].tell()
            assert self.programs[index].ended() == 0, self.programs[index].errors

    def own(self, index):
        return reverb.Client(f"localhost:{self.ports[index]}")


def exponent(info):
    return info.sampler_options.prioritized.priority_exponent


# What is changed, its value, that of a change later, and what a shard then has.
CHANGES = {
    "max_times_sampled": (7, 9, lambda info: info.max_times_sampled, lambda value: value),
    "priority_exponent": (0.4, 0.5, exponent, pytest.approx),
    "max_size": (1500, 1200, lambda info: info.max_size, lambda value: value // NUM_SHARDS),
}
# How shards go and come back.
RETURNS = {
    "killed": [2],
    "stopped": [2],
    "the first": [0],
    "one after another": [0, 1, 2],
    "at another port": [1],
}


def knows(client, group):
    places = [f"localhost:{port}" for port in group.ports]
    return [(it.address, it.state) for it in client.shard_info()] == [(it, "up") for it in places]


def works(client):
    client.insert_batch({"x": np.zeros((30, 4))}, {"t": 1.0})
    (values,) = client.sample_batch("t", 4).data
    assert values.shape == (4, 1, 4)


@pytest.mark.parametrize("setting", CHANGES)
@pytest.mark.parametrize("way", RETURNS)
def test_a_shard_that_comes_back_has_the_settings_of_its_group(setting, way, capsys):
    first, second, of, part = CHANGES[setting]
    with contextlib.ExitStack() as stack:
        group = Group(stack)
        old = reverb.Client(group.address)
        works(old)
        old.configure_table("t", **{setting: first})
        for index in RETURNS[way]:
            group.end(index, kill=way == "killed")
            if way == "at another port":
                (group.ports[index],) = free_ports(1)
            group.start(index)
        assert [of(group.own(it).server_info()["t"]) for it in range(NUM_SHARDS)] == [
            part(first)
        ] * NUM_SHARDS
        works(reverb.Client(group.address))
        wait_until(lambda: knows(old, group))
        works(old)
        assert command.main(["why", group.address]) == 0
        option = f"--{setting.replace('_', '-')}"
        assert command.main(["configure", group.address, "--table", "t", option, str(second)]) == 0
        assert [of(group.own(it).server_info()["t"]) for it in range(NUM_SHARDS)] == [
            part(second)
        ] * NUM_SHARDS


@pytest.mark.parametrize("setting", CHANGES)
def test_a_change_of_the_group_mends_a_shard_that_differs(setting, capfd):
    """It was changed alone, at its own address."""
    first, _, of, _ = CHANGES[setting]
    with contextlib.ExitStack() as stack:
        group = Group(stack)
        group.own(1).configure_table("t", **{setting: first})
        client = reverb.Client(group.address)
        works(client)
        assert (
            f"{'sampler' if 'exp' in setting else setting} of table t is" in capfd.readouterr().err
        )
        other = next(it for it in CHANGES if it != setting)
        client.configure_table("t", **{other: CHANGES[other][0]})
        infos = [group.own(it).server_info()["t"] for it in range(NUM_SHARDS)]
        assert len({of(info) for info in infos}) == 1, "all settings of the table are set again"
