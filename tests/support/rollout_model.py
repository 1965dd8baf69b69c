# SPDX-License-Identifier: Apache-2.0
"""A table with rollouts as a list of items: the rules of docs/design/rollouts.md, and no more."""

import dataclasses


@dataclasses.dataclass
class Item:
    name: str
    stage: str = "open"  # Then "settled", then "ready".
    rollouts: dict = dataclasses.field(default_factory=dict)  # Number: (outcome, oldest, columns).
    opened_at: int | None = None
    attempts: int = 0
    lease: tuple | None = None  # (client, number of the lease)
    key: int | None = None
    counts: bool = False  # Taken since the version was set.

    def oldest(self):
        made = [oldest for outcome, oldest, _ in self.rollouts.values() if outcome != "failed"]
        return min(made, default=self.opened_at)

    def count(self, wanted):
        return sum(outcome == wanted for outcome, *_ in self.rollouts.values())


class ModelTable:
    def __init__(self, settings):
        self.settings, self.items, self.left = settings, [], []
        self.version = self.taken = 0
        self.newest = ""

    def backlog(self):
        return self.taken + sum(not self.is_taken(item) for item in self.items)

    def is_taken(self, item):
        return item.stage == "ready" and item.lease is not None

    def has_room(self):
        rules = self.settings
        if rules.items_per_version is None:
            return True
        ahead = rules.max_staleness if rules.ahead is None else rules.ahead
        return self.backlog() < (ahead + 1) * rules.items_per_version

    def named(self, name):
        return next((item for item in self.items if item.name == name), None)

    def insert(self, name, rollouts):
        self.newest = name
        self.items.append(item := Item(name, rollouts=rollouts))
        self.advance(item)
        return item

    def free(self, stage):
        return [item for item in self.items if item.stage == stage and item.lease is None]

    def takable(self, stage):
        """Items that can be taken together, in the order in which they are taken."""
        free = self.free(stage)
        if stage != "ready" or self.settings.on_stale != "wait":
            return free
        free.sort(key=lambda item: item.oldest())
        return max((free[:num] for num in range(len(free) + 1) if self.is_fair(free, num)), key=len)

    def is_fair(self, ready, num):
        """Whether a take of so many items leaves enough of those that the learner takes later."""
        rules, batch = self.settings, self.settings.items_per_version
        if num == 0 or rules.max_staleness is None:
            return True
        ages = [item.oldest() for item in self.items if item.stage != "ready"]
        ages = [age for age in ages if age is not None and age < ready[num - 1].oldest()]
        left = batch - self.taken - num
        return all(
            sum(age <= version for age in ages)
            <= left + (version + rules.max_staleness - self.version) * batch
            for version in ages
        )

    def take(self, stage, num, lease):
        chosen = self.takable(stage)[:num]
        for item in chosen:
            item.lease, item.counts = lease, stage == "ready"
            if stage == "open" and item.opened_at is None:
                item.opened_at = self.version
        self.taken += len(chosen) if stage == "ready" else 0
        return chosen

    def add(self, item, client, number, outcome, oldest, columns=2):
        """A rollout of an item that may have left, from a client that may have lost it."""
        if item not in self.items or (item.lease and item.lease[0] != client[0]):
            return False
        if self.is_too_old(oldest):
            return False
        is_final = item.rollouts.get(number, ("",))[0] == "final"
        if item.stage != "open":
            return is_final
        item.lease = item.lease or client
        if not is_final:
            item.rollouts[number] = (outcome, oldest, columns)
        self.advance(item)
        return True

    def extend(self, item, client, attempts):
        if item not in self.items or item.stage != "settled" or item.attempts != attempts:
            return False
        if item.lease and item.lease[0] != client[0]:
            return False
        found = {
            number: (outcome, oldest, 2) for number, (outcome, oldest, _) in item.rollouts.items()
        }
        item.rollouts = found
        self.advance(item)
        return True

    def advance(self, item):
        rules = self.settings
        if item.stage == "open":
            if item.count("final") + item.count("failed") < rules.num_rollouts:
                return
            if item.count("final") < rules.min_rollouts:
                return self.leave(item, "failed")
            self.settle(item)
        if all(
            columns == 2 for outcome, _, columns in item.rollouts.values() if outcome == "final"
        ):
            if self.is_stale(item):
                return self.again(item)
            item.stage, item.lease = "ready", None

    def settle(self, item):
        item.stage, item.lease = "settled", None
        item.rollouts = {n: it for n, it in item.rollouts.items() if it[0] != "partial"}

    def is_stale(self, item):
        return self.is_too_old(item.oldest())

    def is_too_old(self, oldest):
        most = self.settings.max_staleness
        if most is None or oldest is None or self.settings.on_stale == "keep":
            return False
        return self.version - oldest > most

    def again(self, item):
        if item.attempts + 1 > self.settings.max_attempts:
            return self.leave(item, "stale")
        item.stage, item.lease, item.opened_at, item.rollouts = "open", None, None, {}
        item.attempts += 1

    def leave(self, item, why):
        # A delete takes from those taken since the version was set.
        self.taken -= item.counts and why == "deleted"
        self.items.remove(item)
        self.left.append(why)

    def release(self, item, is_lost=False):
        self.taken -= item.counts
        item.lease, item.counts = None, False
        item.attempts += is_lost
        if item.stage == "ready" and self.is_stale(item):
            return self.again(item)
        if item.stage != "open":
            return
        if not item.rollouts:
            item.opened_at = None
        if item.attempts > self.settings.max_attempts:
            if item.count("final") < self.settings.min_rollouts:
                return self.leave(item, "failed")
            self.settle(item)
            self.advance(item)

    def ack(self, item):
        if item.lease is None or item.stage == "ready":
            self.leave(item, "sampled_out")

    def set_version(self, version, rewind):
        if version > self.version or (rewind and version != self.version):
            self.version, self.taken = version, 0
            for item in self.items:
                item.counts = False
            self.check_staleness()
        return self.version

    def configure(self, settings):
        self.settings = settings
        self.check_staleness()

    def check_staleness(self):
        for item in list(self.items):
            if not self.is_taken(item) and self.is_stale(item):
                self.again(item)
