# SPDX-License-Identifier: Apache-2.0
"""Counters of tables over the last minutes, from repeated queries of a server."""

import bisect
import collections
import itertools
import math

from reverb.server_status import ServerStatus, TableStatus

# Time span of the charts, and number of answers that are kept for it.
SPAN_S = 300.0
_MAX_ANSWERS = 600

COUNTERS = ("inserts", "samples", "insert_blocked_s", "sample_blocked_s")


class PastCounters:
    """The counters of each table in the last answers of a server."""

    def __init__(self) -> None:
        self._tables: dict[str, collections.deque[tuple[float, tuple[float, ...]]]] = {}
        self._started_at: float | None = None

    def add(self, status: ServerStatus) -> None:
        """Adds an answer; drops earlier ones if the server has restarted since."""
        if status.started_at != self._started_at:
            self._tables.clear()
            self._started_at = status.started_at
        self._tables = {
            name: self._tables.get(name, collections.deque(maxlen=_MAX_ANSWERS))
            for name in status.tables
        }
        for name, table in status.tables.items():
            answers = self._tables[name]
            if not answers or answers[-1][0] < status.now:
                answers.append((status.now, _counters(table)))

    def rates(self, table: str, counter: str, count: int) -> list[float]:
        """Returns the growth rates of a counter in equal parts of the last minutes, oldest first.

        They are per second; NaN before the first answer. `counter` is one of `COUNTERS`.
        """
        answers = self._tables.get(table, ())
        if len(answers) < 2:
            return [math.nan] * count
        which = COUNTERS.index(counter)
        times = [time for time, _ in answers]
        values = [counters[which] for _, counters in answers]
        edges = [times[-1] - SPAN_S * (count - i) / count for i in range(count + 1)]
        return [
            math.nan if last <= times[0] else _rate(times, values, max(first, times[0]), last)
            for first, last in itertools.pairwise(edges)
        ]


def _counters(table: TableStatus) -> tuple[float, ...]:
    return (
        table.inserts,
        table.samples,
        table.inserting.blocked_s,
        table.sampling.blocked_s,
    )


def _rate(times: list[float], values: list[float], first: float, last: float) -> float:
    grown = _at(times, values, last) - _at(times, values, first)
    return grown / (last - first)


def _at(times: list[float], values: list[float], time: float) -> float:
    """The value of a counter at a time, interpolated between two answers."""
    after = bisect.bisect_left(times, time)
    if after == 0:
        return values[0]
    if after == len(times):
        return values[-1]
    share = (time - times[after - 1]) / (times[after] - times[after - 1])
    return values[after - 1] + share * (values[after] - values[after - 1])
