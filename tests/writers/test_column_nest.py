# SPDX-License-Identifier: Apache-2.0
"""How the structures of steps grow together into the structure of a history."""

import collections
import types

import attr
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tree

from reverb._nests import column_nest, flat
from reverb.errors import InvalidArgumentError

Point = collections.namedtuple("Point", ["x", "y"])


def union(*steps):
    known = ()
    for step in steps:
        known = column_nest.merge(known, step)
    return known


def paths(nest):
    """The nest with every column's path, as a string, in its place."""
    return column_nest.map_columns(lambda column: "/".join(map(str, column.path)), nest)


@attr.s
class Attributes:
    first = attr.ib()
    second = attr.ib()


LEAVES = st.sampled_from([None, 1, 2.5, "text", b"bytes", np.zeros(3)])
NESTS = st.recursive(
    LEAVES,
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.builds(Point, children, children),
        st.builds(Attributes, children, children),
        st.dictionaries(st.sampled_from("abc"), children, max_size=3),
        st.dictionaries(st.sampled_from("abc"), children).map(collections.OrderedDict),
        st.dictionaries(st.sampled_from("abc"), children).map(types.MappingProxyType),
        st.dictionaries(st.integers(0, 3), children, max_size=3),
    ),
    max_leaves=8,
)


@hypothesis.given(NESTS)
def test_nests_are_flat_as_trees_are(nest):
    found, expected = flat.flatten_with_path(nest), tree.flatten_with_path(nest)
    assert [path for path, _ in found] == [path for path, _ in expected]
    assert all(a is b for (_, a), (_, b) in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([1], ""),
        ([{"a": 1}], {"a": "a"}),
        ([{"a": 1}, {"b": 1}], {"a": "a", "b": "b"}),
        ([{"a": {"x": 1}}, {"a": {"y": 1}, "b": 2}], {"a": {"x": "a/x", "y": "a/y"}, "b": "b"}),
        ([[1], [1, 2]], ["0", "1"]),
        ([(1,), [1, {"a": 2}]], ("0", {"a": "1/a"})),
        ([[1, 2], (1,)], ["0", "1"]),
        ([{"a": 1, "b": 2}, {}], {"a": "a", "b": "b"}),
        ([Point(1, None), Point(None, 2)], Point("x", "y")),
        ([Point(1, 2), {"y": 1}], Point("x", "y")),
        ([Point({"a": 1}, 2), Point({"b": 1}, 2)], Point({"a": "x/a", "b": "x/b"}, "y")),
        ([{"extras": ()}, {"extras": 1}], {"extras": "extras"}),
        ([{"extras": ()}, {"extras": {"a": 1}}], {"extras": {"a": "extras/a"}}),
        ([{"extras": 1}, {"extras": ()}], {"extras": "extras"}),
        ([{}, {"a": None}], {"a": "a"}),
        ([{1: 2}, {3: 4}], {1: "1", 3: "3"}),
    ],
)
def test_steps_grow_together(steps, expected):
    merged = paths(union(*steps))
    assert merged == expected
    tree.assert_same_structure(merged, expected)


def test_keys_stay_in_the_order_in_which_they_came():
    assert list(union({"b": 1}, {"c": 1, "a": 1})) == ["b", "c", "a"]


def test_containers_keep_their_type():
    default = collections.defaultdict(list, a=1)
    ordered = collections.OrderedDict(a=1)
    assert isinstance(union(default, {"b": 1}), collections.defaultdict)
    assert isinstance(union(ordered, {"b": 1}), collections.OrderedDict)
    assert isinstance(union(Point(1, 2)), Point)


def test_nothing_new_is_the_same_object():
    known = union({"a": [1, 2], "b": {"c": 1}})
    assert column_nest.merge(known, {"b": {"c": np.zeros(3)}, "a": (None,)}) is known


def test_paths_are_those_of_tree():
    step = {"b": Point(1, [2, {"c": 3}]), "a": (4,)}
    found = [column.path for column in tree.flatten(union(step))]
    assert found == [path for path, _ in tree.flatten_with_path(step)]


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({"a": 1}, {"a": {"b": 1}}, r"column \('a',\) holds single values since the first step"),
        ({"a": {"b": 1}}, {"a": 1}, r"\('a',\) is a nest of columns .* leave the whole field out"),
        ({"a": [1]}, {"a": None}, r"\('a',\) is a nest of columns"),
        ([1], {"a": 1}, r"the list at \(\) cannot hold the fields \[0, 'a'\]"),
        (Point(1, 2), {"z": 1}, r"the Point at \(\) cannot hold the fields \['x', 'y', 'z'\]"),
    ],
)
def test_what_does_not_fit_is_refused(first, second, text):
    known = union(first)
    with pytest.raises(InvalidArgumentError, match=text):
        column_nest.merge(known, second)
