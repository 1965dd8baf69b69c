# SPDX-License-Identifier: Apache-2.0
"""A directory and its shards without Ray, whose messages arrive in any order or never.

Whatever happened: when all shards have sent their beats, each has its part of the group's tables.
"""

import contextlib
import types

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

import reverb
from reverb.adapters.ray import directory_actor, shard_life
from reverb.adapters.ray.directory_actor import DirectoryActor
from reverb.adapters.ray.group_settings import GroupSettings, ShardSettings
from reverb.adapters.ray.shard_life import ShardLife
from reverb.cluster.directory import parse_map
from reverb.cluster.shard_calls import map_of
from reverb.cluster.shard_tables import tables_in_map
from reverb.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ReverbError,
    UnavailableError,
)

MAX_SIZE = 3000


def make_tables():
    return [
        reverb.Table(
            "table",
            sampler=reverb.selectors.Uniform(),
            remover=reverb.selectors.Fifo(),
            max_size=MAX_SIZE,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )
    ]


def map_size(life):
    """The size of the table in the map of a shard's server."""
    tables = parse_map(map_of(life.server.localhost_client())).tables
    return tables[0].max_size if tables else None


class Network:
    """Messages of the directory to its shards, until the test delivers them."""

    def __init__(self):
        self.waiting = []
        # Calls while the answer to the next call of a shard is on its way.
        self.meanwhile = []
        # Whether the next call of a shard does not arrive, or its answer does not.
        self.lost_call, self.lost_answer = False, False

    def deliver(self, number):
        handle, serialized = self.waiting.pop(number % len(self.waiting))
        # The process that has replaced the one that was meant refuses it.
        with contextlib.suppress(ReverbError):
            handle.life.set_map(serialized)


class Handle:
    """A handle of an actor, whose process is replaced when it dies."""

    def __init__(self, network, life):
        self.life = life
        self.set_map = types.SimpleNamespace(
            remote=lambda serialized: network.waiting.append((self, serialized))
        )


class Shards:
    """The processes of the shards, in place of `ShardProcesses`."""

    def __init__(self, group, network, ask):
        self._group, self._network, self._ask = group, network, ask
        self.handles = {}
        # How often shards are asked in vain.
        self.silent = {}

    def make(self, index, num_shards, num_starts=1, *, is_actor=True):
        life = ShardLife(ShardSettings(self._group, index, num_shards, "", None), is_actor=is_actor)
        life._ask = self._ask
        life._num_starts = num_starts
        life.start()
        return life

    def start(self, index, num_shards, where, start_from=None, *, is_added=False):
        self.handles[index] = Handle(self._network, self.make(index, num_shards))

    def find_nodes(self, count, timeout_s, taken=()):
        return [None] * count

    def serve_here(self, index, num_shards):
        self.handles[index] = Handle(self._network, self.make(index, num_shards, is_actor=False))

    def get(self, index):
        return self.among([index]).get(index)

    def among(self, indices):
        found = {it: self.handles[it] for it in indices if it in self.handles}
        return {it: handle for it, handle in found.items() if handle.life.is_actor}

    def find(self):
        return [index for index, handle in self.handles.items() if handle.life.is_actor]

    def describe(self, indices, timeout_s):
        found = {}
        for index, handle in self.among(indices).items():
            self.silent[index] = self.silent.get(index, 0) - 1
            if self.silent[index] < 0:
                found[index] = handle.life.facts()
        return found

    def end(self, index):
        self.handles.pop(index).life.stop()


class GroupMachine(RuleBasedStateMachine):
    @initialize(num_shards=st.integers(1, 3))
    def start(self, num_shards):
        group = GroupSettings(
            name="test",
            run="run",
            pickled_tables=GroupSettings.pickle_tables(make_tables),
            num_shards=num_shards,
            placement="PACK",
            resources={},
            checkpoint_directory="",
            checkpoint_interval_s=None,
            keep_latest=1,
            base_port=None,
            server_options={},
            scheme="shards:///",
            runtime_env=None,
            stores=None,
        )
        self.network = Network()
        self.actor = DirectoryActor(group)
        self.shards = Shards(group, self.network, self.ask)
        self.actor._processes = self.shards
        self.registered = {}
        self.draining = None
        # The possible sizes of the table, those that the directory may have, and the processes that
        # know the last change.
        self.max_sizes = self.former_sizes = {MAX_SIZE}
        self.witnesses = set()
        self.is_half_done = False
        self.actor._directory.lay_out(range(num_shards))
        self.actor._ready.set()
        for index in range(num_shards):
            self.shards.start(index, num_shards, None, None)
            self.send_beat(index)

    def ask(self, method, *arguments):
        network = self.network
        if network.lost_call:
            network.lost_call = False
            raise UnavailableError("lost")
        answer = getattr(self.actor, method)(*arguments)
        if network.lost_answer:
            network.lost_answer = False
            raise UnavailableError("lost")
        while self.network.meanwhile:
            self.network.meanwhile.pop()()
        return answer

    def send_beat(self, index):
        if index in self.shards.handles:
            life = self.shards.handles[index].life
            try:
                self.registered[life] = life._beat(self.registered.get(life, False))
            except ReverbError:
                self.registered[life] = False
                if life in self.witnesses:  # The call may have arrived.
                    self.former_sizes = self.former_sizes | self.max_sizes
            else:
                self.former_sizes = self.max_sizes if life in self.witnesses else self.former_sizes

    def index(self, number):
        indices = sorted(self.shards.handles)
        return indices[number % len(indices)]

    def handles_in_map(self):
        indices = self.actor._directory.indices
        return [it for index, it in self.shards.handles.items() if index in indices]

    @rule(number=st.integers(0, 9))
    def beat(self, number):
        self.send_beat(self.index(number))

    @rule(number=st.integers(0, 9))
    def deliver(self, number):
        if self.network.waiting:
            self.network.deliver(number)

    @rule(number=st.integers(0, 9))
    def lose(self, number):
        if self.network.waiting:
            self.network.waiting.pop(number % len(self.network.waiting))

    @rule(number=st.integers(0, 9), other=st.integers(0, 9), deliveries=st.integers(0, 3))
    def beat_with_a_slow_answer(self, number, other, deliveries):
        self.network.meanwhile = [lambda: self.deliver(other)] * deliveries
        self.network.meanwhile.append(lambda: self.send_beat(self.index(other)))
        self.send_beat(self.index(number))

    @rule(number=st.integers(0, 9), is_call=st.booleans())
    def beat_that_gets_lost(self, number, is_call):
        self.network.lost_call, self.network.lost_answer = is_call, not is_call
        self.send_beat(self.index(number))
        self.network.lost_call = self.network.lost_answer = False

    @rule(number=st.integers(0, 9))
    def restart(self, number):
        self.replace_process(self.index(number))

    def replace_process(self, index):
        handle = self.shards.handles[index]
        if not handle.life.is_actor:
            return
        self.end_process(handle.life)
        handle.life = self.shards.make(index, len(self.actor._directory.indices), 2)

    def end_process(self, life):
        """Its last change is lost if no other process knows it."""
        life.stop()
        if life in self.witnesses:
            self.witnesses.remove(life)
            if not self.witnesses:
                self.max_sizes = self.max_sizes | self.former_sizes

    @precondition(lambda self: self.draining is None and any(self.actors()))
    @rule(silent=st.lists(st.integers(0, 2), min_size=5, max_size=5), all_die=st.booleans())
    def restart_directory(self, silent, all_die):
        """Shards may be silent at first, or have died with it."""
        for index in [*self.shards.handles] * 3:
            self.send_beat(index)
        self.network.waiting.clear()
        if all_die:
            for index in self.shards.handles:
                self.replace_process(index)
            self.max_sizes = self.max_sizes | {MAX_SIZE}
            self.former_sizes = self.max_sizes
        before, actor = self.actor._directory, DirectoryActor(self.actor._settings)
        actor._processes = self.shards
        self.shards.silent = dict(zip(sorted(self.shards.handles), silent, strict=False))
        self.actor = actor
        actor._recover()
        self.shards.silent.clear()
        assert actor._directory.epoch >= before.epoch
        if not all_die:
            assert actor._directory.slots() == before.slots()

    def actors(self):
        return [it for it in self.shards.handles.values() if it.life.is_actor]

    # The map of the group is lost while all of its processes start; so are changes in this second.
    @precondition(lambda self: any(it.life._epoch for it in self.handles_in_map()))
    @rule(max_size=st.integers(10, 9000))
    def configure(self, max_size):
        client = reverb.Client(self.actor.address(), connect_timeout_s=1.0)
        try:
            client.configure_table("table", max_size=max_size)
        except ReverbError:
            # The error tells if some shards have the new parts and the map has the old tables.
            self.is_half_done = True
            self.max_sizes = self.max_sizes | {max_size}
        else:
            self.is_half_done = False
            self.max_sizes = {max_size}
        lives = [handle.life for handle in self.shards.handles.values()]
        self.witnesses = {it for it in lives if map_size(it) == max_size}

    @precondition(lambda self: len(self.shards.handles) < 5)
    @rule()
    def add(self):
        for handle in [*self.shards.handles.values()]:
            self.send_beat(handle.life.settings.index)
        index = self.actor._directory._next_index
        start = self.shards.start

        def start_and_register(*arguments, **options):
            start(*arguments, **options)
            self.send_beat(index)

        self.shards.start = start_and_register
        try:
            assert self.actor.add_shards(1, 0.0) == [index]
        finally:
            self.shards.start = start

    @precondition(lambda self: len(self.shards.handles) < 5)
    @rule()
    def serve_here(self):
        index, num_shards, _ = self.actor.reserve()
        self.shards.serve_here(index, num_shards)
        life = self.shards.handles[index].life
        life.set_map(self.actor.admit(life.facts()))

    @rule()
    def remove_silent_shards(self):
        """Those of the program; they return with their next beat."""
        self.actor.remove_lost(-1.0)

    @precondition(lambda self: self.draining is None and len(self.shards.handles) > 1)
    @rule(number=st.integers(0, 9))
    def begin_drain(self, number):
        # A shard that was silent, and the last one that stays, cannot leave.
        with contextlib.suppress(InvalidArgumentError, FailedPreconditionError):
            self.actor.begin_drain(self.index(number))
            self.draining = self.index(number)

    @precondition(lambda self: self.draining is not None)
    @rule(stays=st.booleans())
    def end_drain(self, stays):
        if stays:
            self.actor.cancel_drain(self.draining)
        else:
            life = self.shards.handles[self.draining].life
            self.actor.leave(self.draining)
            self.actor._end(self.draining)
            self.end_process(life)
        self.draining = None

    def teardown(self):
        if not hasattr(self, "shards"):
            return
        try:
            self.check()
        finally:
            for handle in self.shards.handles.values():
                handle.life.stop()

    def check(self):
        # The last change of a client reaches the directory with a first beat, the others with a
        # second one.
        for _ in range(3):
            for index in sorted(self.shards.handles):
                self.send_beat(index)
        proto = self.actor._directory.to_proto()
        [table] = proto.tables
        assert table.max_size in self.max_sizes
        for index, handle in self.shards.handles.items():
            life = handle.life
            assert life.facts().epoch == proto.epoch
            tables = tables_in_map(proto, index)
            if tables is not None and not self.is_half_done:
                size = life.server.server_info()["table"].max_size
                assert size == tables.parts()["table"].others.max_size


class FakeRay:
    """The parts of Ray that the directory and the shards need."""

    class util:
        get_node_ip_address = staticmethod(lambda: "127.0.0.1")

    @staticmethod
    def get_runtime_context():
        return types.SimpleNamespace(was_current_actor_reconstructed=False, get_node_id=lambda: "")

    @staticmethod
    def wait(calls, num_returns, timeout):
        return calls, []


@pytest.mark.timeout(1000)
def test_shards_have_their_parts_whatever_is_lost_or_late(monkeypatch):
    monkeypatch.setattr(directory_actor, "ray", FakeRay)
    monkeypatch.setattr(directory_actor, "shard_indices", lambda name: [])
    monkeypatch.setattr(DirectoryActor, "_begin_watching", lambda self: None)
    monkeypatch.setattr(directory_actor, "POLL_S", 0.0)
    monkeypatch.setattr(shard_life, "ray", FakeRay)
    run_state_machine_as_test(
        GroupMachine, settings=settings(max_examples=60, stateful_step_count=20, deadline=None)
    )
