# SPDX-License-Identifier: Apache-2.0
"""The page of the configuration has every field, and what it shows is what it says."""

import pathlib
import re

import pytest

import reverb
from reverb import rate_limiters, selectors
from reverb.server_executable import server_from_proto
from reverb.server_executable.config_spellings import written_config_class
from reverb.server_executable.server_config import read_config

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "reference" / "config.md"
TEXT = PAGE.read_text()
NAMES = {"Table": reverb.Table, "selectors": selectors, "rate_limiters": rate_limiters}
ANY_LIMITER = "samples_per_insert: 1 min_size_to_sample: 1 min_diff: 0 max_diff: 9"
SELECTORS = re.findall(r"^\| `([^`]+: [^`]+)` \| `(selectors\.[^`]+)` \|$", TEXT, re.MULTILINE)
SHORT_LIMITERS = re.findall(
    r"^\| `([^`]+: [^`]+)` \| `(rate_limiters\.[^`]+)` \|$", TEXT, re.MULTILINE
)
LIMITERS = re.findall(r"^\| `(rate_limiters\.[^`]+)` \| (.*) \|$", TEXT, re.MULTILINE)
TABLES = re.findall(r"`(Table[.(][^`]+\))`:\n\n```text\n(.*?)```", TEXT, re.DOTALL)
NUMBERS = ("samples_per_insert", "min_size_to_sample", "min_diff", "max_diff")


def made(text):
    """The table of a config, as clients see it."""
    parsed = read_config(text)
    assert (parsed.problems, parsed.unused) == ([], [])
    (table,) = server_from_proto.tables_from_proto(parsed.config.tables)
    return told(table)


def told(table):
    info = table.info
    selector_options = info.sampler_options, info.remover_options
    settings = info.max_size, info.max_times_sampled, table.internal_settings
    return (table.name, *selector_options, *settings)


def python(text):
    return eval(text, NAMES)


def fields(descriptor):
    """The names of all fields below a message."""
    for field in descriptor.fields:
        yield field.name
        if field.message_type is not None and field.message_type.full_name not in STORED:
            yield from fields(field.message_type)


# Messages of items and signatures, which a config has none of.
STORED = ("deepmind.reverb.PrioritizedItem", "tensorflow.StructuredValue")


def test_every_field_is_there():
    names = set(fields(written_config_class().DESCRIPTOR))
    assert len(names) > 40
    text = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    shown = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text))))
    assert names - shown == set()


def test_rows_and_tables_are_found():
    found = [len(it) for it in (SELECTORS, SHORT_LIMITERS, LIMITERS, TABLES)]
    assert found == [19, 5, 5, 5]


@pytest.mark.parametrize(("text", "code"), SELECTORS, ids=[code for _, code in SELECTORS])
def test_selectors_are_those_of_python(text, code):
    # One selector is for samplers alone.
    removed = ("fifo: true", "selectors.Fifo()") if "over=" in code else (text, code)
    config = (
        f'tables {{ table_name: "t" sampler {{ {text} }} remover {{ {removed[0]} }} max_size: 9 '
        f"rate_limiter {{ {ANY_LIMITER} }} }}"
    )
    limiter = rate_limiters.RateLimiter(1, 1, 0, 9)
    assert made(config) == told(reverb.Table("t", python(code), python(removed[1]), 9, limiter))


@pytest.mark.parametrize(("code", "cells"), LIMITERS, ids=[code for code, _ in LIMITERS])
def test_limiters_are_those_of_python(code, cells):
    numbers = dict(zip(NUMBERS, cells.split(" | "), strict=True))
    assert_limiter(" ".join(f"{name}: {number}" for name, number in numbers.items()), code)


@pytest.mark.parametrize(("text", "code"), SHORT_LIMITERS, ids=[code for _, code in SHORT_LIMITERS])
def test_short_limiters_are_those_of_python(text, code):
    assert_limiter(text, code)


def assert_limiter(text, code):
    config = (
        'tables { table_name: "t" sampler { fifo: true } remover { fifo: true } max_size: 9 '
        f"rate_limiter {{ {text} }} }}"
    )
    fifo = selectors.Fifo
    assert made(config) == told(reverb.Table("t", fifo(), fifo(), 9, python(code)))


@pytest.mark.parametrize(("code", "text"), TABLES, ids=[code[:16] for code, _ in TABLES])
def test_whole_tables_are_those_of_python(code, text):
    assert made(text) == told(python(code.replace("\n", " ")))
