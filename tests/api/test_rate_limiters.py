# SPDX-License-Identifier: Apache-2.0
"""Arguments of the rate limiters; what they do to a table is tested in the engine."""

import logging
import sys

import numpy as np
import pytest

from reverb import rate_limiters
from reverb.errors import InvalidArgumentError

RATIO = rate_limiters.SampleToInsertRatio


def parameters(limiter):
    return (
        limiter._samples_per_insert,
        limiter._min_size_to_sample,
        limiter._min_diff,
        limiter._max_diff,
    )


def test_repr_names_the_parameters():
    limiter = rate_limiters.Queue(5)
    assert repr(limiter) == (
        "RateLimiter(samples_per_insert=1, min_diff_=0, max_diff=5, min_size_to_sample=1)"
    )


def test_min_size_never_delays_an_insert():
    largest = sys.float_info.max
    assert parameters(rate_limiters.MinSize(3)) == (1.0, 3, -largest, largest)


@pytest.mark.parametrize("limiter", [rate_limiters.Queue, rate_limiters.Stack])
def test_queue_and_stack_hold_size_items(limiter):
    assert parameters(limiter(7)) == (1.0, 1, 0.0, 7.0)


@pytest.mark.parametrize(
    "error_buffer",
    [4.0, 4, np.float64(4), np.float32(4), np.int64(4), np.int32(4)],
    ids=lambda value: type(value).__name__,
)
def test_a_scalar_error_buffer_lies_around_the_offset(error_buffer):
    limiter = rate_limiters.SampleToInsertRatio(2.0, 3, error_buffer)
    assert parameters(limiter) == (2.0, 3, 2.0, 10.0)


def test_a_pair_is_taken_as_it_is():
    limiter = rate_limiters.SampleToInsertRatio(1.5, 100, (10.0, sys.float_info.max))
    assert parameters(limiter) == (1.5, 100, 10.0, sys.float_info.max)


WRONG = [
    *(
        (rate_limiters.RateLimiter, (it, 1, 0.0, 1.0), "must be finite and greater than 0")
        for it in (0, -1.0, float("nan"))
    ),
    (rate_limiters.RateLimiter, (1.0, 0, 0.0, 1.0), "min_size_to_sample must be at least 1, got 0"),
    (rate_limiters.RateLimiter, (1.0, 1, float("nan"), 1.0), "min_diff must be a number, got NaN"),
    (rate_limiters.MinSize, (-1,), "min_size_to_sample must be at least 1, got -1"),
    (RATIO, (0, 1, 10.0), "samples_per_insert must be greater than 0"),
    (RATIO, (-1.0, 1, 10.0), "samples_per_insert must be greater than 0"),
    (RATIO, (1.0, 0, (-10.0, 10.0)), "min_size_to_sample must be at least 1, got 0"),
    # A margin too narrow to move.
    (RATIO, (1.0, 10, 0.9), "size of error_buffer must be at least"),
    (RATIO, (4.0, 10, 3.9), "size of error_buffer must be at least"),
    (RATIO, (0.5, 10, 0.9), "size of error_buffer must be at least"),
    (RATIO, (4.0, 10, (1.0, 8.9)), "size of error_buffer must be at least"),
    (RATIO, (1.0, 10, (11.0, 100.0)), r"min_diff must be at most .* = 10\.0, got 11"),
]


@pytest.mark.parametrize(("kind", "arguments", "text"), WRONG)
def test_a_wrong_number_is_named(kind, arguments, text):
    with pytest.raises(InvalidArgumentError, match=text):
        kind(*arguments)


def test_min_size_to_sample_must_be_an_integer():
    with pytest.raises(TypeError):
        rate_limiters.RateLimiter(1.0, 1.5, 0.0, 1.0)
    assert rate_limiters.RateLimiter(1.0, np.int64(2), 0.0, 1.0)._min_size_to_sample == 2


def test_the_narrowest_margin_is_accepted():
    rate_limiters.SampleToInsertRatio(4.0, 10, 4.0)


def test_a_max_diff_under_the_offset_is_warned_about(caplog):
    with caplog.at_level(logging.WARNING, logger="reverb"):
        rate_limiters.SampleToInsertRatio(1.0, 10, (0.0, 5.0))
    assert "writers wait until the table is sampled" in caplog.text
