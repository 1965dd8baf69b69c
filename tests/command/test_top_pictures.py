# SPDX-License-Identifier: Apache-2.0
"""Bars, gauges, charts and columns of `reverb top`, and the rates that charts show."""

import dataclasses
import math

import pytest

from reverb import testing
from reverb.command.top.line import Block, columns, line
from reverb.command.top.past_counters import SPAN_S, PastCounters
from reverb.command.top.picture import ASCII, BLOCKS, pictures_for


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.0], ".........."),
        ([0.5], "#####....."),
        ([1e-9], "#........."),
        ([2.0], "##########"),
        ([0.5, 0.2], "#####==..."),
        ([1.0, 0.5], "##########"),
    ],
)
def test_bars(shares, expected):
    assert ASCII.bar(shares, 10).plain == expected


@pytest.mark.parametrize(
    ("place", "expected"),
    [(0.0, "|O------|"), (0.5, "|---O---|"), (1.0, "|------O|"), (-3, "|O------|")],
)
def test_gauges(place, expected):
    assert ASCII.gauge(place, 9).plain == expected


def test_charts():
    rows = BLOCKS.chart([0.0, 0.1, 5.0, 10.0, math.nan], 10.0, 2, "one")
    assert [row.plain for row in rows] == ["   \u2588 ", " \u2581\u2588\u2588 "]
    assert [row.plain for row in BLOCKS.chart([0.0], 0.0, 1, "one")] == [" "]


def test_pictures_follow_the_encoding():
    assert pictures_for("utf-8") is BLOCKS
    assert pictures_for("ascii") is ASCII
    assert pictures_for("no-such-encoding") is ASCII
    assert ASCII.words("a\u2026 \u2013 5 \u00b5s") == "a~ - 5 us"


def test_blocks_beside_each_other():
    blocks = [Block("one", [line("1")] * 3), Block("two", [line("2")]), Block("three", [])]
    shown = [row.plain.rstrip() for row in columns(blocks, 17, 2)]
    assert shown == ["one       two", "1         2", "1", "1         three"]


class TestPastCounters:
    @pytest.fixture
    def answer(self):
        with testing.server([testing.table("t")]) as client:
            first = client.status()

        def answer(seconds, inserts, started_at=first.started_at):
            table = dataclasses.replace(first.tables["t"], inserts=inserts)
            return dataclasses.replace(
                first, tables={"t": table}, now=1000.0 + seconds, started_at=started_at
            )

        return answer

    def test_rates_of_parts(self, answer):
        past = PastCounters()
        assert all(map(math.isnan, past.rates("t", "inserts", 3)))
        for second, inserts in ((0, 0), (SPAN_S / 3, 300), (SPAN_S, 300)):
            past.add(answer(second, inserts))
        assert past.rates("t", "inserts", 3) == pytest.approx([3.0, 0.0, 0.0])
        assert past.rates("t", "samples", 3) == pytest.approx([0.0, 0.0, 0.0])

    def test_before_the_first_answer_nothing_is_known(self, answer):
        past = PastCounters()
        past.add(answer(0, 0))
        past.add(answer(SPAN_S / 6, 100))
        *unknown, last = past.rates("t", "inserts", 3)
        assert all(map(math.isnan, unknown))
        assert last == pytest.approx(100 / (SPAN_S / 6))

    def test_a_new_server_begins_anew(self, answer):
        past = PastCounters()
        past.add(answer(0, 500))
        past.add(answer(10, 1000))
        past.add(answer(20, 3, started_at=1.0))
        assert all(map(math.isnan, past.rates("t", "inserts", 3)))

    def test_the_same_answer_twice_counts_once(self, answer):
        past = PastCounters()
        for second in (0, 0, 10, 10):
            past.add(answer(second, second))
        assert past.rates("t", "inserts", 1) == pytest.approx([1.0])
