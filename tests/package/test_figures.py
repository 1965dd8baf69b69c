# SPDX-License-Identifier: Apache-2.0
"""Figures of speed stand in `docs/performance.md` alone, whose tables a program makes."""

import pathlib
import re
import subprocess
import sys

import pytest

from support.programs_as_modules import program_as_module
from support.prose import prose

ROOT = pathlib.Path(__file__).parents[2]
# Design pages have the figure beside the decision; the generated tables are compared below.
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/README.md")),
    *(page for page in sorted(ROOT.glob("docs/**/*.md")) if page.parent.name != "design"),
    *sorted(ROOT.glob("docs/reference/*.rst")),
    *sorted(ROOT.glob("notebooks/*.ipynb")),
]

_NUMBER = r"\d[\d.,]*(?: to \d[\d.,]*)?"
_TIME = r"(?:ms|milliseconds|% of a core)\b"
_TIMES = rf"(?:{_NUMBER}|two|three|four|five|ten)"
_PART = r"(?:half|third|quarter|fifth|tenth|hundredth|\d+ %)"
# Rates, times that something takes, and comparisons. A limit or a setting is none of these.
SPEED = re.compile(
    rf"{_NUMBER} ?(?:[kMG] )?\w*(?:/s| (?:a|per) second)\b"
    rf"|{_NUMBER} (?:ns|us|µs|microseconds|nanoseconds)\b"
    rf"|(?:takes?|took|costs?|adds?|saves?|instead of) (?:\w+ ){{0,2}}{_NUMBER} {_TIME}"
    rf"|{_TIMES} (?:times|x) (?:as fast|faster|slower|the speed|less time)"
    rf"|(?:twice|half|{_PART}) (?:as fast|faster|slower|of the time|the time|less time|more time)"
)
# Other uses of the same words, by page.
EXCEPTIONS = {
    "docs/howto/groups.md": ["Gb/s", "GB/s"],  # Rates of networks, for the reader's arithmetic.
}


@pytest.fixture(scope="module")
def program():
    """The program that makes the tables, as a module."""
    with program_as_module("tools/performance_page.py") as module:
        yield module


def written(path):
    """The text of a page without generated tables."""
    return re.sub(r"<!-- figures: .*?<!-- end of figures -->", "", prose(path), flags=re.DOTALL)


def speeds(text, exceptions=()):
    """Figures of speed in a text, other than the exceptions."""
    found = [match[0] for match in SPEED.finditer(" ".join(text.split()))]
    return [figure for figure in found if not figure.endswith(tuple(exceptions))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_links_to_the_figures_of_speed(page):
    exceptions = EXCEPTIONS.get(page.relative_to(ROOT).as_posix(), ())
    found = speeds(written(page), exceptions)
    assert not found, "they belong to docs/performance.md, and a link to this page"


def test_every_exception_is_needed():
    for name, words in EXCEPTIONS.items():
        found = speeds(written(ROOT / name))
        assert all(any(figure.endswith(word) for figure in found) for word in words)


@pytest.mark.parametrize(
    "text",
    [
        "it reaches 5.4 M items/s",
        "400 kB items arrive with 3.6 GB/s",
        "310 steps a second",
        "a call takes 13 us",
        "`add` takes about 3 ms",
        "2.5 times as fast",
        "twice as fast",
        "1.5 x faster",
        "in a tenth of the time",
        "it takes a quarter less time",
    ],
)
def test_a_figure_of_speed_is_found(text):
    assert speeds(text)


@pytest.mark.parametrize(
    "text",
    [
        "waits for 5 s at most",
        "ends within 50 ms",
        "a start that takes longer than 10 s",
        "a tenth of the memory",
        "14 times the memory",
        "`timeout_ms=100`",
        "a message may have 1 GiB",
    ],
)
def test_a_limit_is_no_figure_of_speed(text):
    assert not speeds(text)


def test_the_tables_are_those_of_the_results():
    command = [sys.executable, "tools/performance_page.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (16_500_000, "items/s", "16.5 M items/s"),
        (332, "steps/s", "332 steps/s"),
        (3.6e9, "B/s", "3.6 GB/s"),
        (43e-6, "s", "43 us"),
        (0.27, "s", "270 ms"),
        (7220, "bytes", "7,220 bytes"),
        (14_000, "", "14 k"),
        ("4 to 7 x", "", "4 to 7 x"),
    ],
)
def test_a_figure_has_three_digits_and_its_unit(program, value, unit, text):
    assert program.shown(value, unit) == text
