# SPDX-License-Identifier: Apache-2.0
"""The startup time of a program."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Mapping

import measure

from cases.case import Case, Metric

_PROGRAM = "import time; t = time.perf_counter(); import reverb; print(time.perf_counter() - t)"
_IMPORTS = 5


def _import_time(scale: measure.Scale) -> Mapping[str, measure.Figure]:
    imports = 3 if scale.quick else _IMPORTS
    # The first import reads the files from disk, the others from memory; only those count.
    seconds = [_import_once() for _ in range(1 + imports)][1:]
    return {"seconds": measure.Figure(statistics.median(seconds), operations=imports)}


def _import_once() -> float:
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, text=True, check=True
    )
    return float(result.stdout.split()[-1])


CASES = (
    Case(
        "import",
        "import reverb in a fresh interpreter, NumPy included.",
        _import_time,
        (Metric("seconds", "s", lower_is_better=True, limit=0.3),),
    ),
)
