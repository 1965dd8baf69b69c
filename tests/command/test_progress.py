# SPDX-License-Identifier: Apache-2.0
"""The output of a progress bar, and the cases without output."""

import io

import pytest

from reverb.command.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def lines(self):
        """The drawn lines one after another, without control characters."""
        return [line.removeprefix("\x1b[K") for line in self.getvalue().split("\r")[1:]]


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    return Terminal()


@pytest.fixture
def clock():
    return Clock()


def test_share_rate_and_remaining_time_are_drawn(terminal, clock):
    with Progress("reading", stream=terminal, clock=clock) as progress:
        progress(0, 4000)
        clock.now += 2.0
        progress(1000, 4000)
        clock.now += 98.0
        progress(3000, 4000)
    assert terminal.lines() == [
        "reading [............]   0% 0 of 4,000 items",
        "reading [###.........]  25% 1,000 of 4,000 items, 500/s, 0:06 left",
        "reading [#########...]  75% 3,000 of 4,000 items, 30/s, 0:33 left",
        "",
    ]


def test_it_draws_ten_times_a_second_at_most(terminal, clock):
    with Progress("reading", stream=terminal, clock=clock) as progress:
        for done in range(1000):
            progress(done, 1000)
            clock.now += 0.001
    assert 10 <= len(terminal.lines()) <= 12


def test_the_line_is_removed_after_an_error_too(terminal, clock):
    progress = Progress("x", stream=terminal, clock=clock)
    progress(1, 2)
    with pytest.raises(KeyError), progress:
        raise KeyError
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_more_items_than_expected_are_all_of_them(terminal, clock):
    with Progress("reading", stream=terminal, clock=clock) as progress:
        progress(7, 5)
    assert "] 100% 7 of 5 items" in terminal.lines()[0]


def test_an_unknown_total_is_left_out(terminal, clock):
    with Progress("reading", stream=terminal, clock=clock) as progress:
        progress(1234, 0)
    assert terminal.lines()[0] == "reading 1,234 items"


def test_a_line_is_no_wider_than_the_terminal(terminal, clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    with Progress("reading", stream=terminal, clock=clock) as progress:
        progress(1, 2)
    assert len(terminal.lines()[0]) == 39


@pytest.mark.parametrize(("stream", "enabled"), [(io.StringIO, None), (Terminal, False)])
def test_nothing_is_drawn_without_a_terminal_or_if_unwanted(stream, enabled, clock):
    stream = stream()
    with Progress("reading", stream=stream, enabled=enabled, clock=clock) as progress:
        progress(1, 2)
    assert stream.getvalue() == ""
