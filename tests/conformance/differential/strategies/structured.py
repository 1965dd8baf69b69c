# SPDX-License-Identifier: Apache-2.0
"""Steps that write with structured writers, and the configs of pattern datasets."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from strategies.schemas import count_leaves
from strategies.tables import priorities
from strategies.writing import rarely, wrongs

_numbers = st.integers(0, 9)


@st.composite
def _keys(draw: st.DrawFn, *, strides: bool) -> list[Any]:
    start = draw(st.integers(1, 4))
    kind = draw(st.sampled_from(["last", "last", "int", "range", *["stride"] * strides]))
    if kind == "int":
        return ["int", -start]
    if kind == "range" and start > 1:
        return ["slice", -start, -draw(st.integers(1, start - 1))]
    return ["slice", -start, None, *([2] if kind == "stride" else [])]


@st.composite
def _conditions(draw: st.DrawFn, leaves: int) -> list[Any]:
    name = draw(
        st.sampled_from(
            ["step_index", "steps_since_applied", "is_end_episode", "data", "buffer_length"]
        )
    )
    if name == "is_end_episode":
        return [name]
    if name in ("data", "buffer_length"):
        name = f"data {draw(st.integers(0, leaves - 1))}"
    modulus = draw(st.one_of(st.none(), st.integers(2, 3)))
    # The original forgets the modulo of the other comparisons (D-23).
    signs = ["==", "!="] if modulus else ["==", "!=", ">=", ">", "<=", "<"]
    return [name, modulus, draw(st.sampled_from(signs)), draw(st.integers(0, 3))]


@st.composite
def configs(
    draw: st.DrawFn, names: list[str], schema: Any, length: int | None, *, strides: bool
) -> dict[str, Any]:
    """Returns one config; `strides`: whether its pattern may leave steps out."""
    leaves = count_leaves(schema)
    key = _keys(strides=strides)
    leaf = st.integers(0, leaves - 1)
    some = st.lists(st.tuples(leaf, key).map(list), min_size=1, max_size=3)
    weight = st.tuples(st.sampled_from([0.9, 0.5]), leaf).map(list)
    return {
        "table": draw(st.sampled_from(names)),
        "pattern": draw(st.one_of(key, key, some)) if length is None else ["slice", -length, None],
        "conditions": draw(st.lists(_conditions(leaves), max_size=2)),
        "priority": draw(st.one_of(st.none(), priorities, rarely(weight))),
    }


@st.composite
def structured_writers(
    draw: st.DrawFn, names: list[str], schema: Any, length: int | None
) -> dict[str, Any]:
    """Returns the life of a `Client.structured_writer`."""
    leaves = count_leaves(schema)
    amount = draw(st.integers(1, 2))
    # Beyond ten items the original tunes its chunks, and stores gaps as runs then (D-04).
    calls = draw(st.integers(2, 9))
    strides = amount * calls < 9
    chosen = [draw(configs(names, schema, length, strides=strides)) for _ in range(amount)]
    body: list[list[Any]] = []
    for _ in range(calls):
        name = draw(st.sampled_from(["append"] * 6 + ["flush", "end_episode", "partial"]))
        if name == "flush":
            body.append([name])
        elif name == "end_episode":
            body.append([name, draw(st.booleans())])
        elif name == "partial" and leaves > 1:
            late = draw(st.integers(0, leaves - 1))
            number = draw(_numbers)
            early = [other for other in range(leaves) if other != late]
            body.append(["append", number, {"omit": [late], "partial_step": True}])
            body.append(["append", number, {"omit": early}])
        else:
            wrong = draw(rarely(wrongs()))
            body.append(["append", draw(_numbers), {"wrong": wrong} if wrong else {}])
    return {"do": "write_structured", "configs": chosen, "body": body}


@st.composite
def pattern_datasets(draw: st.DrawFn, schema: Any, length: int | None) -> dict[str, Any]:
    """Returns a `PatternDataset`.

    It has one config, or two of the same pattern: the original leaks the length of a pattern into
    later configs (D-17). Nor has it strides, whose shape 0.14 infers wrongly.
    """
    one = draw(configs(["t"], schema, length, strides=False))
    two = {**one, "conditions": draw(st.lists(_conditions(count_leaves(schema)), max_size=1))}
    numbers = draw(st.lists(_numbers, min_size=1, max_size=9))
    return {
        "do": "pattern_dataset",
        "configs": draw(st.sampled_from([[one], [one], [one, two]])),
        "numbers": numbers,
        "ends": draw(st.lists(st.sampled_from(numbers), max_size=2)),
        "respect": draw(st.booleans()),
        "with_info": draw(st.booleans()),
        "pipeline": draw(
            st.sampled_from([[], [], [["batch", 2]], [["take", 3], ["batch", 2, True]]])
        ),
    }
