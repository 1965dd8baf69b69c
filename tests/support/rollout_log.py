# SPDX-License-Identifier: Apache-2.0
"""Whether what processes around a table with rollouts wrote down keeps its promises.

A server that is killed goes back to its latest checkpoint. So what was confirmed to a process must
stay unless a server was killed afterwards, and must stay then as well if a whole checkpoint was
begun after the confirmation: it is *kept*. The log, `rollout_processes.py`, knows of each operation
when it began and ended, and nothing is claimed of one that was under way when a server was killed.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import NamedTuple


class Line(NamedTuple):
    """A line of the log; times in seconds."""

    kind: str
    who: str
    begin: float
    end: float
    values: tuple


def read(path: pathlib.Path, offset: int = 0) -> list[Line]:
    """Reads a log from a byte on, in the order of the ends."""
    lines = []
    for row in path.read_bytes()[offset:].splitlines():
        # A process may have been killed while it wrote: it did not go on then.
        with contextlib.suppress(ValueError):
            kind, who, begin, end, *values = json.loads(row)
            lines.append(Line(kind, who, begin, end, tuple(values)))
    return sorted(lines, key=lambda line: line.end)


class Times:
    """When servers were killed, and when checkpoints were made."""

    def __init__(self, lines: list[Line]) -> None:
        self.kills = [
            line.end for line in lines if line.kind == "killed" and line.who.startswith("server")
        ]
        cuts = sorted((line.begin, line.end) for line in lines if line.kind == "saved")
        self._begins = [begin for begin, _ in cuts]
        self._ends = [end for _, end in cuts]

    def is_kept(self, confirmed: Line, until: float) -> bool:
        """Whether what was confirmed must be in the table at `until`."""
        at = bisect.bisect_right(self.kills, confirmed.begin)
        if at == len(self.kills) or self.kills[at] >= until:
            return True
        cut = bisect.bisect_left(self._begins, confirmed.end)
        return cut < len(self._ends) and self._ends[cut] <= self.kills[at]

    def is_killed_between(self, begin: float, end: float) -> bool:
        """Whether a server was killed in this time."""
        at = bisect.bisect_left(self.kills, begin)
        return at < len(self.kills) and self.kills[at] <= end


def violations(lines: list[Line]) -> list[str]:
    """Returns what breaks a promise; none of it may be there."""
    times = Times(lines)
    rules = (fed_again, acked_again, lost_rollouts, wrong_batches)
    return [text for rule in rules for text in rule(lines, times)]


def fed_again(lines: list[Line], times: Times) -> Iterator[str]:
    """A prompt that was inserted is not inserted again."""
    last: dict[int, Line] = {}
    for line in lines:
        if line.kind == "inserted":
            (number,) = line.values
            if number in last and times.is_kept(last[number], line.end):
                yield f"prompt {number} was inserted at {last[number].end} and again by {line}"
            last[number] = line


def acked_again(lines: list[Line], times: Times) -> Iterator[str]:
    """An item that was acked does not come again."""
    acked: dict[int, Line] = {}
    for line in lines:
        if line.kind == "taken":
            for key in line.values[0]:
                if key in acked and times.is_kept(acked[key], line.end):
                    yield f"item {key} was acked at {acked[key].end} and came again by {line}"
        if line.kind == "acked":
            acked |= dict.fromkeys(line.values[0], line)


def lost_rollouts(lines: list[Line], times: Times) -> Iterator[str]:
    """A rollout that was added is there when its item is opened again."""
    added = collections.defaultdict(list)
    for line in lines:
        if line.kind == "added":
            key, rollout, kind, _ = line.values
            added[key, rollout].append((kind, line))
        if line.kind != "opened":
            continue
        key, missing, partial = line.values
        for rollout in missing:
            for kind, before in added[key, rollout]:
                # It may have been opened by a server that was killed before the rollout was added.
                is_unclear = times.is_killed_between(line.begin, before.end)
                is_there = kind == "partial" and rollout in partial
                if not is_there and not is_unclear and times.is_kept(before, line.end):
                    yield f"rollout {rollout} was added by {before} and is missing in {line}"


def wrong_batches(lines: list[Line], times: Times) -> Iterator[str]:
    """An item that is taken has each rollout once, as it was sent, and not one made later."""
    sent, added = {}, collections.defaultdict(list)
    num_rollouts = 1 + max((line.values[1] for line in lines if line.kind == "sends"), default=0)
    for line in lines:
        if line.kind == "sends" and line.values[2] == "final":
            key, rollout, _, stamp = line.values
            sent[key, rollout, stamp] = line
        if line.kind == "added" and line.values[2] == "final":
            key, rollout, _, stamp = line.values
            added[key, rollout].append((stamp, line))
        if line.kind != "taken":
            continue
        for key, rows in zip(line.values[0], line.values[2], strict=True):
            if sorted(rollout for rollout, _ in rows) != list(range(num_rollouts)):
                yield f"item {key} has rollouts {rows} in {line}"
            for rollout, stamp in rows:
                if (key, rollout, stamp) not in sent:
                    yield f"rollout {rollout} of item {key} was never sent: {line}"
                    continue
                for other, before in added[key, rollout]:
                    is_later = sent[key, rollout, stamp].begin > before.end
                    if other != stamp and is_later and times.is_kept(before, line.end):
                        yield f"rollout {rollout} was added by {before}, and is another in {line}"


def skipped(trained: list[int], newest: int) -> list[int]:
    """Returns the prompts up to the newest one that a model was not trained on."""
    return sorted(set(range(newest + 1)) - set(trained))


def trained_again(lines: list[Line]) -> int:
    """Returns how many items were taken once more, all in all."""
    names = [name for line in lines if line.kind == "taken" for name in line.values[1]]
    return len(names) - len(set(names))


def longest_pause(lines: list[Line]) -> tuple[float, str]:
    """Returns the longest time without a line of a process, in seconds, and which process it was.

    Servers write none, and generators have nothing to do from the line "ends" on.
    """
    last_of: dict[str, float] = {}
    longest, role_of_longest = 0.0, ""
    for line in lines:
        if line.kind == "ends":
            last_of = {who: last for who, last in last_of.items() if who.startswith("learner")}
        if line.who.startswith(("server", "test")):
            continue
        pause = line.end - last_of.get(line.who, line.end)
        if pause > longest:
            longest, role_of_longest = pause, line.who.split()[0]
        last_of[line.who] = line.end
    return longest, role_of_longest
