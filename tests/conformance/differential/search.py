# SPDX-License-Identifier: Apache-2.0
"""Lets hypothesis write programs until two packages differ, and makes what differs small."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import hypothesis
from comparison import Difference
from runner import Discarded, Runner
from strategies import programs

# Making a program smaller ends after this long, with the smallest one so far.
_SHRINK_SECONDS = 120


class _DiffersError(Exception):
    """Makes hypothesis look for a smaller program of the same kind."""


def search(
    runner: Runner, count: int, seed: int, known: set[str], discarded: list[Any] | None = None
) -> tuple[dict[str, Any], Difference] | None:
    """Runs `count` random programs, fewer if one differs in a way that is not `known`.

    Returns:
      The smallest program found that differs so, and how.
    """
    found: list[tuple[dict[str, Any], Difference]] = []
    deadline: list[float] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        suppress_health_check=list(hypothesis.HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
        report_multiple_bugs=False,
    )
    @hypothesis.given(programs())
    def run(program: dict[str, Any]) -> None:
        if deadline and time.monotonic() > deadline[0]:
            return
        try:
            difference = runner.run(program)
        except Discarded as reason:
            if discarded is not None:
                discarded.append((str(reason), program))
            return
        if difference is None or difference.kind in known:
            return
        if found and difference.kind != found[0][1].kind:
            return
        found.append((program, difference))
        deadline[:] = deadline or [time.monotonic() + _SHRINK_SECONDS]
        raise _DiffersError

    # Out of time, hypothesis misses the failure when it runs the smallest program once more.
    with contextlib.suppress(_DiffersError, hypothesis.errors.Flaky):
        run()
    return found[-1] if found else None
