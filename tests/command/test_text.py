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
