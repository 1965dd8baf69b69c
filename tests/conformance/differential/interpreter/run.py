# SPDX-License-Identifier: Apache-2.0
"""Runs programs, with whichever `reverb` the interpreter imports; see `../README.md`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import imports  # noqa: F401
from calls import answer_calls, offer
from control import CONTROL
from datasets import DATASETS
from patterns import PATTERNS
from servers import RemoteServers
from tensors import TENSORS
from world import SKIPPED, World, attempt
from writing import WRITING

from reading import READING

_STEPS: dict[str, Callable[[World, dict[str, Any]], Any]] = {
    **CONTROL,
    **DATASETS,
    **PATTERNS,
    **READING,
    **TENSORS,
    **WRITING,
}


@offer
def run_program(program: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what each step of a program gave."""
    world = World(program)
    try:
        return [_run(world, step) for step in program["steps"]]
    finally:
        world.close()


@offer
def warm_up() -> None:
    """Starts the process that remote servers live in."""
    RemoteServers().stop_all()


def _run(world: World, step: dict[str, Any]) -> dict[str, Any]:
    world.server = step.get("server", 0)
    outcome = attempt(lambda: _STEPS[step["do"]](world, step))
    return {"skipped": True} if outcome.get("result") == SKIPPED else outcome


if __name__ == "__main__":
    answer_calls()
