# SPDX-License-Identifier: Apache-2.0
"""How stale rollouts get, and what it costs to bound it: `wait` beside `keep`, `again` and a queue.

    python benchmarks/staleness.py                       # all, some minutes a schedule
    python benchmarks/staleness.py --schedules 2         # to see that it runs
    python benchmarks/staleness.py --ahead 1             # fewer batches in advance, more slack

Real tables of a server in this process, in simulated time: the program decides when a rollout is
there and when a learner step is over, and asks the table what it allows; no call waits. 64
generators make an item each; it takes 0.5 to 1.5 learner steps, or, for 30 % of the items, 4 to 12,
however often it is made. The learner takes 16 items, trains for one step, and sets the version.

* `wait`, `again`, `keep`: `Table.rollouts(..., on_stale=...)`, the oldest items first.
* `wait, half`: `wait` with half as many batches in advance; the other half is for slow items.
* `first ready`: items are taken in the order in which they are finished, as from a queue.

Each has the same backlog, `(ahead + 1) * 16` items, `ahead` being `max_staleness` unless it is
given. A schedule is 60 versions, after 10 that do not count; each way sees the same schedules.

* `staleness`: of the items that were taken, the mean and the largest one.
* `thrown away`: part of the generators' work that went into rollouts which were made again.
* `learner idle`: part of the time in which the learner waits for a batch.
* `slow`: part of the items trained on that are slow ones. It is 30 % unless those are lost.
* `steps`: how long the versions took, in learner steps; 60 if the learner never waits.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import json
import os
import pathlib
import platform
import random
import statistics
import sys
from typing import Any

import numpy as np

import reverb

_BATCH = 16
_GENERATORS = 64
_SLOW = 0.3
_WARM_UP, _VERSIONS = 10, 60
_BOUNDS = (0, 1, 2, 4, 8)
_WAYS = ("wait", "wait, half", "again", "keep", "first ready")
_RESULTS = pathlib.Path(__file__).parent / "results" / "staleness.json"
_SIGNATURE = {
    "prompt": reverb.specs.TensorSpec([], np.int32),
    "answer": reverb.specs.TensorSpec([], np.int32),
}


def main() -> None:
    """Prints a row for each way and bound."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--schedules", type=int, default=5)
    parser.add_argument("--ahead", type=int, help="default: max_staleness")
    parser.add_argument("--max-staleness", type=int, action="append", help="only these")
    parser.add_argument("--json", type=pathlib.Path, default=_RESULTS)
    given = parser.parse_args()
    reverb.logging.report_waits(None)  # What waits here is simulated.
    machine = f"{platform.platform()}, {os.cpu_count()} processors"
    report: dict[str, Any] = {"machine": machine, "command": sys.argv, "rows": []}
    print(f"{'max_staleness, way':24}", *(f"{name:>14}" for name in _FIGURES))
    for bound in given.max_staleness or _BOUNDS:
        for way in _WAYS:
            settings = _settings(way, bound, given.ahead)
            runs = [Run(way, settings, seed).run() for seed in range(given.schedules)]
            row = {name: figure([run[name] for run in runs]) for name, figure in _FIGURES.items()}
            report["rows"].append({"max_staleness": bound, "way": way} | row)
            figures = (f"{value:14.3g}" for value in row.values())
            print(f"{bound}, {way:21}", *figures, flush=True)
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(report, indent=2) + "\n")


_FIGURES = {
    "mean staleness": statistics.mean,
    "largest": max,
    "thrown away": statistics.mean,
    "learner idle": statistics.mean,
    "slow": statistics.mean,
    "steps": statistics.mean,
}


def _settings(way: str, bound: int, ahead: int | None) -> reverb.Rollouts:
    ahead = bound if ahead is None else min(ahead, bound)
    return reverb.Rollouts(
        1,
        item=("prompt",),
        items_per_version=_BATCH,
        max_staleness=bound,
        ahead=ahead // 2 if way == "wait, half" else ahead,
        on_stale="keep" if way == "first ready" else way.partition(",")[0],
        open_timeout_s=3600,
        max_attempts=1_000_000,
    )


class Run:
    """One schedule: events in the order of their times."""

    def __init__(self, way: str, settings: reverb.Rollouts, seed: int) -> None:
        """Starts a server, whose table is empty."""
        is_queue = way == "first ready"
        selectors = reverb.selectors
        self.table = reverb.Table(
            "train",
            sampler=selectors.MinHeap() if is_queue else selectors.Fifo(),
            remover=selectors.Fifo(),
            max_size=100_000,
            max_times_sampled=1,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature=_SIGNATURE,
            rollouts=settings,
        )
        self.is_queue, self.seed = is_queue, seed
        self.most = (settings.ahead + 1) * _BATCH
        self.now, self.events, self.tie = 0.0, [], itertools.count()
        self.num_inserts = self.num_busy = self.version = 0
        self.is_training, self.idle_since, self.idle = False, 0.0, 0.0
        self.spent = self.thrown_away = 0.0
        self.finished: set[str] = set()  # and not taken
        self.staleness: list[int] = []
        self.num_slow = 0
        self.started = 0.0

    def run(self) -> dict[str, float]:
        """Returns the figures of the schedule."""
        with reverb.Server([self.table]) as server, contextlib.ExitStack() as self.blocks:
            self.client = server.localhost_client()
            while self.version < _WARM_UP + _VERSIONS:
                self.go_on()
                self.now, _, event, argument = heapq.heappop(self.events)
                event(argument)
        steps = self.now - self.started
        return {
            "mean staleness": statistics.mean(self.staleness),
            "largest": max(self.staleness),
            "thrown away": self.thrown_away / self.spent,
            "learner idle": self.idle / steps,
            "slow": self.num_slow / len(self.staleness),
            "steps": steps,
        }

    def after(self, time: float, event: Any, argument: Any = None) -> None:
        """Notes what happens later."""
        heapq.heappush(self.events, (self.now + time, next(self.tie), event, argument))

    def go_on(self) -> None:
        """Does all that the table allows now."""
        while self.learn() | self.feed() | self.generate():
            pass

    def feed(self) -> bool:
        """Inserts prompts until the backlog is full."""
        room = self.most - self.client.server_info()["train"].rollouts.backlog
        for _ in range(room):
            prompt = {"prompt": np.int32(self.num_inserts)}
            self.client.insert_item("train", prompt, name=str(self.num_inserts))
            self.num_inserts += 1
        return room > 0

    def time_of(self, name: str) -> tuple[bool, float]:
        """Whether an item is slow, and how many learner steps its rollout takes."""
        chance = random.Random(f"{self.seed} {name}")
        is_slow = chance.random() < _SLOW
        return is_slow, chance.uniform(4, 12) if is_slow else chance.uniform(0.5, 1.5)

    def generate(self) -> bool:
        """Gives open items to generators that have none."""
        before = self.num_busy
        while self.num_busy < _GENERATORS:
            block = self.client.open_item("train", timeout_ms=0)
            try:
                item = block.__enter__()
            except reverb.DeadlineExceededError:
                break
            self.num_busy += 1
            if item.name in self.finished:  # It became too stale since.
                self.finished.remove(item.name)
                self.throw_away(item.name)
            self.after(self.time_of(item.name)[1], self.made, (block, item))
        return self.num_busy > before

    def made(self, argument: Any) -> None:
        """A rollout is done: it is final, or the table does not want it any more."""
        block, item = argument
        self.num_busy -= 1
        if self.version >= _WARM_UP:
            self.spent += self.time_of(item.name)[1]
        if self.is_queue:
            self.client.update_priorities("train", [item.key], [float(next(self.tie))])
        if self.client.add_rollout(item, {"answer": np.int32(0)}):
            self.finished.add(item.name)
        else:
            self.throw_away(item.name)
        block.__exit__(None, None, None)

    def throw_away(self, name: str) -> None:
        """Counts the work of a generator that is lost."""
        if self.version >= _WARM_UP:
            self.thrown_away += self.time_of(name)[1]

    def learn(self) -> bool:
        """Takes a batch if the learner has none, and the table allows it."""
        if self.is_training:
            return False
        try:
            batch = self.client.take("train", _BATCH, with_data=False, ack=True, timeout_ms=0)
        except reverb.DeadlineExceededError:
            return False
        self.is_training = True
        self.after(1.0, self.trained)
        self.finished.difference_update(batch.name)
        if self.version < _WARM_UP:
            return True
        self.idle += self.now - max(self.idle_since, self.started)
        self.staleness += batch.staleness.tolist()
        self.num_slow += sum(self.time_of(name)[0] for name in batch.name)
        return True

    def trained(self, _: Any) -> None:
        """A learner step is over: there is a new version."""
        self.version += 1
        self.client.set_version("train", self.version)
        self.is_training, self.idle_since = False, self.now
        if self.version == _WARM_UP:
            self.started = self.now


if __name__ == "__main__":
    main()
