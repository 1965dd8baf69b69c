# SPDX-License-Identifier: Apache-2.0
"""Runs programs on both packages, each in a process that is kept while it answers."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import pathlib
from typing import Any

from comparison import Difference, first_difference

from support.package_workers import Worker, WorkerEndedError, WorkerError, WorkerHungError

_INTERPRETER = pathlib.Path(__file__).parent / "interpreter" / "run.py"
_PROGRAM_SECONDS = 12
_START_SECONDS = 120


class Discarded(Exception):
    """The original hung or crashed, or could not run the program: there is nothing to compare."""


@dataclasses.dataclass
class Counts:
    """Counters of a run.

    Attributes:
      programs: Programs that both packages ran to the end.
      discarded: Programs that were not compared, by why.
      features: For each feature how many steps that use it are `done`, `raised` or `skipped`.
    """

    programs: int = 0
    discarded: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    features: dict[str, collections.Counter[str]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(collections.Counter)
    )


class Runner:
    """Two processes and what they ran.

    Attributes:
      counts: Totals of all programs so far.
    """

    def __init__(self, ours: str, peer: str) -> None:
        self.counts = Counts()
        self._pythons = {"peer": peer, "ours": ours}
        self._workers: dict[str, Worker] = {}

    def run(self, program: dict[str, Any]) -> Difference | None:
        """Runs a program on both and returns the first difference.

        Raises:
          Discarded: If the original hung or crashed.
        """
        for package in self._pythons:
            self._worker(package).submit("run_program", program=program)
        theirs, ours = (self._result(package) for package in self._pythons)
        if ours != "crashed" and isinstance(theirs, str):
            both = " and ours too" if ours == theirs else ""
            self.counts.discarded[f"dm-reverb {theirs}{both}"] += 1
            raise Discarded(f"dm-reverb {theirs}{both}")
        if isinstance(ours, str):
            return Difference(len(program["steps"]) - 1, f"ours {ours}", theirs, ours)
        self.counts.programs += 1
        for step, outcome in zip(program["steps"], theirs, strict=True):
            self._count(step, outcome)
        return first_difference(program, theirs, ours)

    def close(self) -> None:
        """Ends the processes."""
        for worker in self._workers.values():
            worker.kill()

    def _worker(self, package: str) -> Worker:
        worker = self._workers.get(package)
        if worker is None or not worker.alive:
            worker = Worker(package, self._pythons[package], _INTERPRETER)
            # Importing TensorFlow twice, here and in the process of the servers, is not the
            # program's time.
            worker.submit("warm_up")
            worker.result(_START_SECONDS)
            self._workers[package] = worker
        return worker

    def _result(self, package: str) -> Any:
        worker = self._workers[package]
        try:
            return worker.result(_PROGRAM_SECONDS)
        except WorkerHungError:
            return "hung"
        except WorkerEndedError:
            return "crashed"
        except WorkerError as error:
            # The servers did not start or stop.
            return f"failed with {error.types[0]}"
        finally:
            with contextlib.suppress(ValueError):
                if not worker.alive:
                    worker.kill()

    def _count(self, step: dict[str, Any], outcome: dict[str, Any]) -> None:
        name, result = step["do"], outcome.get("result")
        inner = result if isinstance(result, dict) and "raised" in result else outcome
        ending = next((state for state in ("skipped", "raised") if state in inner), "done")
        for feature in features(step):
            self.counts.features[feature][ending] += 1
        parts = result["parts"] if isinstance(result, dict) and "parts" in result else []
        for call, part in zip(step.get("body", []), parts, strict=False):
            ending = "raised" if "raised" in part else "done"
            self.counts.features[f"{name}: {call[0]}"][ending] += 1


def features(step: dict[str, Any]) -> list[str]:
    """Returns the names of what a step exercises."""
    name = step["do"]
    found = [name]
    if name == "dataset":
        found = [f"{step['kind']} {step['mode']}", f"specs {step['specs']}"]
        found += [f"{step['kind']} {stage[0]}" for stage in step["pipeline"]]
        found += [f"dataset {option}" for option in step["options"]]
        found += [f"interleave of {step['sources']}"] if step["interleave"] else []
    return found
