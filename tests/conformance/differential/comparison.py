# SPDX-License-Identifier: Apache-2.0
"""Whether two packages gave the same for a step of a program."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class Difference:
    """The first step of a program for which the packages gave something else.

    Attributes:
      step: The step's position in the program.
      kind: The kind of the difference, such as `dataset eager: elements`.
      theirs: The result of dm-reverb.
      ours: The result of this package.
    """

    step: int
    kind: str
    theirs: Any
    ours: Any


def first_difference(
    program: dict[str, Any], theirs: list[dict[str, Any]], ours: list[dict[str, Any]]
) -> Difference | None:
    """Compares the outcomes of a program step by step.

    It ends where a structured writer refuses an item that does not fit the signature of its table,
    and that dm-reverb stores: from there on, the tables differ.
    """
    for number, step in enumerate(program["steps"]):
        what = _difference(theirs[number], ours[number])
        if what == "part no error is SignatureMismatchError" and step["do"] == "write_structured":
            return None
        if what:
            kind = ": ".join([_name(step), what])
            return Difference(number, kind, theirs[number], ours[number])
    return None


def _name(step: dict[str, Any]) -> str:
    return " ".join(str(step[key]) for key in ("do", "kind", "mode", "what") if key in step)


def _difference(theirs: Any, ours: Any) -> str:
    """Returns a name of what differs, or nothing."""
    for state in ("skipped", "raised"):
        if (state in theirs) != (state in ours):
            names = [_first(outcome) for outcome in (theirs, ours)]
            return f"{names[0]} is {names[1]}"
    if "raised" in theirs and _is_documented_differently(theirs):
        return "" if "ValueError" in ours["raised"] else f"{theirs['raised'][0]} stays"
    if "raised" in theirs and not same_class(theirs["raised"], ours["raised"]):
        return f"{theirs['raised'][0]} is {ours['raised'][0]}"
    a, b = theirs.get("result"), ours.get("result")
    if isinstance(a, dict) and isinstance(b, dict) and ("elements" in a or "parts" in a):
        return _difference_of_elements(a, b)
    return "" if a == b else "result"


def _difference_of_elements(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    what = _difference({**theirs, "result": None}, {**ours, "result": None})
    if what:
        return what
    for theirs_part, ours_part in zip(theirs.get("parts", []), ours.get("parts", []), strict=True):
        what = _difference(theirs_part, ours_part)
        if what:
            return f"part {what}"
    for key in sorted(theirs.keys() | ours.keys()):
        if key not in ("raised", "text", "parts") and theirs.get(key) != ours.get(key):
            return key
    return ""


def _first(outcome: dict[str, Any]) -> str:
    return "skipped" if "skipped" in outcome else outcome.get("raised", ["no error"])[0]


def _is_documented_differently(theirs: dict[str, Any]) -> bool:
    """Whether the original raises something else than its documentation says (D-30)."""
    return theirs["raised"][0] == "TypeError" and theirs["text"] == "len() of unsized object"


def same_class(theirs: list[str], ours: list[str]) -> bool:
    """Whether a handler of their exception catches ours: `tf.errors` exactly."""
    if theirs[0].startswith("tensorflow."):
        return theirs[0] == ours[0]
    return theirs[0] in ours
