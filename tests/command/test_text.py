# SPDX-License-Identifier: Apache-2.0
"""How numbers look to people."""

import re

import pytest

from reverb.command import text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (1234567, "1,234,567"),
        (2.0, "2"),
        (-1.5, "-1.5"),
        (0.123456789, "0.123457"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        (1.7976931348623157e308, "1.79769e+308"),
    ],
)
def test_numbers(value, expected):
    assert text.number(value) == expected


def test_limits_that_mean_none():
    assert text.limit(-1.7976931348623157e308) == "unlimited"
    assert text.limit(5.0) == "5"


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536 * 1024, "1.5 MiB"),
        (1023 * 1024, "1023 KiB"),
        (123 << 30, "123 GiB"),
        (1 << 62, "4096 PiB"),
    ],
)
def test_sizes(count, expected):
    assert text.bytes_(count) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-3, "0 s"),
        (0.4, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3_725, "1 h 2 min"),
        (7_203, "2 h"),
        (200_000, "2 d 7 h"),
    ],
)
def test_durations(seconds, expected):
    assert text.duration(seconds) == expected


def test_a_moment_has_its_date_and_its_age():
    moment = text.moment(1_795_288_466.5, now=1_795_288_466.5 + 65)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4} \(1 min 5 s ago\)", moment)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (3.14, "3.1"),
        (9999, "9999"),
        (24_800, "24.8 k"),
        (-2_500_000, "-2.5 M"),
        (1.7976931348623157e308, "\u221e"),
        (float("-inf"), "-\u221e"),
        (float("nan"), "\u2013"),
    ],
)
def test_short_numbers(value, expected):
    assert text.short(value) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, "\u2013"),
        (0.00002, "20 \u00b5s"),
        (0.25, "250 ms"),
        (9.94, "9.9 s"),
        (41, "41 s"),
        (600, "10 min"),
        (7200, "2.0 h"),
        (200_000, "2.3 d"),
        (float("inf"), "\u221e"),
    ],
)
def test_intervals(seconds, expected):
    assert text.interval(seconds) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("replay \u00e9\u6f22", "replay \u00e9\u6f22"),
        ("\x1b[31m", r"\x1b[31m"),
        ("a\nb\r\t\x00\x7f", r"a\nb\r\t\x00\x7f"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202e\u2066\u200f", r"\u202e\u2066\u200f"),
        ("\u2028\ud800", r"\u2028\ud800"),
        ("[red]x[/red]", "[red]x[/red]"),
    ],
)
def test_plain_names(name, expected):
    assert text.plain(name) == expected
    assert text.plain(name).isprintable()


@pytest.mark.parametrize(
    ("value", "width", "expected"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab\u2026"),
        ("\u6f22\u5b57\u6f22", 5, "\u6f22\u5b57\u2026"),
        ("\u6f22\u5b57\u6f22", 4, "\u6f22\u2026"),
        ("e\u0301x", 2, "e\u0301x"),
        ("abc", 0, ""),
    ],
)
def test_clipped_to_columns(value, width, expected):
    assert text.clip(value, width) == expected
    assert text.cells(text.fit(value, width)) == width
