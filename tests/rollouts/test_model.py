# SPDX-License-Identifier: Apache-2.0
"""A served table with rollouts against a naive one: the same calls in random order.

The model, `support/rollout_model.py`, is written from the rules alone.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import reverb
from reverb.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from support import rollout_tables
from support.hosts import on_both_hosts
from support.rollout_model import ModelTable
from support.waiting import wait_until

NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f"])
CLIENTS = st.integers(0, 1)


def columns(number, num_columns):
    made = rollout_tables.rollout(number)
    return made if num_columns == 2 else {"tokens": made["tokens"]}


@st.composite
def rules_of(draw):
    """Settings that can change."""
    max_staleness = draw(st.sampled_from([None, 0, 1]))
    ahead = draw(st.sampled_from([None, 0, 1]))
    has_backlog = ahead is not None or max_staleness is not None
    words = ["again", "again", "keep"] + ["wait"] * 3 * has_backlog
    return {
        "min_rollouts": 1 if draw(st.booleans()) else None,
        "max_staleness": max_staleness,
        "ahead": ahead if max_staleness is None else min(ahead or 0, max_staleness),
        "items_per_version": 3 if has_backlog else None,
        "on_stale": draw(st.sampled_from(words)),
        "open_timeout_s": 600,
        "max_attempts": draw(st.integers(1, 2)),
    }


RULES = rules_of()


class RolloutMachine(RuleBasedStateMachine):
    """Does everything twice: to a table of a server, and to the model of it."""

    host = ""

    @initialize(num_rollouts=st.integers(1, 3), rules=RULES)
    def start(self, num_rollouts, rules):
        self.server = reverb.Server([rollout_tables.table(num_rollouts, **rules)])
        self.clients = [self.connect(), self.connect()]
        info = rollout_tables.info(self.clients[0])
        self.model = ModelTable(info.settings)
        self.inserted = self.trained = 0
        self.opened, self.taken = [], []  # (client, its lease, what it got, items of the model)

    def connect(self):
        return reverb.Client(f"{self.host}:{self.server.port}", connect_timeout_s=20)

    def teardown(self):
        if hasattr(self, "server"):
            for client in self.clients:
                client.close()
            self.server.stop()

    @rule(name=NAMES, num_finals=st.integers(0, 3), num_columns=st.integers(1, 2), data=st.data())
    def insert(self, name, num_finals, num_columns, data):
        rollouts = [columns(it, num_columns) for it in range(num_finals)]
        rollouts = rollouts[: self.model.settings.num_rollouts]
        after = data.draw(st.sampled_from([None, None, self.model.newest, "another"]))
        is_there, model = self.model.named(name) is not None, self.model

        def insert():
            prompt = rollout_tables.prompt(0)
            return self.clients[0].insert_item("train", prompt, rollouts, name=name, after=after)

        if is_there:
            assert not insert()
        elif not model.has_room():
            return
        elif after not in (None, model.newest):
            with pytest.raises(FailedPreconditionError):
                insert()
        else:
            assert insert()
            self.inserted += 1
            found = {it: ("final", model.version, num_columns) for it in range(len(rollouts))}
            model.insert(name, found)

    @rule(client=CLIENTS)
    def open(self, client):
        block = self.clients[client].open_item("train", timeout_ms=0)
        if not self.model.free("open"):
            with pytest.raises(DeadlineExceededError):
                block.__enter__()
            return
        got = block.__enter__()
        lease = (client, block)
        (item,) = self.model.take("open", 1, lease)
        assert item.key in (None, got.key)
        item.key = got.key
        done = {it for it, (how, *_) in item.rollouts.items() if how != "partial"}
        partial = {it for it, (how, *_) in item.rollouts.items() if how == "partial"}
        assert (got.name, got.version, got.attempts) == (
            item.name,
            self.model.version,
            item.attempts,
        )
        assert got.missing == [
            it for it in range(self.model.settings.num_rollouts) if it not in done
        ]
        assert set(got.partial) == partial
        self.opened.append((lease, got, item))

    @precondition(lambda self: self.opened)
    @rule(
        data=st.data(),
        how=st.sampled_from(["final", "final", "partial", "failed"]),
        number=st.integers(0, 2),
        age=st.integers(0, 2),
        num_columns=st.sampled_from([1, 2, 2]),
    )
    def add_rollout(self, data, how, number, age, num_columns):
        (client, block), got, item = data.draw(st.sampled_from(self.opened))
        number %= self.model.settings.num_rollouts
        calls = self.clients[client]
        if how == "failed":
            answer = calls.fail_rollout(got, number, "a test")
            oldest = self.model.version
        else:
            oldest = got.version - age
            answer = calls.add_rollout(
                got,
                columns(number, num_columns),
                rollout=number,
                version=(oldest, got.version),
                partial=how == "partial",
            )
        assert answer == self.model.add(item, (client, block), number, how, oldest, num_columns)

    @precondition(lambda self: self.opened)
    @rule(data=st.data(), fails=st.booleans())
    def end_block(self, data, fails):
        opened = data.draw(st.sampled_from(self.opened))
        self.opened.remove(opened)
        lease, _, item = opened
        if fails:
            assert not lease[1].__exit__(ZeroDivisionError, ZeroDivisionError("a test"), None)
        else:
            lease[1].__exit__(None, None, None)
        if item in self.model.items and item.lease == lease:
            self.model.release(item)
        self.wait_for_leases()

    @rule(
        client=CLIENTS, num=st.integers(1, 3), stage=st.sampled_from(["ready", "ready", "settled"])
    )
    def take(self, client, num, stage):
        free = len(self.model.takable(stage))
        lacks = "score" if stage == "settled" else None

        def take(**more):
            return self.clients[client].take("train", num, lacks=lacks, timeout_ms=0, **more)

        if free < num:
            with pytest.raises(DeadlineExceededError):
                take()
            if not free:
                return
        batch = take(partial=True)
        lease = (client, batch.lease)
        items = self.model.take(stage, num, lease)
        assert batch.name == [item.name for item in items]
        assert batch.attempts.tolist() == [item.attempts for item in items]
        made = [
            sorted(it for it, (how, *_) in item.rollouts.items() if how == "final")
            for item in items
        ]
        assert batch.rollout.tolist() == [number for numbers in made for number in numbers]
        ages = [
            max(0, self.model.version - item.rollouts[it][1])
            for item, its in zip(items, made, strict=True)
            for it in its
        ]
        assert batch.staleness.tolist() == ages
        assert (batch.data["tokens"].values == np.repeat(batch.rollout, batch.length)).all()
        assert ("score" in batch.data) == (stage == "ready")
        for item, key in zip(items, batch.info.key.tolist(), strict=True):
            assert item.key in (None, key)
            item.key = key
        self.taken.append((lease, batch, items))

    @precondition(lambda self: self.taken)
    @rule(
        data=st.data(),
        ends=st.sampled_from(["ack", "ack", "release", "extend"]),
        keeps=st.booleans(),
    )
    def end_lease(self, data, ends, keeps):
        taken = data.draw(st.sampled_from(self.taken))
        if not keeps:
            self.taken.remove(taken)
        lease, batch, items = taken
        calls = self.clients[lease[0]]
        if ends == "extend":
            accepted = calls.extend(batch, {"score": batch.rollout.astype(np.float32)})
            pairs = zip(items, batch.attempts.tolist(), strict=True)
            assert accepted.tolist() == [self.model.extend(item, lease, it) for item, it in pairs]
            return
        there = [item for item in items if item in self.model.items]
        others = [item for item in there if item.lease not in (None, lease)]
        keys = batch.info.key
        if ends == "ack" and "score" not in batch.data:
            with pytest.raises(InvalidArgumentError, match="lacked column score"):
                calls.ack(batch, keys)
            return
        if ends == "ack":
            assert sorted(calls.ack(batch, keys)) == sorted(item.key for item in others)
        else:
            calls.release(batch, keys)
        for item in there:
            if item in others:
                continue
            if ends == "ack" and item.stage == "ready":
                self.model.ack(item)
            elif item.lease == lease:
                self.model.release(item)

    @rule(client=CLIENTS)
    def leave_and_come_back(self, client):
        self.clients[client].close()
        self.clients[client] = self.connect()
        self.opened = [it for it in self.opened if it[0][0] != client]
        self.taken = [it for it in self.taken if it[0][0] != client]
        for item in list(self.model.items):
            if item.lease and item.lease[0] == client:
                self.model.release(item)
        self.wait_for_leases()

    def wait_for_leases(self):
        """The end of a block or of a client reaches the server a little later."""
        leased = sum(item.lease is not None for item in self.model.items)
        wait_until(lambda: rollout_tables.info(self.clients[0]).leased == leased, 2)

    @rule(step=st.sampled_from([-1, 0, 1, 1, 1]), rewind=st.booleans())
    def set_version(self, step, rewind):
        version = self.model.version + step
        answer = self.clients[0].set_version("train", version, rewind=rewind)
        assert answer == self.model.set_version(version, rewind)

    @rule(rules=RULES)
    def configure(self, rules):
        new = dataclasses.replace(self.model.settings, **rules)
        info = self.clients[0].configure_table("train", rollouts=new)
        self.model.configure(info.rollouts.settings)

    @rule(data=st.data())
    def delete(self, data):
        known = [item for item in self.model.items if item.key is not None]
        if known:
            item = data.draw(st.sampled_from(known))
            self.clients[0].mutate_priorities("train", deletes=[item.key])
            self.model.leave(item, "deleted")

    @rule()
    def reset(self):
        self.clients[0].reset("train")
        self.model.items.clear()
        self.inserted, self.model.left = 0, []
        self.model.taken, self.model.newest = 0, ""

    @invariant()
    def the_numbers_agree(self):
        if not hasattr(self, "clients"):
            return
        info, model = self.clients[0].server_info()["train"], self.model
        found = info.rollouts
        stages = [
            sum(item.stage == it for item in model.items) for it in ("open", "settled", "ready")
        ]
        assert [found.open, found.settled, found.ready] == stages
        assert found.leased == sum(item.lease is not None for item in model.items)
        assert (found.version, found.newest) == (model.version, model.newest)
        assert (found.taken, found.backlog) == (model.taken, model.backlog())
        assert info.current_size == len(model.items)
        assert self.inserted == len(model.items) + len(model.left)


@pytest.mark.parametrize(
    ("max_examples", "steps"),
    [
        pytest.param(25, 30, id="fast"),
        pytest.param(600, 80, id="thorough", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
@on_both_hosts
def test_a_table_does_what_its_model_does(host, max_examples, steps):
    machine = type("Machine", (RolloutMachine,), {"host": host})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=max_examples, stateful_step_count=steps)
    )
