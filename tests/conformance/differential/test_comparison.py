# SPDX-License-Identifier: Apache-2.0
"""The definition of a difference, and the shrinking of programs that differ. Needs no peer."""

import pytest
from comparison import Difference, first_difference, same_class
from script import describe
from search import random_program, shrink


def program(*steps):
    table = {"name": "t0", "make": "queue", "max_size": 5, "signature": None}
    schema = {"leaf": ["int64", []]}
    return {
        "place": "remote",
        "servers": 1,
        "schema": schema,
        "tables": [table],
        "steps": list(steps),
    }


def raised(*classes):
    return {"raised": list(classes), "text": ""}


@pytest.mark.parametrize(
    ("theirs", "ours", "same"),
    [
        (["ValueError"], ["SignatureMismatchError", "ReverbError", "ValueError"], True),
        (["ValueError"], ["RuntimeError"], False),
        (["tensorflow.NotFoundError"], ["tensorflow.NotFoundError"], True),
        (["tensorflow.OpError"], ["tensorflow.NotFoundError", "tensorflow.OpError"], False),
    ],
)
def test_their_classes_may_have_subclasses_except_tensorflows(theirs, ours, same):
    assert same_class(theirs, ours) == same


@pytest.mark.parametrize(
    ("theirs", "ours", "kind"),
    [
        ({"result": 1}, {"result": 2}, "reset: result"),
        ({"result": 1}, raised("ValueError"), "reset: no error is ValueError"),
        (raised("ValueError"), {"skipped": True}, "reset: ValueError is skipped"),
        (raised("ValueError"), raised("IndexError"), "reset: ValueError is IndexError"),
        (
            {"result": {"parts": [{"result": 1}, raised("ValueError")]}},
            {"result": {"parts": [{"result": 1}, {"result": 2}]}},
            "reset: part ValueError is no error",
        ),
        (
            {"result": {"elements": [1], "spec": 2}},
            {"result": {"elements": [1, 1], "spec": 2}},
            "reset: elements",
        ),
    ],
)
def test_the_first_step_that_differs_is_named(theirs, ours, kind):
    step = {"do": "reset", "table": "t0"}
    same = {"result": None}
    difference = first_difference(program(step, step), [same, theirs], [same, ours])
    assert (difference.step, difference.kind) == (1, kind)
    assert first_difference(program(step), [theirs], [theirs]) is None
    assert f"{kind}, at step 1 of:" in describe(program(step, step), difference)


def test_random_programs_are_the_same_for_the_same_number():
    assert random_program(3, 7) == random_program(3, 7)
    assert random_program(3, 7) != random_program(3, 8)


class Sums:
    """Stands for both packages: they differ at the step by which three ones were seen."""

    def run(self, program):
        seen = 0
        for number, step in enumerate(program["steps"]):
            seen += step["body"].count([1])
            if seen >= 3:
                return Difference(number, "three", None, None)
        return None


def test_shrinking_leaves_what_makes_the_difference():
    steps = [[[1], [0]], [[0]], [[0], [1], [0], [1]], [[1], [1]], [[0]]]
    large = program(*({"do": "write", "body": body} for body in steps))
    small, difference = shrink(Sums(), large, Sums().run(large))
    assert [step["body"] for step in small["steps"]] in ([[[1]], [[1], [1]]], [[[1], [1]], [[1]]])
    assert difference.kind == "three"


def test_items_that_only_this_package_refuses_end_the_comparison():
    refused = {"raised": ["SignatureMismatchError", "ValueError"], "text": "column b must have"}
    stored = {"result": {"parts": [{"result": False}]}}
    ours = {"result": {"parts": [refused]}}
    later = {"result": 1}, {"result": 2}
    steps = [{"do": "write_structured"}, {"do": "size"}]
    found = first_difference({"steps": steps}, [stored, later[0]], [ours, later[1]])
    assert found is None
    for steps in ([{"do": "write"}, {"do": "size"}], [{"do": "size"}, {"do": "write_structured"}]):
        assert first_difference({"steps": steps}, [stored, later[0]], [ours, later[1]])
