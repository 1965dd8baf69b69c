# SPDX-License-Identifier: Apache-2.0
"""Writes random programs, and makes one on which two packages differ small."""

from __future__ import annotations

import contextlib
import copy
import random
import time
from collections.abc import Iterator
from typing import Any

import hypothesis
from comparison import Difference
from runner import Discarded, Runner
from strategies import programs

# Making a program smaller ends after this long, with the smallest one so far.
_SHRINK_SECONDS = 60
# Number of bytes from which a program is generated; a long one needs a few thousand.
_RANDOM_BYTES = 16_384


def random_program(seed: int, number: int) -> dict[str, Any]:
    """Returns program `number` of a seed."""
    made: list[dict[str, Any]] = []

    # Hypothesis' own search tries many variants of few programs, which finds less than as many
    # different ones: each is made of random bytes of its own.
    @hypothesis.settings(database=None, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(programs())
    def test(program: dict[str, Any]) -> None:
        made.append(program)

    generator = random.Random(f"{seed} {number}")
    # Some bytes make no program.
    while not made:
        test.hypothesis.fuzz_one_input(generator.randbytes(_RANDOM_BYTES))
    return made[0]


def shrink(
    runner: Runner, program: dict[str, Any], difference: Difference
) -> tuple[dict[str, Any], Difference]:
    """Returns the smallest program found that differs in the same way.

    Steps, calls of writers and stages of pipelines are left out as long as it does. Nothing else
    changes: other values could be such that the original's defects show.
    """
    deadline = time.monotonic() + _SHRINK_SECONDS
    shorter = True
    while shorter:
        shorter = False
        for candidate in _without_one_part(program, difference.step):
            if time.monotonic() > deadline:
                return program, difference
            with contextlib.suppress(Discarded):
                found = runner.run(candidate)
                if found is not None and found.kind == difference.kind:
                    program, difference = candidate, found
                    shorter = True
                    break
    return program, difference


def _without_one_part(program: dict[str, Any], last: int) -> Iterator[dict[str, Any]]:
    if last + 1 < len(program["steps"]):
        yield {**program, "steps": program["steps"][: last + 1]}
        return
    for number in reversed(range(last)):
        candidate = copy.deepcopy(program)
        del candidate["steps"][number]
        yield candidate
    for number, step in enumerate(program["steps"]):
        for part in ("pipeline", "body", "configs"):
            for position in reversed(range(len(step.get(part, [])))):
                candidate = copy.deepcopy(program)
                del candidate["steps"][number][part][position]
                if candidate["steps"][number][part] or part != "configs":
                    yield candidate
