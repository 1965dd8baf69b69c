# SPDX-License-Identifier: Apache-2.0
"""The schema of a step: a nest of dtypes and shapes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_DTYPES = [
    "int64",
    "float32",
    "float64",
    "int32",
    "uint8",
    "bool",
    "string",
    "int8",
    "int16",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "complex64",
    "complex128",
]
_SHAPES = [[], [2], [1], [2, 3], [0], [3, 1, 2]]

leaves = st.builds(
    lambda dtype, shape: {"leaf": [dtype, shape]},
    st.sampled_from(_DTYPES),
    st.sampled_from(_SHAPES),
)


def _parts(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, min_size=1, max_size=3)
    return st.one_of(
        names.map(lambda parts: {"dict": parts}),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"list": parts}),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"tuple": parts}),
        names.map(lambda parts: {"named": parts}),
    )


# A single leaf is rare in programs, and so are deep nests.
schemas = st.one_of(
    _parts(leaves),
    _parts(st.one_of(leaves, _parts(leaves))),
    leaves,
)


def count_leaves(schema: Any) -> int:
    """Returns how many leaves a nest has."""
    return len(_leaves_of(schema))


def has_empty_leaf(schema: Any) -> bool:
    """Whether a leaf has no elements."""
    return any(0 in shape for _, shape in _leaves_of(schema))


def has_list(schema: Any) -> bool:
    """Whether a part of the nest is a list."""
    ((kind, content),) = schema.items()
    if kind == "leaf":
        return False
    parts = content.values() if isinstance(content, dict) else content
    return kind == "list" or any(map(has_list, parts))


def _leaves_of(schema: Any) -> list[Any]:
    ((kind, content),) = schema.items()
    if kind == "leaf":
        return [content]
    parts = content.values() if isinstance(content, dict) else content
    return [leaf for part in parts for leaf in _leaves_of(part)]
