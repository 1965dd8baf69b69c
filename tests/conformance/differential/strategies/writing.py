# SPDX-License-Identifier: Apache-2.0
"""Steps that write items, all but those of structured writers."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from strategies.schemas import count_leaves
from strategies.tables import priorities

_numbers = st.integers(0, 9)


@st.composite
def wrongs(draw: st.DrawFn) -> dict[str, Any]:
    """Returns another dtype or shape of the first leaf.

    Of a later one, the original keeps what came before it in the step that failed (D-18).
    """
    return {
        "leaf": 0,
        **draw(st.sampled_from([{"dtype": "uint16"}, {"shape": [4]}])),
    }


def rarely(strategy: st.SearchStrategy[Any], nothing: Any = None) -> st.SearchStrategy[Any]:
    """Returns a strategy that seldom gives what another one does."""
    return st.integers(0, 19).flatmap(lambda n: strategy if n == 19 else st.just(nothing))


@st.composite
def inserts(draw: st.DrawFn, names: list[str], schema: Any) -> dict[str, Any]:
    """Returns a `Client.insert` into one or more tables."""
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    step = {
        "do": "insert",
        "number": draw(_numbers),
        "priorities": [[name, draw(priorities)] for name in chosen],
    }
    wrong = draw(rarely(wrongs()))
    return {**step, "wrong": wrong} if wrong else step


@st.composite
def tf_inserts(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    """Returns a `TFClient.insert` into one or more tables."""
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2))
    return {
        "do": "tf_insert",
        "number": draw(_numbers),
        "mode": draw(st.sampled_from(["eager", "function", "session"])),
        "tables": chosen,
        "priorities": [draw(priorities) for _ in chosen],
    }


@st.composite
def legacy_writers(
    draw: st.DrawFn, names: list[str], schema: Any, length: int | None
) -> dict[str, Any]:
    """Returns the life of a `Client.writer`.

    Its steps are as the schema says: another dtype or shape is noticed with the step here, and when
    a chunk is full there.
    """
    longest = draw(st.integers(length or 1, 6))
    options = {
        "max_sequence_length": longest,
        "chunk_length": draw(st.one_of(st.none(), st.integers(1, longest))),
        "delta_encoded": draw(st.booleans()),
    }
    if draw(st.booleans()):
        options["max_in_flight_items"] = draw(st.sampled_from([1, 2, None]))
    body: list[list[Any]] = [["append_sequence", draw(_numbers), length or 1]]
    # An item over steps that a short chunk dropped is a defect that is not copied (D-13).
    steps = length or 1
    for _ in range(draw(st.integers(1, 9))):
        name = draw(st.sampled_from(["append"] * 3 + ["create_item"] * 4 + ["sequence", "flush"]))
        if name == "flush":
            body.append(["flush"])
            steps = 0
        elif name == "sequence":
            count = draw(st.integers(1, 3))
            body.append(["append_sequence", draw(_numbers), count])
            steps += count
        elif name == "create_item" and steps:
            most = min(steps, longest)
            taken = draw(st.integers(1, most)) if length is None else min(length, most)
            body.append([name, draw(st.sampled_from(names)), taken, draw(priorities)])
        else:
            body.append(["append", draw(_numbers)])
            steps += 1
    return {"do": "write", "options": options, "body": body, "with": draw(st.booleans())}


@st.composite
def indices(draw: st.DrawFn, *, contiguous: bool, length: int) -> list[Any]:
    """Returns what a history of about `length` steps may be asked for."""
    kinds = ["last", "last", "last", "range", "int"]
    kind = draw(st.sampled_from(kinds if contiguous else [*kinds, "stride", "list"]))
    start = draw(st.integers(1, max(1, length)))
    if kind == "int":
        return ["int", -start]
    if kind == "list":
        # The original fails at a step that is referenced twice, whatever the chunk length (D-04).
        positions = st.integers(-start, -1)
        return ["list", draw(st.lists(positions, min_size=1, max_size=4, unique=True))]
    if kind == "range" and start > 1:
        return ["slice", -start, -draw(st.integers(1, start - 1))]
    return ["slice", -start, None, *([2] if kind == "stride" else [])]


@st.composite
def trajectory_writers(
    draw: st.DrawFn, names: list[str], schema: Any, length: int | None
) -> dict[str, Any]:
    """Returns the life of a `Client.trajectory_writer`."""
    kept = draw(st.integers(length or 1, 6))
    count = count_leaves(schema)
    # All columns alike: a column's own number of references is a defect of the original (D-20).
    chunks = draw(st.one_of(st.none(), st.integers(1, kept)))
    options = {"num_keep_alive_refs": kept, "max_chunk_length": chunks}
    configure = [] if chunks is None else [[leaf, options] for leaf in range(count)]
    # In longer chunks the original stores gaps as runs (D-04), and failed appends stay (D-18).
    short = chunks in (None, 1)
    steps = length or draw(st.integers(1, 3))
    body: list[list[Any]] = [["append", draw(_numbers), {}] for _ in range(steps)]
    for _ in range(draw(st.integers(1, 9))):
        name = draw(
            st.sampled_from(
                ["append"] * 5 + ["create_item"] * 7 + ["partial", "flush", "end_episode", "look"]
            )
        )
        index = indices(contiguous=not short, length=min(kept, steps))
        leaf = st.integers(0, count - 1)
        if name == "create_item" and steps:
            mixed = st.lists(st.tuples(leaf, index).map(list), min_size=1, max_size=3)
            whole = index if length is None else st.just(["slice", -length, None])
            columns = draw(st.one_of(*[whole] * 7, mixed))
            body.append([name, draw(st.sampled_from(names)), draw(priorities), columns])
        elif name == "look" and steps:
            body.append([name, draw(leaf), draw(index)])
        elif name == "partial" and count > 1:
            # The step is closed at once: an open one at an episode's end is D-15.
            late = draw(leaf)
            early = [other for other in range(count) if other != late]
            number = draw(_numbers)
            body.append(["append", number, {"omit": [late], "partial_step": True}])
            body.append(["append", number, {"omit": early}])
            steps += 1
        elif name == "flush":
            body.append([name])
        elif name == "end_episode":
            clear = draw(st.booleans())
            body += [["episode_steps"], [name, clear]]
            steps = 0 if clear else steps
        else:
            wrong = draw(rarely(wrongs())) if short else None
            left = draw(rarely(st.lists(leaf, min_size=1, max_size=1)))
            more = {**({"wrong": wrong} if wrong else {}), **({"omit": left} if left else {})}
            body.append(["append", draw(_numbers), more])
            steps += 1
    return {
        "do": "write_trajectory",
        "options": {"num_keep_alive_refs": kept, "validate_items": draw(st.booleans())},
        "configure": configure,
        "body": body,
        "with": draw(st.booleans()),
    }
