# SPDX-License-Identifier: Apache-2.0
"""A storm of changes under writers and samplers: what must hold of a table holds all the time."""

import contextlib
import random
import time

import numpy as np
import pytest

import reverb
from reverb import errors, testing
from support.hosts import IN_PROCESS, REMOTE
from support.load_clients import LoadClients
from support.waiting import wait_until

TABLES = ("replay", "recent")
BOTH = ",".join(TABLES)
# Some of them have a table of their own, so that one may wait while the other one works.
WRITERS = [
    f"insert:{BOTH}",
    "insert_batch:replay",
    "insert_batch:recent",
    f"trajectory_writer:{BOTH}",
    "late_flush:replay",
    "batched_writer:recent",
    f"sequence_writer:{BOTH}",
    "legacy_writer:replay",
]
SAMPLERS = [
    "learner:replay",
    "deleter:replay",
    "sample_batch:replay",
    "sample:replay",
    "one_by_one:recent",
    "deleter:recent",
    "sample_batch:recent",
    "sample_one:recent",
]
MIN_ITEMS = 200


class Storm:
    """Changes tables at random, and looks at them after each change.

    Nobody else changes settings, so between two looks they are those of the first one.
    """

    def __init__(self, client, seed):
        self.client = client
        self.random = random.Random(seed)
        self.exponent = 1.0
        self.held = contextlib.ExitStack()
        self.held_table = None
        self.steps = 0

    def blow(self, seconds):
        end = time.monotonic() + seconds
        changes = [self.configure] * 6 + [self.pause] * 2 + [self.hold, self.refuse]
        with self.held:
            while time.monotonic() < end:
                self.random.choice(changes)(self.random.choice(TABLES))
                for _ in range(self.random.randrange(4)):
                    self.look()
                self.steps += 1
        self.look()

    def configure(self, table):
        change = {
            "max_size": self.random.randint(MIN_ITEMS, 3000),
            "max_bytes": self.random.choice([None, self.random.randint(64 * 1024, 1024 * 1024)]),
            "max_times_sampled": self.random.choice([0, 0, 5, 1000]),
            "rate_limiter": self.limiter(),
        }
        if table == "replay":
            change["priority_exponent"] = self.random.choice([0.0, 0.4, 1.0, 2.5])
        change = {name: it for name, it in change.items() if self.random.random() < 0.5}
        info = self.client.configure_table(table, **change)
        self.exponent = change.get("priority_exponent", self.exponent)
        status = self.client.status().tables[table]
        # Also at the moment of the answer, not only in a while.
        assert info.current_size <= info.max_size == status.max_items
        assert info.max_size == change.get("max_size", info.max_size)
        if "max_bytes" in change:
            assert status.max_bytes == change["max_bytes"]
        self.check_limits(status)

    def limiter(self):
        samples_per_insert = self.random.choice([0.5, 1.0, 4.0])
        min_size = self.random.randint(1, MIN_ITEMS // 10)
        error_buffer = self.random.choice([10.0, 100.0, 1000.0])
        ratio = reverb.rate_limiters.SampleToInsertRatio(samples_per_insert, min_size, error_buffer)
        return self.random.choice([ratio, ratio, reverb.rate_limiters.MinSize(min_size)])

    def pause(self, table):
        inserts, samples = self.random.choice([(True, True), (True, False), (False, True)])
        before = self.client.status().tables[table]
        self.client.pause_table(table, inserts=inserts, samples=samples)
        paused, later = (self.client.status().tables[table] for _ in range(2))
        assert (paused.inserting.paused is not None) >= inserts
        assert (paused.sampling.paused is not None) >= samples
        if inserts:
            assert paused.inserts == later.inserts
        if samples:
            assert paused.samples == later.samples
        assert before.inserting.paused is None
        self.client.resume_table(table)

    def hold(self, table):
        if self.held_table is not None:
            self.held.close()
            self.held_table = None
        else:
            off = self.client.rate_limiter_off(table, count=self.random.random() < 0.5)
            self.held.enter_context(off)
            self.held_table = table

    def refuse(self, table):
        before = self.client.server_info()[table]
        never = reverb.rate_limiters.MinSize(7778)
        for change in ({"max_bytes": 0}, {"max_times_sampled": -1}, {"rate_limiter": never}):
            with pytest.raises(errors.InvalidArgumentError):
                self.client.configure_table(table, max_size=7777, **change)
        after = self.client.server_info()[table]
        assert (after.max_size, after.max_times_sampled) == (
            before.max_size,
            before.max_times_sampled,
        )

    def look(self):
        before, after = self.client.status().tables, self.client.status().tables
        for table in TABLES:
            self.check_limits(after[table])
            self.check_limiter(before[table], after[table], is_off=self.held_table == table)

    def check_limits(self, status):
        assert status.items <= status.max_items
        assert status.max_bytes is None or status.bytes <= status.max_bytes
        assert status.inserts == status.items + status.removed.total

    def check_limiter(self, before, after, *, is_off):
        limiter = after.limiter
        if after.samples > before.samples:
            # Since the last sample the cursor has risen, if anything.
            assert after.cursor >= limiter.min_diff
        # Inserts below the minimum are always allowed.
        is_filled = min(before.items, after.items) > MIN_ITEMS // 2
        if after.inserts > before.inserts and is_filled and not is_off:
            assert after.cursor <= limiter.max_diff


@pytest.mark.parametrize(
    ("seconds", "seed"),
    [
        (2.0, 1),
        pytest.param(30.0, 2, marks=[pytest.mark.slow, pytest.mark.timeout(120)]),
    ],
)
def test_what_must_hold_holds_in_a_storm_of_changes(seconds, seed):
    tables = [
        testing.table("replay", sampler=reverb.selectors.Prioritized(1.0)),
        testing.table("recent", sampler=reverb.selectors.Uniform()),
    ]
    with reverb.Server(tables) as server:
        client = server.localhost_client()
        roles = [role for pair in zip(WRITERS, SAMPLERS, strict=True) for role in pair]
        # Half of the writers and of the samplers are in the process of the server.
        hosts = [IN_PROCESS, REMOTE, REMOTE, IN_PROCESS]
        load = LoadClients([f"{host}:{server.port}" for host in hosts], roles)
        wait_until(lambda: all(load.rounds.values()) or load.errors)
        storm = Storm(client, seed)
        storm.blow(seconds)
        before = dict(load.rounds)
        for table in TABLES:
            client.configure_table(
                table, max_times_sampled=0, rate_limiter=reverb.rate_limiters.MinSize(1)
            )
        wait_until(lambda: all(load.rounds[role] > before[role] for role in roles) or load.errors)
        load.stop()
        assert load.errors == []
        assert storm.steps > 0
        for table in TABLES:
            account_for(client, load, table, storm.exponent)


def account_for(client, load, table, exponent):
    status = client.status().tables[table]
    confirmed = load.confirmed[table]
    samples = list(client.scan(table))
    stored = {int(sample.data[0][0]) for sample in samples}
    assert len(confirmed) == len(set(confirmed)) == status.inserts
    assert (len(stored), stored <= set(confirmed)) == (status.items, True)
    removed = status.removed
    assert len(confirmed) - len(stored) == removed.total > 0
    assert removed.reset == 0
    assert removed.total == sum(
        [removed.full, removed.bytes, removed.sampled_out, removed.deleted, removed.shrunk]
    )
    assert (status.inserting.waiting, status.sampling.waiting) == (0, 0)
    if table == "replay":
        # Priority 0 has weight 0, with any exponent.
        weights = [it and it**exponent for it in (sample.info.priority for sample in samples)]
        assert status.mass == pytest.approx(sum(weights), rel=1e-9)
        probabilities = {
            int(sample.info.key): weight / status.mass
            for sample, weight in zip(samples, weights, strict=True)
        }
        batch = client.sample_batch(table, 1000)
        expected = [probabilities[int(key)] for key in batch.info.key]
        np.testing.assert_allclose(batch.info.probability, expected, rtol=1e-9)
