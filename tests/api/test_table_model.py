# SPDX-License-Identifier: Apache-2.0
"""A served table against a naive one: the same calls in random order, on both paths.

The model is written from the rules alone: a list of items, and the inequalities of the limiter.
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
from reverb.errors import DeadlineExceededError, InvalidArgumentError
from support.hosts import on_both_hosts

SELECTORS = {
    "fifo": reverb.selectors.Fifo,
    "lifo": reverb.selectors.Lifo,
    "uniform": reverb.selectors.Uniform,
    "max_heap": reverb.selectors.MaxHeap,
    "min_heap": reverb.selectors.MinHeap,
    "prioritized": lambda: reverb.selectors.Prioritized(0.5),
}

# The model must predict the removed item, so removers with a random choice are left out.
REMOVERS = ["fifo", "lifo", "max_heap", "min_heap"]

LIMITERS = {
    "min_size_1": lambda: reverb.rate_limiters.MinSize(1),
    "min_size_3": lambda: reverb.rate_limiters.MinSize(3),
    "queue": lambda: reverb.rate_limiters.Queue(4),
    "ratio": lambda: reverb.rate_limiters.SampleToInsertRatio(2.0, 2, 3.0),
    "sparse": lambda: reverb.rate_limiters.SampleToInsertRatio(0.5, 2, (-2.0, 4.0)),
}

PRIORITIES = st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 7.0, 1e100])


@dataclasses.dataclass
class Item:
    value: int
    priority: float
    episode: int
    touched: int
    times_sampled: int = 0
    key: int | None = None


class ModelTable:
    """A table as a simple model."""

    def __init__(self, sampler, remover, max_size, max_times_sampled, limiter):
        self.sampler, self.remover = sampler, remover
        self.max_size, self.max_times_sampled = max_size, max_times_sampled
        self.limiter = limiter
        self.touches = 0
        self.reset()

    def reset(self):
        self.items = []
        self.inserts = self.samples = self.deletes = self.unique = self.deleted_episodes = 0

    def can_sample(self, number):
        limiter = self.limiter
        cursor = self.inserts * limiter.samples_per_insert - self.samples
        return (
            self.inserts - self.deletes >= limiter.min_size_to_sample
            and cursor - number >= limiter.min_diff
        )

    def can_insert(self, number):
        limiter = self.limiter
        cursor = (self.inserts + number) * limiter.samples_per_insert - self.samples
        return (
            self.inserts + number - self.deletes <= limiter.min_size_to_sample
            or cursor <= limiter.max_diff
        )

    def episodes(self):
        return {item.episode for item in self.items}

    def insert(self, value, priority, episode, key=None):
        self.touches += 1
        self.items.append(Item(value, priority, episode, self.touches, key=key))
        if len(self.items) > self.max_size:
            self.delete(self.choices(self.remover)[0][0])
        self.inserts += 1

    def insert_with_key(self, value, priority, episode, key, replace):
        old = next((item for item in self.items if item.key == key), None)
        if old is None:
            self.insert(value, priority, episode, key)
        elif not replace:
            self.update(old, priority)
        else:
            self.delete(old)
            self.insert(value, priority, episode, key)
            if self.max_times_sampled > 0 and old.times_sampled < self.limiter.samples_per_insert:
                # The ratio goes on as if nothing had happened.
                self.inserts -= 1
                self.deletes -= 1

    def choices(self, selector):
        """The items that may be chosen, each with its probability."""
        if selector == "fifo":
            return [(self.items[0], 1.0)]
        if selector == "lifo":
            return [(self.items[-1], 1.0)]
        if selector == "uniform":
            return [(item, 1 / len(self.items)) for item in self.items]
        if selector == "prioritized":
            weights = [item.priority**0.5 if item.priority else 0.0 for item in self.items]
            total = sum(weights)
            if not total:
                return self.choices("uniform")
            pairs = zip(self.items, weights, strict=True)
            return [(item, weight / total) for item, weight in pairs if weight]
        sign = 1 if selector == "min_heap" else -1
        return [(min(self.items, key=lambda item: (sign * item.priority, item.touched)), 1.0)]

    def sampled(self, item):
        self.samples += 1
        self.unique += not item.times_sampled
        item.times_sampled += 1
        if item.times_sampled == self.max_times_sampled:
            self.delete(item)

    def delete(self, item):
        self.items.remove(item)
        self.deletes += 1
        self.deleted_episodes += item.episode not in self.episodes()

    def update(self, item, priority):
        self.touches += 1
        item.priority, item.touched = priority, self.touches


class TableMachine(RuleBasedStateMachine):
    """Does everything twice: to a table of a server, and to the model of it."""

    host = ""

    @initialize(
        sampler=st.sampled_from(sorted(SELECTORS)),
        remover=st.sampled_from(REMOVERS),
        max_size=st.integers(1, 6),
        max_times_sampled=st.sampled_from([0, 0, 1, 2, 3]),
        limiter=st.sampled_from(sorted(LIMITERS)),
    )
    def start(self, sampler, remover, max_size, max_times_sampled, limiter):
        self.table = reverb.Table(
            "table",
            SELECTORS[sampler](),
            SELECTORS[remover](),
            max_size,
            LIMITERS[limiter](),
            max_times_sampled,
            seed=0,  # A run that failed can be run again.
        )
        self.server = reverb.Server([self.table])
        self.client = reverb.Client(f"{self.host}:{self.server.port}", connect_timeout_s=20)
        self.model = ModelTable(
            sampler, remover, max_size, max_times_sampled, self.table.info.rate_limiter_info
        )
        self.next_value = 0
        self.known = {}

    def teardown(self):
        if hasattr(self, "server"):
            self.server.stop()

    def has_known_items(self):
        return any(item.key is not None for item in self.model.items)

    def known_items(self, data, label):
        known = [item for item in self.model.items if item.key is not None]
        return data.draw(st.lists(st.sampled_from(known), unique_by=id, max_size=3), label)

    @precondition(lambda self: self.model.can_insert(1))
    @rule(priority=PRIORITIES)
    def insert(self, priority):
        self.client.insert([self.next_value], {"table": priority})
        self.model.insert(self.next_value, priority, self.next_value)
        self.next_value += 1

    @precondition(lambda self: self.model.can_insert(1))
    @rule(priorities=st.lists(PRIORITIES, min_size=1, max_size=4))
    def insert_batch(self, priorities):
        allowed = 0
        while allowed < len(priorities) and self.model.can_insert(1):
            # All rows of a batch are one episode.
            self.model.insert(self.next_value + allowed, priorities[allowed], self.next_value)
            allowed += 1
        values = np.arange(self.next_value, self.next_value + allowed)
        self.client.insert_batch([values], {"table": priorities[:allowed]})
        self.next_value += allowed

    @precondition(lambda self: self.model.can_insert(1))
    @rule(
        keys=st.lists(st.integers(10, 15), min_size=1, max_size=4),
        priority=PRIORITIES,
        replace=st.booleans(),
    )
    def insert_with_keys(self, keys, priority, replace):
        first, allowed = self.next_value, 0
        while allowed < len(keys) and self.model.can_insert(1):
            value, key = first + allowed, keys[allowed]
            self.model.insert_with_key(value, priority, first, key, replace)
            allowed += 1
        values = np.arange(first, first + allowed)
        priorities = {"table": priority}
        self.client.insert_batch([values], priorities, keys=keys[:allowed], replace=replace)
        self.next_value += allowed

    @precondition(lambda self: not self.model.can_insert(1))
    @rule(key=st.integers(10, 15), replace=st.booleans())
    def insert_in_vain(self, key, replace):
        with pytest.raises(DeadlineExceededError):
            self.client.insert_batch(
                [np.zeros(1, np.int64)], {"table": 1.0}, keys=[key], replace=replace, timeout_ms=0
            )

    @rule()
    def sample(self):
        samples = self.client.sample("table", timeout_ms=0)
        if not self.model.can_sample(1):
            with pytest.raises(DeadlineExceededError):
                next(samples)
            return
        ((step,),) = samples
        self.compare_sample(int(step.data[0]), step.info)

    @precondition(lambda self: self.model.can_sample(1))
    @rule(size=st.integers(1, 5))
    def sample_batch(self, size):
        info, (values,) = self.client.sample_batch("table", size, timeout_ms=0)
        for i, value in enumerate(values.ravel().tolist()):
            assert self.model.can_sample(1)
            self.compare_sample(value, reverb.SampleInfo(*(column[i] for column in info[:5])))
        assert len(values) == size or not self.model.can_sample(1)

    def compare_sample(self, value, info):
        choices = {item.value: (item, p) for item, p in self.model.choices(self.model.sampler)}
        assert value in choices
        item, probability = choices[value]
        assert item.key in (None, info.key)
        item.key = info.key
        size = len(self.model.items)
        self.model.sampled(item)
        assert info.probability == pytest.approx(probability, rel=1e-6)
        assert (info.table_size, info.priority, info.times_sampled) == (
            size,
            item.priority,
            item.times_sampled,
        )

    @precondition(has_known_items)
    @rule(data=st.data(), unknown=st.booleans())
    def mutate(self, data, unknown):
        updates = self.known_items(data, "updates")
        deletes = self.known_items(data, "deletes")
        priorities = [data.draw(PRIORITIES) for _ in updates]
        self.client.mutate_priorities(
            "table",
            {item.key: p for item, p in zip(updates, priorities, strict=True)}
            | ({1: 1.0} if unknown else {}),
            [item.key for item in deletes] + ([2] if unknown else []),
        )
        for item in deletes:
            self.model.delete(item)
        for item, priority in zip(updates, priorities, strict=True):
            if item not in deletes:
                self.model.update(item, priority)

    @precondition(lambda self: self.model.sampler == "prioritized" and self.has_known_items())
    @rule(data=st.data(), priority=st.sampled_from([-1.0, float("nan"), float("inf")]))
    def update_with_a_bad_priority(self, data, priority):
        (item, *_) = self.known_items(data, "bad") or [None]
        if item is not None:
            with pytest.raises(InvalidArgumentError, match="riority"):
                self.client.mutate_priorities("table", {item.key: priority})

    @rule()
    def reset(self):
        self.client.reset("table")
        self.model.reset()

    @invariant()
    def the_numbers_agree(self):
        if not hasattr(self, "client"):
            return
        info = self.client.server_info()["table"]
        model = self.model
        assert {
            "size": info.current_size,
            "episodes": info.num_episodes,
            "deleted episodes": info.num_deleted_episodes,
            "unique samples": info.num_unique_samples,
            "inserts": info.rate_limiter_info.insert_stats.completed,
            "samples": info.rate_limiter_info.sample_stats.completed,
        } == {
            "size": len(model.items),
            "episodes": len(model.episodes()),
            "deleted episodes": model.deleted_episodes,
            "unique samples": model.unique,
            "inserts": model.inserts,
            "samples": model.samples,
        }
        status = self.client.status().tables["table"]
        assert status.inserts == status.items + status.removed.total
        for number in (1, 2, 5):
            assert self.table.can_sample(number) == model.can_sample(number)
            assert self.table.can_insert(number) == model.can_insert(number)


@pytest.mark.parametrize(
    ("max_examples", "steps"),
    [
        pytest.param(40, 30, id="fast"),
        pytest.param(1000, 80, id="thorough", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
@on_both_hosts
def test_a_table_does_what_its_model_does(host, max_examples, steps):
    machine = type("Machine", (TableMachine,), {"host": host})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=max_examples, stateful_step_count=steps),
    )
