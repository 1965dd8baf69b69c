# SPDX-License-Identifier: Apache-2.0
"""How selectors are made and copied; what they pick is tested in the engine."""

import functools

import pytest

from reverb import item_selectors
from reverb.core import protos
from reverb.errors import InvalidArgumentError, UnimplementedError


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (item_selectors.Fifo(), "FifoSelector"),
        (item_selectors.Lifo(), "LifoSelector"),
        (item_selectors.Uniform(), "UniformSelector"),
        (item_selectors.Prioritized(0.8), "PrioritizedSelector(priority_exponent=0.8)"),
        (item_selectors.MinHeap(), "HeapSelector(sign=1)"),
        (item_selectors.MaxHeap(), "HeapSelector(sign=-1)"),
    ],
    ids=repr,
)
def test_repr(selector, text):
    assert repr(selector) == text


def test_the_exponent_may_be_named():
    assert repr(item_selectors.Prioritized(priority_exponent=1)).endswith("=1)")


def test_the_exponent_is_required():
    with pytest.raises(TypeError):
        item_selectors.Prioritized()


def test_heaps_are_no_classes():
    assert isinstance(item_selectors.MinHeap, functools.partial)
    assert isinstance(item_selectors.MaxHeap, functools.partial)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fifo": True}, "FifoSelector"),
        ({"lifo": True}, "LifoSelector"),
        ({"uniform": True}, "UniformSelector"),
        ({"prioritized": {"priority_exponent": 0.5}}, "PrioritizedSelector(priority_exponent=0.5)"),
        ({"heap": {"min_heap": True}}, "HeapSelector(sign=1)"),
        ({"heap": {}}, "HeapSelector(sign=-1)"),
    ],
)
def test_options_describe_a_selector(options, text):
    message = protos.KeyDistributionOptions(**options)
    assert repr(item_selectors.from_options(message)) == text


def test_empty_options_describe_none():
    with pytest.raises(UnimplementedError, match="must be one of"):
        item_selectors.from_options(protos.KeyDistributionOptions())


def test_a_false_option_describes_none():
    with pytest.raises(InvalidArgumentError, match="fifo must be true, got false"):
        item_selectors.from_options(protos.KeyDistributionOptions(fifo=False))
