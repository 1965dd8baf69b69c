# SPDX-License-Identifier: Apache-2.0
"""The parts of tables: together they keep what the table promises."""

import logging
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reverb
from reverb import testing
from reverb._server.table import arguments_of
from reverb._server.table_part import DIVIDED, narrowness, part_of, whole_of
from reverb.cluster import split_table
from reverb.errors import InvalidArgumentError

MAX = sys.float_info.max


def table(limiter=None, sampler=None, **options):
    given = {"sampler": sampler or reverb.selectors.Uniform()}
    given |= {"rate_limiter": limiter} if limiter else {}
    return testing.table(options.pop("name", "t"), **given, **options)


def numbers(max_size=1000, max_bytes=None, **limiter):
    """Settings of a table with these numbers."""
    unbounded = {"samples_per_insert": 1.0, "min_size_to_sample": 1}
    unbounded |= {"min_diff": -MAX, "max_diff": MAX}
    limiter = reverb.rate_limiters.RateLimiter(**unbounded | limiter)
    return table(limiter, max_size=max_size, max_bytes=max_bytes).internal_settings


reals = st.floats(-1e9, 1e9) | st.integers(-(10**9), 10**9).map(float)


@st.composite
def limiters(draw):
    low, high = sorted([draw(reals), draw(reals)])
    spi = draw(st.floats(1e-3, 1e3) | st.integers(1, 64).map(float))
    min_size = draw(st.integers(1, 10**6))
    if draw(st.booleans()):  # As SampleToInsertRatio makes them.
        low, high = spi * min_size - abs(low), spi * min_size + abs(high)
    if draw(st.integers(0, 5)) == 0:
        low = -MAX
    if draw(st.integers(0, 5)) == 0:
        high = MAX
    return {
        "samples_per_insert": spi,
        "min_size_to_sample": min_size,
        "min_diff": low,
        "max_diff": high,
    }


@given(
    limiter=limiters(),
    max_size=st.integers(1, 2**31 - 1),
    max_bytes=st.none() | st.integers(5000, 2**60),
    num_shards=st.integers(1, 70) | st.just(4096),
)
def test_the_parts_keep_what_the_table_promises(limiter, max_size, max_bytes, num_shards):
    whole = numbers(**limiter, max_size=max_size, max_bytes=max_bytes)
    shards = range(num_shards) if num_shards <= 70 else [0, 1, 2000, 4095]
    parts = [part_of(whole, index, num_shards) for index in shards]
    limiters_of_parts = [part.rate_limiter for part in parts]
    assert {part.max_size for part in parts} == {-(-max_size // num_shards)}
    if max_bytes is not None:
        assert num_shards * parts[0].max_bytes <= max_bytes
    assert all(part.min_size_to_sample >= 1 for part in limiters_of_parts)
    low, high = whole.rate_limiter.min_diff, whole.rate_limiter.max_diff
    if low == -MAX:
        assert {part.min_diff for part in limiters_of_parts} == {-MAX}
    if high == MAX:
        assert {part.max_diff for part in limiters_of_parts} == {MAX}
    if len(parts) < num_shards:
        return
    min_sizes = sum(part.min_size_to_sample for part in limiters_of_parts)
    assert min_sizes == max(whole.rate_limiter.min_size_to_sample, num_shards)
    # The parts have their room around cursors, which may be much larger than a bound.
    cursors = limiter["samples_per_insert"] * limiter["min_size_to_sample"]
    error = 1e-9 * max(abs(low), abs(high), 1.0) + 1e-12 * cursors
    if low != -MAX:
        # The sum of the bounds is within the bounds, to the last bit, and not much narrower.
        surplus = math.fsum([*(part.min_diff for part in limiters_of_parts), -low])
        assert 0 <= surplus <= error
    if high != MAX:
        surplus = math.fsum([*(part.max_diff for part in limiters_of_parts), -high])
        assert -error <= surplus <= 0


@given(limiter=limiters(), max_size=st.integers(1, 2**31 - 1), num_shards=st.integers(1, 7))
def test_parts_add_up_to_a_table_that_has_them(limiter, max_size, num_shards):
    whole = numbers(**limiter, max_size=max_size, max_bytes=4096)
    again = whole_of([part_of(whole, index, num_shards) for index in range(num_shards)])
    assert 0 <= again.max_size - max_size < num_shards
    assert 0 <= whole.max_bytes - again.max_bytes < num_shards
    # The parts have their room around cursors, which may be much larger than a bound.
    error = 1e-12 * (1.0 + limiter["samples_per_insert"] * limiter["min_size_to_sample"])
    for name in ("min_diff", "max_diff"):
        found = getattr(again.rate_limiter, name)
        assert found == pytest.approx(limiter[name], rel=1e-9, abs=error)
    for name in {*DIVIDED, "rate_limiter"} & set(whole.DESCRIPTOR.fields_by_name):
        again.ClearField(name)
        whole.ClearField(name)
    assert again == whole


@given(
    spi=st.integers(1, 64),
    min_size=st.integers(1, 10_000),
    buffer=st.integers(1, 10**6),
    num_shards=st.integers(1, 70),
)
def test_whole_numbers_and_free_inserts_stay_in_the_bounds(spi, min_size, buffer, num_shards):
    offset = spi * min_size
    whole = numbers(
        samples_per_insert=float(spi),
        min_size_to_sample=min_size,
        min_diff=float(offset - buffer),
        max_diff=float(offset + buffer),
    )
    parts = [part_of(whole, index, num_shards).rate_limiter for index in range(num_shards)]
    assert all(part.min_diff.is_integer() and part.max_diff.is_integer() for part in parts)
    assert sum(part.min_diff for part in parts) == whole.rate_limiter.min_diff
    assert sum(part.max_diff for part in parts) == whole.rate_limiter.max_diff
    if min_size >= num_shards:
        # A table takes min_size_to_sample items in any case.
        highest = [max(part.max_diff, spi * part.min_size_to_sample) for part in parts]
        assert sum(highest) <= whole.rate_limiter.max_diff


@given(limiter=limiters(), num_shards=st.integers(2, 70))
def test_parts_that_are_accepted_do_not_lock_up(limiter, num_shards):
    whole = numbers(**limiter)
    error, _ = narrowness(whole, num_shards)
    low, high = whole.rate_limiter.min_diff, whole.rate_limiter.max_diff
    if error is not None or low == -MAX or high == MAX:
        return
    spi = whole.rate_limiter.samples_per_insert
    for index in range(num_shards):
        part = part_of(whole, index, num_shards).rate_limiter
        if all(it.is_integer() for it in (spi, low, high)):
            # The largest cursor that no insert may leave lets a sample through.
            assert part.max_diff - spi + 1 - 1 >= part.min_diff
        else:
            assert part.max_diff - spi - 1 >= part.min_diff


@given(limiter=limiters(), num_shards=st.integers(2, 70))
def test_the_number_that_would_do_does(limiter, num_shards):
    whole = numbers(**limiter)
    for text, at in zip(narrowness(whole, num_shards), (0, 1), strict=True):
        if text is None:
            continue
        wanted = float(text.rpartition(" would do")[0].rpartition(" ")[2]) * 1.00001 + num_shards
        wider = numbers(**limiter | {"max_diff": whole.rate_limiter.min_diff + wanted})
        assert narrowness(wider, num_shards)[at] is None
        assert narrowness(wider, num_shards)[0] is None


def test_one_shard_has_the_whole_table():
    ratio = reverb.rate_limiters.SampleToInsertRatio(1.7, 100, 12.3)
    whole = table(ratio, max_size=77, max_bytes="1GiB", seed=3)
    part = split_table(whole, 0, 1)
    assert part is not whole
    assert part.internal_settings == whole.internal_settings
    assert arguments_of(part.internal_settings)["max_bytes"] == 2**30
    assert part.internal_seed == 3


def test_everything_else_is_as_it_was():
    whole = table(
        sampler=reverb.selectors.Prioritized(0.7),
        max_size=10,
        max_times_sampled=3,
        max_bytes=1000,
        when_full="wait",
        seed=2**64 - 1,
        signature=reverb.specs.TensorSpec([None, 2], "float32", "x"),
    )
    part = split_table(whole, 1, 4)
    info, before = part.info, whole.info
    assert (info.name, info.max_size, info.max_times_sampled) == ("t", 3, 3)
    assert (info.sampler_options, info.remover_options, info.signature) == (
        before.sampler_options,
        before.remover_options,
        before.signature,
    )
    assert (
        arguments_of(part.internal_settings).items()
        >= {"max_bytes": 250, "when_full": "wait"}.items()
    )
    assert part.internal_seed == 0, "each shard has another one"
    # The table of the group can be split again, and for the other shards.
    assert split_table(whole, 2, 4).info.max_size == 3


def test_a_queue_keeps_its_size_because_its_limiter_bounds_it():
    # A shard that has more of the room than others holds more items, and must not evict any.
    whole = reverb.Table.queue("q", 10)
    parts = [split_table(whole, index, 4).info for index in range(4)]
    assert {part.max_size for part in parts} == {10}
    assert sorted(part.rate_limiter_info.max_diff for part in parts) == [2.0, 2.0, 3.0, 3.0]
    assert {part.rate_limiter_info.min_diff for part in parts} == {0.0}


def test_a_limiter_that_is_too_fine_is_refused_with_a_number(caplog):
    whole = reverb.Table.queue("q", 3)
    with pytest.raises(InvalidArgumentError) as caught:
        split_table(whole, 0, 4)
    assert str(caught.value) == (
        "the rate limiter of table q is too fine for 4 shards: it lets inserts * "
        "samples_per_insert - samples move by 3 (max_diff - min_diff), 0.75 in each shard, where "
        "it needs 1; 4 would do"
    )
    # A coordinator gives room to shards with waiting calls.
    with caplog.at_level(logging.WARNING, "reverb"):
        split_table(whole, 0, 4, is_coordinated=True)
    assert "4 would do" in caplog.text


def test_a_narrow_limiter_is_warned_of(caplog):
    ratio = reverb.rate_limiters.SampleToInsertRatio(8.0, 1000, 63.0)
    with caplog.at_level(logging.WARNING, "reverb"):
        split_table(table(ratio), 0, 8)
    [record] = caplog.records
    assert record.getMessage() == (
        "the rate limiter of table t is too fine for 8 shards: it lets inserts * "
        "samples_per_insert - samples move by 126 (max_diff - min_diff), 15.75 in each shard, "
        "where 16 would be good; 128 would do, an error_buffer of 64"
    )
    caplog.clear()
    ratio = reverb.rate_limiters.SampleToInsertRatio(8.0, 1000, 64.0)
    with caplog.at_level(logging.WARNING, "reverb"):
        split_table(table(ratio), 0, 8)
    assert caplog.records == []


def test_a_ratio_without_a_coordinator_logs_a_warning(caplog):
    def limiter():
        return reverb.rate_limiters.SampleToInsertRatio(8.0, 1000, 1000.0)

    with caplog.at_level(logging.WARNING, "reverb"):
        split_table(table(limiter(), reverb.selectors.Prioritized(1.0)), 0, 2, is_coordinated=True)
        split_table(table(limiter()), 0, 2)
        split_table(table(sampler=reverb.selectors.Prioritized(1.0)), 0, 2)
        split_table(table(limiter(), reverb.selectors.Prioritized(1.0)), 0, 1)
    assert caplog.records == []
    with caplog.at_level(logging.WARNING, "reverb"):
        split_table(table(limiter(), reverb.selectors.Prioritized(1.0)), 0, 2)
    [record] = caplog.records
    assert record.getMessage().startswith("table t is sampled by priority")


@pytest.mark.parametrize(
    ("index", "num_shards", "text"),
    [
        (0, 0, "num_shards must be from 1 to 4096, got 0"),
        (0, 4097, "num_shards must be from 1 to 4096, got 4097"),
        (-1, 2, "index must be from 0 to 1, which is num_shards - 1, got -1"),
        (2, 2, "index must be from 0 to 1, which is num_shards - 1, got 2"),
    ],
)
def test_a_place_that_is_none_is_refused(index, num_shards, text):
    with pytest.raises(InvalidArgumentError) as caught:
        split_table(table(), index, num_shards)
    assert str(caught.value) == text


def test_a_byte_for_each_shard_is_needed():
    with pytest.raises(InvalidArgumentError, match=r"max_bytes of table t must be at least 8, "):
        split_table(table(max_bytes=7), 0, 8)
